"""Normalization and LocalResponse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from smelt.codegen.lower.nested_loops import (
    ArrayLoop,
    LaneBlock,
    LoopsParameters,
    broadcast_strides,
    dense_strides,
    in_blocks,
    in_loops,
    index,
    lane_blocks,
    loops_call,
    nest,
    total,
)
from smelt.codegen.text.helpers import uses_in
from smelt.codegen.text.literals import c_float
from smelt.ir import DType, Node, TensorType
from smelt.ops.core.normalization import LocalResponse, Normalization

_X, _SCALE, _BIAS, _STATISTICS = range(4)


class NormalizationKernel(Kernel[Normalization]):
    """Normalizes in three passes: the mean, the variance, the result.

    If the last axis is normalized, its elements are summed by a function that compilers vectorize.
    Otherwise four neighbors, each with its own mean, are computed together.
    """

    op = Normalization

    @override
    def offer(self, node: Node[Normalization], request: Request) -> KernelCall | Refusal:
        op, x = node.op, node.input(0).type
        if x.dtype is not DType.FLOAT32:
            return Refusal(f"{op.name} is served for f32 data only.")
        form = _NormalizationLoops(node)
        optional = ((_SCALE, "scale"), (_BIAS, "bias"))
        operands = [Input(i, name) for i, name in optional if node.optional(i) is not None]
        names = [operand.name for operand in operands]
        outputs = [Output(0, "output"), Output(1, "means"), Output(2, "inverses")]
        lines = in_blocks(form.blocks, [form.lines(block) for block in form.blocks])
        how = "" if op.centered else ", not centered"
        how += f", with {' and '.join(names)}" if names else ""
        return loops_call(
            stem="normalize",
            form="c_normalization",
            parameters=LoopsParameters(
                f"Normalization of {x} over axes {', '.join(map(str, op.axes))}{how}.",
                in_loops(form.outer, lines),
            ),
            operands=(Input(0, "input"), *operands, *outputs[: len(node.outputs)]),
            in_place=((0, 0),),
            summary=f"of {op.count(x)} elements, {form.how}",
        )


class _NormalizationLoops:
    """The loops of a normalization: over the means, and inside over the elements that share one."""

    def __init__(self, node: Node[Normalization]) -> None:
        op, x = node.op, node.input(0).type
        self.op, self.count = op, c_float(op.count(x))
        self.operands = [node.optional(_SCALE) is not None, node.optional(_BIAS) is not None]
        strides = [dense_strides(x.shape), *(_strides(node, i, x) for i in (_SCALE, _BIAS))]
        kept = [axis for axis in range(len(x.shape)) if axis not in op.axes]
        shape = [x.shape[axis] for axis in kept]
        self.outer = nest(shape, *_along(strides, kept), dense_strides(shape))
        self.inner = nest([x.shape[a] for a in op.axes], *_along(strides, op.axes), names="rstuvw")
        self.blocks: tuple[LaneBlock, ...] = (LaneBlock(0, 1, 1),)
        self.lane: ArrayLoop | None = None
        if self.outer and self.outer[-1].strides[_X] == 1:
            self.lane, self.outer = self.outer[-1], self.outer[:-1]
            self.blocks = lane_blocks(self.lane.size)
        # A contiguous row is summed by a helper function.
        self.row = self.inner[-1] if self.inner and self.inner[-1].strides[_X] == 1 else None
        self.how = "a row at a time" if self.row else f"{self.blocks[0].lanes} at a time"

    def lines(self, block: LaneBlock) -> list[str]:
        """Return the C lines that compute a block."""
        lanes = range(block.lanes)
        start = index(self.outer, _X), block.position if self.lane else "0"
        lines = [
            f"const float *in = {total(('input', *start))};",
            f"float *out = {total(('output', *start))};",
        ]
        if self.op.centered or self.op.statistics:
            lines += self._mean(lanes)
        return [*lines, *self._variance(lanes), *self._result(block)]

    def _mean(self, lanes: Sequence[int]) -> list[str]:
        return self._sum([f"float sum{n} = 0.0f;" for n in lanes], "sum", lanes, "")

    def _variance(self, lanes: Sequence[int]) -> list[str]:
        firsts: list[str] = []
        for n in lanes:
            if self.op.centered or self.op.statistics:
                firsts.append(f"const float mean{n} = sum{n} / {self.count};")
            firsts.append(f"float square{n} = 0.0f;")
        return self._sum(firsts, "square", lanes, " - mean{}" if self.op.centered else "")

    def _sum(self, firsts: list[str], name: str, lanes: Sequence[int], center: str) -> list[str]:
        squares = name == "square"
        if self.row is not None:
            loops = self.inner[:-1]
            row = total(("in", index(loops, _X)))
            argument = f", {'mean0' if center else '0.0f'}" if squares else ""
            function = "sum_of_squares" if squares else "sum_of"
            step = f"{name}0 += {function}({row}, {self.row.size}{argument});"
            return [*firsts, *in_loops(loops, [step])]
        steps: list[str] = []
        for n in lanes:
            element = f"in[{total((index(self.inner, _X), str(n)))}]"
            if not squares:
                steps.append(f"sum{n} += {element};")
                continue
            steps.append(f"const float x{n} = {element}{center.format(n)};")
            steps.append(f"square{n} += x{n} * x{n};")
        return [*firsts, *in_loops(self.inner, steps)]

    def _result(self, block: LaneBlock) -> list[str]:
        firsts: list[str] = []
        steps: list[str] = []
        for n in range(block.lanes):
            epsilon = c_float(self.op.epsilon)
            inverse = f"1.0f / sqrtf(square{n} / {self.count} + {epsilon})"
            firsts.append(f"const float inverse{n} = {inverse};")
            if self.op.statistics:
                at = total((index(self.outer, _STATISTICS), self._lane(block, n, _STATISTICS)))
                firsts += [f"means[{at}] = mean{n};", f"inverses[{at}] = inverse{n};"]
            factor, bias = f"inverse{n}", ""
            if self.operands[0]:
                factor = self._factor(firsts, block, n)
            if self.operands[1]:
                bias = f" + {self._operand(firsts, 'bias', block, n)}"
            at = total((index(self.inner, _X), str(n)))
            centered = f"(in[{at}] - mean{n})" if self.op.centered else f"in[{at}]"
            steps.append(f"out[{at}] = {centered} * {factor}{bias};")
        return [*firsts, *in_loops(self.inner, steps)]

    def _factor(self, firsts: list[str], block: LaneBlock, n: int) -> str:
        if any(loop.strides[_SCALE] for loop in self.inner):
            return f"inverse{n} * {self._operand(firsts, 'scale', block, n)}"
        element = self._element("scale", block, n)
        firsts.append(f"const float factor{n} = inverse{n} * {element};")
        return f"factor{n}"

    def _operand(self, firsts: list[str], name: str, block: LaneBlock, n: int) -> str:
        """Return an element of scale or bias; it is loaded before the loops if they keep it."""
        element = self._element(name, block, n)
        if any(loop.strides[_SCALE if name == "scale" else _BIAS] for loop in self.inner):
            return element
        firsts.append(f"const float {name}{n} = {element};")
        return f"{name}{n}"

    def _element(self, name: str, block: LaneBlock, n: int) -> str:
        array = _SCALE if name == "scale" else _BIAS
        around, inside = index(self.outer, array), index(self.inner, array)
        return f"{name}[{total((around, self._lane(block, n, array), inside))}]"

    def _lane(self, block: LaneBlock, n: int, array: int) -> str:
        """Return the C expression that a lane adds to the index of an array."""
        if self.lane is None or not self.lane.strides[array]:
            return "0"
        return block.lane(n)


def _strides(node: Node, operand: int, x: TensorType) -> tuple[int, ...]:
    """Return an operand's strides along the axes of `x`; 0 if it is missing or broadcast."""
    value = node.optional(operand)
    return broadcast_strides(() if value is None else value.type.shape, x.shape)


