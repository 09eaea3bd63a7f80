"""Names of the functions that kernels become: what they compute, and what differs between them."""

from __future__ import annotations

from smelt.codegen.lower.kernel import KernelCall, LayerStruct
from smelt.ir import Node
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.convolution_nd import ConvolutionND
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.l2_pool import L2Pool2D
from smelt.ops.core.max_unpool import MaxPoolIndices
from smelt.ops.core.pool import Pool2D


class FunctionNames:
    """Names that differ: the second function of a name gets the suffix `_v2`.

    The letter keeps the number from being read as a stride or a count of channels.
    """

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def distinct(self, name: str) -> str:
        """Return the name, with a suffix if it was taken before."""
        count = self._taken[name] = self._taken.get(name, 0) + 1
        return name if count == 1 else f"{name}_v{count}"


def described(node: Node, call: KernelCall) -> str:
    """Return the name of the function that a call needs, for example `conv_3x3_s2_c8_c16`.

    The stem is followed by stride and dilation where they are unusual, then by the channels of
    input and output. A function that reads its channels from a `LayerStruct` has none in its name.
    """
    shared = any(isinstance(operand, LayerStruct) for operand in call.operands)
    return call.stem + _steps(node) + ("" if shared else _channels(node))


def _steps(node: Node) -> str:
    """Return stride and dilation of a window, as `_s2_d2`; empty if they are the usual ones."""
    match node.op:
        case Conv2D() | DepthwiseConv2D() | ConvolutionND() as op:
            usual, dilation = (1,) * len(op.stride), op.dilation
        case Pool2D() | MaxPoolIndices() as op:
            usual, dilation = op.window, op.dilation
        case L2Pool2D() as op:
            usual, dilation = op.window, ()
        case _:
            return ""
    stride = "" if op.stride == usual else f"_s{_sizes(op.stride)}"
    return stride if max(dilation, default=1) == 1 else f"{stride}_d{_sizes(dilation)}"


def _sizes(sizes: tuple[int, ...]) -> str:
    """Return sizes as `2x1`, or as `2` if all are equal."""
    return str(sizes[0]) if len(set(sizes)) == 1 else "x".join(map(str, sizes))


def _channels(node: Node) -> str:
    """Return the channels of a layer with weights, as `_c8_c16`, or `_c8` of both; else nothing."""
    if isinstance(node.op, FullyConnected):
        outputs, inputs = node.input(1).type.shape
    elif isinstance(node.op, Conv2D | DepthwiseConv2D | ConvolutionND):
        inputs, outputs = node.input(0).type.shape[-1], node.output.type.shape[-1]
    else:
        return ""
    alone = isinstance(node.op, DepthwiseConv2D) and inputs == outputs
    return f"_c{inputs}" if alone else f"_c{inputs}_c{outputs}"
