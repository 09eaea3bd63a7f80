"""QDQ export of recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from smelt.ir import Node, Op, Value
from smelt.ops.sequence.lstm import GATES, Lstm
from smelt.ops.sequence.recurrence import Recurrence
from smelt.quant.qdq.graph import Emitter, Exporter
from smelt.quant.qdq.shapes import unsupported

_CELLS = {"lstm": "LSTM", "gru": "GRU", "rnn": "RNN"}
_GATES = {
    "relu": "Relu",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "affine": "Affine",
    "leakyrelu": "LeakyRelu",
    "thresholdedrelu": "ThresholdedRelu",
    "scaledtanh": "ScaledTanh",
    "hardsigmoid": "HardSigmoid",
    "elu": "Elu",
    "softsign": "Softsign",
    "softplus": "Softplus",
}


_ALPHA = frozenset(("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"))
_BETA = frozenset(("affine", "scaledtanh", "hardsigmoid"))
"""Activations of gates that take the constant `alpha` or `beta`."""


def _recurrence(exporter: Exporter, node: Node, op: Recurrence) -> None:
    """Emit a recurrence. Its input already contains the gates' share, so its weights are I."""
    if node.optional(6) is not None:
        # Tools disagree on the last state of an empty sequence.
        raise unsupported(node, "of sequences of several lengths")
    if op.cell_clip:
        raise unsupported(node, "that clips its cell state")
    gates, weights = node.input(0), node.input(1)
    wide, units = weights.type.shape
    operands = [
        exporter.real(gates),
        exporter.constant(f"{node.name}_identity", np.eye(wide, dtype=np.float32)[None]),
        _with_axis(exporter, weights, node.name),
        _recurrent_bias(exporter, node, wide, units),
        "",
    ]
    for index in (3, 4, 5):
        value = node.optional(index)
        operands.append("" if value is None else _with_axis(exporter, value, node.name))
    while not operands[-1]:
        operands.pop()
    steps = [f"{node.name}_steps"] if op.sequence else [""]
    hints = [*steps, *(f"{node.name}_last" for _ in range(len(node.outputs) - op.sequence))]
    attributes: dict[str, object] = {
        "hidden_size": units,
        "direction": "reverse" if op.reverse else "forward",
        "activations": [_GATES[name] for name in op.activations],
    }
    # ONNX takes constants only for the activations that use them, in order.
    for key, takers, numbers in (("alpha", _ALPHA, op.alphas), ("beta", _BETA, op.betas)):
        taken = [x for name, x in zip(op.activations, numbers, strict=True) if name in takers]
        if taken:
            attributes[f"activation_{key}"] = taken
    if op.clip:
        attributes["clip"] = op.clip
    if op.kind == "lstm":
        attributes["input_forget"] = int(op.input_forget)
    if op.kind == "gru":
        attributes["linear_before_reset"] = int(op.reset_after)
    names = exporter.emit_several(_CELLS[op.kind], operands, hints, **attributes)
    _finish(exporter, node, names)


def _lstm(exporter: Exporter, node: Node, op: Lstm) -> None:
    """Emit a float LSTM between quantized tensors; its states stay float from step to step."""
    weights, recurrent, bias = (node.input(index) for index in (1, 2, 3))
    cell, units = node.outputs[-1].type, bias.type.shape[1]
    # A clip beyond the range of int16 has no effect.
    reach = cell.scale * cell.dtype.limits[1] if cell.quant is not None else np.inf
    if op.cell_clip and op.cell_clip < reach:
        raise unsupported(node, "that clips its cell state")
    if any(value.data is None for value in (weights, recurrent, bias)):
        raise unsupported(node, "of computed weights")
    quant = bias.type.quant
    unit = np.ones(GATES) if quant is None else np.asarray(quant.scale)
    biases = np.zeros((1, 2 * GATES * units), np.float32)
    biases[0, : GATES * units] = (bias.array * unit[:, None]).ravel()
    operands = [exporter.real(node.input(0))]
    for value in (weights, recurrent):
        real = exporter.weights(value, value.array, 0)
        shape = exporter.constant(f"{value.name}_shape", np.asarray([1, GATES * units, -1]))
        operands.append(exporter.emit("Reshape", [real, shape], f"{value.name}_gates"))
    operands += [exporter.constant(f"{node.name}_bias", biases), ""]
    for index in (4, 5):
        value = node.optional(index)
        operands.append("" if value is None else _with_axis(exporter, value, node.name))
    while not operands[-1]:
        operands.pop()
    hints = [f"{node.name}_steps"] if op.sequence else [""]
    names = exporter.emit_several(
        "LSTM",
        operands,
        [*hints, f"{node.name}_hidden", f"{node.name}_cell"],
        hidden_size=units,
        direction="reverse" if op.reverse else "forward",
    )
    _finish(exporter, node, names)


def _finish(exporter: Exporter, node: Node, names: Sequence[str]) -> None:
    """Set the results without ONNX's axis of directions; the output of all steps comes first."""
    axes = [1] * bool(names[0]) + [0] * (len(node.outputs) - bool(names[0]))
    for value, name, axis in zip(node.outputs, filter(None, names), axes, strict=True):
        if exporter.is_read(value):
            where = exporter.constant(f"{value.name}_axis", np.asarray([axis], np.int64))
            real = exporter.emit("Squeeze", [name, where], f"{value.name}_squeezed")
            exporter.finish(value, real)


def _recurrent_bias(exporter: Exporter, node: Node, wide: int, units: int) -> str:
    """Return the bias; only the candidate of a GRU, the last gate, has a recurrent bias."""
    value = node.optional(2)
    if value is None:
        return ""
    if value.data is None:
        raise unsupported(node, "with a computed bias")
    bias = np.zeros((1, 2 * wide), np.float32)
    bias[0, 2 * wide - units :] = value.array
    return exporter.constant(f"{node.name}_bias", bias)


def _with_axis(exporter: Exporter, value: Value, hint: str) -> str:
    """Insert a leading axis for ONNX's directions."""
    where = exporter.constant(f"{hint}_axis", np.asarray([0], np.int64))
    return exporter.emit("Unsqueeze", [exporter.real(value), where], f"{hint}_operand")


EMITTERS: Mapping[type[Op], Emitter] = {
    Lstm: _lstm,
    Recurrence: _recurrence,
}
"""Emitters by operator."""
