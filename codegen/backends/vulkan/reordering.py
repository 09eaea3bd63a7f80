"""Shaders of Slice, Transpose, Tile, Pad, nearest Resize, Concat and similar operators."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.backends.vulkan.data_movement import UNITS, Moves, OutputAxis, move
from smelt.codegen.backends.vulkan.elementwise import operand_of, spread
from smelt.codegen.lower.kernel import (
    STORED_FLOATS,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.lower.lookup_tables import padded_sizes
from smelt.codegen.lower.nested_loops import dense_strides
from smelt.ir import Node
from smelt.ops.core.bit_cast import BitCast
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.copy import Copy
from smelt.ops.tensor.pad import Pad
from smelt.ops.tensor.resample import Resample
from smelt.ops.tensor.resize import Resize
from smelt.ops.tensor.slice import Slice
from smelt.ops.tensor.tile import Tile
from smelt.ops.tensor.transpose import Transpose

_MOST_PARTS = 28
"""Largest number of inputs of a Concat: each takes a specialization constant."""


class CopyShader(Kernel[Copy | BitCast]):
    """Copies all elements in their order."""

    op = Copy | BitCast
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[Copy | BitCast], request: Request) -> KernelCall | Refusal:
        y = node.output.type
        return move(node, Moves.of([OutputAxis(y.size, 1)], y.dtype.size))


class SliceShader(Kernel[Slice]):
    """Reads each axis from a start, with a step."""

    op = Slice
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[Slice], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        strides = dense_strides(x.shape)
        start = sum(start * stride for start, stride in zip(op.starts, strides, strict=True))
        axes = [
            OutputAxis(size, step * stride)
            for size, step, stride in zip(y.shape, op.steps, strides, strict=True)
        ]
        return move(node, Moves.of(axes, y.dtype.size, start if y.size else 0))


class TransposeShader(Kernel[Transpose]):
    """Reads the axes in another order."""

    op = Transpose
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[Transpose], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        strides = dense_strides(x.shape)
        axes = [
            OutputAxis(size, strides[own])
            for size, own in zip(y.shape, op.permutation, strict=True)
        ]
        return move(node, Moves.of(axes, y.dtype.size))


class TileShader(Kernel[Tile]):
    """Splits each axis into two: the number of the repetition, and the index in it."""

    op = Tile
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[Tile], request: Request) -> KernelCall | Refusal:
        op, x = node.op, node.input(0).type
        axes: list[OutputAxis] = []
        for times, size, step in zip(op.multiples, x.shape, dense_strides(x.shape), strict=True):
            axes += OutputAxis(times), OutputAxis(size, step)
        return move(node, Moves.of(axes, x.dtype.size))


class PadShader(Kernel[Pad]):
    """Reads each padded axis through a table of positions."""

    op = Pad
    floats = STORED_FLOATS

    @override
    def entries(self, node: Node[Pad]) -> int:
        return padded_sizes(node)

    @override
    def offer(self, node: Node[Pad], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        axes: list[OutputAxis] = []
        for number, (size, step, pair) in enumerate(
            zip(x.shape, dense_strides(x.shape), op.padding, strict=True)
        ):
            if not any(pair):
                axes.append(OutputAxis(size, step))
            elif op.mode == "constant":
                table = np.pad(np.arange(size) * step, pair, constant_values=-1)
                axes.append(OutputAxis(table.size, table=table))
            else:
                table = op.sources(number, size) * step
                axes.append(OutputAxis(table.size, table=table))
        # A fill value that is read at run time is one element, so elements are not joined.
        widest = 16 if node.optional(1) is None else y.dtype.size
        moves = Moves.of(axes, y.dtype.size, widest=widest)
        fill = np.asarray(op.stored_value(y), y.dtype.numpy).reshape(1)
        value = None if node.optional(1) is None else operand_of(node, 1, "value")
        constant = op.mode == "constant" and any(map(any, op.padding))
        return move(node, moves, fill=(value or fill) if constant else None)


class ResizeNearestShader(Kernel[Resize]):
    """Reads rows and columns through tables of positions."""

    op = Resize
    floats = STORED_FLOATS

    @override
    def entries(self, node: Node[Resize]) -> int:
        return sum(node.output.type.shape[1:3])

    @override
    def offer(self, node: Node[Resize], request: Request) -> KernelCall | Refusal:
        op, x = node.op, node.input(0).type
        if op.kind != "nearest":
            return Refusal("Interpolation is computed by another kernel.")
        batch, row, column, channel = dense_strides(x.shape)
        rows, columns = (op.nearest(*sizes) for sizes in op.axes(x.shape))
        axes = [
            OutputAxis(x.shape[0], batch),
            OutputAxis(rows.size, table=rows * row),
            OutputAxis(columns.size, table=columns * column),
            OutputAxis(x.shape[3], channel),
        ]
        return move(node, Moves.of(axes, x.dtype.size))


class ResampleShader(Kernel[Resample]):
    """Copies elements along one axis, through a table of positions."""

    op = Resample
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[Resample], request: Request) -> KernelCall | Refusal:
        op, x = node.op, node.input(0).type
        if node.optional(2) is not None or not node.input(1).is_constant:
            return Refusal("Copies by Resample are served on the GPU for constant positions.")
        strides = dense_strides(x.shape)
        found = node.input(1).array[:, 0].astype(np.int64)
        table = np.where(found < 0, -1, found * strides[op.axis])
        axes = [
            OutputAxis(table.size, table=table) if axis == op.axis else OutputAxis(size, step)
            for axis, (size, step) in enumerate(zip(x.shape, strides, strict=True))
        ]
        fill = np.asarray(op.fill, x.dtype.numpy).reshape(1)
        return move(node, Moves.of(axes, x.dtype.size), fill=fill)


@dataclass(frozen=True)
class ConcatShaderParameters(Parameters):
    """Parameters of the shader of Concat: moved type, its bytes, and the inputs' indices."""

    type: str
    unit: int
    parts: tuple[int, ...]


