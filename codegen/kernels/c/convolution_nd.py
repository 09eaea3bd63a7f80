"""Conv3D and ConvTranspose: several output channels of a pixel at a time, tap by tap.

Their sums are variables of their own, or an array where floats are computed several at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.kernels.c.finish import Finish
from smelt.codegen.kernels.c.loops import LANES, Block, braced, dense_strides, lane_blocks, total
from smelt.codegen.kernels.c.phases import geometry, phases
from smelt.codegen.kernels.c.products import (
    centred_weights,
    constant_bias,
    served_sums,
)
from smelt.codegen.kernels.c.store import offset, stored
from smelt.ir import DType, Node, TensorType
from smelt.ops.convolution_nd import Conv3D, ConvolutionND, ConvTranspose
from smelt.ops.fixed_point import convolution_scales

_VECTOR_LANES = 32
"""Output channels whose sums share vector registers."""

_NAMES = ("z", "y", "x")
"""C variables of the output's axes, the innermost last; taps are `kx`, input positions `ix`."""


@dataclass(frozen=True)
class TapAxis:
    """The loop over taps along an axis of the image, as C.

    Attributes:
        head: opens the loop over the taps that may lie on an input pixel.
        lines: find the input position `ix`, …, or go on to the next tap; none where there is
            but one position.
    """

    head: str
    lines: tuple[str, ...]

    @staticmethod
    def of(
        op: ConvolutionND, axis: int, name: str, size: int, kernel: int, outputs: int
    ) -> TapAxis:
        """That of an axis of so many inputs, taps and outputs, whose positions are `name`."""
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
                return TapAxis(head, ())  # the position is 0, and nobody asks for it
            return TapAxis(head, (found, *skip) if padded else (found,))
        cut = offset(name, before)
        if stride == 1:
            return TapAxis(head, (f"const int32_t i{name} = {cut} - {tap};", *skip))
        if dilation == 1 and before >= 0:
            first = f"({cut}) % {stride}" if before else f"{name} % {stride}"
            head = f"for (int32_t k{name} = {first}; k{name} < {kernel}; k{name} += {stride}) {{"
            found = f"const int32_t i{name} = ({cut} - {tap}) / {stride};"
            return TapAxis(head, (found, *skip))
        lines = (
            f"const int32_t at_{name} = {cut} - {tap};",
            f"const int32_t i{name} = at_{name} / {stride};",
            f"if (at_{name} < 0 || at_{name} % {stride} != 0 || i{name} >= {size}) {{",
            *skip[1:],
        )
        return TapAxis(head, lines)


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


@dataclass(frozen=True)
class _Taps:
    """A convolution tap by tap; texts are C.

    Attributes:
        sums: how inputs and weights are multiplied, summed and stored.
        axes: of the image.
        pixel, tap: where the inputs and the weights of a tap start.
        group, inputs: the first output and the first input channel of a group.
        depth: inputs of an output channel at a tap.
        outputs: output channels.
        depthwise: whether each input channel has one output channel.
        vectors: whether the sums of a block share vector registers.
    """

    sums: _Arithmetic
    axes: tuple[TapAxis, ...]
    pixel: str
    tap: str
    group: str
    inputs: str
    depth: int
    outputs: int
    depthwise: bool
    vectors: bool

    def compute(self, block: Block) -> list[str]:
        """C lines that compute a block of output channels of a pixel."""
        lines = self._products(block)
        for axis in reversed(self.axes):
            lines = braced(axis.head, (*axis.lines, *lines))
        return braced(block.head, (*self._begin(block), *lines, *self._end(block)))

    def _begin(self, block: Block) -> list[str]:
        start = self.sums.start
        if self.vectors:
            first = start.replace("%s", self._channel(block, "j"))
            declared = f"SMELT_ARRAY float acc[{block.lanes}];"
            return [declared, *_each_lane(block, f"acc[j] = {first};")]
        channels = [total((self.group, block.lane(lane))) for lane in range(block.lanes)]
        return [
            f"{self.sums.sum_type} acc{lane} = {start.replace('%s', channel)};"
            for lane, channel in enumerate(channels)
        ]

    def _products(self, block: Block) -> list[str]:
        """C lines that add the products of a tap."""
        sums = self.sums
        first = total(("input", self.pixel, block.position if self.depthwise else self.inputs))
        weights = total(("weights", self.tap, self.group, block.position))
        found = f"const {sums.input_type} *const in = {first};"
        lanes = range(block.lanes)
        if self.depthwise:
            own = [f"acc{n} += {sums.value(f'in[{n}]')} * {sums.weight(n)};" for n in lanes]
            if self.vectors:
                own = _each_lane(block, "acc[j] += in[j] * w[j];")
            return [found, f"const {sums.weight_type} *const w = {weights};", *own]
        value = f"const {sums.value_type} value = {sums.value('in[i]')};"
        own = [f"acc{n} += value * {sums.weight(n)};" for n in lanes]
        if self.vectors:
            own = _each_lane(block, "acc[j] += value * w[j];")
        head = f"for (int32_t i = 0; i < {self.depth}; ++i, w += {self.outputs}) {{"
        pointer = f"const {sums.weight_type} *w = {weights};"
        return [found, pointer, *braced(head, (value, *own))]

    def _end(self, block: Block) -> list[str]:
        """C lines that store the results."""
        finish = self.sums.finish
        if self.vectors:
            channel = self._channel(block, "j")
            return _each_lane(block, f"output[{channel}] = {finish.output('acc[j]')};")
        lines: list[str] = []
        for lane in range(block.lanes):
            channel = total((self.group, block.lane(lane)))
            stores = finish.stores(channel, (f"output[{channel}]", f"acc{lane}"))
            lines += braced("{", stores) if finish.fields else stores
        return lines

    def _channel(self, block: Block, lane: str) -> str:
        return total((self.group, block.position, lane))


