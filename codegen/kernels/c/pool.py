"""Pool2D: maximum, average and total over sliding windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.kernels.base import Input, Kernel, KernelCall, Output, Refusal, Request
from smelt.codegen.kernels.c.finish import Finish
from smelt.codegen.kernels.c.images import Frame, PixelStrides
from smelt.codegen.kernels.c.loops import LANES, Block, lane_blocks, total
from smelt.codegen.kernels.c.store import helpers_in, offset, stored
from smelt.codegen.render import c_float
from smelt.ir import DType, Node, TensorType
from smelt.ops.fixed_point import clamp_limits
from smelt.ops.pool import Pool2D, average_scale

_RECIPROCAL_LIMIT = 361
"""Largest window whose 8-bit averages `average` computes exactly with a 24-bit reciprocal.

For |sum| <= 128 count, the quotient is exact while 128.5 count^2 < 2^24, and the product of
numerator and reciprocal then stays below 2^32.
"""

_VECTOR_LANES = 16
"""Channels at a time where floats are computed several at a time."""

_TAPS_LIMIT = 4
"""Widest window whose columns are written out instead of looped over."""


@dataclass(frozen=True)
class Span:
    """The input rows (or columns) under a window, as C.

    Attributes:
        begin: name of the first one, `end` of the one after the last.
        first: the expression of the first one, which may be negative.
        window: from the first one under a window to just past the last.
        step: from one under a window to the next.
        clips_first, clips_last: whether some window reaches beyond the image there.
    """

    begin: str
    end: str
    first: str
    window: int
    step: int
    size: int
    clips_first: bool
    clips_last: bool

    @staticmethod
    def of(op: Pool2D, axis: int, size: int, outputs: int) -> Span:
        """The span of rows (`axis` 0) or columns (1)."""
        (before, _), stride, step = op.padding[axis], op.stride[axis], op.dilation[axis]
        window = (op.window[axis] - 1) * step + 1
        output, name = ("y", "iy") if axis == 0 else ("x", "ix")
        first = offset(output if stride == 1 else f"{output} * {stride}", -before)
        last = (outputs - 1) * stride - before + window
        clips = before > 0, last > size
        return Span(f"{name}_begin", f"{name}_end", first, window, step, size, *clips)

    @property
    def clips(self) -> bool:
        """Whether windows differ in size."""
        return self.clips_first or self.clips_last

    @property
    def count(self) -> str:
        """The C expression of how many there are."""
        if self.step == 1:
            return f"({self.end} - {self.begin})"
        return f"(({self.end} - {self.begin} + {self.step - 1}) / {self.step})"

    @property
    def advance(self) -> str:
        """The C expression that goes to the next one."""
        name = self.begin.removesuffix("_begin")
        return f"++{name}" if self.step == 1 else f"{name} += {self.step}"


class PoolKernel(Kernel[Pool2D]):
    """Accumulates several channels of a window at a time."""

    op = Pool2D

    @override
    def offer(self, node: Node[Pool2D], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        count, dtype = op.window[0] * op.window[1], x.dtype
        if dtype not in (DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16):
            return Refusal(f"{op.name} is served for f32, i8, u8 and i16 data, not {dtype.value}.")
        if op.kind == "sum" and not dtype.is_float:
            return Refusal(f"{op.name} is served for f32 data, not {dtype.value}.")
        if op.kind == "average" and dtype is DType.INT16 and count > 1 << 15:
            return Refusal(f"{op.name} of {count} i16 elements may overflow 32 bits.")
        place = Frame.of(node)
        rows = Span.of(op, 0, x.shape[1], y.shape[1])
        columns = Span.of(op, 1, x.shape[2], y.shape[2])
        store = stored(op.activation, y)
        reciprocal = op.kind == "average" and x.dtype.size == 1 and count <= _RECIPROCAL_LIMIT
        taps = not columns.clips and op.window[1] <= _TAPS_LIMIT
        clips = rows.clips or columns.clips
        counts = clips and not op.counts_padding
        first, centre = _first(op.kind, x.dtype), 0
        vectors = x.dtype.is_float and "simd_float" in request.target.features
        lanes = _VECTOR_LANES if vectors else LANES
        names = ["acc[j]"] if vectors else [f"acc{lane}" for lane in range(lanes)]
        results = [store(_result(op.kind, x.dtype, name, reciprocal)) for name in names]
        if op.scales(node):
            result = _scaled(node, varies=counts)
            results = [result.replace("%s", name) for name in names]
            first, centre = ("0", x.zero_point) if clips else (str(-x.zero_point * count), 0)
        parameters: dict[str, object] = {
            "frame": place,
            "op": op,
            "x": x,
            "y": y,
            "acc_type": "float" if y.dtype.is_float else "int32_t",
            "first": first,
            "scales": op.scales(node),
            "reciprocal": reciprocal,
            "rows": rows,
            "columns": columns,
            "taps": op.window[1] if taps else 0,
            "clips": clips,
            "counts": counts,
            "count": count,
            "fixed_reciprocal": -(-(1 << 24) // count),
            "pixel_step": place.source.pixel * columns.step,
            "blocks": [
                _block(op, block, place.source, centre, taps=taps, vectors=vectors)
                for block in lane_blocks(y.shape[3], lanes)
            ],
            "vectors": vectors,
            "results": results,
            "output_pixel": place.target.offset("y", "x"),
        }
        return KernelCall(
            template="c/pool.j2",
            stem=f"{op.kind}_pool_{op.window[0]}x{op.window[1]}",
            parameters=parameters,
            operands=(Input(0, "input"), Output(0, "output")),
            helpers=helpers_in(results),
            summary=f"{op.kind} of {op.window[0]}x{op.window[1]} windows, "
            f"{lanes} channels at a time",
            form=f"c_{op.kind}_pool",
            work={"taps": _taps(op, x) * y.shape[0] * y.shape[3], "outputs": y.size, "calls": 1},
        )


def _taps(op: Pool2D, x: TensorType) -> int:
    """Pixels under all windows of an image."""
    return int(op.covered(0, x).sum()) * int(op.covered(1, x).sum())


def _scaled(node: Node[Pool2D], *, varies: bool) -> str:
    """The C expression of an average with ONNX's rounding; `%s` is the sum, zero points taken off.

    The size of the window is `count` where it varies.
    """
    op, x, y = node.op, node.input(0).type, node.output.type
    scale, size = average_scale(x, y), op.window[0] * op.window[1]
    if not varies:
        most = size * 255
        range_ = np.full(1, -most, np.int64), np.full(1, most, np.int64)
        scales = (float(scale / np.float32(size)),)
        return Finish.of(node, op.activation, None, scales, range_).output("%s")
    low, high = (limit - y.zero_point for limit in clamp_limits(op.activation, y, node.rounding))
    product = f"(float)%s * ({c_float(float(scale))} / (float)count)"
    result = offset(f"rounded({product}, {c_float(low)}, {c_float(high)})", y.zero_point)
    return f"({y.dtype.c_name})({result})"


def _block(
    op: Pool2D, block: Block, source: PixelStrides, centre: int, *, taps: bool, vectors: bool
) -> dict[str, object]:
    """Where a block's elements start, and its steps.

    A list for each column of the window where `taps`, and else for the first.
    Elements are added less `centre`; with vectors there is one step for all of a column.
    """

    def step(lane: int | str, column: int) -> str:
        name = f"acc[{lane}]" if vectors else f"acc{lane}"
        element = f"in[{offset(str(lane), column * op.dilation[1] * source.pixel)}]"
        if not vectors:
            element = f"in[{int(lane) + column * op.dilation[1] * source.pixel}]"
        if op.kind == "max":
            return f"{name} = {element} > {name} ? {element} : {name};"
        return f"{name} += {offset(element, -centre)};"

    pixel = source.offset("iy", "ix_begin")
    return {
        "block": block,
        "whole": ((0, block.lanes),),
        "input": total(("input", pixel, block.position)),
        "steps": [
            [step(lane, column) for lane in (["j"] if vectors else range(block.lanes))]
            for column in range(op.window[1] if taps else 1)
        ],
    }


def _result(kind: str, dtype: DType, acc: str, reciprocal: bool) -> str:
    """What becomes of an accumulator."""
    if kind != "average":
        return acc
    if dtype.is_float:
        return f"{acc} / count"
    if reciprocal:
        return f"average({acc}, half, reciprocal)"
    return f"({acc} > 0 ? {acc} + half : {acc} - half) / count"


def _first(kind: str, dtype: DType) -> str:
    """What an accumulator starts from."""
    if kind != "max":
        return "0.0f" if dtype.is_float else "0"
    return c_float(float(np.finfo(np.float32).min)) if dtype.is_float else str(dtype.limits[0])


KERNELS = (PoolKernel(),)
