"""Firmware with the hand-written network, on this computer and all QEMU boards."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest

from smelt import boards
from smelt.boards import Board, Device, ElfInfo
from smelt.codegen.emit.firmware import MlperfProtocol
from smelt.targets import HOST, Platform
from tests.support.board_tools import simulable
from tests.support.fake_project import write_project

SAMPLE = bytes(range(100, 116))
HASH = "0123456789abcdef"
MLPERF = MlperfProtocol("kws01", "raw", quantizes=False)
"""The benchmark whose inputs are sent unchanged."""
BOARDS = (
    "mps2-an385",
    "mps2-an385:cortex-m0",
    "mps2-an386",
    "mps2-an500",
    "mps2-an505",
    "mps3-an547",
    "microbit",
    "netduinoplus2",
    "stm32vldiscovery",
    "lm3s6965evb",
    "virt-riscv32",
    "sifive_e",
)
QEMU = [pytest.param(name, marks=pytest.mark.qemu) for name in BOARDS]


@dataclass(frozen=True)
class Place:
    """Firmware and the place where it runs."""

    platform: Platform
    board: Board | None
    elf: ElfInfo

    def open(self) -> AbstractContextManager[Device]:
        on = "host" if self.board is None else "qemu"
        return boards.open_device(self.elf.path, on, self.board, expected_hash=HASH)


Build = Callable[..., Place]


def builder(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return a cached function that builds firmware for `host`, `BOARD` or `BOARD:TARGET`."""
    made: dict[str, Place] = {}

    def make(name: str, mlperf: MlperfProtocol | None = None, **options: Any) -> Place:
        key = f"{name} {mlperf} {options}"
        if key not in made:
            board_name, _, target = name.partition(":")
            board = None if name == "host" else boards.load(board_name)
            if board is not None:
                simulable(board)
            platform = HOST if board is None else board.platform(target or None)
            directory = tmp_path_factory.mktemp("project")
            write_project(directory, platform, mlperf=mlperf)
            elf = boards.compile_project(directory, platform, **options)
            made[key] = Place(platform, board, elf)
        return made[key]

    return make
