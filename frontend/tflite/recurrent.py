"""Converter of UNIDIRECTIONAL_SEQUENCE_LSTM.

Integers become an `Lstm`, floats a dense layer and a `Recurrence`. The states are variable tensors
of the file: as in TensorFlow Lite Micro, they are kept from one inference to the next, until the
network is reset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tflite

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.tflite.operation import Converter, TfliteOperation
from smelt.ir import Array, DType, Quant, Value
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.sequence.lstm import Lstm
from smelt.ops.sequence.recurrence import recurrence
from smelt.ops.tensor.transpose import Transpose

_WEIGHTS, _RECURRENT, _BIASES = (1, 4, 2, 3), (5, 8, 6, 7), (12, 15, 13, 14)
"""Indices of the gates' operands, in the order i o f c."""

_STATES = (18, 19)
_VARIANTS = {
    **dict.fromkeys((9, 10, 11), "peepholes"),
    **dict.fromkeys((16, 17), "a projection"),
    **dict.fromkeys((20, 21, 22, 23), "layer normalization"),
}
"""Operands that TensorFlow Lite Micro does not support either, and their purpose."""

_BATCH_FIRST = (1, 0, 2)


def _lstm(operation: TfliteOperation) -> None:
    options = operation.options(tflite.UnidirectionalSequenceLSTMOptions)
    _refuse_variants(operation, options.integer("FusedActivationFunction"))
    x = operation.input(0)
    if len(x.type.shape) != 3:
        raise ModelError(f"{operation}: its input {x.type} must have 3 dimensions")
    clip = options.real("CellClip")
    if clip < 0:
        raise ModelError(f"{operation}: CellClip is {clip}; it must be at least 0")
    order = None if options.flag("TimeMajor") else _BATCH_FIRST
    if order is not None:
        x = operation.step(Transpose(order), x, name="time_major")
    weights = [operation.weights(0, index) for index in _WEIGHTS]
    recurrent = [operation.weights(0, index) for index in _RECURRENT]
    biases = [_bias(operation, index) for index in _BIASES]
    units = biases[0].type.size
    state = (x.type.shape[1], units)
    if x.type.dtype is DType.INT8:
        stacked = [_joined(operation, v, np.stack) for v in (weights, recurrent, biases)]
        operation.emit_stateful(
            Lstm(cell_clip=clip), x, *stacked, states=_STATES, shape=state, order=order
        )
        return
    gates, again, bias = (
        _joined(operation, v, np.concatenate) for v in (weights, recurrent, biases)
    )
    sums = operation.step(FullyConnected(keep_dims=True), x, gates, bias, name="gates")
    op = recurrence("lstm", cell_clip=clip)
    operation.emit_stateful(op, sums, again, None, states=_STATES, shape=state, order=order)


def _refuse_variants(operation: TfliteOperation, activation: int) -> None:
    for index, what in _VARIANTS.items():
        if operation.has(index):
            raise UnsupportedError(
                f"{operation} has {what}: Smelt supports only the plain LSTM, as Keras makes it"
            )
    if not all(operation.has(index) for index in (_WEIGHTS[0], _RECURRENT[0], _BIASES[0])):
        raise UnsupportedError(
            f"{operation} has no input gate (it is coupled to the forget gate): Smelt supports "
            "only the plain LSTM, as Keras makes it"
        )
    if activation != tflite.ActivationFunctionType.TANH:
        raise UnsupportedError(
            f"{operation} has fused activation {activation}: Smelt supports only tanh "
            f"({tflite.ActivationFunctionType.TANH})"
        )


def _bias(operation: TfliteOperation, index: int) -> Value:
    bias = operation.bias(index)
    if bias is None:
        raise ModelError(f"{operation} has no input {index}, a bias: the file is corrupted")
    return bias


def _joined(
    operation: TfliteOperation, gates: Sequence[Value], join: Callable[[Sequence[Array]], Array]
) -> Value:
    """Return the constants of all gates joined to one; int8 weights have one scale per gate."""
    first = gates[0]
    if any((v.type.shape, v.type.dtype) != (first.type.shape, first.type.dtype) for v in gates):
        shapes = ", ".join(str(v.type) for v in gates)
        raise ModelError(
            f"{operation}: the constants of its gates must have equal types, but are {shapes}"
        )
    quant = None
    if first.type.dtype is DType.INT8:
        scales, zeros = zip(*(_scalar(operation, v) for v in gates), strict=True)
        quant = Quant(scales, zeros, 0)
    return operation.derived(f"{first.name}:gates", join([v.array for v in gates]), quant)


def _scalar(operation: TfliteOperation, constant: Value) -> tuple[float, int]:
    quant = constant.type.quant
    if quant is None or not quant.is_per_tensor:
        raise UnsupportedError(
            f"{operation}: '{constant.name}' {constant.type} must be quantized per tensor, as "
            "TensorFlow Lite Micro requires"
        )
    return quant.scalar


CONVERTERS = {"UNIDIRECTIONAL_SEQUENCE_LSTM": Converter(_lstm)}
