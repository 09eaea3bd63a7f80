"""How long a simulated board has had to answer, independently of the computer's load.

On a busy computer QEMU gets little processor time, and a simulated board answers late without being
broken. So a time limit counts only the time in which QEMU computed or was idle.
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
"""The state of a listening socket in Linux' tables of connections."""
_HERE = ("127.0.0.1", "localhost", "::1")
_WANTS_TO_RUN = "RDT"
"""States of a thread that computes or would if it were let, waits for the disk, or was stopped."""


def pace_of(port: str) -> Pace | None:
    """The pace of the simulated board at a port; None where that cannot be a simulated board.

    Args:
        port: a serial port, `socket://HOST:PORT`, or HOST:PORT of a GDB server.
    """
    if _TERMINAL.fullmatch(port) is None and _number(port) is None:
        return None
    return Pace(port)


class Pace:
    """Tells how much of a wait for a port counts towards a time limit.

    All of it counts where the port is not served by a QEMU on this computer, and on systems other
    than Linux, which do not tell how long a process has computed.

    Attributes:
        computed_s: for how long QEMU had computed when it was last looked at.
    """

    def __init__(self, port: str) -> None:
        """Find the simulator behind `port`, as `pace_of` takes it, when it is first asked for."""
        self._port = port
        self._process: Path | None = None
        self.computed_s = 0.0

    def part_of(self, waited_s: float) -> float:
        """The part that counts of so many seconds without an answer, the last ones."""
        computed_s, busy = self._look()
        used_s = computed_s - self.computed_s
        self.computed_s = computed_s
        return min(waited_s, used_s) if busy else waited_s

    def _look(self) -> tuple[float, bool]:
        """For how long QEMU has computed, and whether it would go on if it were let."""
        if self._process is None or not self._process.exists():
            self._process = _server(self._port)
        if self._process is None:
            return self.computed_s, False
        try:
            words = _words(self._process)
            states = [_words(thread)[0] for thread in (self._process / "task").iterdir()]
        except OSError:  # it has ended
            return self.computed_s, False
        ticks = int(words[11]) + int(words[12])
        return ticks / os.sysconf("SC_CLK_TCK"), any(state in _WANTS_TO_RUN for state in states)


def _words(folder: Path) -> list[str]:
    """What the system says of a process or thread, from its state on."""
    return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _server(port: str) -> Path | None:
    """The folder in /proc of the QEMU that serves a port."""
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
    """The number of a port of this computer's own; None for anything else."""
    with suppress(ValueError):
        address = urlsplit(port if "://" in port else f"socket://{port}")
        if address.scheme == "socket" and address.hostname in _HERE:
            return address.port
    return None


def _listening(port: int | None) -> set[str]:
    """What the sockets are called that listen at a port of this computer."""
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROCESSES / "net" / table).read_text().splitlines()[1:]:
                _, own, _, state, *_, inode = line.split()[:10]
                if int(own.rpartition(":")[2], 16) == port and state == _LISTENS:
                    found.add(f"socket:[{inode}]")
    return found


def _simulator(holds: Callable[[Path, str], bool]) -> Path | None:
    """The folder of the QEMU that has an open file for which `holds` is true."""
    for folder in _PROCESSES.glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if not (folder / "comm").read_text(errors="replace").startswith("qemu-system"):
                continue
            if any(_holds(holds, folder, open_.name) for open_ in (folder / "fd").iterdir()):
                return folder
    return None


def _holds(holds: Callable[[Path, str], bool], folder: Path, number: str) -> bool:
    try:
        return holds(folder, number)
    except OSError:  # it was closed meanwhile
        return False
