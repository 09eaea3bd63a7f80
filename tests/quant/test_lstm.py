"""Tests of LSTMs quantized by TensorFlow Lite's rules, compared with onnxruntime and LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from smelt.codegen.passes import run_passes
from smelt.errors import UnsupportedError
from smelt.frontend import load
from smelt.frontend.tflite.importer import load as load_tflite
from smelt.ir import Array, DType, Graph, evaluate
from smelt.ops.sequence.lstm import Lstm
from smelt.quant.float_network import FloatNetwork
from smelt.quant.qdq import export
from smelt.quant.quantizer import quantize
from smelt.quant.recipe import RECIPES
from smelt.quant.result import sqnr
from smelt.quant.rewrites.sequence import prepare
from smelt.samples import Sample, dequantize
from tests.frontend.tflite.test_lstm import LAYERS, litert_in_a_row
from tests.support.graphs import SETUPS, Member, assert_same, run_together
from tests.support.onnx_networks import graph as onnx_graph
from tests.support.onnx_networks import ints, model, node, session
from tests.support.quant_networks import stored_samples

_STEPS, _BATCH, _INPUTS, _UNITS = 8, 2, 6, 12
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _model(
    direction: str = "forward", outputs: str = "Y", kind: str = "LSTM", **attributes: Any
) -> onnx.ModelProto:
    """Return a dense layer and a recurrent layer whose results `outputs` are concatenated."""
    rng = np.random.default_rng(5)
    ways = 2 if direction == "bidirectional" else 1
    wide = _GATES[kind] * _UNITS

    def normal(*shape: int, scale: float) -> Array:
        return (scale * rng.normal(size=shape)).astype(np.float32)

    constants = {
        "A": normal(_INPUTS, _INPUTS, scale=0.5),
        "W": normal(ways, wide, _INPUTS, scale=0.5),
        "R": normal(ways, wide, _UNITS, scale=0.35),
        "B": normal(ways, 2 * wide, scale=0.2),
        "P": normal(ways, 3 * _UNITS, scale=0.2),
        "size": ints(_BATCH, -1),
    }
    operands = "a W R B _ _ _ P" if attributes.pop("peepholes", False) else "a W R B"
    names = " ".join(name if name in outputs.split() else "_" for name in ("Y", "Y_h", "Y_c"))
    results = outputs.split()
    nodes = [node("MatMul", "x A", "a")]
    layer = node(kind, operands, "Y Y_h Y_c" if kind == "LSTM" else "Y Y_h")
    layer.output[:] = ["" if n == "_" else n for n in names.split()][: len(layer.output)]
    layer.attribute.extend(
        onnx.helper.make_attribute(key, value)
        for key, value in ({"hidden_size": _UNITS, "direction": direction} | attributes).items()
    )
    nodes.append(layer)
    for name in results:
        axes = [2, 0, 1, 3] if name == "Y" else [1, 0, 2]
        nodes.append(node("Transpose", name, f"{name}_t", perm=axes))
        nodes.append(node("Reshape", f"{name}_t size", f"{name}_flat"))
    joined = " ".join(f"{name}_flat" for name in results)
    nodes.append(node("Concat", joined, "y", axis=1))
    used = {name for each in nodes for name in each.input}
    kept = {name: array for name, array in constants.items() if name in used}
    return model(onnx_graph(nodes, {"x": (_STEPS, _BATCH, _INPUTS)}, "y", kept))


def _float(proto: onnx.ModelProto) -> Graph:
    return run_passes(load(proto.SerializeToString(), "net").graph)


def _samples(count: int, seed: int = 1) -> list[Sample]:
    rng = np.random.default_rng(seed)
    shape = (_STEPS, _BATCH, _INPUTS)
    return [(rng.normal(size=shape).astype(np.float32),) for _ in range(count)]


def _output_sqnr(graph: Graph, proto: onnx.ModelProto, samples: list[Sample]) -> float:
    """Return the SQNR in dB of the quantized output; onnxruntime computes the float output."""
    runtime, (y,) = session(proto), graph.outputs
    wanted = np.stack([runtime.run(None, {"x": x})[0] for (x,) in samples])
    stored = stored_samples(graph, samples)
    found = np.stack([dequantize(evaluate(graph, s).outputs[0], y.type) for s in stored])
    return sqnr(float(np.square(wanted).sum()), float(np.square(wanted - found).sum()))


@pytest.mark.quick(recipe=("default",), direction=("forward",))
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    ("direction", "outputs"),
    [("forward", "Y"), ("forward", "Y_h"), ("reverse", "Y Y_h Y_c"), ("bidirectional", "Y Y_h")],
)
def test_every_layer_is_integer(direction: str, outputs: str, recipe: str) -> None:
    proto = _model(direction, outputs)
    found = quantize(_float(proto), _samples(48), RECIPES[recipe], measure=recipe == "default")
    assert not found.exceptions
    layers = [node for node in found.graph.nodes if isinstance(node.op, Lstm)]
    assert len(layers) == 1 + (direction == "bidirectional")
    wide = {node.outputs[-1] for node in layers}
    for value in found.graph.values():
        kinds = {DType.INT32} if value.is_constant and "bias" in value.name else {DType.INT8}
        assert value.type.dtype in ({DType.INT16} if value in wide else kinds)
    assert {len(node.outputs) for node in layers} == {2 + ("Y" in outputs.split())}
    assert _output_sqnr(found.graph, proto, _samples(16, seed=2)) >= 31.0


def test_generated_code_equals_the_reference() -> None:
    graph = quantize(_float(_model("bidirectional", "Y Y_c")), _samples(16), measure=False).graph
    samples = stored_samples(graph, _samples(4, seed=3))
    (found,) = run_together([Member(graph, samples)], SETUPS["host"])
    assert_same(found, [evaluate(graph, sample).outputs for sample in samples], "lstm")


@pytest.mark.thorough
def test_the_exported_lstm_differs_by_a_few_steps() -> None:
    """ONNX's LSTM does not round its states between time steps."""
    original = _float(_model("bidirectional", "Y Y_h"))
    graph = quantize(original, _samples(48), measure=False).graph
    runtime, (y,) = session(onnx.load_from_string(export(graph, original))), graph.outputs
    for stored, (x,) in zip(stored_samples(graph, _samples(8)), _samples(8), strict=True):
        ours = dequantize(evaluate(graph, stored).outputs[0], y.type)
        (theirs,) = runtime.run(None, {runtime.get_inputs()[0].name: x})
        assert np.abs(ours - theirs).max() <= 4.01 * y.type.scale


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kind": "GRU", "outputs": "Y"}, "for the LSTM only"),
        ({"kind": "RNN", "outputs": "Y"}, "for the LSTM only"),
        ({"peepholes": True}, "has no peepholes"),
        ({"clip": 0.5}, "has no clip of its gates"),
        ({"input_forget": 1}, "has no coupled input gate"),
        ({"activations": ["Sigmoid", "Relu", "Tanh"]}, "has no activations sigmoid, relu, tanh"),
    ],
)
def test_layers_without_an_integer_form_need_float(options: dict[str, Any], reason: str) -> None:
    proto = _model(**options)
    with pytest.raises(UnsupportedError, match=reason):
        quantize(_float(proto), _samples(8), measure=False)
    found = quantize(_float(proto), _samples(48), allow=frozenset({"float"}), measure=False)
    assert [layer.op.split("(")[0] for layer in found.exceptions] == ["Recurrence"]
    assert _output_sqnr(found.graph, proto, _samples(16, seed=2)) >= 31.0


