"""Tables that `smelt boards`, `smelt targets` and `smelt board check` print."""

from __future__ import annotations

from rich.console import Console

from smelt import targets as catalog
from smelt.boards import Board, available, computers, find_computer, load
from smelt.cli.show.tables import TextTable
from smelt.formatting import counted


def boards() -> TextTable:
    """Return a table of the boards that are part of Smelt."""
    rows: list[tuple[object, ...]] = []
    for name in available():
        board = load(name)
        memories = ", ".join(f"{m.name} {_size(m.size)}" for m in board.memory)
        rows.append(
            (
                name,
                board.target,
                f"{board.clock_hz / 1e6:g} MHz",
                memories,
                ", ".join(table.runner for table in board.flash) or "-",
                "-" if board.qemu is None else board.qemu.machine,
                board.verified,
            )
        )
    for name in computers():
        computer = find_computer(name)
        if computer is not None:
            what = f"a computer: {computer.gpu}"
            rows.append((name, computer.target, "-", what, "-", "-", computer.verified))
    columns = ("board", "target", "clock", "memories", "flashed by", "QEMU", "verified on")
    return TextTable(columns, tuple(rows))


def board(console: Console, found: Board) -> None:
    """Print the contents of a board file, and which optional parts it lacks."""
    rows: list[tuple[object, ...]] = [
        ("board", f"{found.name}: {found.description}"),
        ("target", f"{found.target} at {found.clock_hz / 1e6:g} MHz"),
        *(
            (
                m.name,
                f"{m.origin:#010x}, {_size(m.size)}{_waits(m.wait_states)}: "
                f"{', '.join(m.holds) or 'nothing'}",
            )
            for m in found.memory
        ),
        ("stack", f"{found.stack_bytes:,} bytes"),
        ("UART", f"{found.uart.driver} at {found.uart.base:#010x}, {found.uart.baud:,} baud"),
        ("timer", found.timer.driver),
        ("setup", f"{len(found.setup)} registers"),
        ("flashed by", ", ".join(table.runner for table in found.flash) or "only --gdb HOST:PORT"),
        ("port", ", ".join(found.usb) or "not auto-detected: give --port or --on"),
        ("QEMU", "not simulated" if found.qemu is None else found.qemu.machine),
        ("verified on", found.verified),
    ]
    TextTable(("", ""), tuple(rows)).print(console)


def targets() -> TextTable:
    """Return a table of all targets."""
    rows = tuple(
        (
            t.name,
            t.description,
            ", ".join(t.backends),
            " ".join(t.arch_flags) or "-",
            ", ".join(_boards_of(t.name)) or "-",
        )
        for t in catalog.available()
    )
    return TextTable(("target", "description", "backends", "compiler flags", "boards"), rows)


def _boards_of(target: str) -> list[str]:
    loaded: list[Board] = [load(name) for name in available()]
    return [b.name for b in loaded if b.target == target]


def _waits(states: int) -> str:
    return f", {counted(states, 'wait state')}" if states else ""


def _size(size: int) -> str:
    return f"{size // 1048576}M" if size % 1048576 == 0 else f"{size // 1024}K"
