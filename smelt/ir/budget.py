"""Limits the work of computing constants while Smelt reads and compiles a network.

A small file can demand any amount of work: a constant loop may have 10^9 iterations, and a constant
may be repeated until it fills the memory. So work is counted before it is done, and refused above a
limit. Work is counted rather than timed, so that every machine refuses the same files.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from smelt.errors import UnsupportedError
from smelt.formatting import number

OPERATOR = 1 << 10
"""Elementary operations counted for each call of an operator's reference."""

_LEAST = 1 << 25
_EACH_BYTE = 16
"""The limit is `_LEAST`, plus `_EACH_BYTE` for each byte of constants, because constants are
converted, transposed and rescaled a few times each."""


class Budget:
    """A limit of elementary operations, and the number of those counted so far.

    An elementary operation is about what numpy does to one element. A node counts the elements
    that it reads and writes, its multiply-accumulates, and `OPERATOR` for itself. Since every
    element written counts, the limit bounds memory too.

    Attributes:
        limit: the largest number of operations allowed.
        spent: the number of operations counted so far.
    """

    def __init__(self, constants: int) -> None:
        """Make a budget for a network or file with `constants` bytes of constants."""
        self.limit = _LEAST + _EACH_BYTE * constants
        self.spent = 0
        self._around: str | None = None

    def spend(self, what: object, operations: int) -> None:
        """Count operations that are about to be computed.

        Args:
            what: names the operations in messages.
            operations: how many there are.

        Raises:
            UnsupportedError: the limit would be exceeded. The operations are not counted then.
        """
        if self.affords(operations):
            self.spent += operations
            return
        raise UnsupportedError(
            f"{self._around or what}: computing the constants up to here takes "
            f"{number(self.spent + operations)} elementary operations; Smelt computes at most "
            f"{self.limit:,} for a network of this size while it compiles. Export the network "
            "with the result as a constant, or with less to compute"
        )

    def grow(self, constants: int) -> None:
        """Raise the limit for `constants` more bytes of constants."""
        self.limit += _EACH_BYTE * constants

    def affords(self, operations: int) -> bool:
        """Return whether that many operations are left."""
        return self.spent + operations <= self.limit

    @contextmanager
    def inside(self, what: object) -> Generator[None]:
        """Name `what` in the messages of this block: a loop whose iterations are computed."""
        around, self._around = self._around, self._around or str(what)
        try:
            yield
        finally:
            self._around = around


_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


def current() -> Budget | None:
    """Return the budget in force; None if a network is only run, not read or compiled."""
    return _current.get()


@contextmanager
def limited(constants: int) -> Generator[Budget]:
    """Limit what this block computes, for a file with `constants` bytes of constants.

    If a budget with a larger limit is already in force, the larger limit is used, so that a caller
    who trusts a file can allow more.
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
    """Count nothing in this block, because its work was already counted."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def affords(operations: int | None) -> bool:
    """Return whether the budget in force allows that many operations; False for None (unknown).

    If no budget is in force, the limit is that of a network without constants.
    """
    if operations is None:
        return False
    return (_current.get() or Budget(0)).affords(operations)


def spend(what: object, operations: int) -> None:
    """Count operations that are about to be computed, if a budget is in force: `Budget.spend`."""
    budget = _current.get()
    if budget is not None:
        budget.spend(what, operations)
