"""How much may be computed of a network while it is read and compiled.

A small file can ask for any amount of work: a constant loop may have 10^9 turns, and a constant
may be repeated until it fills the memory. So the work is counted before it is done, and refused
beyond a limit. Work is counted rather than timed, so that every machine refuses the same files.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from smelt.errors import UnsupportedError
from smelt.formatting import number

OPERATOR = 1 << 10
"""What starting one operator's reference counts as, in elementary operations."""

_LEAST = 1 << 25
_EACH_BYTE = 16
"""The limit is `_LEAST`, and `_EACH_BYTE` more for each byte of constants, because constants are
converted, transposed and rescaled a few times each."""


class Budget:
    """Elementary operations that may be computed, and those that have been.

    An elementary operation is about what numpy does to one element. A node counts the elements
    that it reads and makes, its multiply-accumulates, and `OPERATOR` for itself. Since every
    element made counts, the limit bounds memory too.

    Attributes:
        limit: how many there may be.
        spent: how many there have been.
    """

    def __init__(self, constants: int) -> None:
        """Make a budget for a network or file with `constants` bytes of constants."""
        self.limit = _LEAST + _EACH_BYTE * constants
        self.spent = 0
        self._around: str | None = None

    def spend(self, what: object, operations: int) -> None:
        """Count operations that are about to be computed; `what` names them in messages.

        Raises:
            UnsupportedError: they exceed the limit; nothing is counted then.
        """
        if self.affords(operations):
            self.spent += operations
            return
        raise UnsupportedError(
            f"{self._around or what}: to compute what is constant takes "
            f"{number(self.spent + operations)} elementary operations up to here; "
            f"{self.limit:,} are the most that Smelt computes of a network of this size while it "
            "compiles: export the network with the result as a constant, or with less to compute"
        )

    def grow(self, constants: int) -> None:
        """Raise the limit for `constants` more bytes of constants."""
        self.limit += _EACH_BYTE * constants

    def affords(self, operations: int) -> bool:
        """Whether that many operations are left."""
        return self.spent + operations <= self.limit

    @contextmanager
    def inside(self, what: object) -> Generator[None]:
        """Name `what` in messages while this runs: a loop whose turns are computed one by one."""
        around, self._around = self._around, self._around or str(what)
        try:
            yield
        finally:
            self._around = around


_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


def current() -> Budget | None:
    """The budget of what is being read or compiled; None where a network just runs."""
    return _current.get()


@contextmanager
def limited(constants: int) -> Generator[Budget]:
    """Limit what is computed while this runs, for a file with `constants` bytes of constants.

    If a budget with a larger limit is in force already, its limit holds, so that a caller who
    trusts a file can allow it more.
    """
    budget, around = Budget(constants), _current.get()
    if around is not None:
        budget.limit = max(budget.limit, around.limit)
    token = _current.set(budget)
    try:
        yield budget
    finally:
        _current.reset(token)


@contextmanager
def unlimited() -> Generator[None]:
    """Count nothing while this runs, because it has been counted already."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def affords(operations: int | None) -> bool:
    """Whether the budget in force allows that many operations; False if their number is not known.

    Without a budget in force, the limit of a network without constants holds.
    """
    if operations is None:
        return False
    return (_current.get() or Budget(0)).affords(operations)


def spend(what: object, operations: int) -> None:
    """Count what is about to be computed, where there is a budget; see `Budget.spend`."""
    budget = _current.get()
    if budget is not None:
        budget.spend(what, operations)
