"""Timeouts for simulated boards, counted in time that QEMU actually ran.

On a busy computer, QEMU gets little CPU time, and a simulated board responds late without being
broken. So a timeout counts only the time in which QEMU was running or idle.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

_PROCESSES = Path("/proc")
_TERMINAL = re.compile(r"/dev/pts/(\d+)")
_LISTENS = "0A"
"""State of a listening socket in Linux's table of connections."""
_HERE = ("127.0.0.1", "localhost", "::1")
_WANTS_TO_RUN = "RDT"
"""States of a thread that runs or is ready to run, waits for the disk, or is stopped."""


def pace_of(port: str) -> Pace | None:
    """Return the pace of the simulated board at a port, or None if that cannot be a simulator.

    Args:
        port: a serial port, `socket://HOST:PORT`, or HOST:PORT of a GDB server.
    """
    if _TERMINAL.fullmatch(port) is None and _number(port) is None:
        return None
    return Pace(port)


class Pace:
    """Computes how much of the waiting time at a port counts towards a timeout.

    All of it counts if no QEMU on this computer serves the port, and on systems other than Linux,
    where a process's CPU time is not available.

    Attributes:
        computed_s: QEMU's CPU time in seconds at the last check.
    """

    def __init__(self, port: str) -> None:
        """Store the port, in the form of `pace_of`; the simulator is found at the first check."""
        self._port = port
        self._process: Path | None = None
        self.computed_s = 0.0

    def counted_seconds(self, waited_s: float) -> float:
        """Return the seconds that count, of the last `waited_s` seconds without a response."""
        computed_s, busy = self._cpu_time()
        used_s = computed_s - self.computed_s
        self.computed_s = computed_s
        return min(waited_s, used_s) if busy else waited_s

    def _cpu_time(self) -> tuple[float, bool]:
        """Return QEMU's CPU time in seconds, and whether it is ready to run."""
        if self._process is None or not self._process.exists():
            self._process = _server(self._port)
        if self._process is None:
            return self.computed_s, False
        try:
            words = _stat_fields(self._process)
            states = [_stat_fields(thread)[0] for thread in (self._process / "task").iterdir()]
        except OSError:  # the process has ended
            return self.computed_s, False
        ticks = int(words[11]) + int(words[12])
        return ticks / os.sysconf("SC_CLK_TCK"), any(state in _WANTS_TO_RUN for state in states)


def _stat_fields(folder: Path) -> list[str]:
    """Return the fields of a process's or thread's `stat`, beginning with its state."""
    return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _server(port: str) -> Path | None:
    """Return the folder in /proc of the QEMU that serves a port, or None."""
    if (terminal := _TERMINAL.fullmatch(port)) is not None:
        master = re.compile(rf"^tty-index:\s*{terminal[1]}$", re.MULTILINE)
        return _simulator(lambda folder, number: _master(folder, number, master))
    sockets = _listening(_number(port))
    return _simulator(lambda folder, number: str((folder / "fd" / number).readlink()) in sockets)


def _master(folder: Path, number: str, master: re.Pattern[str]) -> bool:
    if (folder / "fd" / number).readlink().name != "ptmx":
        return False
    return master.search((folder / "fdinfo" / number).read_text()) is not None


def _number(port: str) -> int | None:
    """Return the port number if the port is on this computer, else None."""
    with suppress(ValueError):
        address = urlsplit(port if "://" in port else f"socket://{port}")
        if address.scheme == "socket" and address.hostname in _HERE:
            return address.port
    return None


def _listening(port: int | None) -> set[str]:
    """Return the names of the sockets that listen at a port of this computer."""
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROCESSES / "net" / table).read_text().splitlines()[1:]:
                _, own, _, state, *_, inode = line.split()[:10]
                if int(own.rpartition(":")[2], 16) == port and state == _LISTENS:
                    found.add(f"socket:[{inode}]")
    return found


def _simulator(holds: Callable[[Path, str], bool]) -> Path | None:
    """Return the folder of the QEMU with an open file for which `holds` is true, or None."""
    for folder in _PROCESSES.glob("[0-9]*"):
        with suppress(OSError):  # the process has ended, or belongs to another user
            if not (folder / "comm").read_text(errors="replace").startswith("qemu-system"):
                continue
            if any(_holds(holds, folder, open_.name) for open_ in (folder / "fd").iterdir()):
                return folder
    return None


def _holds(holds: Callable[[Path, str], bool], folder: Path, number: str) -> bool:
    try:
        return holds(folder, number)
    except OSError:  # the file was closed meanwhile
        return False
