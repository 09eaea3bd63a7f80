"""The host's side is for every system: nothing is imported that only POSIX has."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("boards", "codegen", "frontend", "quant", "smelt", "targets", "templates")
SOURCES = sorted({p.resolve() for folder in FOLDERS for p in (ROOT / folder).rglob("*.py")})
POSIX_ONLY = {
    *("crypt", "curses", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog"),
    *("select", "termios", "tty"),  # select: there for sockets only
}


def imported(path: Path) -> set[str]:
    """The modules at the top of what a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_imported_that_only_posix_has(path: Path) -> None:
    assert imported(path) & POSIX_ONLY == set()
