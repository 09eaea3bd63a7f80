"""UNIDIRECTIONAL_SEQUENCE_LSTM, against results of TensorFlow Lite Micro and LiteRT's kernels.

Float results are compared with LiteRT. For int8, the oracle is TensorFlow Lite Micro, whose results
are stored here as CRC-32. LiteRT's int8 results differ by a few steps of the output's scale: it
computes gates by fixed-point functions instead of tables of samples, rounds the products of the
cell state once instead of twice, and saturates only the sum of a gate's two products.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.tflite.importer import load
from smelt.ir import Array, Graph, evaluate
from tests.support.graphs import SETUPS, Member, assert_same, run_together
from tests.support.tflite_networks import O, T, const, edited, network

_GATES = ("input", "forget", "cell", "output")


@dataclass(frozen=True)
class Layer:
    """A network of one LSTM: its sizes, and its quantization if it is int8.

    Attributes:
        sizes: steps, batch, inputs, units.
        time_major: whether steps come before the batch in the input's shape.
        clip: largest absolute cell state; 0 for none.
        power: binary logarithm of the cell state's scale.
        input: scale and zero point of the input.
        hidden: scale and zero point of the hidden state and the output.
        spread: largest real weight.
        crc: CRC-32 of TensorFlow Lite Micro's outputs for three consecutive int8 inputs.
    """

    sizes: tuple[int, int, int, int]
    time_major: bool = False
    clip: float = 0.0
    power: int = -12
    input: tuple[float, int] = (1 / 64, -9)
    hidden: tuple[float, int] = (1 / 128, 0)
    spread: float = 0.6
    crc: int = 0

    @property
    def shape(self) -> tuple[int, int, int]:
        steps, batch, depth, _ = self.sizes
        return (steps, batch, depth) if self.time_major else (batch, steps, depth)

    def file(self, dtype: type) -> bytes:
        """Return the TFLite file, float32 or int8."""
        _, batch, depth, units = self.sizes
        rng = np.random.default_rng(7)
        integer = dtype is np.int8
        tensors: list[T] = [_data("x", self.shape, dtype, self.input)]
        operands: list[str | None] = ["x"]

        def weights(name: str, shape: tuple[int, ...]) -> float:
            spread = self.spread * float(rng.uniform(0.5, 1.0))
            real = rng.uniform(-spread, spread, shape).astype(np.float32)
            scale = float(np.float32(spread / 127))
            stored = np.rint(real / scale).astype(np.int8)
            tensors.append(
                const(name, stored, np.int8, scale=(scale,)) if integer else const(name, real)
            )
            operands.append(name)
            return scale

        scales = [weights(f"{gate}_weights", (units, depth)) for gate in _GATES]
        for gate in _GATES:
            weights(f"{gate}_recurrent", (units, units))
        operands += [None] * 3
        for gate, scale in zip(_GATES, scales, strict=True):
            real = rng.uniform(-0.5, 0.5, units)
            unit = float(np.float32(scale * self.input[0]))
            stored = const(f"{gate}_bias", np.rint(real / unit), np.int32, scale=(unit,))
            tensors.append(stored if integer else const(f"{gate}_bias", real))
            operands.append(f"{gate}_bias")
        cell = np.int16 if integer else np.float32
        tensors += [
            _data("hidden", (batch, units), dtype, self.hidden),
            _data("cell", (batch, units), cell, (2.0**self.power, 0)),
            _data("y", (*self.shape[:2], units), dtype, self.hidden),
        ]
        operands += [None, None, "hidden", "cell", *[None] * 4]
        fields = {"fusedActivationFunction": 4, "cellClip": self.clip, "timeMajor": self.time_major}
        operator = O(
            "UNIDIRECTIONAL_SEQUENCE_LSTM",
            operands,
            ["y"],
            schema.UnidirectionalSequenceLSTMOptionsT,
            fields,
        )
        return edited(network(tensors, [operator], ["x"], ["y"]), self._finish)

    def _finish(self, model: Any) -> None:
        """Make the states variables, and add the intermediate tensors that LiteRT needs.

        LiteRT reads from the last one the scale of the product before the output.
        """
        (graph,) = model.subgraphs
        first = len(graph.tensors)
        for index in range(5):
            scale, zero_point = self.hidden if index == 4 else (2.0**-12, 0)
            quant = schema.QuantizationParametersT(scale=[scale], zeroPoint=[zero_point])
            kind = schema.TensorType.INT8 if index == 4 else schema.TensorType.INT16
            name = f"intermediate_{index}"
            graph.tensors.append(
                schema.TensorT(shape=[0], name=name, type=kind, quantization=quant)
            )
        graph.operators[0].intermediates = list(range(first, first + 5))
        for tensor in graph.tensors:
            if tensor.name in (b"hidden", b"cell"):
                tensor.isVariable = True

    def inputs(self, dtype: type, count: int = 3) -> list[Array]:
        rng = np.random.default_rng(3)
        if dtype is np.int8:
            return [rng.integers(-128, 128, self.shape, np.int8) for _ in range(count)]
        return [rng.uniform(-2, 2, self.shape).astype(np.float32) for _ in range(count)]


def _data(name: str, shape: tuple[int, ...], dtype: type, quant: tuple[float, int]) -> T:
    if dtype is np.float32:
        return T(name, shape)
    return T(name, shape, dtype, scale=quant[:1], zero_point=quant[1:])


LAYERS = {
    "plain": Layer((6, 1, 5, 7), crc=0x21375EC1),
    "batch": Layer((5, 3, 4, 6), power=-11, crc=0x128C3BD3),
    "time_major": Layer((4, 2, 6, 5), time_major=True, hidden=(0.009, -11), crc=0x541F7A67),
    "clipped": Layer((9, 1, 8, 4), clip=0.7, power=-13, spread=1.5, crc=0xFE4F0396),
    "clip_of_keras": Layer((6, 1, 5, 4), clip=10.0, power=-12, crc=0xB329C2A6),
    "saturated_gates": Layer(
        (6, 1, 40, 5), spread=6.0, power=-15, hidden=(0.0078, 3), crc=0x73DE5DF8
    ),
    "small_cell": Layer((5, 1, 3, 3), power=-17, crc=0xBF4CE096),
    "large_cell": Layer((20, 1, 12, 6), power=-9, spread=2.0, crc=0x5ED968B7),
    "one_step": Layer((1, 1, 16, 16), power=-11, hidden=(0.004, 90), crc=0x3118972F),
}


def _consecutive_outputs(graph: Graph, inputs: list[Array]) -> list[Array]:
    """Return the outputs of consecutive inferences; each continues from the states before it."""
    states, outputs = None, list[Array]()
    for x in inputs:
        evaluation = evaluate(graph, [x], states)
        states = evaluation.states
        outputs.append(evaluation.outputs[0])
    return outputs


def litert_in_a_row(data: bytes, inputs: list[Array]) -> list[Array]:
    interpreter: Any = Interpreter(
        model_content=data, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    outputs: list[Array] = []
    for x in inputs:
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
        interpreter.invoke()
        outputs.append(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).copy())
    return outputs


@pytest.mark.parametrize("name", LAYERS)
def test_float_results_agree_with_litert(name: str) -> None:
    layer = LAYERS[name]
    data, inputs = layer.file(np.float32), layer.inputs(np.float32)
    found = _consecutive_outputs(load(data, name).graph, inputs)
    for ours, theirs in zip(found, litert_in_a_row(data, inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_int8_results_equal_tflite_micro(name: str) -> None:
    layer = LAYERS[name]
    found = _consecutive_outputs(load(layer.file(np.int8), name).graph, layer.inputs(np.int8))
    assert zlib.crc32(np.stack(found).tobytes()) == layer.crc


@pytest.mark.parametrize("name", sorted(LAYERS.keys() - {"small_cell"}))
def test_int8_results_differ_from_litert_by_at_most_one(name: str) -> None:
    layer = LAYERS[name]
    data, inputs = layer.file(np.int8), layer.inputs(np.int8)
    found = np.stack(_consecutive_outputs(load(data, name).graph, inputs)).astype(np.int64)
    difference = np.abs(found - np.stack(litert_in_a_row(data, inputs)))
    assert difference.max() <= 1


@pytest.mark.parametrize("dtype", [np.int8, np.float32])
def test_generated_code_continues_from_its_states(dtype: type) -> None:
    layer = LAYERS["batch"]
    graph, inputs = load(layer.file(dtype), "batch").graph, layer.inputs(dtype)
    expected = [(y,) for y in _consecutive_outputs(graph, inputs)]
    (found,) = run_together([Member(graph, [(x,) for x in inputs])], SETUPS["host"])
    assert_same(found, expected, "batch")


def test_states_give_a_note() -> None:
    (note,) = load(LAYERS["plain"].file(np.int8), "net").notes
    assert "2 states" in note


def _set_operand(index: int, name: str) -> Callable[[Any], None]:
    """Return a change that makes the named tensor operand `index`; `name` is empty for none."""

    def change(model: Any) -> None:
        graph = model.subgraphs[0]
        names = [tensor.name for tensor in graph.tensors]
        graph.operators[0].inputs[index] = -1 if not name else names.index(name.encode())

    return change


def _set_option(**fields: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for name, value in fields.items():
            setattr(model.subgraphs[0].operators[0].builtinOptions, name, value)

    return change


def _set_tensor(tensor: str, **fields: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        (found,) = (t for t in model.subgraphs[0].tensors if t.name == tensor.encode())
        for name, value in fields.items():
            setattr(found, name, value)

    return change


Q = schema.QuantizationParametersT
REFUSED: dict[str, tuple[Callable[[Any], None], type[Exception], Sequence[str]]] = {
    "peepholes": (_set_operand(9, "input_bias"), UnsupportedError, ["peepholes"]),
    "projection": (_set_operand(16, "input_recurrent"), UnsupportedError, ["projection"]),
    "normalization": (_set_operand(21, "input_bias"), UnsupportedError, ["layer normalization"]),
    "coupled": (_set_operand(1, ""), UnsupportedError, ["no input gate"]),
    "no bias": (_set_operand(14, ""), ModelError, ["bias"]),
    "activation": (_set_option(fusedActivationFunction=1), UnsupportedError, ["tanh"]),
    "negative clip": (_set_option(cellClip=-1.0), ModelError, ["-1"]),
    "plain state": (_set_operand(19, "input_bias"), UnsupportedError, ["'input_bias'", "variable"]),
    "one state": (_set_operand(19, "hidden"), UnsupportedError, ["'hidden'", "several"]),
    "state's size": (_set_tensor("cell", shape=[1, 9]), ModelError, ["[1, 7]"]),
    "cell's scale": (
        _set_tensor("cell", quantization=Q(scale=[0.001], zeroPoint=[0])),
        UnsupportedError,
        ["power of two"],
    ),
    "cell's type": (_set_tensor("cell", type=schema.TensorType.INT8), ModelError, ["i16"]),
    "output's scale": (
        _set_tensor("y", quantization=Q(scale=[0.01], zeroPoint=[0])),
        ModelError,
        ["same state"],
    ),
    "weights": (
        _set_tensor("cell_weights", quantization=Q(scale=[0.1] * 7, zeroPoint=[0] * 7)),
        UnsupportedError,
        ["per tensor"],
    ),
    "zero point": (
        _set_tensor("cell_weights", quantization=Q(scale=[0.1], zeroPoint=[3])),
        ModelError,
        ["zero points 0"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_and_wrong_lstms_are_refused(name: str) -> None:
    change, error, words = REFUSED[name]
    data = edited(LAYERS["plain"].file(np.int8), change)
    with pytest.raises(error) as caught:
        load(data, "net")
    for word in words:
        assert word in str(caught.value), str(caught.value)
