"""Integer operators against TensorFlow Lite Micro, with scales at which rounding is most critical.

Scales are quotients of simple numbers, as quantizers choose them. So many results are almost
halfway between two integers, where the last bit of a multiplier decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np
import pytest

from smelt.frontend import load
from smelt.ir import Array, evaluate
from tests.support.tflite_networks import O, T, const, network

DRAWS = 25
_SPANS = (0.05, 0.1, 0.5, 1, 2, 3, 6, 10, 12, 100)
_STEPS = (127, 128, 254, 255, 256)
_ZEROS = (-128, -1, 0, 3, 127)
_FEW = np.array([-128, -1, 0, 1, 127], np.int8)
Network = tuple[bytes, tuple[Array, ...]]
"""A TFLite file and its inputs."""


def _scale(rng: np.random.Generator, steps: tuple[int, ...] = _STEPS) -> float:
    return float(np.float32(rng.choice(_SPANS) / rng.choice(steps)))


def _quant(rng: np.random.Generator) -> dict[str, Any]:
    return {"scale": (_scale(rng),), "zero_point": (int(rng.choice(_ZEROS)),)}


def _fixed(scale: float, zero_point: int = 0) -> dict[str, Any]:
    return {"scale": (scale,), "zero_point": (zero_point,)}


def _unary(
    rng: np.random.Generator, kind: str, output: Any, options: Any, **fields: Any
) -> Network:
    """Return a function of one tensor, whose input contains all integers."""
    x = np.arange(-128, 128, dtype=np.int8).reshape(1, 16, 16)
    tensors = [T("x", x.shape, np.int8, **_quant(rng))]
    tensors.append(T("y", x.shape, np.int8, **(output or _quant(rng))))
    return network(tensors, [O(kind, ["x"], ["y"], options, fields)], ["x"], ["y"]), (x,)


def _prelu(rng: np.random.Generator) -> Network:
    x = np.arange(-128, 128, dtype=np.int8).reshape(1, 1, 16, 16)
    slopes = const("k", rng.integers(-128, 128, (1, 1, 16)), np.int8, **_quant(rng))
    ends = T("x", x.shape, np.int8, **_quant(rng)), T("y", x.shape, np.int8, **_quant(rng))
    return network([*ends, slopes], [O("PRELU", ["x", "k"], ["y"])], ["x"], ["y"]), (x,)


def _binary(rng: np.random.Generator, kind: str, options: Any) -> Network:
    a = np.repeat(np.arange(-128, 128, dtype=np.int8), 16).reshape(1, 64, 64)
    b = rng.integers(-128, 128, a.shape).astype(np.int8)
    tensors = [T(name, a.shape, np.int8, **_quant(rng)) for name in "xzy"]
    return network(tensors, [O(kind, ["x", "z"], ["y"], options)], ["x", "z"], ["y"]), (a, b)


def _dense(rng: np.random.Generator, axis: int | None) -> Network:
    """Return a dense layer with one scale, or one per output.

    TFLite Micro derives their multipliers in different ways.
    """
    x = rng.choice(_FEW, (64, 4))
    weights = rng.choice(np.array([-127, -64, 1, 64, 127]), (40, 4))
    scales = tuple(_scale(rng, (127,)) for _ in range(1 if axis is None else 40))
    tensors = [
        T("x", x.shape, np.int8, **_quant(rng)),
        const("w", weights, np.int8, scale=scales, axis=0),
        T("y", (64, 40), np.int8, **_quant(rng)),
    ]
    operator = O("FULLY_CONNECTED", ["x", "w"], ["y"], schema.FullyConnectedOptionsT)
    return network(tensors, [operator], ["x"], ["y"]), (x,)


def _matmul(rng: np.random.Generator) -> Network:
    a, b = rng.choice(_FEW, (1, 16, 4)), rng.choice(_FEW, (1, 4, 16))
    shapes = {"x": a.shape, "z": b.shape, "y": (1, 16, 16)}
    tensors = [T(name, shape, np.int8, **_quant(rng)) for name, shape in shapes.items()]
    operator = O("BATCH_MATMUL", ["x", "z"], ["y"], schema.BatchMatMulOptionsT)
    return network(tensors, [operator], ["x", "z"], ["y"]), (a, b)


def _reduce(rng: np.random.Generator, kind: str) -> Network:
    x = rng.choice(_FEW, (1, 64, 5))
    ends = T("x", x.shape, np.int8, **_quant(rng)), T("y", (1, 64, 1), np.int8, **_quant(rng))
    operator = O(kind, ["x", "axes"], ["y"], schema.ReducerOptionsT, {"keepDims": True})
    return network([*ends, const("axes", [2], np.int32)], [operator], ["x"], ["y"]), (x,)


Maker = Callable[[np.random.Generator], Network]
MAKERS: dict[str, Maker] = {
    "relu": lambda rng: _unary(rng, "RELU", None, None),
    "abs": lambda rng: _unary(rng, "ABS", None, None),
    "quantize": lambda rng: _unary(rng, "QUANTIZE", None, None),
    "leaky_relu": lambda rng: _unary(rng, "LEAKY_RELU", None, schema.LeakyReluOptionsT, alpha=0.3),
    "logistic": lambda rng: _unary(rng, "LOGISTIC", _fixed(1 / 256, -128), None),
    "tanh": lambda rng: _unary(rng, "TANH", _fixed(1 / 128), None),
    "softmax": lambda rng: _unary(
        rng, "SOFTMAX", _fixed(1 / 256, -128), schema.SoftmaxOptionsT, beta=1.0
    ),
    "log_softmax": lambda rng: _unary(rng, "LOG_SOFTMAX", _fixed(1 / 16, 127), None),
    "prelu": _prelu,
    "add": lambda rng: _binary(rng, "ADD", schema.AddOptionsT),
    "sub": lambda rng: _binary(rng, "SUB", schema.SubOptionsT),
    "mul": lambda rng: _binary(rng, "MUL", schema.MulOptionsT),
    "squared_difference": lambda rng: _binary(
        rng, "SQUARED_DIFFERENCE", schema.SquaredDifferenceOptionsT
    ),
    "dense": lambda rng: _dense(rng, None),
    "dense_per_channel": lambda rng: _dense(rng, 0),
    "batch_matmul": _matmul,
    "mean": lambda rng: _reduce(rng, "MEAN"),
    "sum": lambda rng: _reduce(rng, "SUM"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_every_element_equals_tflite_micro(name: str) -> None:
    micro = pytest.importorskip("tflite_micro", reason="TensorFlow Lite Micro is not installed")
    rng = np.random.default_rng(18)
    for _ in range(DRAWS):
        data, samples = MAKERS[name](rng)
        interpreter = micro.runtime.Interpreter.from_bytes(data, arena_size=2**20)
        for index, array in enumerate(samples):
            interpreter.set_input(array, index)
        interpreter.invoke()
        (found,) = evaluate(load(data, "net").graph, samples).outputs
        np.testing.assert_array_equal(found, interpreter.get_output(0), name)