def test_an_lstm_in_float_is_the_original_recurrence() -> None:
    """The search for layers that should be float may choose an LSTM that has an integer form."""
    proto = _model()
    graph = prepare(_float(proto))
    network = FloatNetwork.observed(graph, _samples(16), 0)
    layers = frozenset(node for node in graph.nodes if isinstance(node.op, Lstm))
    made = network.in_float(layers).converted(_samples(16), RECIPES["fast"]).graph
    assert "Recurrence(lstm)" in [node.op.name for node in made.nodes]
    assert not any(isinstance(node.op, Lstm) for node in made.nodes)
    assert _output_sqnr(made, proto, _samples(16, seed=2)) >= 31.0


@pytest.mark.parametrize("name", ["batch", "clip_of_keras"])
def test_states_go_on_in_integers(name: str) -> None:
    """Compare a float TFLite network with its int8 form over several inferences."""
    layer = LAYERS[name]
    data = layer.file(np.float32)
    samples = [(x,) for x in layer.inputs(np.float32, 64)]
    graph = quantize(run_passes(load_tflite(data, name).graph), samples, measure=False).graph
    assert sorted(s.before.type.dtype.value for s in graph.states) == ["i16", "i8"]
    states, found = None, list[Array]()
    for stored in stored_samples(graph, samples[:8]):
        evaluation = evaluate(graph, stored, states)
        states = evaluation.states
        found.append(dequantize(evaluation.outputs[0], graph.outputs[0].type))
    wanted = np.stack(litert_in_a_row(data, [x for (x,) in samples[:8]]))
    noise = float(np.square(np.stack(found) - wanted).sum())
    assert sqnr(float(np.square(wanted).sum()), noise) >= 30.0
