"""Small ONNX models made in Python."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from bench.onnx_models import OPSET, DeclaredShape, graph, model, node, session, tensor_info
from smelt.codegen.passes import run_passes
from smelt.frontend import Imported, InputOptions, load
from smelt.ir import Array, Graph, evaluate
from tests.support.graphs import assert_same

__all__ = [
    "OPSET",
    "DeclaredShape",
    "agrees",
    "before_and_after_passes",
    "graph",
    "imported",
    "ints",
    "model",
    "node",
    "session",
    "tensor_info",
    "uniform",
]


def agrees(
    proto: onnx.ModelProto, feeds: Mapping[str, Array], options: InputOptions | None = None
) -> None:
    """Assert that the imported graph equals ONNX Runtime, before the passes and after them."""
    expected = tuple(np.asarray(y) for y in session(proto).run(None, dict(feeds)))
    found = load(proto.SerializeToString(), "net", options).graph
    inputs = [feeds[value.name] for value in found.inputs]
    for stage, network in (("found", found), ("after the passes", run_passes(found))):
        found = evaluate(network, inputs).outputs
        assert_same([found], [expected], f"{proto.graph.name}, {stage}")


def imported(proto: onnx.ModelProto, inputs: InputOptions | None = None) -> Imported:
    """Return a compiled network of a model."""
    return load(proto.SerializeToString(), "net", inputs)


def before_and_after_passes(proto: onnx.ModelProto) -> tuple[Graph, Graph]:
    """Return the graph of a model as imported, and after the passes."""
    found = imported(proto).graph
    return found, run_passes(found)


def ints(*values: int) -> Array:
    """Return a vector of int64."""
    return np.asarray(values, np.int64)


def uniform(*shape: int) -> Array:
    """Return random real numbers from -1 to 1."""
    return _RNG.uniform(-1, 1, shape).astype(np.float32)


_RNG = np.random.default_rng(11)
