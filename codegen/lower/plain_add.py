"""int8 sums and differences of two tensors, on cores without the DSP extension.

Each result takes two 32-bit products and an offset. This form is proved for all pairs of inputs
(see `additions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from typing_extensions import override

from smelt.codegen.lower.additions import addition, refuse_addition
from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.text.expressions import offset
from smelt.ir import Node
from smelt.ops.core.binary import Binary

_SHIFTS = range(23, 15, -1)
_STEPS = sorted(product(range(-3, 4), repeat=2), key=lambda step: abs(step[0]) + abs(step[1]))
_NEVER = 1 << 40


@dataclass(frozen=True)
class SumOfProducts:
    """`clamp((a * factors[0] + b * factors[1] + addend) >> shift, 0, span) + low`."""

    factors: tuple[int, int]
    addend: int
    shift: int
    span: int
    low: int


@lru_cache(maxsize=128)
def sum_of_products(node: Node[Binary]) -> SumOfProducts | None:
    """Return constants that are exact for every pair of inputs, or None if none were found."""
    pairs = addition(node)
    low, high = pairs.limits
    wanted = pairs.outputs - low
    for shift in _SHIFTS:
        for steps in _STEPS:
            first, second = (
                round(s * 2.0**shift) + d for s, d in zip(pairs.slopes, steps, strict=True)
            )
            sums = pairs.a * first + pairs.b * second
            least = ((wanted << shift) - sums)[wanted > 0].max(initial=-_NEVER)
            most = ((wanted + 1 << shift) - 1 - sums)[wanted < high - low].min(initial=_NEVER)
            addend = (max(int(least), -(2**30)) + min(int(most), 2**30)) >> 1
            fits = max(-int(sums.min()), int(sums.max())) + abs(addend) < 2**31
            if least <= addend <= most and fits:
                return SumOfProducts((first, second), addend, shift, high - low, low)
    return None


@dataclass(frozen=True)
class SumOfProductsParameters(Parameters):
    """Variables of `lower/plain_add.j2`; `output` is C of the stored element."""

    title: str
    count: int
    factors: tuple[int, int]
    addend: int
    shift: int
    span: int
    output: str


class PlainAdd(Kernel[Binary]):
    """Sums and differences of tensors of equal shape."""

    op = Binary

    @override
    def offer(self, node: Node[Binary], request: Request) -> KernelCall | Refusal:
        if refusal := refuse_addition(node):
            return refusal
        op, y = node.op, node.output.type
        scaling = sum_of_products(node)
        if scaling is None:
            return Refusal(f"{op.name} has scales for which two products are never exact.")
        return KernelCall(
            template="lower/plain_add.j2",
            stem=op.kind,
            parameters=SumOfProductsParameters(
                title=f"{op.name}: {node.input(0).type}, {node.input(1).type} -> {y}",
                count=y.size,
                factors=scaling.factors,
                addend=scaling.addend,
                shift=scaling.shift,
                span=scaling.span,
                output=offset("value", scaling.low),
            ),
            operands=(Input(0, "a"), Input(1, "b"), Output(0, "output")),
            in_place=((0, 0), (0, 1)),
            summary="two products per output",
            form="plain_add",
            work={"outputs": y.size, "calls": 1},
        )
