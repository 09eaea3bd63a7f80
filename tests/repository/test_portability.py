"""The host's code runs on every system: it needs no modules that only POSIX has."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.shared import ROOT

FOLDERS = ("boards", "codegen", "frontend", "quant", "smelt", "targets", "templates")
SOURCES = sorted({p.resolve() for folder in FOLDERS for p in (ROOT / folder).rglob("*.py")})
POSIX_ONLY = {
    *("crypt", "curses", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog"),
    *("select", "termios", "tty"),  # on Windows, select works for sockets only
}

ATTRIBUTES = {
    "os": (
        *("chown", "fork", "getegid", "geteuid", "getgid", "getloadavg", "getpgid", "getuid"),
        *("killpg", "mkfifo", "openpty", "posix_spawn", "pread", "pwrite"),
        *("sched_getaffinity", "setpgid", "setsid", "statvfs", "sysconf", "ttyname", "uname"),
    ),
    "signal": (
        *("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2"),
        *("alarm", "pause", "pthread_kill", "pthread_sigmask", "setitimer", "siginterrupt"),
    ),
}
"""Attributes that modules have on POSIX only."""
CHECKED_BEFORE_USE = {
    "boards/simulate.py": {"pread", "sched_getaffinity"},
    "boards/simulation_timeout.py": {"sysconf"},  # only after it found a simulator in /proc
    "boards/external_programs.py": {"killpg", "SIGKILL"},
}
"""Attributes that a file uses only after it checked that they exist."""


def imported(path: Path) -> set[str]:
    """Return the top-level names of all modules that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_of_posix_only_is_imported(path: Path) -> None:
    assert imported(path) & POSIX_ONLY == set()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_attribute_of_posix_only_is_used(path: Path) -> None:
    used = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.attr in ATTRIBUTES.get(node.value.id, ())
    }
    assert used == CHECKED_BEFORE_USE.get(path.relative_to(ROOT).as_posix(), set())


WITHOUT = """
import os, signal, sys
import smelt.cli.app
for module, names in {attributes}.items():
    for name in set(names) - {{"SIGKILL"}}:  # which Python's own Popen.kill sends
        delattr(sys.modules[module], name)
sys.argv = ["smelt", "verify", {model!r}, "--samples", "1"]
smelt.cli.app.main()
"""


def test_a_network_is_verified_without_posix_only_features() -> None:
    program = WITHOUT.format(
        attributes=ATTRIBUTES, model=str(ROOT / "examples/digits/digits_int8.tflite")
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "this computer: bit-exact, 1 sample" in done.stdout
