"""Computers with an operating system and a GPU, where the network is a program, not firmware."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import ValidationError, field_validator

from smelt.boards.board import complaints, computers, read_table
from smelt.boards.schema import BoardTable, Comment, Identifier
from smelt.codegen.accelerator import find_profile
from smelt.errors import ConfigError
from smelt.targets import Platform, available, get, library_platform


class Computer(BoardTable):
    """Contents of a board file with a `gpu`.

    Attributes:
        target: name of a target with a GPU beside the CPU.
        gpu: profile of the GPU, which decides which layers run on the CPU.
        verified: `hardware` if the project's tests ran on such a GPU, else `never`.
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
            find_profile(value)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return value

    def platform(self, target: str | None = None) -> Platform:
        """Return the platform of the computer.

        Raises:
            ConfigError: `target` is not the computer's own target.
        """
        if target not in (None, self.target):
            raise ConfigError(
                f"board '{self.name}' is a computer with a GPU, for target '{self.target}'; "
                f"for '{target}', remove --board or give a board of that target"
            )
        own = library_platform(get(self.target))
        return replace(own, name=self.name, description=self.description)


def find_computer(name: str) -> Computer | None:
    """Return the computer of that name or in that board file, or None if it is not a computer.

    Args:
        name: one of `computers()`, or the path of a `.toml` file. The file describes a computer if
            it contains `gpu`.

    Raises:
        ConfigError: the file describes a computer, but is wrong.
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
        return None  # `smelt.boards.load` reports the error
    if "gpu" not in table:
        return None
    try:
        return Computer.model_validate(table)
    except ValidationError as error:
        raise ConfigError(f"board file {name}: {'; '.join(complaints(error, table))}") from error
