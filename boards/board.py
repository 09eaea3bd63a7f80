"""Board files: what they may say, and how they become a `Platform`.

A board file is TOML. Memories say what they hold; together they must hold each part of the
firmware (code, weights, data, stack, arena) exactly once. Sizes are bytes, or text such as "256K"
or "4M".
"""

from __future__ import annotations

import tomllib
from collections import Counter
from difflib import get_close_matches
from functools import cached_property
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from smelt.errors import ConfigError
from smelt.targets import Memory, Part, Placement, Platform, Target, Timer, Uart, get

_PARTS: tuple[Part, ...] = get_args(Part)
_UNITS = {"K": 1024, "M": 1024**2}


def _bytes(value: object) -> object:
    if isinstance(value, str) and value[-1:] in _UNITS and value[:-1].isdecimal():
        return int(value[:-1]) * _UNITS[value[-1]]
    return value


Size = Annotated[int, BeforeValidator(_bytes), Field(gt=0, lt=2**32)]
Address = Annotated[int, Field(ge=0, lt=2**32)]
Hertz = Annotated[int, Field(gt=0, lt=2**32)]
Interrupt = Annotated[int, Field(ge=0, lt=480)]
Identifier = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class MemoryTable(_Table):
    """`[[memory]]`: a stretch of addresses, and the parts of the firmware that go there."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    origin: Address
    size: Size
    holds: list[Part] = []

    @model_validator(mode="after")
    def _inside_address_space(self) -> Self:
        if self.origin + self.size > 2**32:
            raise ValueError("origin + size exceeds 32 bits")
        return self


class UartTable(_Table):
    """`[uart]`: the wire's serial port; `clock_hz` is the core's clock unless given."""

    driver: Literal["cmsdk", "nrf51"]
    base: Address
    irq: Interrupt
    clock_hz: Hertz | None = None
    baud: Annotated[int, Field(ge=1200, le=4_000_000)] = 115_200
    tx_pin: Annotated[int, Field(ge=0, le=31)] | None = None
    rx_pin: Annotated[int, Field(ge=0, le=31)] | None = None

    @model_validator(mode="after")
    def _pins(self) -> Self:
        if self.driver == "nrf51" and (self.tx_pin is None or self.rx_pin is None):
            raise ValueError("driver 'nrf51' needs tx_pin and rx_pin")
        return self


class TimerTable(_Table):
    """`[timer]`: what inferences are timed with; `hz` is the core's clock unless given."""

    driver: Literal["systick", "nrf51"] = "systick"
    hz: Hertz | None = None
    irq: Interrupt | None = None

    @model_validator(mode="after")
    def _interrupt(self) -> Self:
        if (self.driver == "systick") != (self.irq is None):
            raise ValueError("irq: 'systick' has none, every other driver needs one")
        return self


class QemuTable(_Table):
    """`[qemu]`: the machine that stands in for the board, and further arguments for QEMU."""

    machine: Identifier
    arguments: list[str] = []


