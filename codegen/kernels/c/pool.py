"""Pool2D: maximum and average over sliding windows."""

from __future__ import annotations

import numpy as np

from smelt.codegen.kernels.base import Input, Kernel, KernelCall, Output, Request
from smelt.codegen.kernels.c.images import frame, pixel_offset, row_offset
from smelt.codegen.kernels.c.loops import lane_blocks
from smelt.codegen.render import c_float
from smelt.codegen.kernels.c.store import stored
from smelt.ir import DType, Node
from smelt.ops.pool import Pool2D
from smelt.targets import Target

_RECIPROCAL_LIMIT = 361
"""Largest window whose 8-bit averages `average` computes exactly with a 24-bit reciprocal.

For |sum| <= 128 count, the quotient is exact while 128.5 count^2 < 2^24, and the product of
numerator and reciprocal then stays below 2^32.
"""


class PoolKernel(Kernel):
    """Accumulates four channels of a window at a time."""

    op = Pool2D
    spatial = True

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        dtype = node.input(0).type.dtype
        if dtype in (DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16):
            return None
        return f"Pool2D is served for f32, i8, u8 and i16 data, not {dtype.value}."

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        op = node.op
        if not isinstance(op, Pool2D):
            raise TypeError(f"{op.name} is no Pool2D")
        x, y = node.input(0).type, node.output.type
        place = frame(node, request)
        average, padded = op.kind == "average", any(any(pair) for pair in op.padding)
        count = op.window[0] * op.window[1]
        reciprocal = average and x.dtype.size == 1 and count <= _RECIPROCAL_LIMIT
        store = stored(op.activation, y)
        parameters: dict[str, object] = {
            **place.variables,
            "op": op,
            "x": x,
            "y": y,
            "c_type": y.dtype.c_name,
            "sum_type": "float" if y.dtype.is_float else "int32_t",
            "first": "0" if average else _lowest(x.dtype),
            "average": average,
            "reciprocal": reciprocal,
            "padded": padded,
            "count": count,
            "fixed_reciprocal": -(-(1 << 24) // count),
            "store": store.text,
            "blocks": lane_blocks(y.shape[3]),
            "pixel": pixel_offset(place.source, "iy", "ix"),
            "row": None if place.source.wraps_rows else row_offset(place.source, "iy"),
            "output_pixel": pixel_offset(place.target, "y", "x"),
        }
        return KernelCall(
            template="c/pool.j2",
            stem=f"{op.kind}_pool_{op.window[0]}x{op.window[1]}",
            parameters=parameters,
            operands=(Input(0, "input"), Output(0, "output")),
            helpers=store.helpers | ({"average"} if reciprocal else frozenset()),
            summary=f"{op.kind} of {op.window[0]}x{op.window[1]} windows, 4 channels at a time",
        )


def _lowest(dtype: DType) -> str:
    return c_float(float(np.finfo(np.float32).min)) if dtype.is_float else str(dtype.limits[0])


KERNELS = (PoolKernel(),)
