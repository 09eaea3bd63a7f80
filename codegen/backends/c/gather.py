"""Elements and slices picked by indices (Gather, GatherElements, GatherND)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from typing_extensions import override

from smelt.codegen.lower.kernel import (
    STORED_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Operand,
    Output,
    Packed,
    Request,
)
from smelt.codegen.lower.nested_loops import (
    ALL_NAMES,
    ArrayLoop,
    LoopsParameters,
    copy,
    dense_strides,
    in_loops,
    index,
    loops_call,
    nest,
    total,
)
from smelt.codegen.text.expressions import times
from smelt.ir import Array, Node, Op
from smelt.ops.tensor.gather import Gather, GatherElements, GatherND
from smelt.ops.tensor.indices import positions


class GatherKernel(Kernel[Gather]):
    """One block copy for each index; constant indices become a table of positions."""

    op = Gather
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[Gather], request: Request) -> KernelCall:
        op, x, indices = node.op, node.input(0).type, node.input(1)
        batch, axis = op.batch_dims, op.axis
        size, inner = x.shape[axis], prod(x.shape[axis + 1 :])
        shape = [prod(x.shape[:batch]), prod(x.shape[batch:axis]), prod(indices.type.shape[batch:])]
        loops = nest(
            shape,
            [shape[1] * size * inner, size * inner, 0],
            [step * inner for step in dense_strides(shape)],
            [shape[2], 0, 1],
            names=ALL_NAMES,
        )
        where = index(loops, 2)
        if indices.data is None:
            operand: Operand = Input(1, "indices")
            found, how = f"position(indices[{where}], {size})", "read at run time"
        else:
            operand = Packed("positions", compact(positions(indices.data, size)))
            found, how = f"positions[{where}]", "in a table"
        read = total((index(loops, 0), times(found, inner)))
        statement = copy(index(loops, 1), read, inner, x.dtype.size)
        return _call(
            node,
            loops,
            [statement],
            (Input(0, "input"), operand, Output(0, "output")),
            f"{inner} elements per index, indices {how}",
        )


class GatherElementsKernel(Kernel[GatherElements]):
    """One element for each index."""

    op = GatherElements
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[GatherElements], request: Request) -> KernelCall:
        op, x, indices = node.op, node.input(0).type, node.input(1).type
        loops, offset = element_loops(x.shape, indices.shape, op.axis)
        written = index(loops, 1)
        found = element_offset("indices", written, offset, x.shape[op.axis], x.shape, op.axis)
        return _call(
            node,
            loops,
            [f"output[{written}] = input[{found}];"],
            (Input(0, "input"), Input(1, "indices"), Output(0, "output")),
            "one element per index",
        )


class GatherNDKernel(Kernel[GatherND]):
    """One block copy for each tuple of indices."""

    op = GatherND
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[GatherND], request: Request) -> KernelCall:
        op, x, indices = node.op, node.input(0).type, node.input(1).type
        batch, tuple_size = op.batch_dims, indices.shape[-1]
        slices = x.shape[batch + tuple_size :]
        inner, per_batch = prod(slices), prod(x.shape[batch:])
        shape = [prod(indices.shape[:batch]), prod(indices.shape[batch:-1])]
        loops = nest(
            shape,
            [per_batch, 0],
            [shape[1] * inner, inner],
            [shape[1] * tuple_size, tuple_size],
            names=ALL_NAMES,
        )
        found = tuple_offset("indices", index(loops, 2), x.shape[batch:], tuple_size)
        read = total((index(loops, 0), "at"))
        return _call(
            node,
            loops,
            [f"const int32_t at = {found};", copy(index(loops, 1), read, inner, x.dtype.size)],
            (Input(0, "input"), Input(1, "indices"), Output(0, "output")),
            f"{inner} elements per tuple of {tuple_size} indices",
        )


def _call(
    node: Node[Gather | GatherElements | GatherND],
    loops: tuple[ArrayLoop, ...],
    lines: Sequence[str],
    operands: tuple[Operand, ...],
    summary: str,
) -> KernelCall:
    """Return the call of a function with `lines` in the innermost loop."""
    op, x, indices, y = node.op, node.input(0).type, node.input(1).type, node.output.type
    along = "" if isinstance(op, GatherND) else f" along axis {op.axis}"
    return loops_call(
        stem=_STEMS[type(op)],
        form="c_gather",
        parameters=LoopsParameters(
            f"{op.name} of {x} by {indices}{along}: {y}.", in_loops(loops, lines)
        ),
        operands=operands,
        summary=summary,
    )


_STEMS: dict[type[Op], str] = {
    Gather: "gather",
    GatherElements: "gather_elements",
    GatherND: "gather_nd",
}


def compact(numbers: Array) -> Array:
    """Return non-negative numbers as uint8, uint16 or int32: the smallest type that holds all."""
    high = int(numbers.max(initial=0))
    return numbers.astype(np.uint8 if high < 256 else np.uint16 if high < 65536 else np.int32)


def element_loops(
    shape: Sequence[int], indices: Sequence[int], axis: int
) -> tuple[tuple[ArrayLoop, ...], str]:
    """Return loops over an array of indices, each of which selects one element along an axis.

    Array 0 of the loops is the data of `shape`, at index 0 of the axis. Array 1 is the indices.

    Returns:
        The loops, and the C expression of the offset into array 0.
    """
    strides = list(dense_strides(shape))
    strides[axis] = 0
    loops = nest(indices, strides, dense_strides(indices), names=ALL_NAMES)
    return loops, index(loops, 0)


def element_offset(
    name: str, where: str, offset: str, size: int, shape: Sequence[int], axis: int
) -> str:
    """Return the C expression of the offset of the element that an index selects.

    Args:
        name: name of the array of indices.
        where: C expression of the position of the index in that array.
        offset: C expression of the element's offset at index 0 of the axis.
        size: elements along the axis.
        shape: shape of the data.
        axis: the axis.
    """
    stride = prod(shape[axis + 1 :])
    found = f"position({name}[{where}], {size})"
    return total((offset, times(found, stride)))


def tuple_offset(name: str, where: str, shape: Sequence[int], tuple_size: int) -> str:
    """Return the C expression of the offset of the slice that a tuple of indices selects.

    Args:
        name: name of the array of indices.
        where: C expression of the position of the tuple's first index in that array.
        shape: shape of the data, without batch axes.
        tuple_size: indices of a tuple.
    """
    terms: list[str] = []
    for i, stride in enumerate(dense_strides(shape)[:tuple_size]):
        found = f"position({name}[{total((where, str(i)))}], {shape[i]})"
        terms.append(times(found, stride))
    return total(terms)


KERNELS = (GatherKernel(), GatherElementsKernel(), GatherNDKernel())
