"""Every network runs clean under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from smelt.api.compile import compile_model
from smelt.frontend import load
from smelt.ir import DType, Graph, Node, Origin, TensorType, Value, evaluate
from smelt.ops.tensor.concat import Concat
from smelt.samples import random_samples
from tests.support.golden_networks import INTEGER
from tests.support.graphs import assert_same, combine, compile_graph
from tests.support.projects import VECTOR, digits
from tests.support.sanitized import run_sanitized
from tests.support.shared import Network, networks


@pytest.mark.quick(network=("mlperf_tiny/kws_int8", "tflm/hello_world_float32"))
@networks("mlperf_tiny/*", "tflm/*")
def test_networks_are_clean_under_sanitizers(network: Network, tmp_path: Path) -> None:
    artifact = compile_model(network.model)
    golden = network.golden
    kinds = [str(kind) for kind in golden["kind"]]
    chosen = [kinds.index("random"), kinds.index("extreme")]
    samples = [(golden["input_0"][i],) for i in chosen]
    outputs = run_sanitized(artifact, samples, tmp_path / "project")
    assert_same(outputs, [evaluate(artifact.graph, s).outputs for s in samples], str(network))


def test_operators_are_clean_under_sanitizers(tmp_path: Path) -> None:
    tested = [Network(*name.split("/")) for name in INTEGER if name.startswith("ops/")]
    graphs = [load(network.model).graph for network in tested]
    artifact = compile_graph(combine("all", graphs))
    samples = random_samples(artifact.graph, 2, seed=5)
    outputs = run_sanitized(artifact, samples, tmp_path / "project")
    assert_same(outputs, [evaluate(artifact.graph, s).outputs for s in samples], "ops")


@pytest.mark.quick(model=("digits_int8",))
@pytest.mark.parametrize("model", ["digits_int8", "digits_float32", "digits_f16", "digits_drq"])
def test_digits_are_clean_under_sanitizers(model: str, tmp_path: Path) -> None:
    artifact = digits(model=model)
    samples = random_samples(artifact.graph, 3, seed=5)
    outputs = run_sanitized(artifact, samples, tmp_path / "project")
    assert_same(outputs, [evaluate(artifact.graph, s).outputs for s in samples], model)


def test_concat_of_a_value_with_itself_is_clean(tmp_path: Path) -> None:
    """The generated function gets the same argument twice."""
    x, y = Value("x", VECTOR), Value("y", TensorType((8,), DType.FLOAT32))
    graph = Graph("twice", (x,), (y,), (Node(Concat(0), (x, x), (y,), Origin("CONCAT", 0)),))
    samples = random_samples(graph, 1, 0)
    outputs = run_sanitized(compile_graph(graph), samples, tmp_path / "project")
    assert_same(outputs, [evaluate(graph, s).outputs for s in samples], "twice")
