"""Conversion of an LSTM's weights and states to integers.

TensorFlow Lite's rules:

- int8 weights, symmetric, with one scale per gate for the input's weights and one for the recurrent
  weights;
- int8 hidden states that share one quantization;
- an int16 cell state with a power of two as scale.

Each gate is two products, of the input and of the hidden state. Their weights are rounded like
those of other products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.ir import Array, Node, Quant
from smelt.ops.sequence.lstm import CELL_POWERS, GATES, Lstm
from smelt.quant.ranges.activation_statistics import Observation
from smelt.quant.recipe import Recipe
from smelt.quant.rewrites.recurrent import gate_layers
from smelt.quant.weights.correction import Statistics, choose_rounding
from smelt.quant.weights.integers import stored_bias

_HEADROOM = 1.25
"""Factor by which a cell state's range exceeds the observed one; int16 has precision to spare."""

_CELL_BITS = 15
"""Bits of a cell state without its sign."""


@dataclass(frozen=True)
class StoredLstm:
    """An LSTM's constants: int8 weights `[4, H, …]` with scales by gate, and int32 bias."""

    weights: Array
    scales: tuple[float, ...]
    recurrent: Array
    recurrent_scales: tuple[float, ...]
    bias: Array

    def operands(self, input_scale: float) -> tuple[tuple[str, Array, Quant], ...]:
        """Return role, integers and quantization of each constant, for an input's scale."""
        products = tuple(float(np.float32(input_scale * scale)) for scale in self.scales)
        zeros = (0,) * GATES
        return (
            ("weights", self.weights, Quant(self.scales, zeros, 0)),
            ("recurrent", self.recurrent, Quant(self.recurrent_scales, zeros, 0)),
            ("bias", self.bias, Quant(products, zeros, 0)),
        )


def cell_quant(observations: Sequence[Observation]) -> Quant:
    """Return the quantization of an int16 cell state; its scale is a power of two."""
    reach = max(float(np.abs([o.low, o.high]).max()) for o in observations) * _HEADROOM
    power = math.ceil(math.log2(max(reach, 2.0**-_CELL_BITS))) - _CELL_BITS
    return Quant.per_tensor(2.0 ** min(max(power, CELL_POWERS[0]), CELL_POWERS[-1]))


def hidden_before(op: Lstm, node: Node, operands: Sequence[Array | None]) -> Array:
    """Return the hidden state before each step, `[T, B, H]`, given float32 operands."""
    after, _ = op.states_by_step(node, operands)
    initial = np.zeros_like(after[0]) if operands[4] is None else operands[4]
    if op.reverse:
        return np.stack([*after[1:], initial])
    return np.stack([initial, *after[:-1]])


def choose_lstm(
    node: Node,
    scales: tuple[float, float],
    halves: tuple[Sequence[Statistics], Sequence[Statistics]],
    recipe: Recipe,
) -> StoredLstm:
    """Choose weights, scales and bias of an LSTM.

    Args:
        node: the LSTM in the float network.
        scales: scales of its int8 input and hidden state.
        halves: for each of the two, statistics in two halves of the samples; empty if the recipe
            needs none.
        recipe: quantization steps to take.
    """
    own, again = (
        choose_rounding(twin, scale, half, recipe, sharing=GATES)
        for twin, scale, half in zip(gate_layers(node), scales, halves, strict=True)
    )
    shapes = (node.input(index).type.shape for index in (1, 2))
    weights, recurrent = (
        part.integers.reshape(shape).astype(np.int8)
        for part, shape in zip((own, again), shapes, strict=True)
    )
    # The single bias also takes the correction of the recurrent products.
    bias = stored_bias(own.bias + again.bias, scales[0], own.scales)
    by_gate = [tuple(map(float, part.scales.reshape(GATES, -1)[:, 0])) for part in (own, again)]
    return StoredLstm(weights, by_gate[0], recurrent, by_gate[1], bias.reshape(GATES, -1))
