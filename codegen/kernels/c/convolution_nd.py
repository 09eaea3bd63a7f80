"""Conv3D and ConvTranspose: several output channels of a pixel at a time, tap by tap.

Their sums are variables of their own, or an array where floats are computed several at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.kernels.base import (
    Input,
    Kernel,
    KernelCall,
    Operand,
    Output,
    Packed,
    Refusal,
    Request,
)
from smelt.codegen.kernels.c.finish import Finish
from smelt.codegen.kernels.c.loops import LANES, Block, dense_strides, lane_blocks, total
from smelt.codegen.kernels.c.phases import phases
from smelt.codegen.kernels.c.products import (
    centred_weights,
    constant_bias,
    served_sums,
)
from smelt.codegen.kernels.c.store import offset, stored
from smelt.ir import DType, Node
from smelt.ops.convolution_nd import Conv3D, ConvolutionND, ConvTranspose
from smelt.ops.fixed_point import convolution_scales

_VECTOR_LANES = 32
"""Output channels whose sums share vector registers."""

_NAMES = ("z", "y", "x")
"""C variables of the output's axes, the innermost last; taps are `kx`, input positions `ix`."""


@dataclass(frozen=True)
class Axis:
    """One axis of the image, as C.

    Attributes:
        name: variable of the output position.
        outputs: size of the output.
        head: opens the loop over the taps that may lie on an input pixel.
        lines: find the input position `i{name}`, or go on to the next tap; none where there is
            but one position.
    """

    name: str
    outputs: int
    head: str
    lines: tuple[str, ...]

    @staticmethod
    def of(op: ConvolutionND, axis: int, name: str, size: int, kernel: int, outputs: int) -> Axis:
        """An axis of that input size, so many taps and outputs."""
        stride, dilation, before = op.stride[axis], op.dilation[axis], op.padding[axis][0]
        tap = f"k{name}" if dilation == 1 else f"k{name} * {dilation}"
        head = f"for (int32_t k{name} = 0; k{name} < {kernel}; ++k{name}) {{"
        outside = f"if (i{name} < 0 || i{name} >= {size}) {{"
        skip = (outside, "    continue;", "}")
        if isinstance(op, Conv3D):
            position = f"{name} * {stride}" if stride > 1 else name
            found = f"const int32_t i{name} = {offset(f'{position} + {tap}', -before)};"
            padded = before or (outputs - 1) * stride + (kernel - 1) * dilation >= size
            if size == 1 and not padded:
                return Axis(name, outputs, head, ())  # the position is 0, and nobody asks for it
            return Axis(name, outputs, head, (found, *skip) if padded else (found,))
        cut = offset(name, before)
        if stride == 1:
            return Axis(name, outputs, head, (f"const int32_t i{name} = {cut} - {tap};", *skip))
        if dilation == 1 and before >= 0:
            first = f"({cut}) % {stride}" if before else f"{name} % {stride}"
            head = f"for (int32_t k{name} = {first}; k{name} < {kernel}; k{name} += {stride}) {{"
            found = f"const int32_t i{name} = ({cut} - {tap}) / {stride};"
            return Axis(name, outputs, head, (found, *skip))
        lines = (
            f"const int32_t at_{name} = {cut} - {tap};",
            f"const int32_t i{name} = at_{name} / {stride};",
            f"if (at_{name} < 0 || at_{name} % {stride} != 0 || i{name} >= {size}) {{",
            *skip[1:],
        )
        return Axis(name, outputs, head, lines)


@dataclass(frozen=True)
class _Arithmetic:
    """How inputs and weights are multiplied, summed and stored, as C.

    Attributes:
        operands: weights, and bias or constants by channel.
        finish: what follows each sum.
        start: what a sum begins with; `%s` stands for the channel.
        sum_type: of sums.
        value_type: of an input and of a weight in a product.
        input_type: of an input in memory.
        weight_type: of a weight in memory.
        input_zero_point: taken from each input.
        weight_zero_point: taken from each weight.
    """

    operands: tuple[Operand, ...]
    finish: Finish
    start: str
    sum_type: str = "float"
    value_type: str = "float"
    input_type: str = "float"
    weight_type: str = "float"
    input_zero_point: int = 0
    weight_zero_point: int = 0

    @staticmethod
    def of(node: Node, finish: Finish) -> _Arithmetic:
        """That of a node."""
        weights: Operand = Input(1, "weights")
        if not node.output.type.is_quantized:
            if node.optional(2) is None:
                return _Arithmetic((weights,), finish, "0.0f")
            bias = Input(2, "bias")
            return _Arithmetic((weights, bias), finish, "bias[%s]")
        x, stored_weights = node.input(0).type, node.input(1).type
        quant = stored_weights.quant
        zero_points = {0} if quant is None else set(quant.zero_point)
        if len(zero_points) > 1:
            # A zero point for each channel: weights are stored without.
            centred = np.moveaxis(centred_weights(node, -1).astype(np.int16), 0, -1)
            weights, zero_points = Packed("weights", centred), {0}
        return _Arithmetic(
            (weights, *finish.operands),
            finish,
            "0",
            "int64_t" if finish.wide else "int32_t",
            "int32_t",
            x.dtype.c_name,
            DType.INT16.c_name if isinstance(weights, Packed) else stored_weights.dtype.c_name,
            x.zero_point,
            *zero_points,
        )

    def value(self, element: str) -> str:
        """The C expression of an input as it enters a product."""
        return _centred(element, self.input_zero_point)

    def weight(self, lane: int) -> str:
        """The C expression of a weight as it enters a product."""
        return _centred(f"w[{lane}]", self.weight_zero_point)

    def results(self, block: Block, first: str) -> list[str]:
        """C lines that store a block's sums `acc0`, …; its channels count from `first`."""
        lines: list[str] = []
        for lane in range(block.lanes):
            channel = total((first, block.lane(lane)))
            store = f"output[{channel}] = {self.finish.output(f'acc{lane}')};"
            if self.finish.fields:
                row = f"const int32_t *const channel = channels + {self.finish.index(channel)};"
                lines += ["{", f"    {row}", f"    {store}", "}"]
            else:
                lines.append(store)
        return lines


