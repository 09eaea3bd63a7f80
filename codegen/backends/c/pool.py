"""Pool2D: maximum, average and total over sliding windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Literal

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.c.pool_windows import PoolBlock, PoolSpan, WindowWalk
from smelt.codegen.lower.c_expressions import Store, stored
from smelt.codegen.lower.image_loops import Frame
from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.lower.nested_loops import LANES, lane_blocks, total
from smelt.codegen.lower.output_stage import OutputStage
from smelt.codegen.text.expressions import offset
from smelt.codegen.text.literals import c_float
from smelt.ir import DType, Node, TensorType
from smelt.ops.arithmetic.fixed_point import clamp_limits
from smelt.ops.core.pool import Pool2D, average_scale

_RECIPROCAL_LIMIT = 361
"""Largest window whose 8-bit averages `average` computes exactly with a 24-bit reciprocal.

For |sum| <= 128 count, the quotient is exact if 128.5 count^2 < 2^24; then also the product of
numerator and reciprocal is below 2^32.
"""

_VECTOR_LANES = 16
"""Channels that are computed together with SIMD floats."""

_TAPS_LIMIT = 4
"""The columns of windows with at most this many are unrolled."""


@dataclass(frozen=True)
class PoolParameters(Parameters):
    """Variables of `pool.j2`; texts are C.

    Attributes:
        comment: lines of the function's comment.
        constants: lines that declare the divisor if all windows have the same size.
        frame: the images.
        rows, columns: lines that declare the bounds of the rows and columns under a window.
        next_row: expression that advances to the next row.
        count: lines that declare the divisor of an output if window sizes differ.
        type, result_type: types of the operand's and the result's elements.
        output: address of output pixel (y, x).
        blocks: blocks of channels.
    """

    comment: tuple[str, ...]
    constants: tuple[str, ...]
    frame: Frame
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    next_row: str
    count: tuple[str, ...]
    type: str
    result_type: str
    output: str
    blocks: tuple[PoolBlock, ...]


class PoolKernel(Kernel[Pool2D]):
    """Accumulates several channels of a window together."""

    op = Pool2D

    @override
    def offer(self, node: Node[Pool2D], request: Request) -> KernelCall | Refusal:
        if refusal := _refuse(node):
            return refusal
        op, x, y, frame = node.op, node.input(0).type, node.output.type, Frame.of(node)
        rows = PoolSpan.of(op, 0, x.shape[1], y.shape[1])
        columns = PoolSpan.of(op, 1, x.shape[2], y.shape[2])
        clips = rows.clips or columns.clips
        division = _division(op, x.dtype, scales=op.scales(node))
        counts = op.kind == "average" and clips and not op.counts_padding
        walk = _walk(node, columns, _result_of(node, division, varies=counts), clips=clips)
        vectors = x.dtype.is_float and "simd_float" in request.target.features
        lanes = _VECTOR_LANES if vectors else LANES
        form = walk.in_vectors if vectors else walk.in_registers
        blocks = tuple(form(block) for block in lane_blocks(y.shape[3], lanes))
        varying = f"{rows.count} * {columns.count}"
        return KernelCall(
            template="backends/c/pool.j2",
            stem=f"{op.kind}_pool_{op.window[0]}x{op.window[1]}",
            parameters=PoolParameters(
                comment=_comment(node, clips=clips, counts=counts),
                constants=() if counts else divisors(prod(op.window), division),
                frame=frame,
                rows=rows.lines(ends=True),
                columns=columns.lines(ends=not walk.taps or counts),
                next_row=rows.advance,
                count=_varying_divisors(varying, division) if counts else (),
                type=x.dtype.c_name,
                result_type=y.dtype.c_name,
                output=total(("output", frame.target.offset(frame.row, frame.column))),
                blocks=blocks,
            ),
            operands=(Input(0, "input"), Output(0, "output")),
            uses=frozenset[str]().union(*(block.uses for block in blocks)),
            summary=f"{op.kind} of {op.window[0]}x{op.window[1]} windows, "
            f"{lanes} channels at a time",
            form=f"c_{op.kind}_pool",
            work={"taps": _taps(op, x) * y.shape[0] * y.shape[3], "outputs": y.size, "calls": 1},
        )


def _refuse(node: Node[Pool2D]) -> Refusal | None:
    """Return why a node is not served; None if it is."""
    op, dtype, count = node.op, node.input(0).type.dtype, prod(node.op.window)
    if dtype not in (DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16):
        return Refusal(f"{op.name} is served for f32, i8, u8 and i16 data, not {dtype.value}.")
    if op.kind == "sum" and not dtype.is_float:
        return Refusal(f"{op.name} is served for f32 data, not {dtype.value}.")
    if op.kind == "average" and dtype is DType.INT16 and count > 1 << 15:
        return Refusal(f"{op.name} of {count} i16 elements may overflow 32 bits.")
    return None


def _walk(
    node: Node[Pool2D], columns: PoolSpan, result: Callable[[str], str], *, clips: bool
) -> WindowWalk:
    """Return how windows are accumulated; `clips`: whether some reach beyond the image."""
    op, x = node.op, node.input(0).type
    first, center = _initial(op.kind, x.dtype), 0
    if op.scales(node):
        whole = -x.zero_point * prod(op.window)
        first, center = ("0", x.zero_point) if clips else (str(whole), 0)
    return WindowWalk(
        kind=op.kind,
        type="float" if x.dtype.is_float else "int32_t",
        source=Frame.of(node).source,
        columns=columns,
        taps=op.window[1] if not columns.clips and op.window[1] <= _TAPS_LIMIT else 0,
        center=center,
        first=lambda _: first,
        result=result,
    )


def _taps(op: Pool2D, x: TensorType) -> int:
    """Return the number of input pixels under all windows of an image."""
    return int(op.covered(0, x).sum()) * int(op.covered(1, x).sum())


def _result_of(
    node: Node[Pool2D], division: AverageDivision, *, varies: bool
) -> Callable[[str], str]:
    """Return a function from an accumulator's name to the C expression of the output."""
    if node.op.scales(node):
        return partial(_scaled(node, varies=varies).replace, "%s")
    return partial(average_of, division, stored(node.op.activation, node.output.type))