class Board(_Table):
    """A device: what a board file says.

    Attributes:
        target: the name of the target that the board implies.
        verified: `hardware` or `simulation`: where the project's own tests ran; `never` otherwise.
        flash: name of the program that puts firmware on the device; None: only simulated so far.
        qemu: None where no machine of QEMU stands in for the board.
    """

    name: Identifier
    description: Annotated[str, Field(min_length=1, pattern=r"^[^\n\r*/\\]*$")]
    target: str
    clock_hz: Hertz
    stack_bytes: Size
    verified: Literal["hardware", "simulation", "never"] = "never"
    startup: Literal["cortexm"] = "cortexm"
    flash: str | None = None
    memory: Annotated[list[MemoryTable], Field(min_length=1)]
    uart: UartTable
    timer: TimerTable = TimerTable()
    qemu: QemuTable | None = None

    @field_validator("target")
    @classmethod
    def _known_target(cls, value: str) -> str:
        try:
            get(value)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return value

    @model_validator(mode="after")
    def _every_part_once(self) -> Self:
        places = Counter(part for memory in self.memory for part in memory.holds)
        for part in _PARTS:
            if places[part] != 1:
                raise ValueError(f"{places[part]} memories hold '{part}'; exactly one must")
        names = Counter(memory.name for memory in self.memory)
        if names.most_common(1)[0][1] > 1:
            raise ValueError(f"two memories are called '{names.most_common(1)[0][0]}'")
        for first, second in _overlaps(self.memory):
            raise ValueError(f"memories '{first.name}' and '{second.name}' overlap")
        return self

    @cached_property
    def own_target(self) -> Target:
        """The target that the board implies."""
        return get(self.target)

    def platform(self, target: Target | str | None = None) -> Platform:
        """What code generation needs of the board, for its own target or a compatible lesser one.

        Raises:
            ConfigError: the target is unknown, or the board cannot run its code.
        """
        chosen = get(target) if isinstance(target, str) else target or self.own_target
        if not self.own_target.runs(chosen):
            runs = ", ".join((self.target, *self.own_target.runs_code_of))
            raise ConfigError(
                f"board '{self.name}' cannot run code for '{chosen.name}'; it runs {runs}"
            )
        place = {part: memory.name for memory in self.memory for part in memory.holds}
        return Platform(
            name=self.name,
            description=self.description,
            target=chosen,
            firmware=self.startup,
            memories=tuple(Memory(m.name, m.origin, m.size) for m in self.memory),
            placement=Placement(**place),
            stack_bytes=self.stack_bytes,
            clock_hz=self.clock_hz,
            uart=Uart(
                driver=self.uart.driver,
                base=self.uart.base,
                irq=self.uart.irq,
                clock_hz=self.uart.clock_hz or self.clock_hz,
                baud=self.uart.baud,
                tx_pin=self.uart.tx_pin,
                rx_pin=self.uart.rx_pin,
            ),
            timer=Timer(
                driver=self.timer.driver, hz=self.timer.hz or self.clock_hz, irq=self.timer.irq
            ),
        )


def available() -> tuple[str, ...]:
    """Names of the boards that come with Smelt, sorted."""
    suffix = ".toml"
    entries = (entry.name for entry in files("smelt.boards").iterdir())
    return tuple(sorted(name.removesuffix(suffix) for name in entries if name.endswith(suffix)))


def load(name: str | Path) -> Board:
    """The board of that name, or the one that a board file of the user's describes.

    Args:
        name: one of `available()`, or the path of a file that ends in `.toml`.

    Raises:
        ConfigError: there is no such board, or its file is wrong.
    """
    if str(name).endswith(".toml"):
        return _parse(str(name), Path(name))
    known = available()
    if name not in known:
        close = get_close_matches(str(name), known, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else "."
        raise ConfigError(
            f"unknown board '{name}'{hint} Known boards: {', '.join(known)}; "
            "or give the path of a .toml file of your own"
        )
    return _parse(f"{name}.toml", Path(str(files("smelt.boards") / f"{name}.toml")))


def _parse(title: str, path: Path) -> Board:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"board file {title} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"board file {title} is not TOML: {error}") from error
    try:
        return Board.model_validate(table)
    except ValidationError as error:
        raise ConfigError(f"board file {title}: {'; '.join(_complaints(error))}") from error


def _complaints(error: ValidationError) -> list[str]:
    """One sentence per mistake: where, what, which value."""
    sentences: list[str] = []
    for mistake in error.errors():
        where = ".".join(str(part) for part in mistake["loc"])
        message = mistake["msg"].removeprefix("Value error, ")
        given = "" if isinstance(mistake["input"], dict) else f" (it is {mistake['input']!r})"
        sentences.append(f"{where}: {message}{given}" if where else message)
    return sentences


def _overlaps(memories: list[MemoryTable]) -> list[tuple[MemoryTable, MemoryTable]]:
    ordered = sorted(memories, key=lambda memory: memory.origin)
    return [(a, b) for a, b in pairwise(ordered) if a.origin + a.size > b.origin]