class ConcatShader(Kernel[Concat]):
    """Computes each row of the output as a row of each input, one after the other."""

    op = Concat
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[Concat], request: Request) -> KernelCall | Refusal:
        if len(node.inputs) > _MOST_PARTS:
            return Refusal(f"Concat of more than {_MOST_PARTS} inputs is not served on the GPU.")
        op, y = node.op, node.output.type
        chunks = [prod(v.type.shape[op.axis :]) for v in node.inputs if v is not None]
        unit = gcd(16, *(chunk * y.dtype.size for chunk in chunks))
        chunks = [chunk * y.dtype.size // unit for chunk in chunks]
        count = y.size * y.dtype.size // unit
        items = -(-count // max(4 // unit, 1))
        operands = [operand_of(node, i, f"input{i}") for i in range(len(chunks))]
        return ShaderCall(
            template="backends/vulkan/concat.comp.j2",
            stem="concat",
            parameters=ConcatShaderParameters(
                type=UNITS[unit], unit=unit, parts=tuple(range(len(chunks)))
            ),
            operands=(*operands, Output(0, "output")),
            views=dict.fromkeys([*(o.name for o in operands), "output"], UNITS[unit]),
            constants={
                "ITEMS": items,
                "COUNT": count,
                "ROW": max(sum(chunks), 1),
                **{f"CHUNK_{i}": chunk for i, chunk in enumerate(chunks)},
            },
            invocations=spread(items),
            summary=f"{len(chunks)} inputs, {max(unit, 4)} bytes per invocation",
            form="vulkan_moves",
            work={"calls": 1, "outputs": y.size},
        )


KERNELS = (
    CopyShader(),
    SliceShader(),
    TransposeShader(),
    TileShader(),
    PadShader(),
    ResizeNearestShader(),
    ResampleShader(),
    ConcatShader(),
)
