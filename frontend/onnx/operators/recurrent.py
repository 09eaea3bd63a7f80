"""Converters of LSTM, GRU and RNN.

Each becomes a dense layer over all time steps, and a `Recurrence` for each direction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from smelt.frontend.onnx.operation import OnnxConverter, Operation, Results
from smelt.ir import DType, Value
from smelt.ops.core.binary import Binary
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.matmul import MatMul
from smelt.ops.sequence.recurrence import ACTIVATIONS, GATE_DEFAULTS, GATES, Gate, Recurrence
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.slice import Slice

_DIRECTIONS = {
    "forward": (False,),
    "reverse": (True,),
    "bidirectional": (False, True),
}
"""For each direction, whether the last time step is computed first."""

_DEFAULT_ACTIVATIONS = {
    "lstm": ("sigmoid", "tanh", "tanh"),
    "gru": ("sigmoid", "tanh"),
    "rnn": ("tanh",),
}

_ALPHA = frozenset(("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"))
_BETA = frozenset(("affine", "scaledtanh", "hardsigmoid"))
"""Activations that take the next value of the file's activation_alpha, or activation_beta."""

_NO_DEFAULT = frozenset(("affine", "scaledtanh"))
"""Activations for whose alpha and beta the ONNX standard has no defaults."""


@dataclass(frozen=True)
class _RecurrentLayer:
    """What the directions of a recurrent operator share; `x` is `[steps, batch, inputs]`."""

    operation: Operation
    kind: str
    x: Value
    lengths: Value | None
    batch_first: bool

    @property
    def units(self) -> int:
        return self.operation.value(2).type.shape[-1]

    def part(self, index: int, direction: int, axis: int = 0) -> Value | None:
        """Return a direction's part of an operand; None if the operand is omitted."""
        value = self.operation.optional(index)
        if value is None:
            return None
        return self.cut(value, axis, direction, 1, drop=True)

    def cut(self, value: Value, axis: int, start: int, size: int, *, drop: bool = False) -> Value:
        """Return elements along an axis; `drop` removes the axis if there is one element."""
        shape = value.type.shape
        if axis >= len(shape) or start + size > shape[axis]:
            raise self.operation.wrong(
                f"'{value.name}' {value.type} needs at least {start + size} elements along axis "
                f"{axis}"
            )
        if shape[axis] != size:
            value = self.operation.emit(Slice.along(axis, start, size, shape), value)
        if not drop:
            return value
        return self.operation.reshape(value, (*shape[:axis], *shape[axis + 1 :]))


def _recurrent(kind: str) -> OnnxConverter:
    def convert(operation: Operation) -> Results:
        layer = _layer(operation, kind)
        direction = operation.text("direction", "forward")
        if direction not in _DIRECTIONS:
            raise operation.wrong(
                f"direction '{direction}' does not exist; use one of {', '.join(_DIRECTIONS)}"
            )
        reverse = _DIRECTIONS[direction]
        if operation.value(1).type.shape[0] != len(reverse):
            raise operation.wrong(
                f"weights {operation.value(1).type} do not fit direction '{direction}': axis 0 "
                f"must have {len(reverse)} elements"
            )
        gates = tuple(_gates(operation, kind, len(reverse)))
        sequence = bool(operation.outputs[0])
        found = [
            _direction(layer, index, backwards, gates[index], sequence)
            for index, backwards in enumerate(reverse)
        ]
        joined = [
            _joined(layer, parts, is_sequence=sequence and index == 0)
            for index, parts in enumerate(zip(*found, strict=True))
        ]
        return joined if sequence else [joined[0], *joined]

    return convert


def _layer(operation: Operation, kind: str) -> _RecurrentLayer:
    x = operation.image(0, 3)
    weights, recurrent = operation.weights(1), operation.weights(2)
    if x.type.dtype is not DType.FLOAT32:
        raise operation.refuse(f"its input is {x.type}: export the network in float32")
    if len(weights.type.shape) != 3 or len(recurrent.type.shape) != 3:
        raise operation.wrong(f"weights {weights.type} and {recurrent.type} must have 3 dimensions")
    if operation.optional(3) is not None:
        operation.weights(3, "bias")
    units = recurrent.type.shape[-1]
    if operation.integer("hidden_size", units) != units:
        raise operation.wrong(
            f"hidden_size {operation.integer('hidden_size', units)} contradicts recurrent weights "
            f"{recurrent.type}"
        )
    if 0 in x.type.shape:
        raise operation.refuse(f"its input {x.type} is empty")
    _refuse_projection(operation, kind, units)
    batch_first = operation.flag("layout")
    if batch_first:
        x = operation.transpose(x, (1, 0, 2))
    lengths = operation.optional(4)
    if lengths is not None and lengths.data is not None and (lengths.data >= x.type.shape[0]).all():
        lengths = None
    return _RecurrentLayer(operation, kind, x, lengths, batch_first)


