"""QEMU in place of a board, its UART on a TCP socket.

Time is counted in instructions (`-icount shift=0`: one takes a nanosecond), so that what a timer of
the simulated board says is exact and repeatable.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from smelt.boards.board import Board
from smelt.boards.build import find_tool
from smelt.errors import ConfigError

INSTRUCTIONS_PER_SECOND = 10**9
"""Of the simulated clock."""

EMULATORS = {"cortexm": "qemu-system-arm", "riscv": "qemu-system-riscv32"}
"""The program of QEMU's for each kind of core."""

# QEMU must not outlive us, however we end: the shell waits for the end of a pipe from us, and then
# kills it. Its standard input is the listening socket, which QEMU gets as number 3 and nobody else
# keeps: when QEMU ends, so does the connection.
_SUPERVISOR = """
pipe=$1
shift
exec 3<&0 </dev/null
"$@" &
exec 3<&-
cat "$pipe" >/dev/null
kill -9 $! 2>/dev/null
wait $!
"""


# Without nodelay every answer of more than a byte waits for the host's delayed acknowledgement.
_SERVER = "server=on,wait=on,nodelay=on"


class Simulator:
    """A running QEMU; use it as a context manager, which ends it for sure.

    Attributes:
        port: TCP port on 127.0.0.1 where the board's UART is; it takes one connection, and the
            board starts when that is made. pyserial's name for it is `socket://127.0.0.1:PORT`.
    """

    def __init__(self, board: Board, elf: Path, arguments: Sequence[str] = ()) -> None:
        """Start QEMU with `elf`; the board itself waits for a connection to `port`.

        Args:
            board: what to simulate.
            elf: what it executes.
            arguments: more of QEMU's, such as those of a plugin.

        Raises:
            ConfigError: no machine of QEMU stands in for this board.
            ToolError: QEMU is not installed.
        """
        if board.qemu is None:
            raise ConfigError(
                f"board '{board.name}' has no [qemu]: nothing can stand in for it; flash it, and "
                "name its serial port with --on"
            )
        qemu = find_tool(EMULATORS[board.startup])
        self._board = board
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        watched, self._lifeline = os.pipe()
        # QEMU inherits a socket that already listens, so no other process can take the port.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port: int = listener.getsockname()[1]
            command = [
                *(qemu, "-machine", board.qemu.machine, "-kernel", str(elf.resolve())),
                *("-icount", "shift=0", "-display", "none", "-monitor", "none", "-no-reboot"),
                *("-chardev", f"socket,id=wire,fd=3,{_SERVER}"),
                *("-serial", "chardev:wire", *board.qemu.arguments, *arguments),
            ]
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SUPERVISOR, "sh", f"/dev/fd/{watched}", *command],
                stdin=listener.fileno(),
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=(watched,),
            )
        os.close(watched)

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
        """What QEMU said before it hung up."""
        self._end()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        said = [line for line in lines if line.startswith("qemu") and "info: " not in line]
        return "\n".join([f"QEMU ended ({self._board.name})", *said])

    def close(self) -> None:
        """End QEMU; may be called twice."""
        self._end()
        self._errors.close()

    def _end(self) -> None:
        if self._process.returncode is None:
            os.close(self._lifeline)
            self._process.wait()
