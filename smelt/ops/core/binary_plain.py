"""Arithmetic of the binary operators on floats and unquantized integers.

Integers wrap like unsigned integers of the same width in C. Where C's behavior is undefined, it is
defined here: a quotient or remainder by zero is 0; a shift by a negative number is a shift by the
integer's width.
"""

from __future__ import annotations

import numpy as np

from smelt.ir import Array


def divide(a: Array, b: Array) -> Array:
    """Divide; integer quotients are truncated towards zero as in C, and are 0 if `b` is 0."""
    if a.dtype.kind == "f":
        return a / b
    floor = a // b
    inexact = floor * b != a
    return np.where(b == 0, 0, floor + (inexact & ((a < 0) != (b < 0)))).astype(a.dtype)


def floor_divide(a: Array, b: Array) -> Array:
    """Divide and round down; integer quotients are 0 if `b` is 0."""
    if a.dtype.kind == "f":
        return np.floor(a / b)
    return np.where(b == 0, 0, a // b).astype(a.dtype)


def square_of_difference(a: Array, b: Array) -> Array:
    """Return `(a - b)²`."""
    return (a - b) * (a - b)


def modulo(a: Array, b: Array) -> Array:
    """Return the remainder with the sign of `b`, as Python's `%`."""
    return np.mod(a, b)


def remainder(a: Array, b: Array) -> Array:
    """Return the remainder with the sign of `a`, as C's `%` and `fmod`."""
    return np.fmod(a, b)


def power(a: Array, b: Array) -> Array:
    """Return `a` to the power of `b`.

    Integer powers use repeated squaring, and wrap. With a negative exponent, the reciprocal of the
    power is truncated to an integer.
    """
    if a.dtype.kind == "f":
        return np.power(a, b)
    base, exponent = (np.asarray(x) for x in np.broadcast_arrays(a, b))
    odd = (exponent & 1).astype(np.bool_)
    reciprocal = np.where(base == 1, 1, np.where((base + 1 == 0) & odd, -1, 0))
    reciprocal = np.where((base + 1 == 0) & ~odd, 1, reciprocal)
    negative = exponent < 0
    rest = np.where(negative, 0, exponent).astype(np.uint64)
    square = base.astype(np.uint64)
    result = np.ones(base.shape, np.uint64)
    while rest.any():
        result = np.where(rest & np.uint64(1), result * square, result)
        square, rest = square * square, rest >> np.uint64(1)
    return np.where(negative, reciprocal.astype(a.dtype), result.astype(a.dtype))


def shift_left(a: Array, b: Array) -> Array:
    """Shift left; the result is 0 if `b` is negative or at least the integer's width."""
    in_range, distance = _distance(a, b)
    return np.where(in_range, a << distance, 0).astype(a.dtype)


def shift_right(a: Array, b: Array) -> Array:
    """Shift right arithmetically.

    If `b` is negative or at least the integer's width, all bits are copies of the sign.
    """
    in_range, distance = _distance(a, b)
    signs = (0 - (a < 0).astype(np.int64)).astype(a.dtype)
    return np.where(in_range, a >> distance, signs)


def _distance(a: Array, b: Array) -> tuple[Array, Array]:
    in_range = (b >= 0) & (b < 8 * a.dtype.itemsize)
    return in_range, np.where(in_range, b, 0).astype(a.dtype)
