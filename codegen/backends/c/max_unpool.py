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
from smelt.codegen.lower.loop_heads import looped
from smelt.codegen.lower.nested_loops import (
    LoopsParameters,
    braced,
    dense_strides,
    loops_call,
    total,
)
from smelt.codegen.text.expressions import offset, times
from smelt.ir import Node, TensorType
from smelt.ops.core.max_unpool import MaxPoolIndices, MaxUnpool

_NAMES = ("z", "y", "x")
"""C variables of output positions, innermost axis last.

Along axis x, `kx` is the position of a tap in the window and `ix` the position of its input.
"""


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
        rank = len(op.window)
        if rank > len(_NAMES):
            return Refusal(f"{op.name} supports images of at most 3 axes, not {rank}.")
        return loops_call(
            stem=f"max_pool_indices_{_size_text(op.window)}",
            form="c_max_pool_indices",
            parameters=LoopsParameters(
                (
                    f"Maximum of {_size_text(op.window)} windows and its index: {x} -> {y}.",
                    f"Stride {_size_text(op.stride)}, padding "
                    f"{', '.join(f'{before}+{after}' for before, after in op.padding)}, "
                    f"dilation {_size_text(op.dilation)}.",
                ),
                looped("plane", x.shape[0] * x.shape[1], _PooledPlane(op, x, y).lines),
            ),
            operands=(Input(0, "input"), Output(0, "output"), Output(1, "indices")),
            summary="plane by plane, output by output",
        )


@dataclass(frozen=True)
class _PooledPlane:
    """The C that pools a plane: one channel of an image.

    Attributes:
        op: the operator.
        x: type of the input.
        y: type of the output.
    """

    op: MaxPoolIndices
    x: TensorType
    y: TensorType

    @property
    def names(self) -> tuple[str, ...]:
        """The C variables of an output's position, innermost axis last."""
        return _NAMES[-len(self.op.window) :]

    def lines(self, plane: str) -> tuple[str, ...]:
        """Return C lines that compute the plane with the index that expression `plane` gives."""
        start = times(plane, prod(self.x.shape[2:]))
        pointer = f"const {self.x.dtype.c_name} *const in = {total(('input', start))};"
        return (pointer, *self._outputs(start, ()))

    def _outputs(self, start: str, outputs: tuple[str, ...]) -> tuple[str, ...]:
        """Return C lines that compute the outputs whose positions begin with `outputs`.

        `start` is the C expression of the index of the plane's first element.
        """
        axis = len(outputs)
        if axis < len(self.names):
            return looped(
                self.names[axis],
                self.y.shape[axis + 2],
                lambda at: self._outputs(start, (*outputs, at)),
            )
        return (
            f"{self.x.dtype.c_name} best = 0;",
            "int32_t at = -1;",
            *self._taps(outputs, 0),
            "*output++ = best;",
            f"*indices++ = {total((start, 'at'))};",
        )

    def _taps(self, outputs: tuple[str, ...], axis: int) -> tuple[str, ...]:
        """Return C lines that compare the elements under a window, along `axis` and those inside.

        `outputs` are the C expressions of the output's position.
        """
        op, size = self.op, self.x.shape[2:]
        if axis == len(outputs):
            strides = dense_strides(size)
            numbered = dense_strides(size[::-1])[::-1] if op.column_major else strides
            return (
                f"const {self.x.dtype.c_name} element = in[{self._position(strides)}];",
                "if (at < 0 || element > best) {",
                "    best = element;",
                f"    at = {self._position(numbered)};",
                "}",
            )
        name, before = f"i{self.names[axis]}", op.padding[axis][0]
        span = (self.y.shape[axis + 2] - 1) * op.stride[axis]
        span += (op.window[axis] - 1) * op.dilation[axis]

        def tap(k: str) -> tuple[str, ...]:
            position = total((times(outputs[axis], op.stride[axis]), times(k, op.dilation[axis])))
            declared = f"const int32_t {name} = {offset(position, -before)};"
            lines = self._taps(outputs, axis + 1)
            if before or span >= size[axis]:
                lines = tuple(braced(f"if ({name} >= 0 && {name} < {size[axis]}) {{", lines))
            return (declared, *lines)

        return looped(f"k{self.names[axis]}", op.window[axis], tap)

    def _position(self, strides: tuple[int, ...]) -> str:
        """Return the C expression of the sum of input positions times strides."""
        return total(times(f"i{n}", s) for n, s in zip(self.names, strides, strict=True))


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


KERNELS = (MaxPoolIndicesKernel(), MaxUnpoolKernel())
