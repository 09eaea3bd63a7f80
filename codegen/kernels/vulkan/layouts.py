"""Slice, Transpose, Tile, Pad, Resize to the nearest, Gather and their like on a GPU."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import gcd, prod

import numpy as np

from smelt.codegen.kernels.base import (
    STORED_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Request,
    ShaderCall,
)
from smelt.codegen.kernels.c.loops import dense_strides
from smelt.codegen.kernels.vulkan.elements import LOCAL, operand_of, spread
from smelt.codegen.kernels.vulkan.moves import UNITS, Axis, Indices, Moves, move, refuse_moves
from smelt.ir import Node
from smelt.ops.bit_cast import BitCast
from smelt.ops.concat import Concat
from smelt.ops.copy import Copy
from smelt.ops.gather import Gather, GatherElements, GatherND
from smelt.ops.indices import positions
from smelt.ops.pad import Pad
from smelt.ops.resample import Resample
from smelt.ops.resize import Resize
from smelt.ops.slice import Slice
from smelt.ops.tile import Tile
from smelt.ops.transpose import Transpose
from smelt.targets import Target

_MOST_PARTS = 28
"""Inputs that a Concat can have specialization constants for."""


class MoveKernel(Kernel):
    """Serves an operator that only moves elements."""

    floats = STORED_FLOATS

    @abstractmethod
    def moves(self, node: Node) -> Moves:
        """Where the output's elements come from."""

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        return refuse_moves(node, self.moves(node))

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        return move(node, self.moves(node))


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
        axes = [
            Axis(size, strides[own]) for size, own in zip(y.shape, op.permutation, strict=True)
        ]
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


class GatherKernel(MoveKernel):
    """Constant indices become a table, others are read."""

    op = Gather

    def moves(self, node: Node) -> Moves:
        """See `MoveKernel.moves`."""
        op, x, indices = node.op, node.input(0).type, node.input(1)
        if not isinstance(op, Gather):
            raise TypeError(f"{op.name} is no Gather")
        batch, axis = op.batch_dims, op.axis
        size, inner = x.shape[axis], prod(x.shape[axis + 1 :])
        rows, outer = prod(x.shape[:batch]), prod(x.shape[batch:axis])
        found = prod(indices.type.shape[batch:])
        axes = [
            Axis(rows, outer * size * inner, where=found),
            Axis(outer, size * inner),
            Axis(found, where=1),
            Axis(inner, 1),
        ]
        if indices.data is None or rows > 1:
            return Moves.of(axes, x.dtype.size, parts=[(size, inner)])
        table = positions(indices.data, size).ravel() * inner
        axes = [axes[0], axes[1], Axis(table.size, table=table), axes[3]]
        return Moves.of([Axis(a.size, a.step, a.table) for a in axes], x.dtype.size)

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        moves = self.moves(node)
        return move(node, moves, indices=_indices(node, moves) if moves.parts else None)


class GatherElementsKernel(MoveKernel):
    """One element an index."""

    op = GatherElements

    def moves(self, node: Node) -> Moves:
        """See `MoveKernel.moves`."""
        op, x, indices = node.op, node.input(0).type, node.input(1).type
        if not isinstance(op, GatherElements):
            raise TypeError(f"{op.name} is no GatherElements")
        strides, where = dense_strides(x.shape), dense_strides(indices.shape)
        axes = [
            Axis(size, 0 if axis == op.axis else strides[axis], where=where[axis])
            for axis, size in enumerate(indices.shape)
        ]
        return Moves.of(axes, x.dtype.size, parts=[(x.shape[op.axis], strides[op.axis])])

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        moves = self.moves(node)
        return move(node, moves, indices=_indices(node, moves))


class GatherNDKernel(GatherElementsKernel):
    """A slice a tuple of indices."""

    op = GatherND

    def moves(self, node: Node) -> Moves:
        """See `MoveKernel.moves`."""
        op, x, indices = node.op, node.input(0).type, node.input(1).type
        if not isinstance(op, GatherND):
            raise TypeError(f"{op.name} is no GatherND")
        batch, depth = op.batch_dims, indices.shape[-1]
        strides = dense_strides(x.shape)
        tuples = prod(indices.shape[batch:-1])
        axes = [
            Axis(prod(indices.shape[:batch]), prod(x.shape[batch:]), where=tuples * depth),
            Axis(tuples, where=depth),
            Axis(prod(x.shape[batch + depth :]), 1),
        ]
        parts = [(x.shape[batch + i], strides[batch + i]) for i in range(depth)]
        return Moves.of(axes, x.dtype.size, parts=parts)


def _indices(node: Node, moves: Moves) -> Indices:
    return Indices(operand_of(node, 1, "indices"), node.input(1).type.dtype, moves.parts)


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
            views={name: UNITS[unit] for name in [*(o.name for o in operands), "output"]},
            constants={
                "ITEMS": items,
                "COUNT": count,
                "ROW": max(sum(chunks), 1),
                **{f"CHUNK_{i}": chunk for i, chunk in enumerate(chunks)},
            },
            invocations=spread(items),
            local=(LOCAL, 1, 1),
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
    GatherKernel(),
    GatherElementsKernel(),
    GatherNDKernel(),
    ConcatKernel(),
)