def _centred(element: str, zero_point: int) -> str:
    return f"({offset(element, -zero_point)})" if zero_point else element


def _finish(node: Node[ConvolutionND]) -> Finish | Refusal:
    """What follows each sum of centred inputs times centred weights, or why none is served."""
    op, x, weights, y = node.op, node.input(0).type, node.input(1).type, node.output.type
    rank = len(x.shape) - 2
    if rank > len(_NAMES):
        return Refusal(f"{op.name} is served for up to 3 axes besides channels, not {rank}.")
    if x.is_quantized:
        range_ = served_sums(node, -1)
        if isinstance(range_, Refusal):
            return range_
        scales = convolution_scales(x, weights, y, node.rounding)
        return Finish.of(node, op.activation, constant_bias(node), scales, range_)
    if x.dtype is not DType.FLOAT32:
        return Refusal(f"{op.name} is served for f32 data, not {x.dtype.value}.")
    return Finish(stored(op.activation, y).text, None)


def _taps(node: Node[ConvolutionND], finish: Finish, request: Request) -> KernelCall:
    """The weights `[taps, i, o]` are read as they stand, whether they are constant or not."""
    op = node.op
    x, weights, y = node.input(0).type, node.input(1).type, node.output.type
    kernel, names = weights.shape[:-2], _NAMES[-len(op.stride) :]
    depth, outputs = weights.shape[-2], y.shape[-1] // op.groups
    depthwise = op.groups > 1 and depth == outputs == 1
    groups = 1 if depthwise else op.groups
    per_group = y.shape[-1] // groups
    arithmetic = _Arithmetic.of(node, finish)
    simd = "simd_float" in request.target.features and y.dtype is DType.FLOAT32
    vectors = simd and per_group > LANES
    blocks = lane_blocks(per_group, _VECTOR_LANES if vectors else LANES)
    pixel = _row_major([f"i{n}" for n in names], x.shape[1:-1], x.shape[-1])
    tap = _row_major([f"k{n}" for n in names], kernel, depth * y.shape[-1])
    group, inputs = (f"g * {per_group}", f"g * {depth}") if groups > 1 else ("0", "0")
    operands = (Input(0, "input"), *arithmetic.operands, Output(0, "output"))
    parameters: dict[str, object] = {
        "title": f"{op.name}: {x} -> {y}",
        "op": op,
        "kernel": kernel,
        "notes": arithmetic.finish.notes,
        "axes": [
            Axis.of(op, a, name, x.shape[a + 1], kernel[a], y.shape[a + 1])
            for a, name in enumerate(names)
        ],
        "batch": x.shape[0],
        "image": x.size // x.shape[0],
        "groups": groups,
        "depth": depth,
        "depthwise": depthwise,
        "outputs": y.shape[-1],
        "sums": arithmetic,
        "blocks": [
            {
                "head": b.head,
                "lanes": range(b.lanes),
                "channel": total((group, b.position, "j")),
                "input": total(("input", pixel, b.position if depthwise else inputs)),
                "weights": total(("weights", tap, group, b.position)),
                "starts": _starts(arithmetic, b, group),
                "start": arithmetic.start.replace("%s", total((group, b.position, "j"))),
                "results": arithmetic.results(b, group),
            }
            for b in blocks
        ],
        "vectors": vectors,
        "arguments": ", ".join(operand.name for operand in operands),
    }
    return KernelCall(
        template="c/convolution_nd.j2",
        stem=f"{'conv' if isinstance(op, Conv3D) else 'transposed_conv'}"
        f"_{'x'.join(map(str, kernel))}",
        parameters=parameters,
        operands=operands,
        helpers=arithmetic.finish.helpers,
        summary=f"tap by tap, {blocks[0].lanes} output channels at a time",
    )


def _starts(arithmetic: _Arithmetic, block: Block, first: str) -> list[str]:
    """What the sums of a block begin with."""
    channels = (total((first, block.lane(lane))) for lane in range(block.lanes))
    return [arithmetic.start.replace("%s", channel) for channel in channels]


class Conv3DKernel(Kernel[Conv3D]):
    """3-D convolutions."""

    op = Conv3D

    @override
    def offer(self, node: Node[Conv3D], request: Request) -> KernelCall | Refusal:
        finish = _finish(node)
        return finish if isinstance(finish, Refusal) else _taps(node, finish, request)


class ConvTransposeKernel(Kernel[ConvTranspose]):
    """Transposed convolutions: only taps that meet an input pixel are visited."""

    op = ConvTranspose

    @override
    def offer(self, node: Node[ConvTranspose], request: Request) -> KernelCall | Refusal:
        finish = _finish(node)
        if isinstance(finish, Refusal):
            return finish
        return phases(node, finish, request) or _taps(node, finish, request)


def _row_major(names: list[str], sizes: tuple[int, ...], step: int) -> str:
    """The C expression of an index into an array of these axes, of `step` elements each."""
    strides = [size * step for size in dense_strides(sizes)]
    return total(
        name if stride == 1 else f"{name} * {stride}"
        for name, size, stride in zip(names, sizes, strides, strict=True)
        if size > 1
    )


KERNELS = (Conv3DKernel(), ConvTransposeKernel())
