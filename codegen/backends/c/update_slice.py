"""UpdateSlice."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.kernel import (
    STORED_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Request,
)
from smelt.codegen.lower.nested_loops import block_copies, dense_strides, total
from smelt.codegen.text.helpers import when
from smelt.ir import Node
from smelt.ops.tensor.update_slice import UpdateSlice


@dataclass(frozen=True)
class UpdateStart:
    """An axis along which the update may begin at several positions.

    Attributes:
        axis: index of the axis.
        most: last possible position; the first one is 0.
        stride: elements between two positions.
    """

    axis: int
    most: int
    stride: int


@dataclass(frozen=True)
class UpdateSliceParameters(Parameters):
    """Variables of `update_slice.j2`.

    Attributes:
        x: type of the data.
        update: type of the update.
        bytes: size of the data in bytes.
        starts: axes along which the update may begin at several positions.
        lines: C lines that copy the update.
    """

    x: str
    update: str
    bytes: int
    starts: tuple[UpdateStart, ...]
    lines: tuple[str, ...]


class UpdateSliceKernel(Kernel[UpdateSlice]):
    """Copies the data, unless the output overwrites it, and then the update, in blocks."""

    op = UpdateSlice
    floats = STORED_FLOATS

    def offer(self, node: Node[UpdateSlice], request: Request) -> KernelCall:
        """Return the call; a block is a part of the update that is contiguous in the output."""
        x, update = node.input(0).type, node.input(1).type
        strides = dense_strides(x.shape)
        starts = tuple(
            UpdateStart(axis, size - own, stride)
            for axis, (size, own, stride) in enumerate(
                zip(x.shape, update.shape, strides, strict=True)
            )
            if size > own
        )
        begin = total(f"begin{start.axis}" for start in starts)
        copies = block_copies(
            update.shape, dense_strides(update.shape), strides, x.dtype.size, written=begin
        )
        return KernelCall(
            template="backends/c/update_slice.j2",
            stem="update_slice",
            parameters=UpdateSliceParameters(str(x), str(update), x.bytes, starts, copies.lines),
            operands=(Input(0, "data"), Input(1, "input"), Input(2, "starts"), Output(0, "output")),
            in_place=((0, 0),),
            uses={"string.h"} | when(starts, "bounded"),
            summary=copies.summary,
        )


KERNELS = (UpdateSliceKernel(),)
