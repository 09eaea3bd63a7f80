"""Slice, Transpose, Tile, Pad, Resize to the nearest, Concat and their like on a GPU."""

from __future__ import annotations

from math import gcd, prod

import numpy as np

from smelt.codegen.kernels.base import (
    STORED_FLOATS,
    Kernel,
    KernelCall,
    Output,
    Request,
    ShaderCall,
)
from smelt.codegen.kernels.c.border import padded_sizes
from smelt.codegen.kernels.c.loops import dense_strides
from smelt.codegen.kernels.vulkan.elements import operand_of, spread
from smelt.codegen.kernels.vulkan.moves import UNITS, Axis, MoveKernel, Moves, move
from smelt.ir import Node
from smelt.ops.bit_cast import BitCast
from smelt.ops.concat import Concat
from smelt.ops.copy import Copy
from smelt.ops.pad import Pad
from smelt.ops.resample import Resample
from smelt.ops.resize import Resize
from smelt.ops.slice import Slice
from smelt.ops.tile import Tile
from smelt.ops.transpose import Transpose
from smelt.targets import Target

_MOST_PARTS = 28
"""Inputs that a Concat can have specialization constants for."""


class CopyKernel(MoveKernel):
    """All elements as they stand."""

    op = Copy

    def moves(self, node: Node) -> Moves:
        """See `MoveKernel.moves`."""
        y = node.output.type
        return Moves.of([Axis(y.size, 1)], y.dtype.size)


class BitCastKernel(CopyKernel):
    """All elements as they stand."""

    op = BitCast


class SliceKernel(MoveKernel):
    """Axes with a start and a step."""

    op = Slice

    def moves(self, node: Node) -> Moves:
        """See `MoveKernel.moves`."""
        op, x, y = node.op, node.input(0).type, node.output.type
        if not isinstance(op, Slice):
            raise TypeError(f"{op.name} is no Slice")
        strides = dense_strides(x.shape)
        start = sum(start * stride for start, stride in zip(op.starts, strides, strict=True))
        axes = [
            Axis(size, step * stride)
            for size, step, stride in zip(y.shape, op.steps, strides, strict=True)
        ]
        return Moves.of(axes, y.dtype.size, start if y.size else 0)


class TransposeKernel(MoveKernel):
    """Axes in another order."""

    op = Transpose

    def moves(self, node: Node) -> Moves:
        """See `MoveKernel.moves`."""
        op, x, y = node.op, node.input(0).type, node.output.type
        if not isinstance(op, Transpose):
            raise TypeError(f"{op.name} is no Transpose")
        strides = dense_strides(x.shape)
        axes = [Axis(size, strides[own]) for size, own in zip(y.shape, op.permutation, strict=True)]
        return Moves.of(axes, y.dtype.size)


class TileKernel(MoveKernel):
    """Each axis is two: which repetition, and where in it."""

    op = Tile

    def moves(self, node: Node) -> Moves:
        """See `MoveKernel.moves`."""
        op, x = node.op, node.input(0).type
        if not isinstance(op, Tile):
            raise TypeError(f"{op.name} is no Tile")
        axes: list[Axis] = []
        for times, size, step in zip(op.multiples, x.shape, dense_strides(x.shape), strict=True):
            axes += Axis(times), Axis(size, step)
        return Moves.of(axes, x.dtype.size)


class PadKernel(MoveKernel):
    """A table an axis that is padded."""

    op = Pad

    def entries(self, node: Node) -> int:
        """See `Kernel.entries`."""
        return padded_sizes(node)

    def moves(self, node: Node) -> Moves:
        """See `MoveKernel.moves`."""
        op, x, y = node.op, node.input(0).type, node.output.type
        if not isinstance(op, Pad):
            raise TypeError(f"{op.name} is no Pad")
        axes: list[Axis] = []
        for number, (size, step, pair) in enumerate(
            zip(x.shape, dense_strides(x.shape), op.padding, strict=True)
        ):
            if not any(pair):
                axes.append(Axis(size, step))
            elif op.mode == "constant":
                table = np.pad(np.arange(size) * step, pair, constant_values=-1)
                axes.append(Axis(table.size, table=table))
            else:
                table = op.sources(number, size) * step
                axes.append(Axis(table.size, table=table))
        # What is read at run time is one element.
        widest = 16 if node.optional(1) is None else y.dtype.size
        return Moves.of(axes, y.dtype.size, widest=widest)

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        op, y = node.op, node.output.type
        if not isinstance(op, Pad):
            raise TypeError(f"{op.name} is no Pad")
        fill = np.asarray(op.stored_value(y), y.dtype.numpy).reshape(1)
        value = None if node.optional(1) is None else operand_of(node, 1, "value")
        constant = op.mode == "constant" and any(map(any, op.padding))
        return move(node, self.moves(node), fill=(value or fill) if constant else None)


