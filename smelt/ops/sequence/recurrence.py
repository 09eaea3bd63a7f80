"""Recurrence: the steps of LSTM, GRU and RNN, without the product of the input.

It implements ONNX's LSTM, GRU and RNN, operator sets 7 to 22. Before it, a dense layer multiplies
the input of all time steps by the weights of all gates and adds the biases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, TensorType
from smelt.ir.budget import OPERATOR
from smelt.ops.case import Case, Constant, Data, Weights
from smelt.ops.constraints import operands

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
"""Number of gates of each kind of recurrence. ONNX's order of gates is i o f c, or z r h."""

EACH_STEP = 8 * OPERATOR
"""Elementary operations counted for starting the computation of a step."""

ACTIVATIONS = {"lstm": 3, "gru": 2, "rnn": 1}
"""Number of activations of each kind of recurrence: f g h, or f g, or f."""


@dataclass(frozen=True)
class Gate:
    """An activation of a gate: its name in ONNX, in lower case, and its two constants."""

    kind: str
    alpha: float = 0.0
    beta: float = 0.0


GATE_DEFAULTS: dict[str, tuple[float, float]] = {
    "relu": (0.0, 0.0),
    "tanh": (0.0, 0.0),
    "sigmoid": (0.0, 0.0),
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01, 0.0),
    "thresholdedrelu": (1.0, 0.0),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, 0.0),
    "softsign": (0.0, 0.0),
    "softplus": (0.0, 0.0),
}
"""Default values of each activation's constants alpha and beta."""


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


_COMPUTE: dict[str, Callable[[Array, float, float], Array]] = {
    "relu": lambda x, a, b: np.maximum(x, 0),
    "tanh": lambda x, a, b: np.tanh(x),
    "sigmoid": lambda x, a, b: _sigmoid(x),
    "affine": lambda x, a, b: a * x + b,
    "leakyrelu": lambda x, a, b: np.where(x >= 0, x, a * x),
    "thresholdedrelu": lambda x, a, b: np.where(x > a, x, 0),
    "scaledtanh": lambda x, a, b: a * np.tanh(b * x),
    "hardsigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "elu": lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "softplus": lambda x, a, b: np.logaddexp(0, x),
}

OPERANDS: tuple[str, ...] = ("gates", "weights", "bias", "hidden", "cell", "peepholes", "lengths")
"""Names of the operands, in order; the first two must be present."""

LENGTHS = OPERANDS.index("lengths")