def _each_lane(block: Block, statement: str) -> list[str]:
    return braced(f"for (int32_t j = 0; j < {block.lanes}; ++j) {{", [statement])


@dataclass(frozen=True)
class ConvolutionNDParameters(Parameters):
    """Variables of `convolution_nd.j2`.

    Attributes:
        title, notes: for the function's comment.
        arguments: names of the function's parameters, where it calls one that computes in vectors;
            else empty.
        lines: of the function that computes.
    """

    title: str
    notes: tuple[str, ...]
    arguments: str
    lines: tuple[str, ...]


def _tap_by_tap(node: Node[ConvolutionND], finish: Finish, request: Request) -> KernelCall:
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
    sizes = zip(names, x.shape[1:-1], kernel, y.shape[1:-1], strict=True)
    taps = _Taps(
        sums=arithmetic,
        axes=tuple(TapAxis.of(op, a, *of_axis) for a, of_axis in enumerate(sizes)),
        pixel=_row_major([f"i{n}" for n in names], x.shape[1:-1], x.shape[-1]),
        tap=_row_major([f"k{n}" for n in names], kernel, depth * y.shape[-1]),
        group=f"g * {per_group}" if groups > 1 else "0",
        inputs=f"g * {depth}" if groups > 1 else "0",
        depth=depth,
        outputs=y.shape[-1],
        depthwise=depthwise,
        vectors=vectors,
    )
    lines = [line for block in blocks for line in taps.compute(block)]
    for head in _outer_loops(x, y, names, groups):
        lines = braced(head, lines)
    operands = (Input(0, "input"), *arithmetic.operands, Output(0, "output"))
    return KernelCall(
        template="c/convolution_nd.j2",
        stem=f"{'conv' if isinstance(op, Conv3D) else 'transposed_conv'}"
        f"_{'x'.join(map(str, kernel))}",
        parameters=ConvolutionNDParameters(
            title=f"{op.name}: {x} -> {y}",
            notes=(geometry(op, kernel), *finish.notes),
            arguments=", ".join(operand.name for operand in operands) if vectors else "",
            lines=tuple(lines),
        ),
        operands=operands,
        helpers=finish.helpers,
        summary=f"tap by tap, {blocks[0].lanes} output channels at a time",
    )


def _outer_loops(x: TensorType, y: TensorType, names: Sequence[str], groups: int) -> Iterator[str]:
    """C lines that open the loops over groups, output pixels and images, the innermost first."""
    if groups > 1:
        yield f"for (int32_t g = 0; g < {groups}; ++g) {{"
    move = f", output += {y.shape[-1]}"
    for name, size in zip(reversed(names), reversed(y.shape[1:-1]), strict=True):
        yield f"for (int32_t {name} = 0; {name} < {size}; ++{name}{move}) {{"
        move = ""
    batch = x.shape[0]
    if batch > 1:
        yield f"for (int32_t n = 0; n < {batch}; ++n, input += {x.size // batch}) {{"


class Conv3DKernel(Kernel[Conv3D]):
    """3-D convolutions."""

    op = Conv3D

    @override
    def offer(self, node: Node[Conv3D], request: Request) -> KernelCall | Refusal:
        finish = _finish(node)
        return finish if isinstance(finish, Refusal) else _tap_by_tap(node, finish, request)


class ConvTransposeKernel(Kernel[ConvTranspose]):
    """Transposed convolutions: only taps that meet an input pixel are visited."""

    op = ConvTranspose

    @override
    def offer(self, node: Node[ConvTranspose], request: Request) -> KernelCall | Refusal:
        finish = _finish(node)
        if isinstance(finish, Refusal):
            return finish
        return phases(node, finish, request) or _tap_by_tap(node, finish, request)


def _row_major(names: list[str], sizes: tuple[int, ...], step: int) -> str:
    """The C expression of an index into an array of these axes, of `step` elements each."""
    strides = [size * step for size in dense_strides(sizes)]
    return total(
        name if stride == 1 else f"{name} * {stride}"
        for name, size, stride in zip(names, sizes, strides, strict=True)
        if size > 1
    )


KERNELS = (Conv3DKernel(), ConvTransposeKernel())
