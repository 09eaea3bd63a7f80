"""Softmax: exponentials by a table of differences for int8, expf for float."""

from __future__ import annotations

import numpy as np

from smelt.codegen.kernels.base import Input, Kernel, KernelCall, Output, Packed, Request
from smelt.ir import Array, DType, Node
from smelt.ops.gemmlowp import exp_on_negative_values
from smelt.ops.softmax import Softmax, difference_scaling
from smelt.targets import Target

_NARROW = 511
"""Elements of a row whose Q12 exponentials surely sum to less than 2^28."""


class SoftmaxKernel(Kernel):
    """Three passes over each row: its maximum, the sum of the exponentials, the quotients."""

    op = Softmax

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        dtype = node.input(0).type.dtype
        if dtype in (DType.FLOAT32, DType.INT8):
            return None
        return f"Softmax is served for f32 and i8 data, not {dtype.value}."

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        op, x = node.op, node.input(0).type
        if not isinstance(op, Softmax):
            raise TypeError(f"{op.name} is no Softmax")
        size = x.shape[-1]
        common = {"x": x, "size": size, "rows": x.size // size, "beta": op.beta}
        operands = Input(0, "input"), Output(0, "output")
        if x.quant is None:
            return KernelCall(
                template="c/softmax_float.j2",
                stem="softmax",
                parameters=common,
                operands=operands,
                in_place=((0, 0),),
                summary="float, three passes a row",
            )
        table = exponentials(x.scale, op.beta)
        return KernelCall(
            template="c/softmax_int8.j2",
            stem="softmax",
            parameters={**common, "entries": table.size, "wide": size > _NARROW},
            operands=(operands[0], Packed("exponentials", table), operands[1]),
            in_place=((0, 0),),
            helpers=frozenset({"leading_zeros", "reciprocal", "requantize"}),
            summary=f"int8, a table of {table.size} exponentials",
        )


def exponentials(scale: float, beta: float) -> Array:
    """exp of `-beta · scale · difference` for stored differences 0, 1, … as Q0 (int32).

    The table ends where the exponentials are negligible, after at most 256 entries.
    """
    scaling = difference_scaling(scale, beta)
    differences = np.arange(0, -min(256, 1 - scaling.lowest), -1, dtype=np.int64)
    return exp_on_negative_values(scaling(differences), 5).astype(np.int32)


KERNELS = (SoftmaxKernel(),)
