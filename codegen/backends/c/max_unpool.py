"""MaxPoolIndices and MaxUnpool."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from typing_extensions import override

from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.lower.nested_loops import dense_strides, total
from smelt.codegen.text.expressions import offset, times
from smelt.ir import Node
from smelt.ops.core.max_unpool import MaxPoolIndices, MaxUnpool

_NAMES = ("z", "y", "x")
"""C variables of the output's axes, the innermost last; taps are `kx`, input positions `ix`."""


@dataclass(frozen=True)
class PooledAxis:
    """An axis of an image: the C variable of its outputs, how many there are, and taps of each.

    `position` is the C expression of where a tap reads, within `size` elements. `indent` is how far
    its loops stand behind those of the first axis.
    """

    name: str
    indent: str
    outputs: int
    window: int
    size: int
    position: str


@dataclass(frozen=True)
class MaxPoolIndicesParameters(Parameters):
    """The variables of `backends/c/max_pool_indices.j2`.

    Attributes:
        comment: the lines of the comment.
        type: of the elements, in C.
        axes: of an image, the outermost first.
        inside: how far what stands in the loops of all axes is behind the first one's.
        planes: how many, of `plane` elements each.
        element: the C expression of where an element stands within its plane.
        number: that of the number that it is given there.
    """

    comment: tuple[str, ...]
    type: str
    axes: tuple[PooledAxis, ...]
    inside: str
    planes: int
    plane: int
    element: str
    number: str


@dataclass(frozen=True)
class MaxUnpoolParameters(Parameters):
    """The variables of `max_unpool.j2`: both types, elements of both, bytes of the output."""

    x: str
    y: str
    inputs: int
    outputs: int
    bytes: int


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
        axes = tuple(
            PooledAxis(
                name=name,
                indent="    " * axis,
                outputs=y.shape[axis + 2],
                window=op.window[axis],
                size=size[axis],
                position=offset(
                    total((times(name, op.stride[axis]), times(f"k{name}", op.dilation[axis]))),
                    -op.padding[axis][0],
                ),
            )
            for axis, name in enumerate(names)
        )
        return KernelCall(
            template="backends/c/max_pool_indices.j2",
            stem=f"max_pool_indices_{_by(op.window)}",
            parameters=MaxPoolIndicesParameters(
                comment=(
                    f"Maximum of {_by(op.window)} windows and where it stands: {x} -> {y}.",
                    f"Stride {_by(op.stride)}, padding "
                    f"{', '.join(f'{before}+{after}' for before, after in op.padding)}, "
                    f"dilation {_by(op.dilation)}.",
                ),
                type=x.dtype.c_name,
                axes=axes,
                inside="    " * rank,
                planes=x.shape[0] * x.shape[1],
                plane=prod(size),
                element=_sum(names, strides),
                number=_sum(names, numbered),
            ),
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
            template="backends/c/max_unpool.j2",
            stem="max_unpool",
            parameters=MaxUnpoolParameters(str(x), str(y), x.size, y.size, y.bytes),
            operands=(Input(0, "input"), Input(1, "indices"), Output(0, "output")),
            uses={"string.h"},
            summary="zeros, then the elements where they belong",
        )


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def _sum(names: tuple[str, ...], strides: tuple[int, ...]) -> str:
    """The C expression of an input position's index within its plane."""
    return total(times(f"i{n}", s) for n, s in zip(names, strides, strict=True))


KERNELS = (MaxPoolIndicesKernel(), MaxUnpoolKernel())
