"""ScatterElements, ScatterND, TensorScatter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from typing_extensions import override

from smelt.codegen.backends.c.gather import element_loops, element_offset, tuple_offset
from smelt.codegen.lower.kernel import (
    STORED_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Operand,
    Output,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.lower.nested_loops import (
    ALL_NAMES,
    ArrayLoop,
    LoopsParameters,
    in_loops,
    index,
    loops_call,
    nest,
)
from smelt.codegen.text.helpers import when
from smelt.ir import DType, Node
from smelt.ops.tensor.scatter import ScatterElements, ScatterND, TensorScatter


class ScatterElementsKernel(Kernel[ScatterElements]):
    """Writes one element per index."""

    op = ScatterElements
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[ScatterElements], request: Request) -> KernelCall | Refusal:
        op, x, indices = node.op, node.input(0).type, node.input(2).type
        if refusal := _refuse_float16(op, x.dtype):
            return refusal
        loops, offset = element_loops(x.shape, indices.shape, op.axis)
        read = index(loops, 1)
        at = element_offset("indices", read, offset, x.shape[op.axis], x.shape, op.axis)
        lines = [
            f"const int32_t at = {at};",
            _combine(op.reduction, x.dtype, "output[at]", f"updates[{read}]"),
        ]
        return _call(node, "scatter_elements", loops, lines, "one element per index")


class ScatterNDKernel(Kernel[ScatterND]):
    """Writes one slice of the updates per tuple of indices."""

    op = ScatterND
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[ScatterND], request: Request) -> KernelCall | Refusal:
        op, x, indices = node.op, node.input(0).type, node.input(2).type
        if refusal := _refuse_float16(op, x.dtype):
            return refusal
        tuple_size = indices.shape[-1]
        inner = prod(x.shape[tuple_size:])
        count = prod(indices.shape[:-1])
        loops = nest([count], [inner], [tuple_size], names=ALL_NAMES)
        read = index(loops, 0)
        at = tuple_offset("indices", index(loops, 1), x.shape, tuple_size)
        lines = [f"const int32_t at = {at};"]
        if inner == 1:
            lines.append(_combine(op.reduction, x.dtype, "output[at]", f"updates[{read}]"))
        elif op.reduction == "none":
            lines.append(f"memcpy(output + at, updates + {read}, {inner * x.dtype.size});")
        else:
            element = f"updates[{f'{read} + c' if read != '0' else 'c'}]"
            lines += [
                f"for (int32_t c = 0; c < {inner}; ++c) {{",
                f"    {_combine(op.reduction, x.dtype, 'output[at + c]', element)}",
                "}",
            ]
        summary = f"{inner} elements per tuple of {tuple_size} indices"
        return _call(node, "scatter_nd", loops, lines, summary)


@dataclass(frozen=True)
class CircularAxis:
    """A circular axis: a run that reaches its end continues at its beginning.

    Attributes:
        size: size of the axis.
        count: length of a run along the axis.
        last: runs that begin up to this index are in one piece.
        bytes: bytes of one position along the axis.
    """

    size: int
    count: int
    last: int
    bytes: int


@dataclass(frozen=True)
class TensorScatterParameters(Parameters):
    """Variables of `tensor_scatter.j2`.

    Attributes:
        title: text of the function's comment.
        type: C type of the elements.
        bytes: size of the tensor in bytes.
        begin: C lines that declare the index at which the runs of batch entry `b` begin.
        batch: number of batch entries.
        rows: runs of a batch entry.
        inner: elements of one position along the axis.
        run: elements of a run.
        row: elements from one row of the tensor to the next.
        copied: bytes of a run; None if the axis is circular.
        circle: the axis if it is circular, else None.
    """

    title: str
    type: str
    bytes: int
    begin: tuple[str, ...]
    batch: int
    rows: int
    inner: int
    run: int
    row: int
    copied: int | None
    circle: CircularAxis | None


class TensorScatterKernel(Kernel[TensorScatter]):
    """Copies each run as one block, or as two if it continues at the beginning of its axis."""

    op = TensorScatter
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[TensorScatter], request: Request) -> KernelCall:
        op, x, updates = node.op, node.input(0).type, node.input(1).type
        has_indices = node.optional(2) is not None
        size, count = x.shape[op.axis], updates.shape[op.axis]
        inner = prod(x.shape[op.axis + 1 :])
        bounded = has_indices and not op.circular
        begin: tuple[str, ...] = ("const int32_t begin = 0;",)
        if bounded:
            begin = (f"const int32_t begin = bounded(indices[b], {size - count});",)
        elif has_indices:
            begin = (
                f"const int32_t rest = (int32_t)(indices[b] % {size});",
                f"const int32_t begin = rest < 0 ? rest + {size} : rest;",
            )
        circle = None
        if op.circular:
            circle = CircularAxis(size, count, size - count, inner * x.dtype.size)
        which = ", which is circular" if op.circular else ""
        return KernelCall(
            template="backends/c/tensor_scatter.j2",
            stem="tensor_scatter",
            parameters=TensorScatterParameters(
                title=f"{updates} into {x} along axis {op.axis}{which}",
                type=x.dtype.c_name,
                bytes=x.bytes,
                begin=begin,
                batch=x.shape[0],
                rows=prod(x.shape[1 : op.axis]),
                inner=inner,
                run=count * inner,
                row=size * inner,
                copied=None if op.circular else count * inner * x.dtype.size,
                circle=circle,
            ),
            operands=_operands(node),
            in_place=_in_place(node),
            uses={"string.h"} | when(bounded, "bounded"),
            summary=f"runs of {count} along axis {op.axis}",
        )


def _refuse_float16(op: ScatterElements | ScatterND, dtype: DType) -> Refusal | None:
    if dtype is DType.FLOAT16 and op.reduction != "none":
        return Refusal(f"{op.name} with reduction '{op.reduction}' is not served for f16 data.")
    return None


def _call(
    node: Node[ScatterElements | ScatterND],
    stem: str,
    loops: tuple[ArrayLoop, ...],
    lines: Sequence[str],
    summary: str,
) -> KernelCall:
    """Return the call of a function that copies the input and then executes `lines` in `loops`."""
    op, (x, updates, indices) = node.op, (node.input(i).type for i in range(3))
    return loops_call(
        stem=stem,
        form="c_scatter",
        parameters=LoopsParameters(
            (
                f"{op.name}: {updates} into {x} by {indices}",
                f"(reduction: {op.reduction}). The output may overwrite the input.",
            ),
            (
                "if (output != input) {",
                f"    memcpy(output, input, {x.bytes});",
                "}",
                *in_loops(loops, lines),
            ),
        ),
        operands=_operands(node),
        in_place=_in_place(node),
        summary=summary,
    )


def _operands(node: Node) -> tuple[Operand, ...]:
    names = ("input", "updates", "indices")
    given = (Input(i, name) for i, name in enumerate(names) if node.optional(i) is not None)
    return (*given, Output(0, "output"))


def _in_place(node: Node) -> tuple[tuple[int, int], ...]:
    """Return `KernelCall.in_place`.

    The output may overwrite the data, unless another operand has as many bytes and may therefore be
    a view of the data.
    """
    bytes_ = node.input(0).type.bytes
    if any(v is not None and v.type.bytes == bytes_ for v in node.inputs[1:]):
        return ()
    return ((0, 0),)


def _combine(reduction: str, dtype: DType, old: str, new: str) -> str:
    """Return the C statement that combines an update with an element."""
    if reduction == "none":
        return f"{old} = {new};"
    if reduction in ("max", "min"):
        return f"{old} = {new} {'>' if reduction == 'max' else '<'} {old} ? {new} : {old};"
    operator = "+" if reduction == "add" else "*"
    if dtype.is_float:
        return f"{old} {operator}= {new};"
    # Unsigned, so that an overflow wraps.
    wide = "uint64_t" if dtype.size == 8 else "uint32_t"
    return f"{old} = ({dtype.c_name})(({wide}){old} {operator} ({wide}){new});"


KERNELS = (ScatterElementsKernel(), ScatterNDKernel(), TensorScatterKernel())
