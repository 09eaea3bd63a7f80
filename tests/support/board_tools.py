"""Checks for the programs that a board needs, so that tests skip if one is missing."""

import shutil

import pytest

from smelt.boards import Board
from smelt.boards.simulate import EMULATORS


def compilable(board: Board) -> None:
    """Skip the test if the board's compiler is missing."""
    _there(f"{board.own_target.cross}gcc")


def simulable(board: Board) -> None:
    """Skip the test if the board's compiler or simulator is missing."""
    compilable(board)
    _there(EMULATORS[board.startup])


def _there(tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"not on PATH: {tool}")
