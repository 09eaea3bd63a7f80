"""int8 sums and differences of two tensors, on cores without the DSP extension.

TensorFlow Lite scales both inputs, rounds, adds, scales and rounds again; that is nearly
`(a * s + b * t + c) >> shift` in 32 bits. There are but 65536 pairs of inputs, and each bounds `c`
from either side: so for given factors `c` is found, or that there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from smelt.codegen.kernels.base import Input, KernelCall, Output, Request
from smelt.codegen.kernels.cortexm.cores import PlainKernel
from smelt.ir import DType, Node
from smelt.ops.binary import Binary
from smelt.ops.fixed_point import clamp_limits
from smelt.targets import Target

_SIGNS = {"add": 1, "sub": -1}
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


@lru_cache(maxsize=16)
def sum_of_products(node: Node) -> SumOfProducts | None:
    """What gives the node's outputs for every pair of inputs; None if nothing was found."""
    op = node.op
    if not isinstance(op, Binary):
        raise TypeError(f"{op.name} is no Binary")
    stored = np.arange(-128, 128).astype(np.int8)
    a, b = (x.ravel() for x in np.meshgrid(stored, stored))
    (outputs,) = op.reference(node, (a, b))
    y = node.output.type
    low, high = clamp_limits(op.activation, y, node.rounding)
    wanted = outputs.astype(np.int64) - low
    scales = (
        node.input(0).type.scale / y.scale,
        _SIGNS[op.kind] * node.input(1).type.scale / y.scale,
    )
    for shift in _SHIFTS:
        for steps in _STEPS:
            factors = tuple(round(s * 2.0**shift) + d for s, d in zip(scales, steps, strict=True))
            sums = a.astype(np.int64) * factors[0] + b.astype(np.int64) * factors[1]
            least = ((wanted << shift) - sums)[wanted > 0].max(initial=-_NEVER)
            most = ((wanted + 1 << shift) - 1 - sums)[wanted < high - low].min(initial=_NEVER)
            addend = (max(int(least), -(2**30)) + min(int(most), 2**30)) >> 1
            fits = max(-int(sums.min()), int(sums.max())) + abs(addend) < 2**31
            if least <= addend <= most and fits:
                return SumOfProducts((factors[0], factors[1]), addend, shift, high - low, low)
    return None


class ThumbAdd(PlainKernel):
    """Sums and differences of tensors of equal shapes."""

    op = Binary

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        op, name = node.op, node.op.name
        if not isinstance(op, Binary) or op.kind not in _SIGNS:
            return f"{name} is no sum and no difference."
        a, b, y = node.input(0).type, node.input(1).type, node.output.type
        if {a.dtype, b.dtype, y.dtype} != {DType.INT8} or y.quant is None:
            return f"{name} is served by two products for quantized i8."
        if not a.shape == b.shape == y.shape:
            return f"{name} is served by two products for tensors of equal shapes."
        if sum_of_products(node) is None:
            return f"{name} has scales for which no sum of two products was found."
        return None

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        op, scaling = node.op, sum_of_products(node)
        if not isinstance(op, Binary) or scaling is None:
            raise TypeError(f"{node.origin} is not supported")
        y = node.output.type
        return KernelCall(
            template="cortexm/thumb_add.j2",
            stem=op.kind,
            parameters={
                "title": f"{op.name}: {node.input(0).type}, {node.input(1).type} -> {y}",
                "s": scaling,
                "count": y.size,
            },
            operands=(Input(0, "a"), Input(1, "b"), Output(0, "output")),
            in_place=((0, 0), (0, 1)),
            summary="two products an output",
            form="thumb_add",
            work={"outputs": y.size, "calls": 1},
        )


KERNELS = (ThumbAdd(),)
