"""Lstm of int8 data: time step by time step, unit by unit, with the state in the output buffers.

A unit's four gates are summed together, so that each element of the input and of the hidden state
is loaded once a unit; its weights stand in the order in which they are read. Where a core has long
multiplications, and the weights' sums prove it exact, four weights are a word, and two of them
share each multiply-add, as in `dense_words`. Zero points are folded into the biases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.c.dense_words import fits_words, four_sums, words_of
from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Operand,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.text.expressions import offset
from smelt.codegen.text.helpers import uses_in
from smelt.ir import Array, DType, Node
from smelt.ops.arithmetic.fixed_point import INT32_MAX
from smelt.ops.core.lookup import sigmoid_samples
from smelt.ops.sequence.lstm import GATES, Lstm, LstmScaling

_LETTERS = "iofc"
"""Gates in the order of the weights."""


@dataclass(frozen=True)
class LstmParameters(Parameters):
    """Variables of `lstm.j2`; texts are C.

    Attributes:
        title: for the function's comment.
        in_words: whether four weights share a word.
        steps: of a sequence.
        sequences: how many there are.
        depth: inputs of a step.
        units: of the state.
        hidden, cell: whether the states are given.
        zero: a hidden state of zero.
        hidden_bytes, cell_bytes: of all sequences.
        lines: that make a unit's states.
        every: whether the hidden states of all steps are an output.
        row: index of a sequence's step, in inputs and outputs.
        state: what is added to the address of the states for sequence `b`.
    """

    title: str
    in_words: bool
    steps: int
    sequences: int
    depth: int
    units: int
    hidden: bool
    cell: bool
    zero: int
    hidden_bytes: int
    cell_bytes: int
    lines: tuple[str, ...]
    every: bool
    row: str
    state: str


class LstmKernel(Kernel[Lstm]):
    """Constant weights, forward or backward, with or without initial states."""

    op = Lstm

    @override
    def offer(self, node: Node[Lstm], request: Request) -> KernelCall | Refusal:
        scaling = _served_scaling(node)
        if isinstance(scaling, Refusal):
            return scaling
        op, hidden = node.op, node.outputs[-2].type
        units = hidden.shape[1]
        states = [(4, "hidden"), (5, "cell")]
        given = [(i, name) for i, name in states if node.optional(i) is not None]
        names = (["every"] if op.sequence else []) + ["hidden", "cell"]
        weights, recurrent, bias = (node.input(i).array for i in (1, 2, 3))
        biases = _biases(node, weights, recurrent, bias)
        lines = _lines(scaling, hidden.zero_point, _reach(biases, weights, recurrent))
        by_unit = [w.transpose(1, 0, 2).reshape(GATES * units, -1) for w in (weights, recurrent)]
        in_words = "long_multiply" in request.target.features and all(map(fits_words, by_unit))
        operands: list[Operand] = [
            Input(0, "input"),
            Packed("weights", words_of(by_unit[0]) if in_words else _interleaved(weights)),
            Packed("recurrent", words_of(by_unit[1]) if in_words else _interleaved(recurrent)),
            Packed("biases", biases),
            Packed("samples", sigmoid_samples().astype(np.uint16)),
            *(Input(index, f"initial_{name}") for index, name in given),
            *(Output(index, name) for index, name in enumerate(names)),
        ]
        parameters = _parameters(node, lines, in_words=in_words)
        if not op.sequence:
            operands.append(Scratch("next", DType.INT8, units))
        return KernelCall(
            template="backends/c/lstm.j2",
            stem="lstm_int8",
            parameters=parameters,
            operands=tuple(operands),
            in_place=tuple((names.index(name), index) for index, name in given),
            uses=uses_in(parameters.lines) | {"string.h"},
            summary=f"the four gates of a unit at a time, {1 + in_words} in one multiply-add",
        )


def _served_scaling(node: Node[Lstm]) -> LstmScaling | Refusal:
    """How the node's sums are scaled, or why the kernel does not serve it."""
    if node.input(0).type.dtype is not DType.INT8:
        return Refusal(
            "Lstm is served for int8 data: of floats it is FullyConnected and Recurrence."
        )
    constants = [node.input(index) for index in (1, 2, 3)]
    if not all(value.is_constant for value in constants):
        return Refusal("Lstm is served for constant weights and biases only.")
    for bias, weights in ((constants[2].array, constants[0]), (np.zeros(1), constants[1])):
        # A zero point is folded into the bias: up to 128 · 128 a weight, and as much by data.
        reach = int(np.abs(bias.astype(np.int64)).max()) + 2**15 * weights.type.shape[2]
        if reach > INT32_MAX:
            return Refusal(f"Lstm is not served where sums may reach {reach}, beyond 32 bits.")
    scaling = node.op.scaling(node)
    shifts = [shift for gates in scaling.gates for _, shift in gates]
    if max(*shifts, scaling.hidden[1]) > 30:
        return Refusal("Lstm is not served for scales that multiply sums by more than 2^30.")
    return scaling


