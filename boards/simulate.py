"""Simulates a board with QEMU; its UART is a TCP socket or a pseudo-terminal.

Simulated time is counted in instructions (`-icount shift=0`: an instruction takes a nanosecond), so
that the board's timers are exact and repeatable.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from smelt.boards.board import Board
from smelt.boards.external_programs import find_tool
from smelt.errors import ConfigError, ToolError

INSTRUCTIONS_PER_SECOND = 10**9
"""Instruction rate of the simulated clock."""

EMULATORS = {"cortexm": "qemu-system-arm", "riscv": "qemu-system-riscv32"}
"""QEMU's program for each kind of core (`Board.startup`)."""

# QEMU must end when this process ends, for whatever reason. So a shell waits for the end of a pipe
# from this process, and then kills QEMU. Its standard input and output are listening sockets; QEMU
# gets them as descriptors 3 and 4. The shell closes its own copies, so that the connections close
# when QEMU ends.
_SUPERVISOR = """
pipe=$1
shift
exec 3<&0 4>&1 </dev/null >&2
"$@" &
exec 3<&- 4>&-
cat "$pipe" >/dev/null
kill -9 $! 2>/dev/null
wait $!
"""
_UART, _GDB = 3, 4

# Without nodelay, each reply of more than a byte waits for the host's delayed acknowledgment.
_SERVER = "server=on,nodelay=on"

_TERMINAL = re.compile(r"char device redirected to (\S+) \(label wire\)")
_START_S = 300
"""Timeout of QEMU's start in seconds. It is long, because the computer may be busy; if QEMU fails
to start, that is noticed earlier."""


@contextmanager
def _on_this_core() -> Generator[None]:
    """Pin child processes started in this context to the current CPU core, if possible.

    One of QEMU's threads runs the processor, another serves the UART, and they wait for each other
    at each byte. On different CPU cores, that takes more than twice as long.
    """
    try:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {ctypes.CDLL(None).sched_getcpu()})
    except (AttributeError, OSError, ValueError):  # the system does not support or forbids it
        yield
        return
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)


class Simulator:
    """A running QEMU; use it as a context manager, which always ends it.

    Attributes:
        port: the board's UART in pyserial's form: `socket://127.0.0.1:PORT`, which accepts one
            connection, or the name of a pseudo-terminal.
        gdb: HOST:PORT of the GDB server if the board has no firmware, else None.
    """

    def __init__(
        self,
        board: Board,
        elf: Path | None,
        arguments: Sequence[str] = (),
        *,
        pty: bool = False,
        clocked: bool = False,
    ) -> None:
        """Start QEMU.

        Args:
            board: board to simulate.
            elf: program to execute, which starts when a client connects to `port`. None executes
                nothing until a GDB client loads a program.
            arguments: more arguments for QEMU, such as those of a plugin.
            pty: whether the UART is a pseudo-terminal; then the program starts at once.
            clocked: whether an instruction takes about one cycle of the board's clock instead of a
                nanosecond. Times are then plausible, but not instruction counts. The simulation
                still runs as fast as it can.

        Raises:
            ConfigError: QEMU does not simulate this board.
            ToolError: QEMU is not installed, or does not start.
        """
        if board.qemu is None:
            raise ConfigError(
                f"board '{board.name}' has no [qemu], so it cannot be simulated: flash it, and "
                "give its serial port with --on"
            )
        if os.name != "posix":
            raise ToolError("simulation needs Linux or macOS (or WSL on Windows)")
        qemu = find_tool(EMULATORS[board.startup])
        self._board = board
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        pace = "shift=0"
        if clocked:
            cycle = math.log2(INSTRUCTIONS_PER_SECOND / board.clock_hz)
            pace = f"shift={max(0, round(cycle))}"
        wait = "off" if elf is None else "on"
        uart = "pty,id=wire" if pty else f"socket,id=wire,fd={_UART},{_SERVER},wait={wait}"
        command = [
            *(qemu, "-machine", board.qemu.machine, "-icount", pace),
            *("-display", "none", "-monitor", "none", "-chardev", uart, "-serial", "chardev:wire"),
            *(() if elf is None else ("-kernel", str(elf.resolve()), "-no-reboot")),
            *(() if elf is not None else _GDB_OPTIONS),
            *(*board.qemu.arguments, *arguments),
        ]
        # QEMU inherits sockets that already listen, so that no other process can take their ports.
        with _listener() as wire, _listener() as debugger:
            self._start(command, wire, debugger)
            self.port = f"socket://{_address(wire)}"
            self.gdb = _address(debugger) if elf is None else None
        if pty:
            self.port = self._terminal()

    def _start(self, command: list[str], wire: socket.socket, debugger: socket.socket) -> None:
        watched, self._lifeline = os.pipe()
        with _on_this_core():
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SUPERVISOR, "sh", f"/dev/fd/{watched}", *command],
                stdin=wire.fileno(),
                stdout=debugger.fileno(),
                stderr=self._errors,
                pass_fds=(watched,),
                start_new_session=True,  # Ctrl-C reaches only this process, which then ends QEMU
            )
        os.close(watched)

    def _terminal(self) -> str:
        """Return the name of the pseudo-terminal, from QEMU's output."""
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and not self._qemu_errors():
            found = _TERMINAL.search(self._error_output())
            if found is not None:
                return found[1]
            time.sleep(0.02)
        message = self.explain()
        self.close()
        raise ToolError(f"QEMU did not create a pseudo-terminal: {message}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def explain(self) -> str:
        """End QEMU and return its error messages."""
        self._end()
        return "\n".join([f"QEMU ended ({self._board.name})", *self._qemu_errors()])

    def check(self) -> None:
        """Raise a `ToolError` with QEMU's error messages if it has ended."""
        if self._qemu_errors():
            raise ToolError(self.explain())

    def _qemu_errors(self) -> list[str]:
        lines = self._error_output().splitlines()
        return [line for line in lines if line.startswith("qemu") and "info: " not in line]

    def _error_output(self) -> str:
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), size, 0).decode(errors="replace")

    def close(self) -> None:
        """End QEMU; may be called more than once."""
        self._end()
        self._errors.close()

    def _end(self) -> None:
        if self._process.returncode is None:
            os.close(self._lifeline)
            self._process.wait()


_GDB_OPTIONS = (
    *("-S", "-gdb", "chardev:debugger"),
    *("-chardev", f"socket,id=debugger,fd={_GDB},{_SERVER},wait=off"),
)


def _listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()
    return f"{host}:{port}"
