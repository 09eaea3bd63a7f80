"""MLPerf Tiny's `vww` with random weights, so that no channel is constant.

Most channels of the trained `vww` are constant, and Smelt removes them without changing outputs.
This variant has the same layers and shapes, but needs all channels, so that it shows Smelt's
figures without that removal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tflite

from bench.shared_folder import SHARED
from smelt.ir import Array

NAME = "vww_random"
SOURCE = SHARED / "models/mlperf_tiny/vww_int8.tflite"

_WEIGHTED = (
    tflite.BuiltinOperator.CONV_2D,
    tflite.BuiltinOperator.DEPTHWISE_CONV_2D,
    tflite.BuiltinOperator.FULLY_CONNECTED,
)
_DEVIATION = 127 / 3**0.5
"""The standard deviation of weights that are uniform over -127 … 127."""
_SPREAD = 1.5
"""A layer's outputs spread this much more than its inputs, to make up for those clamped to 0."""


def write(path: Path) -> None:
    """Write the variant as a TFLite file; its bytes are always the same.

    Weights and biases are random, and the scales of the weights are fitted to them. The rest of the
    file is unchanged.
    """
    data = bytearray(SOURCE.read_bytes())
    model = tflite.Model.GetRootAs(data)
    graph = model.Subgraphs(0)
    random = np.random.default_rng(0)
    for index in range(graph.OperatorsLength()):
        operator = graph.Operators(index)
        if model.OperatorCodes(operator.OpcodeIndex()).BuiltinCode() in _WEIGHTED:
            operands = [graph.Tensors(operator.Inputs(i)) for i in range(3)]
            _redraw(model, [*operands, graph.Tensors(operator.Outputs(0))], random)
    path.write_bytes(data)


def _redraw(model: Any, tensors: list[Any], random: np.random.Generator) -> None:
    """Replace a layer's weights and biases in place; `tensors` are its operands and its output."""
    (inputs, weights, biases, outputs) = (_scales(tensor) for tensor in tensors)
    stored = _stored(model, tensors[1], np.int8)
    signs = random.choice(np.array([-1, 1], np.int8), stored.size)
    stored[:] = random.integers(1, 128, stored.size).astype(np.int8) * signs
    sums = _stored(model, tensors[2], np.int32)
    deviation = _DEVIATION * (stored.size / sums.size) ** 0.5
    sums[:] = random.integers(0, int(32 * deviation), sums.size)
    weights[:] = _SPREAD * outputs[0] / (inputs[0] * deviation)
    biases[:] = inputs[0] * weights


def _scales(tensor: Any) -> Array:
    """Return the scales of a tensor, as a view into the file."""
    return tensor.Quantization().ScaleAsNumpy()


def _stored(model: Any, tensor: Any, dtype: type[np.int8] | type[np.int32]) -> Array:
    """Return the elements of a constant, as a view into the file."""
    return model.Buffers(tensor.Buffer()).DataAsNumpy().view(dtype)