@dataclass(frozen=True, kw_only=True)
class Recurrence(Op):
    """Steps of an LSTM, GRU or simple RNN of H units over T time steps, for B sequences.

    - Operands: the input's contribution to the gates, biases included, `[T, B, G·H]` for G gates;
      recurrent weights `[G·H, H]`; the recurrent bias of the candidate `[H]` (GRU with
      `reset_after` only); initial hidden and cell state `[B, H]`; peephole weights `[3·H]` in the
      order i o f; lengths of the sequences `[B]` (int32). All but the first two may be absent;
      absent states start at zero.
    - Results: the hidden states of all steps `[T, B, H]` (if `sequence`), zero after the end of a
      sequence; the last hidden state `[B, H]`; for an LSTM also the last cell state `[B, H]`.

    Attributes:
        kind: a key of `GATES`.
        activations: names of the gates' activations, keys of `GATE_DEFAULTS`.
        alphas: the first constant of each activation.
        betas: the second constant of each activation.
        reverse: whether the last time step is computed first.
        sequence: whether the hidden states of all steps are a result.
        clip: bound of the gates before their activations; 0 for none.
        input_forget: whether the forget gate of an LSTM is one minus the input gate.
        reset_after: whether a GRU's reset gate multiplies the product with the hidden state,
            instead of the hidden state itself (ONNX: linear_before_reset).
        cell_clip: bound of an LSTM's cell state; 0 for none.
    """

    kind: str
    activations: tuple[str, ...]
    alphas: tuple[float, ...]
    betas: tuple[float, ...]
    reverse: bool = False
    sequence: bool = True
    clip: float = 0.0
    input_forget: bool = False
    reset_after: bool = False
    cell_clip: float = 0.0

    length_operand = LENGTHS

    @property
    @override
    def name(self) -> str:
        return f"Recurrence({self.kind})"

    @property
    def gates(self) -> tuple[Gate, ...]:
        """The activations, with their constants."""
        return tuple(map(Gate, self.activations, self.alphas, self.betas))

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        self._check_attributes()
        x, weights = operands(self, inputs, 2)
        if len(x.shape) != 3 or len(weights.shape) != 2 or 0 in (*x.shape, *weights.shape):
            raise ModelError(
                f"{self.name} needs gates [steps, batch, gates * units] and recurrent weights "
                f"[gates * units, units], none of them empty; got {x} and {weights}"
            )
        steps, batch, _ = x.shape
        units = weights.shape[1]
        wide = GATES[self.kind] * units
        state = (batch, units)
        shapes = (
            (steps, batch, wide),
            (wide, units),
            (units,),
            state,
            state,
            (3 * units,),
            (batch,),
        )
        for name, type_, shape in zip(OPERANDS, inputs, shapes, strict=False):
            dtype = DType.INT32 if name == "lengths" else DType.FLOAT32
            if type_ is not None and (type_.shape, type_.dtype) != (shape, dtype):
                raise ModelError(
                    f"{self.name}: {name} must be {TensorType(shape, dtype)}, not {type_}"
                )
        if len(inputs) > len(OPERANDS):
            raise ModelError(
                f"{self.name} has {len(inputs)} operands; it takes at most {len(OPERANDS)}"
            )
        self._check_absent(inputs)
        last = TensorType(state, DType.FLOAT32)
        results = (last, last) if self.kind == "lstm" else (last,)
        whole = TensorType((steps, *state), DType.FLOAT32)
        return (whole, *results) if self.sequence else results

    def _check_attributes(self) -> None:
        if self.kind not in GATES:
            raise ModelError(
                f"there is no recurrence '{self.kind}'; the kinds are {', '.join(sorted(GATES))}"
            )
        count = ACTIVATIONS[self.kind]
        if not len(self.activations) == len(self.alphas) == len(self.betas) == count:
            raise ModelError(
                f"{self.name} needs {count} activations, each with alpha and beta; got "
                f"{self.activations}, {self.alphas} and {self.betas}"
            )
        for activation in self.activations:
            if activation not in GATE_DEFAULTS:
                raise ModelError(
                    f"{self.name} does not support activation '{activation}'; it supports "
                    f"{', '.join(sorted(GATE_DEFAULTS))}"
                )

    def _check_absent(self, inputs: Sequence[TensorType | None]) -> None:
        """Raise `ModelError` for an operand that this kind of recurrence does not have."""
        given = {name for name, t in zip(OPERANDS, inputs, strict=False) if t is not None}
        if "bias" in given and not (self.kind == "gru" and self.reset_after):
            raise ModelError(
                f"{self.name} has a recurrent bias; only a gru with reset_after may have one"
            )
        if given & {"cell", "peepholes"} and self.kind != "lstm":
            raise ModelError(
                f"{self.name} has a cell state or peepholes; only an lstm may have them"
            )

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        given = dict(zip(OPERANDS, inputs, strict=False))
        x, weights = (np.asarray(given[name], np.float64) for name in OPERANDS[:2])
        (steps, batch, _), units = x.shape, weights.shape[1]
        bias, peepholes = (
            _or_zero(given, "bias", (units,)),
            _or_zero(given, "peepholes", (3 * units,)),
        )
        hidden, cell = (_or_zero(given, name, (batch, units)) for name in ("hidden", "cell"))
        found = given.get("lengths")
        lengths = np.full(batch, steps) if found is None else np.clip(found, 0, steps)
        every = np.zeros((steps, batch, units))
        with np.errstate(all="ignore"):
            for step in range(steps):
                rows = np.flatnonzero(step < lengths)
                at = lengths[rows] - 1 - step if self.reverse else np.full(len(rows), step)
                new = self._step(x[at, rows], weights, bias, peepholes, hidden[rows], cell[rows])
                hidden[rows], cell[rows] = new
                every[at, rows] = hidden[rows]
            results = ([every] if self.sequence else []) + [hidden] + [cell] * (self.kind == "lstm")
            return tuple(np.asarray(r, np.float32) for r in results)

    def _step(
        self, x: Array, weights: Array, bias: Array, peepholes: Array, hidden: Array, cell: Array
    ) -> tuple[Array, Array]:
        """Return hidden and cell state after one step."""
        f, *others = (self._activation(gate, i) for i, gate in enumerate(self.gates))
        if self.kind == "rnn":
            return f(x + hidden @ weights.T), cell
        g, units = others[0], hidden.shape[1]
        if self.kind == "gru":
            first = x[:, : 2 * units] + hidden @ weights[: 2 * units].T
            update, reset = (f(part) for part in np.split(first, 2, axis=1))
            last = weights[2 * units :].T
            product = (
                reset * (hidden @ last + bias) if self.reset_after else (reset * hidden) @ last
            )
            candidate = g(x[:, 2 * units :] + product)
            return (1 - update) * candidate + update * hidden, cell
        i, o, forget, c = np.split(x + hidden @ weights.T, 4, axis=1)
        p_i, p_o, p_f = np.split(peepholes, 3)
        i = f(i + p_i * cell)
        forget = 1 - i if self.input_forget else f(forget + p_f * cell)
        cell = forget * cell + i * g(c)
        if self.cell_clip:
            cell = np.clip(cell, -self.cell_clip, self.cell_clip)
        return f(o + p_o * cell) * others[1](cell), cell

    def bound(self, index: int) -> float:
        """Return the bound of the argument of the activation at `index`; infinite if none."""
        return self.clip if self.clip and index < 2 else np.inf

    def _activation(self, gate: Gate, index: int) -> Callable[[Array], Array]:
        bound = self.bound(index)
        constants = float(np.float32(gate.alpha)), float(np.float32(gate.beta))
        return lambda x: _COMPUTE[gate.kind](np.clip(x, -bound, bound), *constants)

    def macs(self, node: Node) -> int:
        """Return the multiply-accumulates of the recurrent products."""
        steps, batch, _ = node.input(0).type.shape
        return steps * batch * node.input(1).type.size

    def overhead(self, node: Node) -> int:
        """Return the cost of a Python loop over the steps."""
        return node.input(0).type.shape[0] * EACH_STEP

    def objection(self, node: Node) -> str:
        """Return why this operator stays in float: if quantized, it would have become an `Lstm`."""
        return self.integer_objection(node) or "the product of its input is not a dense layer"

    def integer_objection(self, node: Node) -> str | None:
        """Return why this operator cannot be quantized after a dense layer; None if it can."""
        if self.kind != "lstm":
            return "of recurrent layers, TensorFlow Lite has integer arithmetic for the LSTM only"
        given = dict(zip(OPERANDS, node.inputs, strict=False))
        odd = [name for name in ("peepholes", "lengths") if given.get(name) is not None]
        odd += ["a clip of its gates"] * bool(self.clip)
        odd += ["a coupled input gate"] * self.input_forget
        if self.activations != ("sigmoid", "tanh", "tanh"):
            odd.append(f"activations {', '.join(self.activations)}")
        if odd:
            return f"TensorFlow Lite's integer LSTM has no {odd[0].removeprefix('a ')}"
        return None if node.input(1).is_constant else "its recurrent weights are computed"

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether rows are time steps; each is then computed from the one before."""
        return axes[0] == 0 and not any(axis is not None for axis in axes[1:])


def _or_zero(given: dict[str, Array | None], name: str, shape: tuple[int, ...]) -> Array:
    """Return a copy of an operand, or zeros if it is absent."""
    array = given.get(name)
    return np.zeros(shape) if array is None else array.astype(np.float64)


def recurrence(kind: str, *activations: str, **attributes: bool | float) -> Recurrence:
    """Return a `Recurrence` with default constants and, if none are named, default activations."""
    names = activations or ("sigmoid", "tanh", "tanh")[-1 if kind == "rnn" else 0 :]
    names = names[: ACTIVATIONS[kind]]
    alphas, betas = zip(*(GATE_DEFAULTS[name] for name in names), strict=True)
    return replace(
        Recurrence(kind=kind, activations=names, alphas=alphas, betas=betas), **attributes
    )


def _case(
    name: str,
    op: Recurrence,
    shape: tuple[int, int, int],
    given: str = "",
    *,
    lengths: tuple[int, ...] = (),
    constant: bool = True,
) -> Case:
    """Return a case of `shape` (steps, batch, units); `given` names the optional operands."""
    steps, batch, units = shape
    wide = GATES[op.kind] * units
    shapes = ((units,), (batch, units), (batch, units), (3 * units,))
    weights = Weights((wide, units)) if constant else Data((wide, units), -0.5, 0.5)
    optional = [
        (Weights(s) if n in ("bias", "peepholes") and constant else Data(s)) if n in given else None
        for n, s in zip(OPERANDS[2:], shapes, strict=False)
    ]
    last = Data((batch,), 0, steps + 1, DType.INT32) if "lengths" in given else None
    if lengths:
        last = Constant(lengths, (batch,), DType.INT32)
    arguments = (Data((steps, batch, wide), -2.0, 2.0), weights, *optional, last)
    return Case(name, op, arguments, (DType.FLOAT32,))


_STATES = "hidden cell"
CASES = (
    _case("lstm", recurrence("lstm"), (5, 1, 7)),
    _case("lstm_step", recurrence("lstm", sequence=False), (1, 1, 16), _STATES),
    _case("lstm_batch", recurrence("lstm"), (3, 6, 9), _STATES),
    _case("lstm_reverse", recurrence("lstm", reverse=True), (4, 2, 5), _STATES),
    _case("lstm_peepholes", recurrence("lstm", clip=0.7), (4, 1, 5), "peepholes cell"),
    _case("lstm_cell_clip", recurrence("lstm", cell_clip=0.4), (6, 1, 5), _STATES),
    _case("lstm_input_forget", recurrence("lstm", input_forget=True), (4, 2, 5), "peepholes"),
    _case("lstm_lengths", recurrence("lstm"), (4, 3, 5), "lengths" + _STATES),
    _case(
        "lstm_reverse_lengths",
        recurrence("lstm", reverse=True),
        (4, 3, 5),
        "peepholes hidden cell",
        lengths=(2, 4, 0),
    ),
    _case("lstm_computed", recurrence("lstm"), (3, 2, 6), _STATES + "peepholes", constant=False),
    _case("gru", recurrence("gru"), (5, 1, 7)),
    _case("gru_wide", recurrence("gru"), (2, 1, 33), "hidden"),
    _case("gru_reset_after", recurrence("gru", reset_after=True), (5, 1, 7), "bias hidden"),
    _case("gru_reset_after_plain", recurrence("gru", reset_after=True), (3, 4, 6)),
    _case("gru_lengths", recurrence("gru", reverse=True), (4, 3, 5), "lengths hidden"),
    _case("gru_clip", recurrence("gru", reset_after=True, clip=0.5), (4, 2, 5), "bias"),
    _case("gru_computed", recurrence("gru"), (3, 2, 6), "hidden", constant=False),
    _case("rnn", recurrence("rnn"), (5, 1, 7), "hidden"),
    _case("rnn_reverse", recurrence("rnn", reverse=True, sequence=False), (5, 2, 20)),
    _case("rnn_lengths", recurrence("rnn"), (5, 2, 8), "lengths hidden"),
    *(
        _case(f"rnn_{name}", recurrence("rnn", name), (3, 1, 6), "hidden")
        for name in GATE_DEFAULTS
        if name != "tanh"
    ),
)
