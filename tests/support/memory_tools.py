"""Boards with several memories, one of which is small, for tests of where arrays are stored."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from smelt import boards


def with_room(folder: Path, name: str, **rooms: int) -> str:
    """Write the file of a board whose memories have little room, and return its path.

    Args:
        folder: Where the file is written.
        name: A board that is part of Smelt.
        rooms: The bytes for tensors and weights in some of its memories.
    """
    board, text = boards.load(name), (files("smelt.boards") / f"{name}.toml").read_text("utf-8")
    platform = board.platform()
    for memory, room in rooms.items():
        (found,) = [m for m in platform.memories if m.name == memory]
        reserve = found.reserve + platform.room(found) - room
        head = rf'name = "{memory}"\norigin = .*\nsize = .*\n'
        text, count = re.subn(rf"({head})(reserve = .*\n)?", rf"\1reserve = {reserve}\n", text)
        assert count == 1
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)
