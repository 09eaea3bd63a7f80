"""int8 sums and differences of two tensors, on cores without the DSP extension.

Each result takes two 32-bit products and an offset. This form is proved for all pairs of inputs
(see `additions`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from typing_extensions import override

from smelt.codegen.lower.additions import addition, one_element, refuse_addition
from smelt.codegen.lower.kernel import (
    BodyCost,
    Input,
    Kernel,
    KernelCall,
    LayerStruct,
    Output,
    Parameters,
    Refusal,
    Request,
    SharedBody,
)
from smelt.codegen.text.expressions import offset
from smelt.codegen.text.layer_number import LayerNumber
from smelt.ir import Node
from smelt.ops.core.binary import Binary

_SHIFTS = range(23, 15, -1)
_STEPS = sorted(product(range(-3, 4), repeat=2), key=lambda step: abs(step[0]) + abs(step[1]))
_NEVER = 1 << 40
_MEANINGS = {
    "count": "of elements",
    "first": "factor",
    "second": "factor",
    "addend": "that is added to the products",
    "shift": "right shift of the sum",
}

_INSTRUCTIONS, _BYTES = 18, 68
"""Measured instructions for an element, and bytes of a body, on Cortex-M0."""


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
        scaling = sum_of_products(one_element(node))
        if scaling is None:
            return Refusal(f"{op.name} has scales for which two products are never exact.")
        call = KernelCall(
            template="lower/plain_add.j2",
            stem=op.kind,
            details={"scale": f"{scaling.factors} {scaling.addend} {scaling.shift}"},
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
        if request.optimize != "size":
            return call
        return replace(call, shared=_shared(call, scaling, y.size, f"{op.name} of the numbers"))


def _shared(own: KernelCall, scaling: SumOfProducts, count: int, title: str) -> SharedBody:
    """Return the body for other counts and scales."""
    values = (count, *scaling.factors, scaling.addend, scaling.shift)
    numbers = dict(zip(_MEANINGS, values, strict=True))
    size, first, second, addend, shift = (LayerNumber(n, name) for name, n in numbers.items())
    call = replace(
        own,
        parameters=SumOfProductsParameters(
            title=f"{title} in `layer`",
            count=size,
            factors=(first, second),
            addend=addend,
            shift=shift,
            span=scaling.span,
            output=offset("value", scaling.low),
        ),
        operands=(
            *own.operands[:-1],
            LayerStruct("layer", "sum", numbers, _MEANINGS),
            own.operands[-1],
        ),
    )
    cost = BodyCost(_INSTRUCTIONS * count, _BYTES)
    return SharedBody(call, replace(cost, bytes=_BYTES + 4), cost)
