"""MaxPoolIndices and MaxUnpool."""

from __future__ import annotations

from math import prod

from typing_extensions import override

from smelt.codegen.kernels.base import Input, Kernel, KernelCall, Output, Refusal, Request
from smelt.codegen.kernels.c.loops import dense_strides, total
from smelt.codegen.kernels.c.store import offset
from smelt.ir import Node
from smelt.ops.max_unpool import MaxPoolIndices, MaxUnpool

_NAMES = ("z", "y", "x")
"""C variables of the output's axes, the innermost last; taps are `kx`, input positions `ix`."""


class MaxPoolIndicesKernel(Kernel[MaxPoolIndices]):
    """Plane by plane, output by output."""

    op = MaxPoolIndices

    @override
    def offer(self, node: Node[MaxPoolIndices], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.outputs[0].type
        size, rank = x.shape[2:], len(op.window)
        if rank > len(_NAMES):
            return Refusal(f"{op.name} is served for images of up to 3 axes, not {rank}.")
        names = _NAMES[-rank:]
        strides = dense_strides(size)
        numbered = dense_strides(size[::-1])[::-1] if op.column_major else strides
        axes = [
            {
                "name": name,
                "outputs": y.shape[axis + 2],
                "window": op.window[axis],
                "size": size[axis],
                "position": offset(
                    total((_times(name, op.stride[axis]), _times(f"k{name}", op.dilation[axis]))),
                    -op.padding[axis][0],
                ),
            }
            for axis, name in enumerate(names)
        ]
        return KernelCall(
            template="c/max_pool_indices.j2",
            stem=f"max_pool_indices_{'x'.join(map(str, op.window))}",
            parameters={
                "op": op,
                "x": x,
                "y": y,
                "axes": axes,
                "planes": x.shape[0] * x.shape[1],
                "plane": prod(size),
                "element": _sum(names, strides),
                "number": _sum(names, numbered),
            },
            operands=(Input(0, "input"), Output(0, "output"), Output(1, "indices")),
            summary="plane by plane, output by output",
        )


class MaxUnpoolKernel(Kernel[MaxUnpool]):
    """Zeros, then the elements where they belong."""

    op = MaxUnpool

    @override
    def offer(self, node: Node[MaxUnpool], request: Request) -> KernelCall:
        x, y = node.input(0).type, node.output.type
        return KernelCall(
            template="c/max_unpool.j2",
            stem="max_unpool",
            parameters={"x": x, "y": y},
            operands=(Input(0, "input"), Input(1, "indices"), Output(0, "output")),
            summary="zeros, then the elements where they belong",
        )


def _times(name: str, factor: int) -> str:
    return name if factor == 1 else f"{name} * {factor}"


def _sum(names: tuple[str, ...], strides: tuple[int, ...]) -> str:
    """The C expression of an input position's index within its plane."""
    return total(_times(f"i{n}", s) for n, s in zip(names, strides, strict=True))


KERNELS = (MaxPoolIndicesKernel(), MaxUnpoolKernel())
