"""LSTM layers of int8 data (Lstm), one time step and unit at a time.

The states are kept in the output buffers. The sums of a unit's four gates are computed together, so
that each element of the input and of the hidden state is loaded once for a unit. Weights are stored
in the order in which they are read.

If the core multiplies 32 by 32 bits into 64, and the weights prove that sums fit, a word holds four
weights and each multiply-add computes two products, as in `dense_words`. Zero points are folded
into the biases.
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
from smelt.codegen.lower.loop_heads import loop_head
from smelt.codegen.lower.nested_loops import total
from smelt.codegen.text.expressions import offset, times
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
        title: text of the function's comment.
        in_words: whether four weights share a word.
        each_step, each_sequence: lines that open the loops over time steps and over sequences;
            empty if there is one.
        depth: inputs of a step.
        units: units of a state.
        hidden, cell: whether the initial hidden and cell state are operands.
        zero: the stored value of a hidden state of 0; 0 if the initial state is an operand.
        hidden_bytes, cell_bytes: size of the states of all sequences in bytes.
        lines: C lines that compute a unit's states.
        input: pointer to the inputs of a step of sequence `b`.
        every: pointer to which the hidden state of this step is written; empty if only the last
            one is an output.
        state: C text that adds the offset of sequence `b` to the address of the states.
    """

    title: str
    in_words: bool
    each_step: str
    each_sequence: str
    depth: int
    units: int
    hidden: bool
    cell: bool
    zero: int
    hidden_bytes: int
    cell_bytes: int
    lines: tuple[str, ...]
    input: str
    every: str
    state: str


class LstmKernel(Kernel[Lstm]):
    """LSTM layers with constant weights, in either direction, with or without initial states."""

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
            summary=f"the four gates of a unit at a time, {1 + in_words} in each multiply-add",
        )


def _served_scaling(node: Node[Lstm]) -> LstmScaling | Refusal:
    """Return the scaling of the node's sums, or why the kernel does not serve the node."""
    if node.input(0).type.dtype is not DType.INT8:
        return Refusal(
            "Lstm supports only int8 data; in float32, use FullyConnected and Recurrence."
        )
    constants = [node.input(index) for index in (1, 2, 3)]
    if not all(value.is_constant for value in constants):
        return Refusal("Lstm supports only constant weights and biases.")
    for bias, weights in ((constants[2].array, constants[0]), (np.zeros(1), constants[1])):
        # For each weight, the folded zero point and the data each add up to 128 · 128.
        reach = int(np.abs(bias.astype(np.int64)).max()) + 2**15 * weights.type.shape[2]
        if reach > INT32_MAX:
            return Refusal(f"Lstm does not support sums that may reach {reach}, beyond 32 bits.")
    scaling = node.op.scaling(node)
    shifts = [shift for gates in scaling.gates for _, shift in gates]
    if max(*shifts, scaling.hidden[1]) > 30:
        return Refusal("Lstm does not support scales that multiply sums by more than 2^30.")
    return scaling


def _parameters(node: Node[Lstm], lines: list[str], *, in_words: bool) -> LstmParameters:
    """Return the template's variables; `lines` compute a unit's states from its sums."""
    op, x, hidden = node.op, node.input(0).type, node.outputs[-2].type
    steps, batch, depth = x.shape
    units = hidden.shape[1]
    hidden_given, cell_given = (node.optional(index) is not None for index in (4, 5))
    time = "step" if steps > 1 else "0"
    if op.reverse and steps > 1:
        time = f"({steps - 1} - step)"
    row = total((times(time, batch), "b" if batch > 1 else "0"))
    if batch > 1 and steps > 1:
        row = f"({row})"
    reverse = ", the last step first" if op.reverse else ""
    return LstmParameters(
        title=f"LSTM of {x}, {units} units{reverse}",
        in_words=in_words,
        each_step=loop_head("step", steps),
        each_sequence=loop_head("b", batch),
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
        input=total(("input", times(row, depth))),
        every=total(("every", times(row, units))) if op.sequence else "",
        state=f" + b * {units}" if batch > 1 else "",
    )


def _gate_sums(
    name: str, elements: str, weights: str, depth: int, first: int, *, in_words: bool
) -> tuple[str, ...]:
    """Return C lines that compute one of the two sums of each gate of a unit.

    One sum is that of the input, the other that of the hidden state. The sums start at the biases.

    Args:
        name: prefix of the sums' names, before the gate's letter.
        elements: name of the pointer to the input or hidden state.
        weights: name of the pointer to the weights.
        depth: number of elements.
        first: index of the first of these sums' biases among the unit's biases.
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
        f"    {i} += low_sum_24(total_ad);",
        f"    {o} += high_sum_24(total_cb);",
        f"    {f} += low_sum_24(total_cb);",
        f"    {c} += high_sum_24(total_ad);",
        "}",
    )


def _interleaved(weights: Array) -> Array:
    """Return weights `[4, H, K]` as `[H, K, 4]`."""
    return np.ascontiguousarray(weights.transpose(1, 2, 0))


def _biases(node: Node, weights: Array, recurrent: Array, bias: Array) -> Array:
    """Return where sums start, int32 `[H, 2, 4]`: biases with zero points of data folded in."""
    zeros = node.input(0).type.zero_point, node.outputs[-2].type.zero_point
    own, hidden = (
        -zero * w.astype(np.int64).sum(axis=2)
        for zero, w in zip(zeros, (weights, recurrent), strict=True)
    )
    return np.stack([own + bias, hidden]).transpose(2, 0, 1).astype(np.int32, order="C")


def _reach(biases: Array, weights: Array, recurrent: Array) -> int:
    """Return the largest possible magnitude of a sum or partial sum."""
    start = np.abs(biases.astype(np.int64)).transpose(1, 2, 0)
    spread = [128 * np.abs(w.astype(np.int64)).sum(axis=2) for w in (weights, recurrent)]
    return int((start + np.stack(spread)).max())


def _requantized(value: str, multiplier: tuple[int, int], reach: int = 2**30 - 1) -> str:
    """Return the C expression of a value times a fixed-point multiplier, in the cheapest form.

    Args:
        value: C expression of the value.
        multiplier: the multiplier and its left shift.
        reach: largest magnitude of the value.
    """
    if reach < 2**30 and -32 < multiplier[1] < 0:
        return f"scale_twice({value}, {multiplier[0]}, {-multiplier[1]})"
    return f"requantize({value}, {multiplier[0]}, {multiplier[1]})"


def _lines(scaling: LstmScaling, zero: int, reach: int) -> list[str]:
    """Return C statements that compute a unit's states from its sums.

    Args:
        scaling: multipliers and shifts of the node.
        zero: zero point of the hidden state.
        reach: largest magnitude of a sum.
    """
    lines: list[str] = []
    for gate in range(GATES):
        letter = _LETTERS[gate]
        own, hidden = (
            _saturated(_requantized(f"{name}_{letter}", multiplier, reach))
            for name, multiplier in (
                ("own", scaling.gates[0][gate]),
                ("again", scaling.gates[1][gate]),
            )
        )
        function = "tanh_int16" if letter == "c" else "logistic_int16"
        total = _saturated(f"sum_{letter}")
        lines += [
            f"const int32_t sum_{letter} = {own} + {hidden};",
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
    """Return the C expression of a value clamped to int16."""
    return f"clamp({text}, -32768, 32767)"


KERNELS = (LstmKernel(),)
