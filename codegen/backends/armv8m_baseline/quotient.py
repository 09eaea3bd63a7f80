"""int8 divisions with one SDIV per element, in plain C.

TensorFlow Lite multiplies by a reciprocal that it computes with three Newton-Raphson steps. The
result is nearly `a * factor / (b << shift)`, rounded to nearest. There are only 65536 pairs of
inputs, so all are tried to check that the results are equal. For b = 0 the Newton-Raphson steps
give a negative reciprocal; a separate constant divisor replaces it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from typing_extensions import override

from smelt.codegen.lower.c_expressions import quantizations, stored
from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.lower.nested_loops import (
    ArrayLoop,
    broadcast_strides,
    dense_strides,
    depth,
    index,
    nest,
    nested,
    unbroadcast,
)
from smelt.codegen.text.expressions import offset
from smelt.ir import Array, DType, Node
from smelt.ops.arithmetic.fixed_point import clamp_limits
from smelt.ops.core.binary import Binary

_STEPS = sorted(range(-4, 5), key=abs)
"""Differences from the nearest factor that are tried."""

_SHIFTS = 6
"""Number of shifts that are tried, from the largest one that fits into 32 bits."""

_ZERO = -17 / 24
"""Approximate divisor whose reciprocal the Newton-Raphson steps give for zero."""


@dataclass(frozen=True)
class Division:
    """`a * factor / (b << shift)`, rounded to nearest, ties away from zero.

    Attributes:
        factor: factor of the dividend.
        shift: left shift of the divisor, at least 1.
        zero: the divisor if `b` is zero; an even number.
    """

    factor: int
    shift: int
    zero: int

    def quotients(self, a: Array, b: Array) -> Array:
        """Return the results of the C code for inputs without their zero points."""
        dividend = a * self.factor
        divisor = np.where(b == 0, self.zero, b << self.shift)
        half = divisor >> 1
        rounded = dividend + np.where((dividend ^ divisor) < 0, -half, half)
        signs = np.sign(rounded) * np.sign(divisor)
        return np.abs(rounded) // np.abs(divisor) * signs


def _divisions(slope: float, largest: tuple[int, int]) -> Iterator[Division]:
    """Yield candidates for `slope * a / b` whose C code does not overflow 32 bits.

    Args:
        slope: scale of `a` / scale of `b` / scale of the output.
        largest: largest magnitudes of `a` and `b`.
    """
    a, b = largest
    shifts = [s for s in range(29, 0, -1) if slope * 2.0**s * a + (b << s >> 1) < 2**31 - 4 * a]
    for shift in shifts[:_SHIFTS]:
        for step in _STEPS:
            factor = round(slope * 2.0**shift) + step
            if factor > 0:
                yield Division(factor, shift, 2 * round(_ZERO * 2.0 ** (shift - 1)))


@lru_cache(maxsize=128)
def division(node: Node[Binary]) -> Division | None:
    """Return a division that is exact for every pair of inputs; None if none was found."""
    x0, x1, y = node.input(0).type, node.input(1).type, node.output.type
    stored_numbers = np.arange(-128, 128).astype(np.int8)
    pairs = tuple(x.ravel() for x in np.meshgrid(stored_numbers, stored_numbers))
    (outputs,) = node.op.reference(node, pairs)
    a, b = (x.astype(np.int64) - t.zero_point for x, t in zip(pairs, (x0, x1), strict=True))
    limits = clamp_limits(node.op.activation, y, node.rounding)
    slope = x0.scale / x1.scale / y.scale
    for found in _divisions(slope, (int(np.abs(a).max()), int(np.abs(b).max()))):
        made = np.clip(found.quotients(a, b) + y.zero_point, *limits)
        if np.array_equal(made, outputs):
            return found
    return None


@dataclass(frozen=True)
class DivisionParameters(Parameters):
    """Variables of `backends/armv8m_baseline/quotient.j2`.

    Attributes:
        comment: lines of the function's comment.
        body: lines of C code.
    """

    comment: tuple[str, ...]
    body: tuple[str, ...]


class BaselineQuotient(Kernel[Binary]):
    """Quotients of int8 tensors; a divisor that is broadcast is computed once for its row."""

    op = Binary

    @override
    def offer(self, node: Node[Binary], request: Request) -> KernelCall | Refusal:
        name, x0, x1, y = node.op.name, node.input(0).type, node.input(1).type, node.output.type
        if node.op.kind != "div":
            return Refusal(f"{name} is not a division.")
        if any(t.dtype is not DType.INT8 or t.quant is None for t in (x0, x1, y)):
            return Refusal(f"{name} by an instruction supports only quantized i8.")
        found = division(node)
        if found is None:
            return Refusal(f"{name} has scales for which no quotient of two integers is exact.")
        loops = nest(
            y.shape,
            broadcast_strides(x0.shape, y.shape),
            broadcast_strides(x1.shape, y.shape),
            dense_strides(y.shape),
        )
        store = stored(node.op.activation, y, saturate=True, rounding=node.rounding)
        return KernelCall(
            template="backends/armv8m_baseline/quotient.j2",
            stem="div",
            parameters=DivisionParameters(
                (f"{name}: {x0} and {x1} -> {y}.", *quantizations(a=x0, b=x1, output=y)),
                nested(
                    [loop.head for loop in loops],
                    _statements(
                        found,
                        loops,
                        (-x0.zero_point, -x1.zero_point),
                        store(offset("quotient", y.zero_point)),
                    ),
                ),
            ),
            operands=(Input(0, "a"), Input(1, "b"), Output(0, "output")),
            in_place=unbroadcast((x0, x1), y),
            uses=store.uses,
            summary="one division per element",
            form="armv8m_baseline_sdiv",
            work={"elements": y.size, "calls": 1},
        )


def _statements(
    found: Division, loops: tuple[ArrayLoop, ...], offsets: tuple[int, int], output: str
) -> list[list[str]]:
    """Return C lines, indexed by the number of loops around them."""
    statements: list[list[str]] = [[] for _ in range(len(loops) + 1)]
    left, right = (f"{x}[{index(loops, i)}]" for i, x in enumerate("ab"))
    statements[depth(loops, 1)] += [
        f"const int32_t right = {offset(right, offsets[1])};",
        f"const int32_t divisor = right == 0 ? {found.zero} : right * {1 << found.shift};",
        "const int32_t half = divisor >> 1;",
    ]
    statements[depth(loops, 0)].append(
        f"const int32_t dividend = ({offset(left, offsets[0])}) * {found.factor};"
    )
    statements[-1] += [
        "const int32_t nearest = (dividend ^ divisor) < 0 ? dividend - half : dividend + half;",
        "const int32_t quotient = nearest / divisor;",
        f"output[{index(loops, 2)}] = {output};",
    ]
    return statements


KERNELS = (BaselineQuotient(),)
