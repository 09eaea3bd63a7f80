"""int8 divisions by one SDIV an element, in plain C.

TensorFlow Lite multiplies by a reciprocal that takes three Newton-Raphson steps. That is nearly the
quotient of `a * factor` and `b << shift`, to nearest, and there are but 65536 pairs of inputs to
ask whether it is so exactly. What stands for the reciprocal of zero is negative: a divisor of its
own takes its place.
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
"""How far from the ideal factors and divisors others are tried."""

_SHIFTS = 6
"""How many shifts are tried, from the largest one that fits into 32 bits."""

_ZERO = -17 / 24
"""The divisor that the Newton-Raphson steps make of zero, roughly."""


@dataclass(frozen=True)
class Division:
    """`a * factor / (b << shift)` to nearest, ties away from zero.

    Attributes:
        factor: of the dividend.
        shift: of the divisor, from 1 on.
        zero: the divisor, an even number, where `b` is zero.
    """

    factor: int
    shift: int
    zero: int

    def quotients(self, a: Array, b: Array) -> Array:
        """What the C code makes of inputs without their zero points."""
        dividend = a * self.factor
        divisor = np.where(b == 0, self.zero, b << self.shift)
        half = divisor >> 1
        rounded = dividend + np.where((dividend ^ divisor) < 0, -half, half)
        signs = np.sign(rounded) * np.sign(divisor)
        return np.abs(rounded) // np.abs(divisor) * signs


def _divisions(slope: float, largest: tuple[int, int]) -> Iterator[Division]:
    """Candidates for `slope * a / b`, of which the C code stays within 32 bits.

    Args:
        slope: of the quotient of what is stored.
        largest: magnitudes of `a` and `b`.
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
    """What gives the node's outputs for every pair of inputs; None if nothing was found."""
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
    """Variables of `backends/armv8m_baseline/quotient.j2`: lines of the comment and the code."""

    comment: tuple[str, ...]
    body: tuple[str, ...]


class BaselineQuotient(Kernel[Binary]):
    """Quotients of int8 tensors; a divisor that is broadcast is prepared once for its row."""

    op = Binary

    @override
    def offer(self, node: Node[Binary], request: Request) -> KernelCall | Refusal:
        name, x0, x1, y = node.op.name, node.input(0).type, node.input(1).type, node.output.type
        if node.op.kind != "div":
            return Refusal(f"{name} is no division.")
        if any(t.dtype is not DType.INT8 or t.quant is None for t in (x0, x1, y)):
            return Refusal(f"{name} is served by an instruction for quantized i8 only.")
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
            summary="one division an element",
            form="armv8m_baseline_sdiv",
            work={"elements": y.size, "calls": 1},
        )


def _statements(
    found: Division, loops: tuple[ArrayLoop, ...], offsets: tuple[int, int], output: str
) -> list[list[str]]:
    """C lines by the number of loops around them."""
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
