"""How much may be computed of a network while it is read and compiled.

A few bytes of a file can ask for any amount: a loop of constants has as many turns as a number
says, a constant repeated becomes as large. So whatever is computed on constants is counted
before: the same file is refused on every machine, and in moments.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from smelt.errors import UnsupportedError

OPERATOR = 1 << 10
"""Elementary operations that take as long as it takes to start one operator's reference."""

_LEAST = 1 << 25
_EACH_BYTE = 16
"""What every network may have, and what it may have for each byte of its constants: each is
brought to another type, order or scale a few times."""


class Budget:
    """Elementary operations that may be computed, and those that have been.

    One is about what numpy does to an element: all that a node reads and makes count, its
    multiply-accumulates, and `OPERATOR` for itself. What is made of that many elements is what
    memory holds, too.

    Attributes:
        limit: how many there may be.
        spent: how many there have been.
    """

    def __init__(self, constants: int) -> None:
        """For a network, or a file, with so many bytes of constants."""
        self.limit = _LEAST + _EACH_BYTE * constants
        self.spent = 0
        self._around: str | None = None

    def spend(self, what: object, operations: int) -> None:
        """Count what is about to be computed; `what` names it, mostly an operator's origin.

        Raises:
            UnsupportedError: it is too much.
        """
        if self.affords(operations):
            self.spent += operations
            return
        raise UnsupportedError(
            f"{self._around or what}: to compute what is constant takes "
            f"{self.spent + operations:,} elementary operations up to here; {self.limit:,} are the "
            "most that Smelt computes of a network of this size while it compiles: export the "
            "network with the result as a constant, or with less to compute"
        )

    def grow(self, constants: int) -> None:
        """Allow what so many more bytes of constants may have."""
        self.limit += _EACH_BYTE * constants

    def affords(self, operations: int) -> bool:
        """Whether so many are left."""
        return self.spent + operations <= self.limit

    @contextmanager
    def inside(self, what: object) -> Generator[None]:
        """While this runs, messages name `what`: a loop whose turns are computed one by one."""
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
    """What is computed while this runs has a budget, for so many bytes of constants.

    Inside of another one with a larger limit, that limit holds: so a caller who trusts a file may
    allow it more.
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
    """What is computed while this runs has been counted already."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def affords(operations: int | None) -> bool:
    """Whether what takes so many operations (None: nobody knows) may be computed or left.

    Where there is no budget, that of a small network holds.
    """
    if operations is None:
        return False
    return (_current.get() or Budget(0)).affords(operations)


def spend(what: object, operations: int) -> None:
    """Count what is about to be computed, where there is a budget; see `Budget.spend`."""
    budget = _current.get()
    if budget is not None:
        budget.spend(what, operations)
