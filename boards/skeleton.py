"""Templates of board files, for `smelt board new`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from smelt.boards.board import load, parse
from smelt.boards.schema import Runner, UartDriver
from smelt.codegen.text.parameters import Parameters
from smelt.codegen.text.render import render
from smelt.errors import ConfigError
from smelt.targets import get

_NAME = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True, kw_only=True)
class SkeletonParameters(Parameters):
    """Variables of `board/skeleton.toml.j2`: values in TOML syntax.

    `drivers` and `runners` list all possible names.
    """

    name: str
    description: str
    target: str
    riscv: bool
    path: str
    clock_hz: str
    stack: str
    flash_origin: str
    flash_size: str
    ram_origin: str
    ram_size: str
    driver: str
    drivers: str
    uart_base: str
    uart_irq: int
    runners: str


def check_name(name: str) -> None:
    """Check that a board can have that name.

    Raises:
        ConfigError: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"'{name}' cannot be a board's name: use lower-case letters, digits, `-` and `_`, "
            "beginning with a letter, for example my-board"
        )


def skeleton(name: str, target: str, path: Path) -> str:
    """Return the text of a new board file for a target, with values that the user must adapt.

    Args:
        name: name of the board.
        target: name of the target of its core.
        path: path that the file will have, for its comments.

    Raises:
        ConfigError: there is no such target, or it has no bare-metal firmware.
    """
    chosen = get(target)
    if not chosen.cross:
        raise ConfigError(f"target '{target}' is not a microcontroller; see `smelt targets`")
    riscv = chosen.is_riscv
    parameters = SkeletonParameters(
        name=name,
        description=f"{name}: {chosen.description}",
        target=chosen.name,
        riscv=riscv,
        path=str(path),
        clock_hz="16_000_000",
        stack="2K" if riscv else "4K",
        flash_origin="0x2000_0000" if riscv else "0x0800_0000",
        flash_size="512K",
        ram_origin="0x8000_0000" if riscv else "0x2000_0000",
        ram_size="64K",
        driver="sifive" if riscv else "stm32v2",
        drivers=", ".join(get_args(UartDriver)),
        uart_base="0x1001_3000" if riscv else "0x4000_4400",
        uart_irq=3 if riscv else 28 if chosen.interrupts == 32 else 38,
        runners=", ".join(get_args(Runner)),
    )
    text = render("board/skeleton.toml.j2", parameters)
    return _checked(text, path)


def copied(name: str, like: str, path: Path) -> str:
    """Return a board file's text with another name and without `verified`."""
    own = load(like)
    source = Path(like) if like.endswith(".toml") else Path(__file__).parent / f"{like}.toml"
    text = source.read_text(encoding="utf-8")
    lines = [f"# Copied from the board file of {own.name}: change what differs."]
    lines += [line for line in text.splitlines() if not line.startswith("verified =")]
    lines[lines.index(f'name = "{own.name}"')] = f'name = "{name}"'
    return _checked("\n".join(lines) + "\n", path)


def _checked(text: str, path: Path) -> str:
    """Return the text if it is a valid board file; this also checks the name."""
    parse(str(path), text)
    return text
