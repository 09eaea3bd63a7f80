"""The C of convolutions that are computed tap by tap: their loops and their arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.lower.kernel import Input, Operand, Packed
from smelt.codegen.lower.nested_loops import LaneBlock, braced, total
from smelt.codegen.lower.output_stage import OutputStage
from smelt.codegen.lower.quantized_products import centered_weights
from smelt.codegen.text.expressions import in_parentheses, offset, times
from smelt.ir import DType, Node
from smelt.ops.core.convolution_nd import Conv3D, ConvolutionND


@dataclass(frozen=True)
class TapAxis:
    """The loop over taps along an axis of the image; texts are C.

    Attributes:
        head: line that opens the loop over the taps that can meet an input pixel; empty if there
            is one tap, which always does.
        lines: lines that declare the input position (`ix`, …), or skip the tap if it meets no input
            pixel; empty if 0 is the only position.
    """

    head: str
    lines: tuple[str, ...]

    @staticmethod
    def of(
        op: ConvolutionND, axis: int, name: str, size: int, kernel: int, outputs: int
    ) -> TapAxis:
        """Return the loop along an axis.

        Args:
            op: the convolution.
            axis: index into its strides.
            name: C variable of the output position; taps are `k{name}`, inputs `i{name}`.
            size: size of the input.
            kernel: number of taps.
            outputs: size of the output.
        """
        stride, dilation, before = op.stride[axis], op.dilation[axis], op.padding[axis][0]
        tap = times(f"k{name}", dilation)
        head = f"for (int32_t k{name} = 0; k{name} < {kernel}; ++k{name}) {{"
        outside = f"if (i{name} < 0 || i{name} >= {size}) {{"
        skip = (outside, "    continue;", "}")
        if isinstance(op, Conv3D):
            padded = before or (outputs - 1) * stride + (kernel - 1) * dilation >= size
            if kernel == 1 and not padded:
                head, tap = "", "0"
            if size == 1 and not padded:
                return TapAxis(head, ())  # The position is always 0 and no C expression uses it.
            position = times(name, stride) if outputs > 1 else "0"
            found = f"const int32_t i{name} = {offset(total((position, tap)), -before)};"
            return TapAxis(head, (found, *skip) if padded else (found,))
        cut = offset(name if outputs > 1 else "0", before)
        if stride == 1:
            return TapAxis(head, (f"const int32_t i{name} = {cut} - {tap};", *skip))
        if dilation == 1 and before >= 0:
            first = f"{in_parentheses(cut)} % {stride}"
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
class TapArithmetic:
    """How inputs and weights are multiplied, summed and stored; texts are C.

    Attributes:
        operands: weights, and the bias or the output stage's constants.
        finish: output stage of each sum.
        start: initial value of a sum; `%s` is the channel.
        sum_type: type of a sum.
        value_type: type of an input and of a weight in a product.
        input_type: type of an input in memory.
        weight_type: type of a weight in memory.
        input_zero_point: number that is subtracted from each input.
        weight_zero_point: number that is subtracted from each weight.
    """

    operands: tuple[Operand, ...]
    finish: OutputStage
    start: str
    sum_type: str = "float"
    value_type: str = "float"
    input_type: str = "float"
    weight_type: str = "float"
    input_zero_point: int = 0
    weight_zero_point: int = 0

    @staticmethod
    def of(node: Node, finish: OutputStage) -> TapArithmetic:
        """Return the arithmetic of a node."""
        weights: Operand = Input(1, "weights")
        if not node.output.type.is_quantized:
            if node.optional(2) is None:
                return TapArithmetic((weights,), finish, "0.0f")
            bias = Input(2, "bias")
            return TapArithmetic((weights, bias), finish, "bias[%s]")
        x, stored_weights = node.input(0).type, node.input(1).type
        quant = stored_weights.quant
        zero_points = {0} if quant is None else set(quant.zero_point)
        if len(zero_points) > 1:
            # With one zero point per channel, subtract them before the weights are stored.
            centered = np.moveaxis(centered_weights(node, -1).astype(np.int16), 0, -1)
            weights, zero_points = Packed("weights", centered), {0}
        packed = isinstance(weights, Packed)
        zero_point = max(zero_points, default=0)
        return TapArithmetic(
            operands=(weights, *finish.operands),
            finish=finish,
            start="0",
            sum_type="int64_t" if finish.wide else "int32_t",
            value_type="int32_t",
            input_type=x.dtype.c_name,
            weight_type=DType.INT16.c_name if packed else stored_weights.dtype.c_name,
            input_zero_point=x.zero_point,
            weight_zero_point=zero_point,
        )

    def value(self, element: str) -> str:
        """Return the C expression of an input minus its zero point."""
        return _centered(element, self.input_zero_point)

    def weight(self, lane: int) -> str:
        """Return the C expression of a weight minus its zero point."""
        return _centered(f"w[{lane}]", self.weight_zero_point)


def _centered(element: str, zero_point: int) -> str:
    return f"({offset(element, -zero_point)})" if zero_point else element


@dataclass(frozen=True)
class TapLoops:
    """The loops of a convolution that is computed tap by tap; texts are C.

    Attributes:
        sums: arithmetic of inputs, weights and sums.
        axes: axes of the image, outermost first.
        pixel: offset of the input pixel that a tap meets.
        tap: offset of the weights of a tap.
        group: first output channel of a group.
        inputs: first input channel of a group.
        depth: input channels of an output channel.
        outputs: output channels.
        depthwise: whether each output channel has its own, single input channel.
        vectors: whether the sums of a block share vector registers.
    """

    sums: TapArithmetic
    axes: tuple[TapAxis, ...]
    pixel: str
    tap: str
    group: str
    inputs: str
    depth: int
    outputs: int
    depthwise: bool
    vectors: bool

    def compute(self, block: LaneBlock) -> list[str]:
        """Return C lines that compute a block of an output pixel's channels."""
        lines = self._products(block)
        for axis in reversed(self.axes):
            lines = [*axis.lines, *lines]
            lines = braced(axis.head, lines) if axis.head else lines
        return braced(block.head, (*self._begin(block), *lines, *self._end(block)))

    def _begin(self, block: LaneBlock) -> list[str]:
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

    def _products(self, block: LaneBlock) -> list[str]:
        """Return C lines that add the products of a tap."""
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

    def _end(self, block: LaneBlock) -> list[str]:
        """Return C lines that store the results."""
        finish = self.sums.finish
        if self.vectors:
            channel = self._channel(block, "j")
            return _each_lane(block, f"output[{channel}] = {finish.output('acc[j]')};")
        channels = [total((self.group, block.lane(lane))) for lane in range(block.lanes)]
        stores = [(at, [(f"output[{at}]", f"acc{lane}")]) for lane, at in enumerate(channels)]
        return list(finish.stores_in_order(stores))

    def _channel(self, block: LaneBlock, lane: str) -> str:
        return total((self.group, block.position, lane))


def _each_lane(block: LaneBlock, statement: str) -> list[str]:
    return braced(f"for (int32_t j = 0; j < {block.lanes}; ++j) {{", [statement])
