"""Boards with an operating system and a GPU: the network is a program there, not firmware."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import ValidationError, field_validator

from smelt.boards.board import complaints, computers, read_table
from smelt.boards.schema import BoardTable, Comment, Identifier
from smelt.codegen.accelerator import profile_called
from smelt.errors import ConfigError
from smelt.targets import Platform, available, get, library


class Computer(BoardTable):
    """What a board file says that has a `gpu`.

    Attributes:
        target: one that has a GPU, with the CPU beside it.
        gpu: the profile by which layers are left to the CPU.
        verified: `hardware`, or `never`: where the project's own tests ran on such a GPU.
    """

    name: Identifier
    description: Comment
    target: str
    gpu: str
    verified: Literal["hardware", "never"] = "never"

    @field_validator("target")
    @classmethod
    def _has_gpu(cls, value: str) -> str:
        names = [repr(target.name) for target in available() if target.device]
        if repr(value) not in names:
            raise ValueError(f"Input should be {' or '.join(names)}")
        return value

    @field_validator("gpu")
    @classmethod
    def _known_gpu(cls, value: str) -> str:
        try:
            profile_called(value)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return value

    def platform(self, target: str | None = None) -> Platform:
        """What code generation needs of it.

        Raises:
            ConfigError: `target` is another one than its own.
        """
        if target not in (None, self.target):
            raise ConfigError(
                f"board '{self.name}' is a computer with a GPU, for target '{self.target}'; "
                f"for '{target}' leave --board out, or name a board of that target"
            )
        own = library(get(self.target))
        return replace(own, name=self.name, description=self.description)


def computer_called(name: str) -> Computer | None:
    """The computer of that name, or that a file of the user's describes; None if it is none.

    Args:
        name: one of `computers()`, or the path of a `.toml` file, which describes a computer if it
            says what `gpu` it has.

    Raises:
        ConfigError: the file of a computer is wrong.
    """
    if name in computers():
        path = Path(str(files("smelt.boards") / "computers" / f"{name}.toml"))
    elif name.endswith(".toml"):
        path = Path(name)
    else:
        return None
    try:
        table = read_table(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # which `smelt.boards.load` will say, and why
    if "gpu" not in table:
        return None
    try:
        return Computer.model_validate(table)
    except ValidationError as error:
        raise ConfigError(f"board file {name}: {'; '.join(complaints(error, table))}") from error
