"""Maxima of windows with their indices (MaxPoolIndices), and the inverse (MaxUnpool)."""

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
"""C variables of output positions, innermost axis last.

Along axis x, `kx` is the position of a tap in the window and `ix` the position of its input.
"""


@dataclass(frozen=True)
class PooledAxis:
    """An axis of an image.

    Attributes:
        name: C variable of an output position.
        indent: spaces by which its loops are indented more than those of the first axis.
        outputs: outputs along the axis.
        window: taps along the axis.
        size: inputs along the axis.
        position: C expression of the input position of a tap, which can be outside.
    """

    name: str
    indent: str
    outputs: int
    window: int
    size: int
    position: str


@dataclass(frozen=True)
class MaxPoolIndicesParameters(Parameters):
    """Variables of `max_pool_indices.j2`. A plane is one channel of an image.

    Attributes:
        comment: lines of the function's comment.
        type: C type of an element.
        axes: axes of an image, outermost first.
        indent: spaces by which the body of the loops over all axes is indented more than the first
            loop.
        planes: number of planes.
        plane: elements of an input plane.
        element: C expression of an element's offset in its plane.
        number: C expression of the index in its plane that the node returns for it.
    """

    comment: tuple[str, ...]
    type: str
    axes: tuple[PooledAxis, ...]
    indent: str
    planes: int
    plane: int
    element: str
    number: str


@dataclass(frozen=True)
class MaxUnpoolParameters(Parameters):
    """Variables of `max_unpool.j2`.

    Attributes:
        x, y: types of input and output.
        inputs, outputs: elements of input and output.
        bytes: size of the output in bytes.
    """

    x: str
    y: str
    inputs: int
    outputs: int
    bytes: int


class MaxPoolIndicesKernel(Kernel[MaxPoolIndices]):
    """One output at a time, plane by plane."""

    op = MaxPoolIndices

    @override
    def offer(self, node: Node[MaxPoolIndices], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.outputs[0].type
        size, rank = x.shape[2:], len(op.window)
        if rank > len(_NAMES):
            return Refusal(f"{op.name} supports images of at most 3 axes, not {rank}.")
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
            stem=f"max_pool_indices_{_size_text(op.window)}",
            parameters=MaxPoolIndicesParameters(
                comment=(
                    f"Maximum of {_size_text(op.window)} windows and its index: {x} -> {y}.",
                    f"Stride {_size_text(op.stride)}, padding "
                    f"{', '.join(f'{before}+{after}' for before, after in op.padding)}, "
                    f"dilation {_size_text(op.dilation)}.",
                ),
                type=x.dtype.c_name,
                axes=axes,
                indent="    " * rank,
                planes=x.shape[0] * x.shape[1],
                plane=prod(size),
                element=_position_sum(names, strides),
                number=_position_sum(names, numbered),
            ),
            operands=(Input(0, "input"), Output(0, "output"), Output(1, "indices")),
            summary="plane by plane, output by output",
        )


class MaxUnpoolKernel(Kernel[MaxUnpool]):
    """An output of zeros into which the elements are copied at their indices."""

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
            summary="zeros, then the elements at their indices",
        )


def _size_text(sizes: tuple[int, ...]) -> str:
    """Return sizes as text, for example `3x3`."""
    return "x".join(map(str, sizes))


def _position_sum(names: tuple[str, ...], strides: tuple[int, ...]) -> str:
    """Return the C expression of the sum of input positions times strides."""
    return total(times(f"i{n}", s) for n, s in zip(names, strides, strict=True))


KERNELS = (MaxPoolIndicesKernel(), MaxUnpoolKernel())
