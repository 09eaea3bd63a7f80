"""L2Pool2D."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.c_expressions import stored
from smelt.codegen.lower.kernel import Input, Kernel, KernelCall, Output, Parameters, Request
from smelt.codegen.text.expressions import offset
from smelt.codegen.text.helpers import uses_in
from smelt.ir import Node
from smelt.ops.core.l2_pool import L2Pool2D


@dataclass(frozen=True)
class L2PoolSpan:
    """The rows or columns under a window, as C: expressions of the first and of what follows."""

    first: str
    begin: str
    end: str


@dataclass(frozen=True, kw_only=True)
class L2PoolParameters(Parameters):
    """What `backends/c/l2_pool.j2` prints.

    Attributes:
        window, x, y: in words.
        batch, height, width, channels: how much is computed.
        image, row: elements of an image, and of one of its rows.
        rows, columns: under each window.
        result: of the mean square `mean`.
    """

    window: str
    x: str
    y: str
    batch: int
    height: int
    width: int
    channels: int
    image: int
    row: int
    rows: L2PoolSpan
    columns: L2PoolSpan
    result: str


def _span(op: L2Pool2D, axis: int, size: int, outputs: int) -> L2PoolSpan:
    (before, _), stride, window = op.padding[axis], op.stride[axis], op.window[axis]
    output, name = (("y", "top"), ("x", "left"))[axis]
    first = offset(output if stride == 1 else f"{output} * {stride}", -before)
    last = (outputs - 1) * stride - before + window
    end = offset(name, window)
    return L2PoolSpan(
        first,
        f"{name} > 0 ? {name} : 0" if before else name,
        f"{end} < {size} ? {end} : {size}" if last > size else end,
    )


class L2PoolKernel(Kernel[L2Pool2D]):
    """Element by element: squares are added while they are read, and stored nowhere."""

    op = L2Pool2D

    def offer(self, node: Node[L2Pool2D], request: Request) -> KernelCall:
        """Plain loops."""
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
                height=y.shape[1],
                width=y.shape[2],
                channels=channels,
                image=height * width * channels,
                row=width * channels,
                rows=_span(op, 0, height, y.shape[1]),
                columns=_span(op, 1, width, y.shape[2]),
                result=result,
            ),
            operands=(Input(0, "input"), Output(0, "output")),
            uses=uses_in([result]),
            summary=f"root of the mean square of {size} windows, one element at a time",
        )


KERNELS = (L2PoolKernel(),)
