"""Files of the AI Edge Quantizer, which stores codes of added operators in the newer field only."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np
import pytest

from smelt.api.compile import compile_model
from smelt.codegen.passes import run_passes
from smelt.errors import UnsupportedError
from smelt.frontend import load
from smelt.ir import Array, DType, TensorType, evaluate
from smelt.proof.run import run
from smelt.samples import Sample
from tests.support.tflite_networks import DIGITS, dequantized_weights, edited, litert

REASON = "quantized files are made by the package ai-edge-quantizer (extra `test`)"
quantizer: Any = pytest.importorskip("ai_edge_quantizer.quantizer", reason=REASON)
recipe: Any = pytest.importorskip("ai_edge_quantizer.recipe", reason=REASON)

pytestmark = pytest.mark.filterwarnings("ignore:.*experimental_preserve_all_tensors")

KEPT_FLOAT = [
    {"regex": ".*", "operation": end, "algorithm_key": "no_quantize", "op_config": {}}
    for end in ("INPUT", "OUTPUT")
]
"""Rules that keep inputs and outputs float32, so that the tool adds QUANTIZE and DEQUANTIZE."""


@cache
def _digits() -> Array:
    with np.load(DIGITS / "digits_test.npz") as arrays:
        return arrays["images"].astype(np.float32).reshape(-1, 1, 8, 8, 1)


def _add_signature(model: Any) -> None:
    """Add the signature through which the tool runs the network for calibration."""
    graph = model.subgraphs[0]
    model.signatureDefs = [
        schema.SignatureDefT(
            inputs=[schema.TensorMapT("x", graph.inputs[0])],
            outputs=[schema.TensorMapT("y", graph.outputs[0])],
            signatureKey="serving_default",
        )
    ]


@cache
def quantized(name: str, *, float_ends: bool = False, only: str = "*") -> bytes:
    """Return the digits example, quantized by one of the tool's recipes.

    Args:
        name: of the recipe.
        float_ends: inputs and outputs stay float32.
        only: the only kind of operator that is quantized; all others stay float32.
    """
    (rule,) = getattr(recipe, name)()
    rules = [rule | {"operation": only}, *(KEPT_FLOAT if float_ends else ())]
    tool = quantizer.Quantizer(
        edited((DIGITS / "digits_float32.tflite").read_bytes(), _add_signature), rules
    )
    ranges = None
    if tool.need_calibration:
        samples = [{"x": image} for image in _digits()[:16]]
        ranges = tool.calibrate({"serving_default": samples}, num_threads=1)
    return bytes(tool.quantize(ranges, enable_progress_report=False).quantized_model)


def _samples(images: Array, type_: TensorType) -> list[Sample]:
    if type_.dtype is DType.FLOAT32:
        return [(image,) for image in images]
    assert type_.quant is not None
    (scale,), (zero_point,) = type_.quant.scale, type_.quant.zero_point
    stored = np.clip(np.round(images / scale) + zero_point, *type_.dtype.limits)
    return [(image,) for image in stored.astype(type_.dtype.numpy)]


@pytest.mark.quick(every=2)
@pytest.mark.parametrize("float_ends", [False, True])
def test_static_int8_equals_litert(float_ends: bool, tmp_path: Path) -> None:
    path = tmp_path / "digits.tflite"
    path.write_bytes(quantized("static_wi8_ai8", float_ends=float_ends))
    graph = load(path).graph
    samples = _samples(_digits()[16:32], graph.inputs[0].type)
    expected = [litert(path.read_bytes(), *sample)[0] for sample in samples]
    assert expected[0].dtype == (np.float32 if float_ends else np.int8)
    found = [evaluate(run_passes(graph), sample).outputs[0] for sample in samples]
    np.testing.assert_array_equal(found, expected)
    outputs = [output[0] for output in run(compile_model(path), samples).outputs]
    np.testing.assert_array_equal(outputs, expected)


@pytest.mark.parametrize(
    "kind", ["CONV_2D", "DEPTHWISE_CONV_2D", "ADD", "FULLY_CONNECTED", "SOFTMAX"]
)
def test_networks_with_one_quantized_kind_agree_with_litert(kind: str) -> None:
    """Tensors are quantized and dequantized in the middle of the network."""
    data = quantized("static_wi8_ai8", only=kind)
    graph = run_passes(load(data).graph)
    for image in _digits()[16:32]:
        found, expected = evaluate(graph, [image]).outputs[0], litert(data, image)[0]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.ptp(expected))


@pytest.mark.parametrize(
    "name", ["weight_only_wi8_afp32", "dynamic_wi8_afp32", "dynamic_legacy_wi8_afp32"]
)
def test_int8_weights_with_float_activations_are_dequantized(name: str) -> None:
    data = quantized(name)
    graph = run_passes(load(data).graph)
    # LiteRT's hybrid kernels quantize activations by their range; Smelt does not.
    oracle = data if name.startswith("weight_only") else dequantized_weights(data)
    for image in _digits()[16:24]:
        found, expected = evaluate(graph, [image]).outputs[0], litert(oracle, image)[0]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.ptp(expected))


@pytest.mark.parametrize(
    ("name", "fragments"),
    [
        ("dynamic_wi4_afp32", ["int4", "quantize the weights to int8 instead"]),
        ("weight_only_wi4_afp32", ["int4", "quantize the weights to int8 instead"]),
        ("dynamic_wi2c_afp32", ["int2", "quantize the weights to int8 instead"]),
        ("static_wi8_ai16", ["CONV_2D #0", "int16", "float32, int8", "convert the network"]),
    ],
)
def test_unsupported_recipes_are_refused_with_a_remedy(name: str, fragments: list[str]) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        load(quantized(name))
    for fragment in fragments:
        assert fragment in str(refusal.value)
