"""The numpy reference of imported networks equals TFLite Micro and LiteRT."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.frontend import Imported, load
from smelt.ir import Array, DType, Node, Value, evaluate
from tests.support.golden_networks import DYNAMIC_RANGE, FLOAT, INTEGER, NOT_BY_TFLM
from tests.support.shared import Network, networks
from tests.support.tflite_networks import dequantized_weights, litert

TOLERANCE = 1e-5
"""Largest difference of a float output, as a fraction of the output's range."""


def _samples(golden: dict[str, Array], imported: Imported) -> list[list[Array]]:
    """Return the inputs of each sample, in the order of the graph's inputs."""
    inputs = [golden[f"input_{i}"] for i in range(len(imported.graph.inputs))]
    return [[array[sample] for array in inputs] for sample in range(len(inputs[0]))]


@networks(*INTEGER)
def test_integer_outputs_are_exact(network: Network) -> None:
    golden, imported = network.golden, load(network.model)
    engine = "litert_reference" if network.name in NOT_BY_TFLM else "tflm"
    for sample, inputs in enumerate(_samples(golden, imported)):
        outputs = evaluate(imported.graph, inputs).outputs
        for index, output in enumerate(outputs):
            np.testing.assert_array_equal(output, golden[f"{engine}_{index}"][sample])


@networks("mlperf_tiny/*_int8", "tflm/*_int8")
def test_integer_layers_are_exact(network: Network) -> None:
    """Compare layers up to the first FULLY_CONNECTED, which the two engines round differently."""
    golden, layers, imported = network.golden, network.layers, load(network.model)
    produced: dict[Value, Node] = {}
    for node in imported.graph.nodes:
        if node.origin.kind == "FULLY_CONNECTED":
            break
        produced[node.output] = node
    tensors = {i: v for i, v in imported.tensors.items() if v in produced}
    assert tensors or imported.graph.nodes[0].origin.kind == "FULLY_CONNECTED"
    for sample, inputs in enumerate(_samples(golden, imported)[:2]):
        values = evaluate(imported.graph, inputs).values
        for tensor, value in tensors.items():
            expected = layers[f"s{sample}_t{tensor}"]
            np.testing.assert_array_equal(values[value], expected, str(produced[value].origin))


@networks(*FLOAT)
def test_float_outputs_are_close(network: Network) -> None:
    golden, imported = network.golden, load(network.model)
    assert imported.notes == ()
    outputs = [evaluate(imported.graph, x).outputs[0] for x in _samples(golden, imported)]
    _assert_close(outputs, golden["litert_reference_0"])


@networks(DYNAMIC_RANGE)
def test_dynamic_range_outputs_are_close(network: Network) -> None:
    """As LiteRT would use hybrid kernels for the file, it executes a copy with float weights."""
    golden, imported = network.golden, load(network.model)
    assert "dynamic-range" in imported.notes[0]
    assert all(v.type.dtype is DType.FLOAT32 for n in imported.graph.nodes for v in n.outputs)
    data = dequantized_weights(network.model.read_bytes())
    samples = _samples(golden, imported)
    outputs = [evaluate(imported.graph, x).outputs[0] for x in samples]
    _assert_close(outputs, np.stack([litert(data, *x)[0] for x in samples]))


def _assert_close(outputs: Sequence[Array], expected: Array) -> None:
    difference = float(np.abs(np.stack(outputs) - expected).max())
    assert difference <= TOLERANCE * float(np.ptp(expected))
