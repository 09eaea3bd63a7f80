"""How a result is clamped and brought to the element type of the output."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isinf

from smelt.codegen.render import c_float
from smelt.ir import TensorType
from smelt.ops.fixed_point import Activation, clamp_limits

_PRIMARY = re.compile(r"\w+(\([^()]*\)|\[[^][]*\])?")


@dataclass(frozen=True)
class Store:
    """A C expression with `%s` for the result, and the helpers that it calls."""

    text: str
    helpers: frozenset[str] = frozenset()

    def __call__(self, result: str) -> str:
        """The expression for a result, without needless parentheses."""
        if _PRIMARY.fullmatch(result):
            return self.text.replace(")(%s)", ")%s") % result
        return self.text % result


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
        real_low, real_high = activation.limits
        if isinf(real_high):
            return Store(f"at_least(%s, {c_float(real_low)})", frozenset({"at_least"}))
        limits = f"{c_float(real_low)}, {c_float(real_high)}"
        return Store(f"clamp_float(%s, {limits})", frozenset({"clamp_float"}))
    low, high = y.dtype.limits
    if y.quant is not None:
        low, high = clamp_limits(activation, y)
    elif activation is not Activation.NONE:
        low, high = (int(min(max(v, low), high)) for v in activation.limits)
    cast = "" if y.dtype.c_name == "int32_t" else f"({y.dtype.c_name})"
    if not saturate and (low, high) == y.dtype.limits:
        return Store(f"{cast}(%s)" if cast else "%s")
    return Store(f"{cast}clamp(%s, {low}, {high})", frozenset({"clamp"}))


def offset(value: str, number: int) -> str:
    """The C expression of `value + number`."""
    if number == 0:
        return value
    return f"{value} {'+' if number > 0 else '-'} {abs(number)}"
