"""Boards: board files (TOML), and code that builds firmware, flashes boards and talks to them.

May import `targets`, `codegen.text`, `codegen.lower` and `codegen.accelerator`; `api`, `proof`,
`cli` and `bench` may import it.
"""

from smelt.boards.board import Board, available, computers, load
from smelt.boards.build import ElfInfo, compile_library, compile_project
from smelt.boards.computer import Computer, find_computer
from smelt.boards.session import open_device
from smelt.boards.wire import Device, Invocation, TracedOutput

__all__ = [
    "Board",
    "Computer",
    "Device",
    "ElfInfo",
    "Invocation",
    "TracedOutput",
    "available",
    "compile_library",
    "compile_project",
    "computers",
    "find_computer",
    "load",
    "open_device",
]
