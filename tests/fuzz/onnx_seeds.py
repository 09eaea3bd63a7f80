"""Valid ONNX files: small networks, and those of the ONNX backend suite."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.support.onnx_networks import graph, ints, model, node, tensor_info
from tests.support.shared import ROOT, SHARED

LARGEST = 60_000
"""Most bytes of a file."""


@cache
def seeds() -> Mapping[str, bytes]:
    """Return the networks below, and the example's."""
    found = {name: proto.SerializeToString() for name, proto in SMALL.items()}
    return found | {"digits": (ROOT / "examples/digits/digits.onnx").read_bytes()}


@cache
def more() -> Mapping[str, bytes]:
    """Return shared networks, and the cases of the ONNX backend suite, which take seconds."""
    from onnx.backend.test import loader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [c for kind in ("node", "simple") for c in loader.load_model_tests(kind=kind)]
    found = {case.name: case.model.SerializeToString() for case in cases if case.model is not None}
    paths = sorted(SHARED.glob("**/*.onnx"))
    found |= {path.name: path.read_bytes() for path in paths if path.stat().st_size < LARGEST}
    return {name: data for name, data in found.items() if len(data) < LARGEST}


def _weights(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(len(shape)).uniform(-1, 1, shape).astype(np.float32)


def _control_flow() -> onnx.ModelProto:
    """Return a network with a branch inside a loop."""
    branches: dict[str, Any] = {
        "then_branch": graph([node("Neg", "s", "a")], {}, "a"),
        "else_branch": graph([node("Add", "s x", "b")], {}, "b"),
    }
    body = graph(
        [node("If", "flag", "t", "", **branches), node("Identity", "going", "more")],
        [tensor_info("n", [], "l"), tensor_info("going", [], "b"), tensor_info("s", [1, 4])],
        [tensor_info("more", [], "b"), tensor_info("t", [1, 4])],
    )
    nodes = [node("Loop", "three _ x", "z", body=body), node("Softmax", "z", "y")]
    inputs = [tensor_info("x", [1, 4]), tensor_info("flag", [], "b")]
    return model(graph(nodes, inputs, "y", {"three": np.asarray(3)}))


def _recurrent() -> onnx.ModelProto:
    constants = {"w": _weights(2, 12, 3), "r": _weights(2, 12, 3), "b": _weights(2, 24)}
    nodes = [
        node("LSTM", "x w r b", "h _ c", hidden_size=3, direction="bidirectional"),
        node("Transpose", "h", "t", perm=[2, 0, 1, 3]),
        node("Reshape", "t flat", "f"),
        node("GRU", "f gw gr", "y", hidden_size=2, linear_before_reset=1),
    ]
    nodes[0].output[1] = ""
    constants |= {"flat": ints(1, 5, 6), "gw": _weights(1, 6, 6), "gr": _weights(1, 6, 2)}
    return model(graph(nodes, {"x": [5, 1, 3]}, "y c", constants))


def _resized() -> onnx.ModelProto:
    constants = {
        "k": _weights(4, 2, 3, 3),
        "sizes": ints(1, 4, 9, 7),
        "scales": np.asarray([1, 1, 2, 0.5], np.float32),
        "pads": ints(0, 0, 1, 1, 0, 0, 2, 0),
    }
    nodes = [
        node("Pad", "x pads", "p", mode="reflect"),
        node("Conv", "p k", "c", pads=[1, 1, 1, 1], strides=[2, 1]),
        node("Resize", "c _ _ sizes", "r", mode="linear"),
        node(
            "Resize", "r _ scales", "s", mode="cubic", coordinate_transformation_mode="asymmetric"
        ),
        node("AveragePool", "s", "y", kernel_shape=[3, 3], ceil_mode=1),
    ]
    return model(graph(nodes, {"x": [1, 2, 6, 5]}, "y", constants))


def _framed() -> onnx.ModelProto:
    """Return a network with sizes in constants: frames, a window, repetitions, padding."""
    constants = {
        "step": np.asarray(2),
        "length": np.asarray(4),
        "repeats": ints(1, 2, 1),
        "pads": ints(0, 3, 0, 0, 1, 0),
        "axes": ints(2, 3),
    }
    nodes = [
        node("Tile", "x repeats", "t"),
        node("Pad", "t pads", "p", mode="edge"),
        node("HannWindow", "length", "h"),
        node("Mul", "w h", "v"),
        node("STFT", "p step v length", "s"),
        node("ReduceSum", "s axes", "y"),
    ]
    inputs = {"x": [1, 8, 1], "w": [4]}
    return model(graph(nodes, inputs, "y", constants))


def _quantized() -> onnx.ModelProto:
    weights = np.arange(-18, 18, dtype=np.int8).reshape(2, 2, 3, 3)
    constants: dict[str, np.ndarray[Any, Any]] = {
        "w": weights,
        "xs": np.asarray(0.02, np.float32),
        "xz": np.asarray(-3, np.int8),
        "ws": np.asarray([0.01, 0.03], np.float32),
        "wz": np.zeros(2, np.int8),
        "b": np.asarray([5, -7], np.int32),
        "m": _weights(2, 3),
    }
    nodes = [
        node("QuantizeLinear", "x xs xz", "q"),
        node("QLinearConv", "q xs xz w ws wz xs xz b", "c"),
        node("DequantizeLinear", "c xs xz", "d"),
        node("GlobalAveragePool", "d", "g"),
        node("Flatten", "g", "f"),
        node("MatMul", "f m", "y"),
    ]
    return model(graph(nodes, {"x": [1, 2, 5, 5]}, "y", constants))


def _functions() -> onnx.ModelProto:
    """Return a network with functions that call each other, and one for a standard operator."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    scaled = [node("LeakyRelu", "a", "t"), node("Mul", "t a", "b")]
    reference = scaled[0].attribute.add(name="alpha", ref_attr_name="slope")
    reference.type = onnx.AttributeProto.FLOAT
    calls = [node("Scaled", "a", "t", "own", slope=0.1), node("Scaled", "t", "b", "own", slope=0.2)]
    nodes = [node("Twice", "x", "t", "own"), node("MeanVarianceNormalization", "t", "u")]
    nodes += [node("Einsum", "u w", "y", equation="nchw,cd->nhwd")]
    proto = model(graph(nodes, {"x": [1, 3, 2, 2]}, "y", {"w": _weights(3, 2)}), own=1)
    proto.functions.extend(
        [
            helper.make_function("own", "Scaled", ["a"], ["b"], scaled, opsets, ["slope"]),
            helper.make_function("own", "Twice", ["a"], ["b"], calls, opsets),
        ]
    )
    return proto


SMALL: dict[str, onnx.ModelProto] = {
    "control flow": _control_flow(),
    "recurrent": _recurrent(),
    "resized": _resized(),
    "framed": _framed(),
    "quantized": _quantized(),
    "functions": _functions(),
}
