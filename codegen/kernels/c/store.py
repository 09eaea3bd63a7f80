"""How a result is clamped and brought to the element type of the output."""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf

from smelt.codegen.render import c_float
from smelt.ir import TensorType
from smelt.ops.fixed_point import Activation, clamp_limits


@dataclass(frozen=True)
class Store:
    """A C expression with `%s` for the result, and the helpers that it calls."""

    text: str
    helpers: frozenset[str] = frozenset()


def stored(activation: Activation, y: TensorType, *, saturate: bool = False) -> Store:
    """How to store a result in an element of `y`: a float, or an int32 with its zero point added.

    Args:
        activation: fused clamp.
        y: type of the output.
        saturate: whether an integer result may exceed the element type.
    """
    if y.dtype.is_float:
        if activation is Activation.NONE:
            return Store("%s")
        low, high = activation.limits
        if isinf(high):
            return Store(f"at_least(%s, {c_float(low)})", frozenset({"at_least"}))
        return Store(f"clamp_float(%s, {c_float(low)}, {c_float(high)})", frozenset({"clamp_float"}))
    cast = f"({y.dtype.c_name})"
    low, high = y.dtype.limits if y.quant is None else clamp_limits(activation, y)
    if not saturate and (low, high) == y.dtype.limits:
        return Store(f"{cast}(%s)")
    return Store(f"{cast}clamp(%s, {low}, {high})", frozenset({"clamp"}))


def offset(value: str, number: int) -> str:
    """The C expression of `value + number`."""
    if number == 0:
        return value
    return f"{value} {'+' if number > 0 else '-'} {abs(number)}"
