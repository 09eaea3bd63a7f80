"""QEMU in place of a board, its UART on a TCP socket.

Time is counted in instructions (`-icount shift=0`: one takes a nanosecond), so that what a timer of
the simulated board says is exact and repeatable.
"""

from __future__ import annotations

import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from smelt.boards.board import Board
from smelt.boards.build import find_tool
from smelt.errors import ConfigError

INSTRUCTIONS_PER_SECOND = 10**9
"""Of the simulated clock."""

# QEMU must not outlive us, however we end: the shell waits for the end of its standard input, which
# is a pipe from us, and then kills it.
_SUPERVISOR = """
exec 3<&0
"$@" </dev/null 3<&- &
cat <&3 >/dev/null
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

    def __init__(self, board: Board, elf: Path) -> None:
        """Start QEMU with `elf`; the board itself waits for a connection to `port`.

        Raises:
            ConfigError: no machine of QEMU stands in for this board.
            ToolError: QEMU is not installed.
        """
        if board.qemu is None:
            raise ConfigError(f"board '{board.name}' has no [qemu]: nothing can stand in for it")
        qemu = find_tool("qemu-system-arm")
        self._board = board
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        # QEMU inherits a socket that already listens, so no other process can take the port.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port: int = listener.getsockname()[1]
            arguments = [
                *(qemu, "-machine", board.qemu.machine, "-kernel", str(elf.resolve())),
                *("-icount", "shift=0", "-display", "none", "-monitor", "none", "-no-reboot"),
                *("-chardev", f"socket,id=wire,fd={listener.fileno()},{_SERVER}"),
                *("-serial", "chardev:wire", *board.qemu.arguments),
            ]
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SUPERVISOR, "sh", *arguments],
                stdin=subprocess.PIPE,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=(listener.fileno(),),
            )

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
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