def _refuse_projection(operation: Operation, kind: str, units: int) -> None:
    """Refuse a recurrence with a projection of its output to a smaller size."""
    recurrent = operation.value(2).type
    states = [operation.optional(5), operation.optional(6) if kind == "lstm" else None]
    wrong = [
        f"initial state '{v.name}' {v.type}"
        for v in states
        if v is not None and v.type.shape[-1:] != (units,)
    ]
    if recurrent.shape[1] != GATES[kind] * units:
        wrong.append(f"recurrent weights {recurrent}")
    if wrong:
        raise operation.wrong(
            f"{wrong[0]} does not fit hidden_size {units}. ONNX does not support {operation.kind} "
            "with a projection (proj_size): export the network without one"
        )


def _gates(operation: Operation, kind: str, directions: int) -> Iterator[tuple[Gate, ...]]:
    """Yield the activations of each direction; constants are assigned in the file's order."""
    names = tuple(name.lower() for name in operation.texts("activations"))
    names = names or _DEFAULT_ACTIVATIONS[kind] * directions
    count = ACTIVATIONS[kind]
    if len(names) != count * directions:
        raise operation.wrong(f"it has {len(names)} activations, but needs {count * directions}")
    alphas = iter(operation.reals("activation_alpha", ()))
    betas = iter(operation.reals("activation_beta", ()))
    gates: list[Gate] = []
    for name in names:
        if name not in GATE_DEFAULTS:
            raise operation.refuse(
                f"activation '{name}' is not supported; use one of {', '.join(GATE_DEFAULTS)}"
            )
        alpha, beta = GATE_DEFAULTS[name]
        alpha = next(alphas, None if name in _NO_DEFAULT else alpha) if name in _ALPHA else alpha
        beta = next(betas, None if name in _NO_DEFAULT else beta) if name in _BETA else beta
        if alpha is None or beta is None:
            raise operation.refuse(
                f"activation '{name}' needs attributes activation_alpha and activation_beta"
            )
        gates.append(Gate(name, alpha, beta))
    for start in range(0, len(gates), count):
        yield tuple(gates[start : start + count])


def _direction(
    layer: _RecurrentLayer, index: int, reverse: bool, gates: tuple[Gate, ...], sequence: bool
) -> tuple[Value, ...]:
    """Return the results of one direction; see `Recurrence`."""
    operation, kind = layer.operation, layer.kind
    reset_after = kind == "gru" and operation.flag("linear_before_reset")
    op = Recurrence(
        kind=kind,
        activations=tuple(gate.kind for gate in gates),
        alphas=tuple(gate.alpha for gate in gates),
        betas=tuple(gate.beta for gate in gates),
        reverse=reverse,
        sequence=sequence,
        clip=operation.real("clip", 0.0),
        input_forget=kind == "lstm" and operation.flag("input_forget"),
        reset_after=reset_after,
    )
    bias, candidate = _biases(layer, index, reset_after)
    lstm = kind == "lstm"
    state_axis = 1 if layer.batch_first else 0
    operands = (
        _projected(layer, layer.part(1, index), bias),
        layer.part(2, index),
        candidate,
        layer.part(5, index, state_axis),
        layer.part(6, index, state_axis) if lstm else None,
        layer.part(7, index) if lstm else None,
        layer.lengths,
    )
    return operation.emit_all(op, *operands)


def _biases(
    layer: _RecurrentLayer, index: int, reset_after: bool
) -> tuple[Value | None, Value | None]:
    """Return the sum of input and recurrent biases, and a GRU's separate recurrent bias."""
    both = layer.part(3, index)
    if both is None:
        return None, None
    operation, units = layer.operation, layer.units
    wide = GATES[layer.kind] * units
    own, recurrent = layer.cut(both, 0, 0, wide), layer.cut(both, 0, wide, wide)
    candidate = None
    if reset_after:
        candidate = layer.cut(recurrent, 0, 2 * units, units)
        mask = operation.literal(np.repeat(np.asarray([1, 1, 0], np.float32), units))
        recurrent = operation.emit(Binary("mul"), recurrent, mask)
        if candidate.data is not None and not candidate.data.any():
            candidate = None
    return operation.emit(Binary("add"), own, recurrent), candidate


def _projected(layer: _RecurrentLayer, weights: Value | None, bias: Value | None) -> Value:
    """Return the contribution of the input to the gates, for all time steps."""
    operation, x = layer.operation, layer.x
    if weights is None:
        raise operation.wrong("it has no weights")
    if not weights.is_constant or (bias is not None and not bias.is_constant):
        y = operation.emit(MatMul((), (1, 0)), x, weights)
        return y if bias is None else operation.emit(Binary("add"), y, bias)
    return operation.emit(FullyConnected(keep_dims=True), x, weights, bias)


def _joined(layer: _RecurrentLayer, parts: Sequence[Value], *, is_sequence: bool) -> Value:
    """Join a result of all directions to one tensor, in ONNX's order of axes."""
    operation, shape = layer.operation, parts[0].type.shape
    axis = len(shape) - 1 if layer.batch_first else len(shape) - 2
    expanded = [operation.reshape(part, (*shape[:axis], 1, *shape[axis:])) for part in parts]
    value = expanded[0] if len(expanded) == 1 else operation.emit(Concat(axis), *expanded)
    if layer.batch_first and is_sequence:
        return operation.transpose(value, (1, 0, 2, 3))
    return value


CONVERTERS: dict[str, OnnxConverter] = {
    "LSTM": _recurrent("lstm"),
    "GRU": _recurrent("gru"),
    "RNN": _recurrent("rnn"),
}