def _scaled(node: Node[Pool2D], *, varies: bool) -> str:
    """Return the C expression of an average with ONNX's rounding.

    `%s` is the sum of the inputs minus their zero points. If window sizes vary, the C variable
    `count` is the size.
    """
    op, x, y = node.op, node.input(0).type, node.output.type
    scale, size = average_scale(x, y), op.window[0] * op.window[1]
    if not varies:
        most = size * 255
        range_ = np.full(1, -most, np.int64), np.full(1, most, np.int64)
        scales = (float(scale / np.float32(size)),)
        return OutputStage.of(node, op.activation, None, scales, range_).output("%s")
    low, high = (limit - y.zero_point for limit in clamp_limits(op.activation, y, node.rounding))
    product = f"(float)%s * ({c_float(float(scale))} / (float)count)"
    result = offset(f"rounded({product}, {c_float(low)}, {c_float(high)})", y.zero_point)
    return f"({y.dtype.c_name})({result})"


def _comment(node: Node[Pool2D], *, clips: bool, counts: bool) -> tuple[str, ...]:
    op, x, y = node.op, node.input(0).type, node.output.type
    (height, width), (down, right), (rows, columns) = op.window, op.stride, op.padding
    dilation = "" if op.dilation == (1, 1) else f", dilation {op.dilation[0]}x{op.dilation[1]}"
    windows = f"{op.kind.capitalize()} of {height}x{width} windows, stride {down}x{right}"
    lines = [f"{windows}{dilation}: {x} -> {y}."]
    if clips:
        padding = f"Padding {rows[0]}+{rows[1]} rows, {columns[0]}+{columns[1]} columns"
        lines.append(f"{padding}{', which do not count' if counts else ''}.")
    if op.kind == "average" and not y.dtype.is_float:
        ties = "to even" if op.scales(node) else "away from zero"
        lines.append(f"Rounds to nearest, ties {ties}.")
    return tuple(lines)


AverageDivision = Literal["none", "real", "scale", "reciprocal", "quotient"]
"""How a sum becomes an average.

none: not an average; real: float division; scale: ONNX's rounding; reciprocal: multiplication by a
24-bit reciprocal; quotient: rounded integer division.
"""


def _division(op: Pool2D, dtype: DType, *, scales: bool) -> AverageDivision:
    """Return how sums become averages; `scales`: whether averages are rescaled, as in ONNX."""
    if op.kind != "average":
        return "none"
    if dtype.is_float:
        return "real"
    if scales:
        return "scale"
    return integer_division(op.window[0] * op.window[1], dtype)


def integer_division(count: int, dtype: DType) -> AverageDivision:
    """Return how a sum of `count` integers becomes their average."""
    return "reciprocal" if dtype.size == 1 and count <= _RECIPROCAL_LIMIT else "quotient"


def divisors(count: int, division: AverageDivision) -> tuple[str, ...]:
    """Return C lines that declare the divisor if all windows have the same size."""
    half = f"const int32_t half = {count // 2};"
    fixed = -(-(1 << 24) // count)
    match division:
        case "real":
            return (f"const float count = {count}.0f;",)
        case "quotient":
            return half, f"const int32_t count = {count};"
        case "reciprocal":
            return half, f"const uint32_t inverse = {fixed}u; /* 2^24 / {count}, rounded up */"
        case _:
            return ()


def _varying_divisors(count: str, division: AverageDivision) -> tuple[str, ...]:
    """Return C lines that declare the divisor of an output; `count` is the C of its window size."""
    if division == "real":
        return (f"const float count = (float)({count});",)
    lines = [f"const int32_t count = {count};"]
    if division in ("reciprocal", "quotient"):
        lines.append("const int32_t half = count / 2;")
    if division == "reciprocal":
        quotient = "((1u << 24) + (uint32_t)count - 1u) / (uint32_t)count"
        lines.append(f"const uint32_t inverse = {quotient};")
    return tuple(lines)


def average_of(division: AverageDivision, store: Store, acc: str) -> str:
    """Return the C expression of the output, given the accumulator's name."""
    match division:
        case "real":
            return store(f"{acc} / count")
        case "reciprocal":
            return store(f"average({acc}, half, inverse)")
        case "quotient":
            return store(f"({acc} > 0 ? {acc} + half : {acc} - half) / count")
        case _:
            return store(acc)


def _initial(kind: str, dtype: DType) -> str:
    """Return the initial value of an accumulator, as C."""
    if kind != "max":
        return "0.0f" if dtype.is_float else "0"
    return c_float(float(np.finfo(np.float32).min)) if dtype.is_float else str(dtype.limits[0])


KERNELS = (PoolKernel(),)
