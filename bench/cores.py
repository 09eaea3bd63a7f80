"""Cores whose kernels are measured, each with a board that QEMU simulates."""

from __future__ import annotations

from smelt.boards import available, load
from smelt.targets import Target
from smelt.targets import available as targets


def _board_of(target: Target) -> str | None:
    """Return the board with the smallest core that runs the target's code; None if there is none.

    Only Arm's MPS boards are considered: their memory is large enough for any network.
    """
    order = [t.name for t in targets()]
    boards = [load(name) for name in available() if name.startswith("mps")]
    able = [board for board in boards if board.own_target.runs(target)]
    least = min(able, key=lambda board: order.index(board.target), default=None)
    return None if least is None else least.name


CORES = {
    target.name.removeprefix("cortex-"): (board, target.name)
    for target in targets()
    if target.priced_as is None and (board := _board_of(target)) is not None
}
"""Board and target of each core that has its own prices."""
