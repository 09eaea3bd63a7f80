"""Exact quantization of floats on a GPU.

Vulkan's quotients have an error of up to 2.5 units in the last place, so that a quotient near the
middle between two integers may be rounded to either. Because the stored number is a nondecreasing
function of the float, the compiler computes the smallest float for each stored number, and the
shader compares with these thresholds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from smelt.codegen.backends.vulkan.elementwise import ElementBody
from smelt.codegen.backends.vulkan.unary import float_bits
from smelt.codegen.lower.kernel import Packed
from smelt.ir import Array, TensorType
from smelt.ops.arithmetic.fixed_point import quantize_onnx, round_half_away


def quantized_real(
    y: TensorType, real: str, low: int, high: int, *, ties_to_even: bool = True
) -> ElementBody:
    """Return GLSL that quantizes a float; NaN becomes `low`.

    Args:
        y: The quantized 8-bit type.
        real: Name of the float variable.
        low: Smallest result.
        high: Largest result.
        ties_to_even: Round ties to even, as ONNX does; else away from zero.
    """
    scale = np.float32(y.scale)

    def stored(x: Array) -> Array:
        if ties_to_even and y.quant is not None:
            return quantize_onnx(x, y.quant, y).astype(np.int64)
        with np.errstate(over="ignore", invalid="ignore"):
            whole = round_half_away(x / scale)
        return np.clip(whole, -1024, 1024).astype(np.int64) + y.zero_point

    table = np.full(high - low + 2, np.inf, np.float32)
    table[0] = -np.inf
    table[1:-1] = thresholds(stored, np.arange(low + 1, high + 1))
    return ElementBody(
        f"min(near + int({real} >= STEPS(near - LOW + 1)) - int({real} < STEPS(near - LOW)), HIGH)",
        (
            f"const float scaled = {real} * intBitsToFloat(INVERSE) + float(ZERO);",
            "const int near = isnan(scaled) ? LOW : int(clamp(scaled, float(LOW), float(HIGH)));",
        ),
        {
            "INVERSE": float_bits(1.0 / y.scale),
            "ZERO": y.zero_point,
            "LOW": low,
            "HIGH": high,
        },
        ((Packed("steps", table), "float"),),
    )


def thresholds(stored: Callable[[Array], Array], values: Array) -> Array:
    """Return, for each value, the smallest float32 `x` with `stored(x) >= value`; inf if none.

    `stored` must be nondecreasing. The search is a bisection of the ordered floats.
    """
    low = np.full(len(values), _order(np.float32(-np.inf)), np.int64) - 1
    high = np.full(len(values), _order(np.float32(np.inf)), np.int64) + 1
    while (high - low > 1).any():
        middle = (low + high) >> 1
        reached = stored(_float(middle)) >= values
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return _float(np.minimum(high, _order(np.float32(np.inf))))


def _order(x: np.float32) -> int:
    """Map a float32 to an integer in the same order."""
    bits = int(x.view(np.int32))
    return bits if bits >= 0 else -(bits & 0x7FFFFFFF) - 1


def _float(order: Array) -> Array:
    """Map integers back to float32: the inverse of `_order`."""
    bits = np.where(order >= 0, order, (-order - 1) | 0x80000000)
    return bits.astype(np.uint64).astype(np.uint32).view(np.float32)
