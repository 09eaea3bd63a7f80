"""Where code runs: a TOML file a board, and the code that talks to boards."""

from smelt.boards.board import Board, available, load
from smelt.boards.build import ElfInfo, compile_project
from smelt.boards.session import open_device
from smelt.boards.wire import Device, Invocation, Tap

__all__ = [
    "Board",
    "Device",
    "ElfInfo",
    "Invocation",
    "Tap",
    "available",
    "compile_project",
    "load",
    "open_device",
]
