"""C expressions: clamped results, offsets, and the helpers that they call."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isinf

from smelt.codegen.text.expressions import in_parentheses, offset
from smelt.codegen.text.helpers import uses_in
from smelt.codegen.text.literals import c_float
from smelt.ir import DType, Rounding, TensorType
from smelt.ops.arithmetic.fixed_point import Activation, clamp_limits

_PRIMARY = re.compile(r"\w+(\([^()]*\)|\[[^][]*\])?")


@dataclass(frozen=True)
class Store:
    """A C expression with `%s` for the result."""

    text: str

    @property
    def uses(self) -> frozenset[str]:
        """The helpers and headers that it uses."""
        return uses_in([self.text])

    def __call__(self, result: str) -> str:
        """Return the expression for a result, without needless parentheses."""
        if _PRIMARY.fullmatch(result):
            return self.text.replace(")(%s)", ")%s") % result
        return self.text % result


def stored(
    activation: Activation,
    y: TensorType,
    *,
    saturate: bool = False,
    rounding: Rounding | None = None,
) -> Store:
    """Return how to store a result as an element of `y`: a float, or an int32 plus zero point.

    Args:
        activation: The fused clamp.
        y: The type of the output.
        saturate: Whether an integer result may exceed the element type.
        rounding: The rounding of a quantized output's limits.
    """
    if y.dtype is DType.BOOL:
        return Store("%s")
    if y.dtype.is_float:
        if activation is Activation.NONE:
            return Store("%s")
        real_low, real_high = activation.limits
        if isinf(real_high):
            return Store(f"at_least(%s, {c_float(real_low)})")
        limits = f"{c_float(real_low)}, {c_float(real_high)}"
        return Store(f"clamp_float(%s, {limits})")
    low, high = y.dtype.limits
    if y.quant is not None:
        low, high = clamp_limits(activation, y, rounding)
    elif activation is not Activation.NONE:
        low, high = (int(min(max(v, low), high)) for v in activation.limits)
    cast = "" if y.dtype.c_name == "int32_t" else f"({y.dtype.c_name})"
    if not saturate and (low, high) == y.dtype.limits:
        return Store(f"{cast}(%s)" if cast else "%s")
    return Store(f"{cast}clamp(%s, {low}, {high})")


def in_precision_of(dtype: DType, text: str) -> str:
    """Return C for this float type.

    For double, use math.h's double functions instead of ours, and constants of type double. All
    constants must be whole numbers or infinite: the double is then the same number.
    """
    if dtype is not DType.FLOAT64:
        return text
    text = re.sub(r"\b(?:(exp|expm1|log|tanh|erf)_float|(\w+)f)\(", r"\1\2(", text)
    text = re.sub(r"\b(\d+\.0)f\b", r"\1", text)
    return re.sub(r"\bINFINITY\b", "(double)INFINITY", text)


def quantization(name: str, type_: TensorType) -> str:
    """Return a formula for a quantized operand, for comments."""
    shifted = in_parentheses(offset("stored", -type_.zero_point))
    return f"{name} = {c_float(type_.scale)} * {shifted}"


def quantizations(**types: TensorType) -> tuple[str, ...]:
    """Return comment lines with formulas for quantized operands; none if they are not quantized.

    All but the last formula are on one line.
    """
    if not any(type_.is_quantized for type_ in types.values()):
        return ()
    *first, last = (quantization(name, type_) for name, type_ in types.items())
    return f"{', '.join(first)},", f"{last}."