class ResizeNearestKernel(MoveKernel):
    """Tables of rows and columns."""

    op = Resize

    def entries(self, node: Node) -> int:
        """See `Kernel.entries`."""
        return sum(node.output.type.shape[1:3])

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        if isinstance(node.op, Resize) and node.op.kind != "nearest":
            return "an interpolation has a kernel of its own."
        return super().supports(node, target)

    def moves(self, node: Node) -> Moves:
        """See `MoveKernel.moves`."""
        op, x = node.op, node.input(0).type
        if not isinstance(op, Resize):
            raise TypeError(f"{op.name} is no Resize")
        batch, row, column, channel = dense_strides(x.shape)
        rows, columns = (op.nearest(*sizes) for sizes in op.axes(x.shape))
        axes = [
            Axis(x.shape[0], batch),
            Axis(rows.size, table=rows * row),
            Axis(columns.size, table=columns * column),
            Axis(x.shape[3], channel),
        ]
        return Moves.of(axes, x.dtype.size)


class ResampleKernel(MoveKernel):
    """Copies along one axis, by a table."""

    op = Resample

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        if node.optional(2) is not None or not node.input(1).is_constant:
            return "Resample is served on the GPU for copies from constant positions."
        return super().supports(node, target)

    def moves(self, node: Node) -> Moves:
        """See `MoveKernel.moves`."""
        op, x = node.op, node.input(0).type
        if not isinstance(op, Resample):
            raise TypeError(f"{op.name} is no Resample")
        strides = dense_strides(x.shape)
        found = node.input(1).array[:, 0].astype(np.int64)
        table = np.where(found < 0, -1, found * strides[op.axis])
        axes = [
            Axis(table.size, table=table) if axis == op.axis else Axis(size, step)
            for axis, (size, step) in enumerate(zip(x.shape, strides, strict=True))
        ]
        return Moves.of(axes, x.dtype.size)

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        op, x = node.op, node.input(0).type
        if not isinstance(op, Resample):
            raise TypeError(f"{op.name} is no Resample")
        fill = np.asarray(op.fill, x.dtype.numpy).reshape(1)
        return move(node, self.moves(node), fill=fill)


class ConcatKernel(Kernel):
    """Each row of the output is one of each input after the other."""

    op = Concat
    floats = STORED_FLOATS

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        if len(node.inputs) > _MOST_PARTS:
            return f"Concat of more than {_MOST_PARTS} inputs is not served on the GPU."
        return None

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        op, y = node.op, node.output.type
        if not isinstance(op, Concat):
            raise TypeError(f"{op.name} is no Concat")
        chunks = [prod(v.type.shape[op.axis :]) for v in node.inputs if v is not None]
        unit = gcd(16, *(chunk * y.dtype.size for chunk in chunks))
        chunks = [chunk * y.dtype.size // unit for chunk in chunks]
        count = y.size * y.dtype.size // unit
        items = -(-count // max(4 // unit, 1))
        operands = [operand_of(node, i, f"input{i}") for i in range(len(chunks))]
        return ShaderCall(
            template="vulkan/concat.comp.j2",
            stem="concat",
            parameters={"type": UNITS[unit], "unit": unit, "parts": len(chunks)},
            operands=(*operands, Output(0, "output")),
            views=dict.fromkeys([*(o.name for o in operands), "output"], UNITS[unit]),
            constants={
                "ITEMS": items,
                "COUNT": count,
                "ROW": max(sum(chunks), 1),
                **{f"CHUNK_{i}": chunk for i, chunk in enumerate(chunks)},
            },
            invocations=spread(items),
            summary=f"{len(chunks)} inputs, {max(unit, 4)} bytes an invocation",
            form="vulkan_moves",
            work={"calls": 1, "outputs": y.size},
        )


KERNELS = (
    CopyKernel(),
    BitCastKernel(),
    SliceKernel(),
    TransposeKernel(),
    TileKernel(),
    PadKernel(),
    ResizeNearestKernel(),
    ResampleKernel(),
    ConcatKernel(),
)
