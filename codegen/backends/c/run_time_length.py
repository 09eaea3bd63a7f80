"""FillRows and TransposeLength: operators with a size that is known at run time only."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from typing_extensions import override

from smelt.codegen.lower.kernel import (
    WIDE_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.lower.nested_loops import ALL_NAMES, LoopsParameters, loops_call, nested, total
from smelt.codegen.text.helpers import uses_in
from smelt.codegen.text.literals import c_elements
from smelt.ir import Node
from smelt.ops.control.run_time_length import FillRows, TransposeLength, fill_of


@dataclass(frozen=True)
class FillRowsParameters(Parameters):
    """Variables of `fill_rows.j2`.

    Attributes:
        x: type of the input.
        row: elements of a row.
        fill: C constant that fills the missing rows.
        count: C expression of the number of elements that are present.
        total: elements of the tensor.
    """

    x: str
    row: int
    fill: str
    count: str
    total: int


class FillRowsKernel(Kernel[FillRows]):
    """Copies the rows that are present and fills the rows after them; works in place."""

    op = FillRows
    floats = WIDE_FLOATS

    @override
    def offer(self, node: Node[FillRows], request: Request) -> KernelCall | Refusal:
        op, x = node.op, node.input(0).type
        if x.shape != node.output.type.shape:
            return Refusal("FillRows is served between tensors of one shape.")
        row = prod(x.shape[op.axis + 1 :])
        rows = f"bounded(length[0], {op.size})"
        (fill,) = c_elements(np.asarray([fill_of(op.fill, x.dtype)], x.dtype.numpy))
        return KernelCall(
            template="backends/c/fill_rows.j2",
            stem="fill_rows",
            parameters=FillRowsParameters(str(x), row, fill, _product(rows, row), x.size),
            operands=(Input(0, "input"), Input(1, "length"), Output(0, "output")),
            in_place=((0, 0),),
            uses={"bounded"} | uses_in([fill]),
            summary="copies the rows that are present, fills the others",
        )


class TransposeLengthKernel(Kernel[TransposeLength]):
    """Transposes by one loop per axis of the output; strides depend on the length."""

    op = TransposeLength
    floats = WIDE_FLOATS

    @override
    def offer(self, node: Node[TransposeLength], request: Request) -> KernelCall:
        op, x = node.op, node.input(0).type
        axes = [axis for axis in op.permutation if axis == op.axis or x.shape[axis] != 1]
        names = dict(zip(axes, ALL_NAMES, strict=False))
        heads = [_head(names[axis], _size(op, axis, x.shape)) for axis in axes]
        terms = [_product(names[axis], _stride(op, axis, x.shape)) for axis in axes]
        return loops_call(
            stem="transpose_length",
            form="c_transpose_length",
            parameters=LoopsParameters(
                f"Transposes {x} to {node.output.type}; `length` has the size of axis {op.axis}.",
                (
                    f"const int32_t count = bounded(length[0], {x.shape[op.axis] // op.factor});",
                    f"{x.dtype.c_name} *to = output;",
                    *nested(heads, (*(() for _ in heads), (f"*to++ = input[{total(terms)}];",))),
                ),
            ),
            operands=(Input(0, "input"), Input(1, "length"), Output(0, "output")),
            summary="with strides that depend on a length",
        )


def _head(name: str, size: str) -> str:
    return f"for (int32_t {name} = 0; {name} < {size}; ++{name}) {{"


def _size(op: TransposeLength, axis: int, shape: tuple[int, ...]) -> str:
    return str(shape[axis]) if axis != op.axis else _product("count", op.factor)


def _stride(op: TransposeLength, axis: int, shape: tuple[int, ...]) -> str:
    """Return the stride of an axis of the operand, as C."""
    if axis >= op.axis:
        return str(prod(shape[axis + 1 :]))
    others = prod(n for other, n in enumerate(shape) if other > axis and other != op.axis)
    return _product("count", others * op.factor)


def _product(name: str, factor: int | str) -> str:
    return name if str(factor) == "1" else f"{name} * {factor}"


KERNELS = (FillRowsKernel(), TransposeLengthKernel())