def _parameters(node: Node[Lstm], lines: list[str], *, in_words: bool) -> LstmParameters:
    """The template's variables; `lines` make a unit's states of its sums."""
    op, x, hidden = node.op, node.input(0).type, node.outputs[-2].type
    steps, batch, depth = x.shape
    units = hidden.shape[1]
    hidden_given, cell_given = (node.optional(index) is not None for index in (4, 5))
    time = f"({steps - 1} - step)" if op.reverse else "step"
    reverse = ", the last step first" if op.reverse else ""
    return LstmParameters(
        title=f"LSTM of {x}, {units} units{reverse}",
        in_words=in_words,
        steps=steps,
        sequences=batch,
        depth=depth,
        units=units,
        hidden=hidden_given,
        cell=cell_given,
        zero=0 if hidden_given else hidden.zero_point,
        hidden_bytes=batch * units,
        cell_bytes=batch * units * 2,
        lines=(
            *_gate_sums("own", "input", "weights", depth, 0, in_words=in_words),
            *_gate_sums("again", "hidden", "recurrent", units, GATES, in_words=in_words),
            *lines,
        ),
        every=op.sequence,
        row=f"({time} * {batch} + b)" if batch > 1 else time,
        state=f" + b * {units}" if batch > 1 else "",
    )


def _gate_sums(
    name: str, elements: str, weights: str, depth: int, first: int, *, in_words: bool
) -> tuple[str, ...]:
    """C lines that sum up one of the two products of a unit's gates, from its biases on.

    Args:
        name: of the sums, before the gate's letter.
        elements: name of the pointer to what is multiplied.
        weights: name of the pointer to the weights.
        depth: how many elements there are.
        first: which of the unit's biases is the first.
        in_words: whether four weights share a word.
    """
    sums = [f"{name}_{letter}" for letter in _LETTERS]
    begin = [f"int32_t {total} = biases[{first + i}];" for i, total in enumerate(sums)]
    if not in_words:
        return (
            *begin,
            f"for (int32_t k = 0; k < {depth}; ++k, {weights} += {GATES}) {{",
            f"    const int32_t x = {elements}[k];",
            *(f"    {total} += x * {weights}[{i}];" for i, total in enumerate(sums)),
            "}",
        )
    i, o, f, c = sums
    return (
        *begin,
        "{",
        *(f"    {line}" for line in four_sums(elements, weights, f"{name}_start", depth)),
        f"    {i} += lower_sum(total_ad);",
        f"    {o} += upper_sum(total_cb);",
        f"    {f} += lower_sum(total_cb);",
        f"    {c} += upper_sum(total_ad);",
        "}",
    )


def _interleaved(weights: Array) -> Array:
    """`[4, H, K]` as `[H, K, 4]`."""
    return np.ascontiguousarray(weights.transpose(1, 2, 0))


def _biases(node: Node, weights: Array, recurrent: Array, bias: Array) -> Array:
    """What the sums start from, zero points of the data included: `[H, 2, 4]`, int32."""
    zeros = node.input(0).type.zero_point, node.outputs[-2].type.zero_point
    own, again = (
        -zero * w.astype(np.int64).sum(axis=2)
        for zero, w in zip(zeros, (weights, recurrent), strict=True)
    )
    return np.stack([own + bias, again]).transpose(2, 0, 1).astype(np.int32, order="C")


def _reach(biases: Array, weights: Array, recurrent: Array) -> int:
    """The largest magnitude of a sum, or of one of its parts."""
    start = np.abs(biases.astype(np.int64)).transpose(1, 2, 0)
    spread = [128 * np.abs(w.astype(np.int64)).sum(axis=2) for w in (weights, recurrent)]
    return int((start + np.stack(spread)).max())


def _requantized(value: str, multiplier: tuple[int, int], reach: int = 2**30 - 1) -> str:
    """The C expression of a product by a multiplier, in the cheapest form; `reach` bounds it."""
    if reach < 2**30 and -32 < multiplier[1] < 0:
        return f"scale_twice({value}, {multiplier[0]}, {-multiplier[1]})"
    return f"requantize({value}, {multiplier[0]}, {multiplier[1]})"


def _lines(scaling: LstmScaling, zero: int, reach: int) -> list[str]:
    """C statements that make a unit's states of its sums, none of which is beyond `reach`."""
    lines: list[str] = []
    for gate in range(GATES):
        letter = _LETTERS[gate]
        own, again = (
            _saturated(_requantized(f"{name}_{letter}", multiplier, reach))
            for name, multiplier in (
                ("own", scaling.gates[0][gate]),
                ("again", scaling.gates[1][gate]),
            )
        )
        function = "tanh_int16" if letter == "c" else "logistic_int16"
        total = _saturated(f"sum_{letter}")
        lines += [
            f"const int32_t sum_{letter} =",
            f"    {own} +",
            f"    {again};",
            f"const int32_t {letter} = {function}({total} * 3, samples);",
        ]
    state = _saturated("kept + learnt")
    if scaling.clip is not None:
        state = f"clamp(kept + learnt, {-scaling.clip}, {scaling.clip})"
    multiplier, shift = scaling.position
    position = f"state * {multiplier}"
    if shift:
        position = f"({position} + {1 << (shift - 1)}) >> {shift}"
    output = offset(_requantized("o * squashed", scaling.hidden), zero)
    return [
        *lines,
        f"const int32_t kept = {_saturated(_requantized('f * cell[u]', scaling.keep))};",
        f"const int32_t learnt = {_saturated(_requantized('i * c', scaling.learn))};",
        f"const int32_t state = {state};",
        f"const int32_t squashed = tanh_int16({position}, samples);",
        "cell[u] = (int16_t)state;",
        f"next[u] = (int8_t)clamp({output}, -128, 127);",
    ]


def _saturated(text: str) -> str:
    return f"clamp({text}, -32768, 32767)"


KERNELS = (LstmKernel(),)