def _along(strides: Sequence[Sequence[int]], axes: Sequence[int]) -> list[list[int]]:
    """Return the strides of each array along these axes."""
    return [[own[axis] for axis in axes] for own in strides]


@dataclass(frozen=True)
class LocalResponseParameters(Parameters):
    """Variables of `local_response.j2`; texts are C.

    Attributes:
        x: type of the input.
        bias, factor, beta: each element is divided by (bias + factor * sum of squares)^beta.
        size: channels whose squares are summed.
        rows: pixels.
        channels: channels of a pixel.
        before: summed channels before the element's own.
        last: number of channels that have all summed channels after them.
        past: distance from the element's channel to the first channel after the summed ones.
        power: the divisor.
    """

    x: str
    bias: str
    factor: str
    beta: float
    size: int
    rows: int
    channels: int
    before: int
    last: int
    past: int
    power: str


class LocalResponseKernel(Kernel[LocalResponse]):
    """Sums the squares of the neighboring channels separately for each element."""

    op = LocalResponse

    @override
    def offer(self, node: Node[LocalResponse], request: Request) -> KernelCall | Refusal:
        op, x = node.op, node.input(0).type
        if x.dtype is not DType.FLOAT32:
            return Refusal(f"{op.name} is served for f32 data only.")
        before, behind = op.reach
        channels = x.shape[-1]
        # 0.75 is the usual exponent, and square roots are cheaper than a power.
        power = f"powf(base, {c_float(op.beta)})"
        if op.beta == 0.75:
            power = "(sqrtf(base) * sqrtf(sqrtf(base)))"
        return KernelCall(
            template="backends/c/local_response.j2",
            stem="local_response",
            parameters=LocalResponseParameters(
                x=str(x),
                bias=c_float(op.bias),
                factor=c_float(op.alpha / op.size),
                beta=op.beta,
                size=op.size,
                rows=x.size // max(channels, 1),
                channels=channels,
                before=before,
                last=channels - behind,
                past=behind + 1,
                power=power,
            ),
            operands=(Input(0, "input"), Output(0, "output")),
            uses=uses_in([power]),
            summary=f"sums of {op.size} neighboring channels for each element",
        )


KERNELS = (NormalizationKernel(), LocalResponseKernel())
