"""Square roots of the mean squares of windows (L2Pool2D)."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.c_expressions import stored
from smelt.codegen.lower.kernel import Input, Kernel, KernelCall, Output, Parameters, Request
from smelt.codegen.lower.loop_heads import loop_head
from smelt.codegen.text.expressions import offset, times
from smelt.codegen.text.helpers import uses_in
from smelt.ir import Node
from smelt.ops.core.l2_pool import L2Pool2D


@dataclass(frozen=True)
class L2PoolSpan:
    """The rows or columns under a window; texts are C expressions.

    Attributes:
        first: first row under the window, which can be outside of the image.
        begin: first row that is inside.
        end: row after the last one inside.
    """

    first: str
    begin: str
    end: str


@dataclass(frozen=True, kw_only=True)
class L2PoolParameters(Parameters):
    """Variables of `l2_pool.j2`.

    Attributes:
        window: size and stride of the window, in words.
        x, y: types of input and output.
        batch, channels: images and channels.
        each_row, each_column: lines that open the loops over output rows and columns; empty if
            there is one.
        image: elements of an input image.
        row: elements of a row of the input.
        rows, columns: rows and columns under each window.
        result: C expression of an output, given the mean square `mean`.
    """

    window: str
    x: str
    y: str
    batch: int
    channels: int
    each_row: str
    each_column: str
    image: int
    row: int
    rows: L2PoolSpan
    columns: L2PoolSpan
    result: str


def _span(op: L2Pool2D, axis: int, size: int, outputs: int) -> L2PoolSpan:
    """Return the rows (axis 0) or columns (axis 1) under a window."""
    (before, _), stride, window = op.padding[axis], op.stride[axis], op.window[axis]
    output, name = (("y", "top"), ("x", "left"))[axis]
    first = offset(times(output, stride) if outputs > 1 else "0", -before)
    last = (outputs - 1) * stride - before + window
    end = offset(name, window)
    return L2PoolSpan(
        first,
        f"{name} > 0 ? {name} : 0" if before else name,
        f"{end} < {size} ? {end} : {size}" if last > size else end,
    )


class L2PoolKernel(Kernel[L2Pool2D]):
    """Output by output; squares are added to a sum as soon as they are computed."""

    op = L2Pool2D

    def offer(self, node: Node[L2Pool2D], request: Request) -> KernelCall:
        """Return a call with plain loops."""
        op, x, y = node.op, node.input(0).type, node.output.type
        n, height, width, channels = x.shape
        result = stored(op.activation, y)("sqrtf(mean)")
        size = "x".join(map(str, op.window))
        return KernelCall(
            template="backends/c/l2_pool.j2",
            stem=f"l2_pool_{size}",
            parameters=L2PoolParameters(
                window=f"{size}, stride {op.stride[0]}x{op.stride[1]}",
                x=str(x),
                y=str(y),
                batch=n,
                channels=channels,
                each_row=loop_head("y", y.shape[1]),
                each_column=loop_head("x", y.shape[2]),
                image=height * width * channels,
                row=width * channels,
                rows=_span(op, 0, height, y.shape[1]),
                columns=_span(op, 1, width, y.shape[2]),
                result=result,
            ),
            operands=(Input(0, "input"), Output(0, "output")),
            uses=uses_in([result]),
            summary=f"square root of the mean square of {size} windows, one output at a time",
        )


KERNELS = (L2PoolKernel(),)
