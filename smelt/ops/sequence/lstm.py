"""Lstm: a complete LSTM layer, including the product of its input, for integer arithmetic.

The integer arithmetic is that of TensorFlow Lite Micro's UNIDIRECTIONAL_SEQUENCE_LSTM with int8
data and weights, and an int16 cell state. A gate is the sum of two dense layers, one of the input
and one of the hidden state. Each is requantized to int16 with scale 2^-12 and saturated. The gates'
activations are read from sampled tables, with results in int16 of scale 2^-15. The cell state's
scale is a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError, UnsupportedError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType, Value
from smelt.ops.arithmetic.fixed_point import (
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    wrap_int32,
)
from smelt.ops.case import Case, Constant, Data, Weights
from smelt.ops.constraints import arrays, operands, tflm_rounding
from smelt.ops.core.unary_integer import sampled_logistic, sampled_tanh
from smelt.ops.sequence.recurrence import EACH_STEP, recurrence

GATES = 4
"""Input, output, forget and cell gate, in the order of ONNX and of `Recurrence`."""

GATE_SCALE, UNIT_SCALE = 2.0**-12, 2.0**-15
"""Scale of a gate's sums, and scale of its activation."""

CELL_POWERS = range(-24, -8)
"""Supported exponents of 2 for the scale of the cell state."""

_LOW, _HIGH = DType.INT16.limits


@dataclass(frozen=True)
class LstmScaling:
    """Multipliers and left shifts of a quantized LSTM.

    Attributes:
        gates: for the products of the input and of the hidden state, each gate by gate.
        keep: for forget gate times cell state.
        learn: for input gate times cell gate.
        hidden: for output gate times tanh of the cell state.
        power: exponent of 2 of the cell state's scale.
        clip: largest magnitude of a stored cell state; None if it is not clipped.
    """

    gates: tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]
    keep: tuple[int, int]
    learn: tuple[int, int]
    hidden: tuple[int, int]
    power: int
    clip: int | None

    @property
    def position(self) -> tuple[int, int]:
        """Multiplier and right shift from a cell state to a position in the table of tanh."""
        left = 12 + self.power
        return (3 << left, 0) if left >= 0 else (3, -left)


def _gate_multipliers(x: TensorType, weights: Value) -> tuple[tuple[int, int], ...]:
    """Return a multiplier and shift for each gate.

    The product of the scales of input and weights is rounded to float32, as in a dense layer.
    """
    scales = () if weights.type.quant is None else weights.type.quant.scale
    products = (float(np.float32(x.scale) * np.float32(scale)) for scale in scales)
    return tuple(quantize_multiplier(product / GATE_SCALE) for product in products)


