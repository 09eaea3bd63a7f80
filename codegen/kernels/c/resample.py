"""Resample: copies or weighted sums along one axis."""

from __future__ import annotations

from math import prod

import numpy as np
from typing_extensions import override

from smelt.codegen.kernels.base import (
    Input,
    Kernel,
    KernelCall,
    Operand,
    Output,
    Packed,
    Refusal,
    Request,
)
from smelt.codegen.kernels.c.loops import total
from smelt.codegen.render import c_elements
from smelt.ir import Array, Node
from smelt.ops.resample import Resample


class ResampleKernel(Kernel[Resample]):
    """The elements behind the axis stand together: a row of them is summed or copied at a time."""

    op = Resample

    @override
    def offer(self, node: Node[Resample], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        if not all(v.is_constant for v in node.inputs[1:] if v is not None):
            return Refusal(f"{op.name} is served for constant positions and weights only.")
        positions, weights = node.input(1).array, node.optional(2)
        taps, width = positions.shape[1], prod(x.shape[op.axis + 1 :])
        columns = range(taps)
        sources = [f"input + {total((_row(taps, t, width),))}" for t in columns]
        tables: list[Operand] = [Packed("positions", _small(positions))]
        if weights is not None:
            tables.append(Packed("weights", weights.array))
        return KernelCall(
            template="c/resample.j2",
            stem="resample",
            parameters={
                "axis": op.axis,
                "x": x,
                "y": y,
                "outer": prod(x.shape[: op.axis]),
                "taps": taps,
                "width": width,
                "bytes": width * x.dtype.size,
                "input_step": prod(x.shape[op.axis :]),
                "weighs": weights is not None,
                "sources": sources,
                "sum": " + ".join(f"w{t} * x{t}[i]" for t in columns),
                "fill": c_elements(np.full(1, op.fill, x.dtype.numpy))[0],
                "fills": bool((positions[:, 0] < 0).any()),
            },
            operands=(Input(0, "input"), *tables, Output(0, "output")),
            summary=f"{width} elements at a time, each of {taps}",
        )


def _row(taps: int, tap: int, width: int) -> str:
    at = "o" if taps == 1 else f"o * {taps}" + (f" + {tap}" if tap else "")
    return f"positions[{at}]" + ("" if width == 1 else f" * {width}")


def _small(positions: Array) -> Array:
    """Positions in the smallest element type that holds them."""
    for kind in (np.uint8, np.int16):
        if np.array_equal(positions.astype(kind), positions):
            return positions.astype(kind)
    return positions


KERNELS = (ResampleKernel(),)
