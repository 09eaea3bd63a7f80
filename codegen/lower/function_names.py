"""Names of the functions that kernels become: what they compute, and what differs between them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, count

from smelt.codegen.lower.kernel import KernelCall, LayerStruct
from smelt.ir import Node
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.convolution_nd import ConvolutionND
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.l2_pool import L2Pool2D
from smelt.ops.core.max_unpool import MaxPoolIndices
from smelt.ops.core.pool import Pool2D


class FunctionNames:
    """Names that differ, and say how the functions differ where a few words can say it."""

    def __init__(self) -> None:
        self._first: dict[str, Mapping[str, str]] = {}
        self._taken: set[str] = set()

    def distinct(self, name: str, details: Mapping[str, str] | None = None) -> str:
        """Return the name, or a longer one if it was taken before.

        The longer name ends with details, as few as needed: those that differ from the details of
        the first function of the name, then, if there are any, the others. If no details tell them
        apart, it ends in `_v2`, `_v3` and so on: the letter keeps the number from being read as a
        stride or a count of channels. If their scales differ, it ends in `_scale2`, `_scale3`, ….

        Args:
            name: A name that says what the function computes.
            details: Words about it, by what they describe, in the order of preference. Those about
                `scale` are too long for a name.
        """
        details = details or {}
        first = self._first.setdefault(name, details)
        longer = name
        words = {key: word for key, word in details.items() if word and key != "scale"}
        differing = [word for key, word in words.items() if first.get(key) != word]
        others = [word for key, word in words.items() if first.get(key) == word]
        for word in differing + (others if differing else []):
            if longer in self._taken:
                longer = f"{longer}_{word}"
        kind = "v" if first.get("scale") == details.get("scale") else "scale"
        numbered = (f"{name}_{kind}{i}" for i in count(2))
        found = next(n for n in chain([longer], numbered) if n not in self._taken)
        self._taken.add(found)
        return found


_PADDING = {"above", "top"}
"""Names of a layer's rows of padding, in structs of functions that read them."""


def details(node: Node, call: KernelCall) -> dict[str, str]:
    """Return what else a call's name may say, by what it describes; see `FunctionNames.distinct`.

    The kernel's own details come first; then the clamp and the size of the output.
    """
    y, found = node.outputs[0].type, dict(call.details)
    activation = getattr(node.op, "activation", None)
    if isinstance(activation, Activation):
        found["clamp"] = "linear" if activation is Activation.NONE else activation.name.lower()
    if isinstance(node.op, Conv2D | DepthwiseConv2D | Pool2D):
        if not _shared(call):
            found["size"] = f"out{y.shape[1]}x{y.shape[2]}"
        if not _numbers(call) & _PADDING:
            pads = (n for pair in node.op.padding for n in pair)
            found["padding"] = "_".join(("pad", *map(str, pads)))
    elif not _shared(call):
        found["size"] = f"n{y.size}"
    return found


def _shared(call: KernelCall) -> bool:
    """Return whether the function reads a layer's numbers from a struct."""
    return bool(_numbers(call))


def _numbers(call: KernelCall) -> set[str]:
    """Return the names of the numbers that the function reads from a struct."""
    structs = (operand for operand in call.operands if isinstance(operand, LayerStruct))
    return {name for struct in structs for name in struct.numbers}


def described(node: Node, call: KernelCall) -> str:
    """Return the name of the function that a call needs, for example `conv_3x3_s2_c8_c16`.

    The stem is followed by stride and dilation where they are unusual, then by the channels of
    input and output. A function that reads its channels from a `LayerStruct` has none in its name,
    and no stride if it also reads that.
    """
    stride = "" if "stride" in _numbers(call) else steps(node)
    return call.stem + stride + ("" if _shared(call) else channels(node))


def steps(node: Node) -> str:
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


def channels(node: Node) -> str:
    """Return the channels of a layer with weights, as `_c8_c16`, or `_c8` of both; else nothing."""
    if isinstance(node.op, FullyConnected):
        outputs, inputs = node.input(1).type.shape
    elif isinstance(node.op, Conv2D | DepthwiseConv2D | ConvolutionND):
        inputs, outputs = node.input(0).type.shape[-1], node.output.type.shape[-1]
    else:
        return ""
    alone = isinstance(node.op, DepthwiseConv2D) and inputs == outputs
    return f"_c{inputs}" if alone else f"_c{inputs}_c{outputs}"