@dataclass(frozen=True)
class Lstm(Op):
    """An LSTM layer of H units over T time steps, for B sequences with I inputs each.

    - Operands: the input `[T, B, I]`; its weights `[4, H, I]`, gates in the order i o f c; the
      recurrent weights `[4, H, H]`; the bias `[4, H]`; initial hidden and cell state `[B, H]`,
      each zero if absent.
    - Results: the hidden states of all steps `[T, B, H]` (if `sequence`); the last hidden state
      `[B, H]`; the last cell state `[B, H]`.

    For int8 data, weights are int8 with one scale for each gate, the bias is int32, and the cell
    state is int16 with a power of two as its scale. All hidden states have the same quantization.
    In float32, it computes the same as a dense layer followed by `Recurrence`, for which there are
    kernels.

    Attributes:
        sequence: whether the hidden states of all steps are a result.
        reverse: whether the last time step is computed first.
        cell_clip: bound of the cell state, as a real number; 0 for none.
    """

    sequence: bool = True
    reverse: bool = False
    cell_clip: float = 0.0

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, weights, recurrent, bias = operands(self, inputs, 4)
        if len(x.shape) != 3 or len(weights.shape) != 3 or 0 in (*x.shape, *weights.shape):
            raise ModelError(
                f"Lstm needs an input [steps, batch, inputs] and weights [4, units, inputs], none "
                f"of them empty; got {x} and {weights}"
            )
        (steps, batch, depth), units = x.shape, weights.shape[1]
        integer = x.dtype.is_integer
        cell_type = DType.INT16 if integer else x.dtype
        state = TensorType((batch, units), x.dtype)
        cell = TensorType((batch, units), cell_type)
        expected = {
            "weights": (weights, TensorType((GATES, units, depth), x.dtype)),
            "recurrent weights": (recurrent, TensorType((GATES, units, units), x.dtype)),
            "bias": (bias, TensorType((GATES, units), DType.INT32 if integer else x.dtype)),
            "hidden state": (inputs[4] if len(inputs) > 4 else None, state),
            "cell state": (inputs[5] if len(inputs) > 5 else None, cell),
        }
        for role, (found, wanted) in expected.items():
            if found is not None and found.shape != wanted.shape:
                raise ModelError(f"Lstm: {role} must be {wanted}, not {found}")
        every = TensorType((steps, batch, units), x.dtype)
        return (every, state, cell) if self.sequence else (state, cell)

    @override
    def check(self, node: Node) -> None:
        types = [v.type for v in (*node.inputs, *node.outputs) if v is not None]
        if all(t.dtype is DType.FLOAT32 for t in types):
            return
        x = node.input(0).type
        if x.dtype is not DType.INT8 or x.quant is None or not x.quant.is_per_tensor:
            raise UnsupportedError(
                f"{node.origin}: LSTM does not support input {x}; use float32 or quantized int8"
            )
        tflm_rounding(node)
        for index, role in ((1, "weights"), (2, "recurrent weights")):
            _check_weights(node, node.input(index).type, role)
        if node.input(3).type.dtype is not DType.INT32:
            raise ModelError(
                f"{node.origin}: bias {node.input(3).type} of an int8 LSTM must be int32"
            )
        *_, hidden, cell = node.outputs
        sequence = node.outputs[0] if self.sequence else None
        _check_states(node, (hidden, sequence, node.optional(4)), DType.INT8)
        _check_states(node, (cell, node.optional(5)), DType.INT16)
        power = math.log2(cell.type.scale)
        if power not in CELL_POWERS or cell.type.zero_point:
            raise UnsupportedError(
                f"{node.origin}: cell state '{cell.name}' has scale {cell.type.scale:g} and zero "
                f"point {cell.type.zero_point}; an int8 LSTM needs a power of two from "
                f"2^{CELL_POWERS[0]} to 2^{CELL_POWERS[-1]} as scale, and zero point 0"
            )

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        if node.outputs[-1].type.is_quantized:
            return self._integer(node, inputs)
        hidden, cell = self.states_by_step(node, inputs)
        last = 0 if self.reverse else -1
        results = (hidden[last], cell[last])
        return (hidden, *results) if self.sequence else results

    def scaling(self, node: Node) -> LstmScaling:
        """Return the multipliers of a quantized node."""
        hidden, cell = node.outputs[-2].type, node.outputs[-1].type
        unit = UNIT_SCALE * UNIT_SCALE
        clip = min(int(self.cell_clip / cell.scale), _HIGH) if self.cell_clip else None
        return LstmScaling(
            (
                _gate_multipliers(node.input(0).type, node.input(1)),
                _gate_multipliers(hidden, node.input(2)),
            ),
            quantize_multiplier(UNIT_SCALE),
            quantize_multiplier(unit / cell.scale),
            quantize_multiplier(unit / hidden.scale),
            round(math.log2(cell.scale)),
            clip,
        )

    def states_by_step(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, Array]:
        """Return hidden and cell state of every step, each `[T, B, H]`, for float32 operands."""
        x, weights, recurrent, bias = arrays(node, inputs, 4)
        wide = GATES * weights.shape[1]
        gates = x.astype(np.float64) @ weights.reshape(wide, -1).T + bias.ravel()
        again = recurrent.reshape(wide, -1)
        states = _states(inputs)
        op = recurrence("lstm", sequence=False, cell_clip=self.cell_clip)
        found: list[tuple[Array, ...]] = []
        for step in self._order(len(x)):
            states = op.reference(node, [gates[step : step + 1], again, None, *states])
            found.append(states)
        hidden, cell = (np.stack(s[::-1] if self.reverse else s) for s in zip(*found, strict=True))
        return hidden, cell

    def _order(self, steps: int) -> range:
        return range(steps - 1, -1, -1) if self.reverse else range(steps)

    def _integer(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, weights, recurrent, bias = (a.astype(np.int64) for a in arrays(node, inputs, 4))
        types = [value.type for value in node.outputs]
        scaling, zero = self.scaling(node), types[-2].zero_point
        hidden, cell = (
            np.full(t.shape, t.zero_point, np.int64) if s is None else s.astype(np.int64)
            for s, t in zip(_states(inputs), types[-2:], strict=True)
        )
        # Products of the input for all gates of all steps: [T, 4, B, H].
        sums = np.einsum("tbi,ghi->tgbh", x - node.input(0).type.zero_point, weights)
        own = _rescaled(sums + bias[:, None], scaling.gates[0])
        every = np.zeros((x.shape[0], *hidden.shape), np.int64)
        for step in self._order(len(x)):
            again = np.einsum("bk,ghk->gbh", hidden - zero, recurrent)
            gates = np.clip(own[step] + _rescaled(again, scaling.gates[1]), _LOW, _HIGH)
            cell, hidden = _step(gates, cell, scaling)
            hidden = np.clip(hidden + zero, *types[-2].dtype.limits)
            every[step] = hidden
        results = [every, hidden, cell] if self.sequence else [hidden, cell]
        return tuple(r.astype(t.dtype.numpy) for r, t in zip(results, types, strict=True))

    def macs(self, node: Node) -> int:
        """Return the multiply-accumulates of both products."""
        steps, batch, _ = node.input(0).type.shape
        return steps * batch * (node.input(1).type.size + node.input(2).type.size)

    def overhead(self, node: Node) -> int:
        """Return the cost of a Python loop over the steps."""
        return node.input(0).type.shape[0] * EACH_STEP


def _states(inputs: Sequence[Array | None]) -> tuple[Array | None, Array | None]:
    """Return initial hidden and cell state; None for each that is absent."""
    hidden, cell = (*inputs[4:6], None, None)[:2]
    return hidden, cell


def _step(gates: Array, cell: Array, scaling: LstmScaling) -> tuple[Array, Array]:
    """Return cell state and hidden state after one step, the latter without its zero point."""
    i, o, forget = (sampled_logistic(gate * 3) for gate in gates[:3])
    kept = _product(forget * cell, scaling.keep)
    learnt = _product(i * sampled_tanh(gates[3] * 3), scaling.learn)
    cell = np.clip(kept + learnt, _LOW, _HIGH)
    if scaling.clip is not None:
        cell = np.clip(cell, -scaling.clip, scaling.clip)
    multiplier, shift = scaling.position
    squashed = sampled_tanh((cell * multiplier + ((1 << shift) >> 1)) >> shift)
    return cell, multiply_by_quantized_multiplier(squashed * o, *scaling.hidden)


def _product(product: Array, multiplier: tuple[int, int]) -> Array:
    return np.clip(multiply_by_quantized_multiplier(product, *multiplier), _LOW, _HIGH)


def _rescaled(sums: Array, multipliers: Sequence[tuple[int, int]]) -> Array:
    """Return sums `[…, 4, B, H]` as int16 with scale `GATE_SCALE`, saturated."""
    multiplier, shift = (np.asarray(n)[:, None, None] for n in zip(*multipliers, strict=True))
    scaled = multiply_by_quantized_multiplier(wrap_int32(sums), multiplier, shift)
    return np.clip(scaled, _LOW, _HIGH)


def _check_weights(node: Node, weights: TensorType, role: str) -> None:
    """Raise `ModelError` unless weights are int8 and symmetric, with one scale for each gate."""
    quant = weights.quant
    good = quant is not None and (quant.axis, len(quant.scale), any(quant.zero_point)) == (
        0,
        GATES,
        False,
    )
    if weights.dtype is not DType.INT8 or not good:
        raise ModelError(
            f"{node.origin}: {role} {weights} of an int8 LSTM must be int8, with one scale for "
            "each gate and zero points 0"
        )


def _check_states(node: Node, values: Sequence[Value | None], dtype: DType) -> None:
    """Raise `ModelError` unless all present states have one quantization, per tensor."""
    first = values[0]
    for value in values:
        if value is None or first is None:
            continue
        quant = value.type.quant
        if value.type.dtype is not dtype or quant is None or not quant.is_per_tensor:
            raise ModelError(
                f"{node.origin}: state '{value.name}' of an int8 LSTM must be quantized "
                f"{dtype.value}, not {value.type}"
            )
        if quant != first.type.quant:
            raise ModelError(
                f"{node.origin}: '{value.name}' has {quant}, but '{first.name}' has "
                f"{first.type.quant}; both are the same state and need the same quantization"
            )


def _case(
    name: str,
    op: Lstm,
    shape: tuple[int, int, int, int],
    *,
    power: int = -14,
    low: float = -1.0,
    states: bool = False,
) -> Case:
    """Return a case of `shape` (steps, batch, inputs, units); the cell state has scale 2^power.

    `low` is the smallest hidden state. The largest is that of the cell state.
    """
    steps, batch, depth, units = shape
    high = _HIGH * 2.0**power
    biases = tuple(float((i * 977) % 4001 - 2000) for i in range(GATES * units))
    initial = (
        Data((batch, units), low, high),
        Data((batch, units), dtype=DType.INT16, quant=Quant.per_tensor(2.0**power)),
    )
    arguments = (
        Data((steps, batch, depth), -2.0, 1.0),
        Weights((GATES, units, depth), axis=0),
        Weights((GATES, units, units), axis=0),
        Constant(biases, (GATES, units), DType.INT32),
        *(initial if states else ()),
    )
    return Case(name, op, arguments, (DType.INT8,), output=(low, high))


CASES = (
    _case("sequence", Lstm(), (7, 1, 5, 6)),
    _case("last", Lstm(sequence=False), (4, 1, 3, 9), power=-13),
    _case("batch", Lstm(), (3, 4, 6, 5), power=-12, low=-2.0),
    _case("reverse", Lstm(reverse=True), (5, 2, 3, 4), states=True),
    _case("states", Lstm(sequence=False), (3, 3, 4, 5), power=-11, low=-4.0, states=True),
    _case("step", Lstm(), (1, 1, 8, 16), states=True),
    _case("saturated", Lstm(), (9, 1, 30, 3), power=-15, low=-0.5),
    _case("clip", Lstm(cell_clip=0.4), (6, 1, 7, 5), states=True),
    _case("wide_cell", Lstm(), (4, 1, 3, 4), power=-9, low=-8.0, states=True),
)
