"""Every network runs clean under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from smelt.api.artefact import Artefact
from smelt.api.compile import compile_model
from smelt.boards import compile_project, open_device
from smelt.frontend import load
from smelt.ir import DType, Graph, Node, Origin, TensorType, Value, evaluate
from smelt.ops.tensor.concat import Concat
from smelt.samples import Sample, random_samples
from tests.networks.test_golden_reference import INTEGER
from tests.support.graphs import Outputs, assert_same, combine, compile_graph
from tests.support.projects import SANITIZERS, VECTOR, digits
from tests.support.shared import Network, networks


def run_sanitized(artefact: Artefact, samples: Sequence[Sample], folder: Path) -> Outputs:
    """Outputs of a host build under AddressSanitizer and UndefinedBehaviorSanitizer."""
    artefact.write(folder)
    elf = compile_project(
        folder, artefact.platform, extra_cflags=SANITIZERS, extra_ldflags=SANITIZERS
    )
    outputs: Outputs = []
    with open_device(elf.path, "host") as device:
        for sample in samples:
            answers, _ = device.run([array.tobytes() for array in sample])
            values = artefact.graph.outputs
            outputs.append(
                tuple(
                    np.frombuffer(data, v.type.dtype.numpy).reshape(v.type.shape)
                    for data, v in zip(answers, values, strict=True)
                )
            )
    return outputs


@pytest.mark.quick(network=("mlperf_tiny/kws_int8", "tflm/hello_world_float32"))
@networks("mlperf_tiny/*", "tflm/*")
def test_networks_are_clean_under_sanitizers(network: Network, tmp_path: Path) -> None:
    artefact = compile_model(network.model)
    golden = network.golden
    kinds = [str(kind) for kind in golden["kind"]]
    chosen = [kinds.index("random"), kinds.index("extreme")]
    samples = [(golden["input_0"][i],) for i in chosen]
    outputs = run_sanitized(artefact, samples, tmp_path / "project")
    assert_same(outputs, [evaluate(artefact.graph, s).outputs for s in samples], str(network))


def test_operators_are_clean_under_sanitizers(tmp_path: Path) -> None:
    tested = [Network(*name.split("/")) for name in INTEGER if name.startswith("ops/")]
    graphs = [load(network.model).graph for network in tested]
    artefact = compile_graph(combine("all", graphs))
    samples = random_samples(artefact.graph, 2, seed=5)
    outputs = run_sanitized(artefact, samples, tmp_path / "project")
    assert_same(outputs, [evaluate(artefact.graph, s).outputs for s in samples], "ops")


@pytest.mark.quick(model=("digits_int8",))
@pytest.mark.parametrize("model", ["digits_int8", "digits_float32", "digits_f16", "digits_drq"])
def test_digits_are_clean_under_sanitizers(model: str, tmp_path: Path) -> None:
    artefact = digits(model=model)
    samples = random_samples(artefact.graph, 3, seed=5)
    outputs = run_sanitized(artefact, samples, tmp_path / "project")
    assert_same(outputs, [evaluate(artefact.graph, s).outputs for s in samples], model)


def test_concat_of_one_value_twice(tmp_path: Path) -> None:
    """An operand that occurs twice is one argument twice."""
    x, y = Value("x", VECTOR), Value("y", TensorType((8,), DType.FLOAT32))
    graph = Graph("twice", (x,), (y,), (Node(Concat(0), (x, x), (y,), Origin("CONCAT", 0)),))
    samples = random_samples(graph, 1, 0)
    outputs = run_sanitized(compile_graph(graph), samples, tmp_path / "project")
    assert_same(outputs, [evaluate(graph, s).outputs for s in samples], "twice")
