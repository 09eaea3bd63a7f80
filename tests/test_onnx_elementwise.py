"""ONNX operators on elements, reductions and normalizations, against ONNX Runtime.

The backend suite has their usual forms; here are those of older operator sets, operands that are
computed, and what the importer makes cheaper.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from smelt.errors import ModelError, SmeltError, UnsupportedError
from smelt.frontend import load
from smelt.ir import Array, Graph, evaluate
from smelt.ops.unary import Unary
from tests.onnx_networks import agrees, graph, ints, model, node, tensor_info

RNG = np.random.default_rng(3)
X = RNG.uniform(-3, 3, (2, 3, 4)).astype(np.float32)
IMAGE = RNG.uniform(-3, 3, (2, 6, 4, 5)).astype(np.float32)
SIX, SIX_MORE = (RNG.uniform(0.5, 2, 6).astype(np.float32) for _ in range(2))
INTEGERS = RNG.integers(-9, 9, (2, 3, 4)).astype(np.int32)
_KINDS = {"float32": "f", "float64": "d", "int32": "i", "int64": "l", "bool": "b", "uint8": "u8"}


def number(value: float, dtype: type = np.float32) -> Array:
    return np.asarray(value, dtype)


def floats(*values: float) -> Array:
    return np.asarray(values, np.float32)


def one(kind: str, opset: int, x: Array, *constants: Array, **attributes: Any) -> onnx.ModelProto:
    """A network of one operator; its first operand is fed, the others are constants."""
    names = [f"c{i}" for i in range(len(constants))]
    nodes = [node(kind, " ".join(["x", *names]), "y", **attributes)]
    inputs = [tensor_info("x", x.shape, _KINDS[x.dtype.name])]
    outputs = [onnx.ValueInfoProto(name="y")]
    return model(graph(nodes, inputs, outputs, dict(zip(names, constants, strict=True))), opset)


def fed(kind: str, opset: int, *arrays: Array, **attributes: Any) -> onnx.ModelProto:
    """A network of one operator, all of whose operands are fed: x0, x1, …"""
    names = [f"x{i}" for i in range(len(arrays))]
    nodes = [node(kind, " ".join(names), "y", **attributes)]
    inputs = [
        tensor_info(name, a.shape, _KINDS[a.dtype.name])
        for name, a in zip(names, arrays, strict=True)
    ]
    return model(graph(nodes, inputs, [onnx.ValueInfoProto(name="y")]), opset)


ONES = {
    "clip attributes": (one("Clip", 7, X, min=-1.0, max=0.5), X),
    "clip one attribute": (one("Clip", 10, X, max=0.5), X),
    "clip constants": (one("Clip", 13, X, number(0), number(6)), X),
    "clip above": (one("Clip", 13, X, number(-0.5)), X),
    "clip crossed": (one("Clip", 13, X, number(1), number(-1)), X),
    "clip integers": (one("Clip", 13, INTEGERS, number(-2, np.int32)), INTEGERS),
    "relu integers": (one("Relu", 14, INTEGERS), INTEGERS),
    "softmax of rows": (one("Softmax", 11, X), X),
    "softmax of the last rows": (one("Softmax", 11, X, axis=-1), X),
    "softmax of all": (one("Softmax", 11, X, axis=0), X),
    "softmax of channels": (one("Softmax", 13, IMAGE, axis=1), IMAGE),
    "log softmax of channels": (one("LogSoftmax", 13, IMAGE, axis=1), IMAGE),
    "hardmax of columns": (one("Hardmax", 13, X, axis=1), X),
    "divided by powers of two": (one("Div", 13, X, floats(2, -0.25, 64, 1)), X),
    "divided by others": (one("Div", 13, X, floats(3, -0.3, 0, 1)), X),
    "divided by one tiny": (one("Div", 13, X, number(2.0**-140)), X),
    "square": (one("Pow", 13, X, number(2)), X),
    "cube": (one("Pow", 13, X, number(3, np.int32)), X),
    "root": (one("Pow", 13, np.abs(X), number(0.5)), np.abs(X)),
    "power of integers": (one("Pow", 13, INTEGERS, number(3, np.int64)), INTEGERS),
    "power in more dimensions": (one("Pow", 13, X, floats(2).reshape(1, 1, 1, 1)), X),
    "sum over axes": (one("ReduceSum", 11, X, axes=[0, -1]), X),
    "sum over all": (one("ReduceSum", 13, X), X),
    "sum over none": (one("ReduceSum", 13, X, ints(), noop_with_empty_axes=1), X),
    "norm over an operand's axes": (one("ReduceL2", 18, X, ints(1), keepdims=0), X),
    "logarithm of a sum": (one("ReduceLogSumExp", 18, X * 40, ints(-1)), X * 40),
    "cumulative": (one("CumSum", 14, X, number(-2, np.int32), reverse=1), X),
    "prelu": (one("PRelu", 9, IMAGE, floats(0.1, 0.5, -1, 2, 0, 3).reshape(6, 1, 1)), IMAGE),
    "lrn": (one("LRN", 13, IMAGE, size=3, alpha=0.3), IMAGE),
    "layer": (one("LayerNormalization", 17, X, X[0, 0], axis=-1), X),
    "layer of two axes": (one("LayerNormalization", 17, X, X[0], X[1], axis=1), X),
    "instance": (one("InstanceNormalization", 7, IMAGE, SIX, SIX_MORE), IMAGE),
    "instance of a signal": (one("InstanceNormalization", 13, X, SIX[:3], SIX[3:]), X),
    "group": (one("GroupNormalization", 21, IMAGE, SIX, SIX_MORE, num_groups=3), IMAGE),
    "mean and variance": (one("MeanVarianceNormalization", 13, IMAGE), IMAGE),
    "mean and variance of all": (one("MeanVarianceNormalization", 13, IMAGE, axes=[1, 2]), IMAGE),
    "lp": (one("LpNormalization", 13, np.abs(X), axis=1, p=1), np.abs(X)),
    "gelu": (one("Gelu", 20, X, approximate="tanh"), X),
    "batch": (one("BatchNormalization", 7, IMAGE, SIX, -SIX, SIX_MORE, SIX_MORE), IMAGE),
    "batch of a matrix": (
        one("BatchNormalization", 15, IMAGE[:, :, 0, 0], SIX, -SIX, SIX_MORE, SIX_MORE),
        IMAGE[:, :, 0, 0],
    ),
}


@pytest.mark.parametrize("name", ONES)
def test_one_operator(name: str) -> None:
    proto, x = ONES[name]
    agrees(proto, {"x": x})


FED = {
    "clip between operands": ("Clip", 13, (X, number(-1), number(0.5)), {}),
    "batch normalized by operands": (
        "BatchNormalization",
        9,
        (IMAGE, SIX, -SIX, SIX_MORE, SIX_MORE),
        {},
    ),
    "power of operands": ("Pow", 13, (np.abs(X), X[0]), {}),
    "remainder": ("Mod", 13, (INTEGERS, np.abs(INTEGERS) + 1), {}),
    "remainder towards zero": ("Mod", 13, (INTEGERS, np.abs(INTEGERS) + 1), {"fmod": 1}),
    "mean of three": ("Mean", 13, (X, X[0], X[:, :1]), {}),
    "greatest of one": ("Max", 13, (X,), {}),
    "choice": ("Where", 16, (X > 0, X, X[:1, :, :1]), {}),
    "choice of integers": ("Where", 16, (X[0] > 0, INTEGERS, INTEGERS[0]), {}),
    "comparison": ("LessOrEqual", 16, (INTEGERS, INTEGERS[1]), {}),
    "comparison of truths": ("Equal", 13, (X > 0, X[0] > 0), {}),
    "logic": ("Xor", 7, (X > 0, X[0] > 0), {}),
}


@pytest.mark.parametrize("name", FED)
def test_operands_that_are_computed(name: str) -> None:
    kind, opset, arrays, attributes = FED[name]
    agrees(fed(kind, opset, *arrays, **attributes), {f"x{i}": a for i, a in enumerate(arrays)})


def imported(proto: onnx.ModelProto) -> Graph:
    return load(proto.SerializeToString()).graph


def test_known_limits_are_one_activation() -> None:
    kinds = [n.op for n in imported(one("Clip", 13, X, number(0), number(6))).nodes]
    assert kinds == [Unary("relu6")]
    assert [n.op for n in imported(one("Clip", 7, X, min=0.0)).nodes] == [Unary("relu")]


def test_floats_beyond_an_integer_saturate() -> None:
    """ONNX leaves it open; it must at least be the same everywhere."""
    x = floats(-np.inf, -1e10, -129, -1.5, 0, 1.5, 127.9, 1e10, np.inf, np.nan)
    graph_ = imported(one("Cast", 13, x, to=onnx.TensorProto.INT8))
    (y,) = evaluate(graph_, [x]).outputs
    np.testing.assert_array_equal(y, [-128, -128, -128, -1, 0, 1, 127, 127, 127, 0])


TRAINING = one("BatchNormalization", 15, IMAGE, SIX, SIX, SIX, SIX, training_mode=1)
FLOAT8 = one("Cast", 19, X, to=onnx.TensorProto.FLOAT8E4M3FN)
REFUSED: dict[str, tuple[onnx.ModelProto, type[SmeltError], str]] = {
    "training": (TRAINING, UnsupportedError, "export the network for inference"),
    "float8": (FLOAT8, UnsupportedError, "float8e4m3fn"),
    "string": (one("Cast", 13, X, to=onnx.TensorProto.STRING), UnsupportedError, "string"),
    "too few channels": (
        one("BatchNormalization", 15, IMAGE, SIX[:5], SIX, SIX, SIX),
        ModelError,
        "for 6 channels",
    ),
    "groups": (
        one("GroupNormalization", 21, IMAGE, SIX, SIX, num_groups=4),
        ModelError,
        "into 4 groups",
    ),
    "axis": (one("Softmax", 13, X, axis=3), ModelError, "axis 3"),
    "limit": (one("Clip", 13, X, floats(1, 2)), ModelError, "not one number"),
    "broadcast": (one("Add", 13, X, SIX), ModelError, "cannot broadcast"),
    "negative variance": (
        one("BatchNormalization", 15, IMAGE, SIX, SIX, SIX, -SIX),
        ModelError,
        "not positive",
    ),
    "norm": (one("LpNormalization", 13, X, p=3), ModelError, "order 3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    proto, error, reason = REFUSED[name]
    with pytest.raises(error, match=reason):
        imported(proto)
