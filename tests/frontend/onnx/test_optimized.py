"""Networks written by onnxruntime's optimizer, and the operators that only it uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from bench.quantized_networks import (
    SCHEMES,
    Scheme,
    dense_network,
    image_network,
    quantize,
    samples,
)
from smelt.api.compile import compile_model
from smelt.codegen.passes import run_passes
from smelt.errors import ModelError, UnsupportedError
from smelt.frontend import load
from smelt.ir import Array, evaluate
from smelt.proof.run import run
from tests.support.graphs import assert_same
from tests.support.onnx_networks import agrees, graph, model, session, tensor_info
from tests.support.optimized_networks import (
    LEVELS,
    NETWORKS,
    feeds,
    operators,
    optimized,
    optimized_transformer,
)

MICROSOFT = "com.microsoft"
RNG = np.random.default_rng(11)
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A network of one operator.

    Attributes:
        kind: name of the operator.
        shapes: of its operands; None for an absent one.
        constants: indices of the operands that are constants.
        outputs: names of the outputs, separated by spaces; `_` for an absent one.
        domain: of the operator.
        attributes: of the operator.
    """

    kind: str
    shapes: Sequence[Shape | None]
    constants: Sequence[int] = ()
    outputs: str = "y"
    domain: str = MICROSOFT
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        return f"{self.kind} {self.shapes} {dict(self.attributes)}"

    def model(self) -> tuple[onnx.ModelProto, dict[str, Array]]:
        names = ["" if shape is None else f"x{i}" for i, shape in enumerate(self.shapes)]
        arrays = {
            f"x{i}": RNG.uniform(-1, 1, shape).astype(np.float32)
            for i, shape in enumerate(self.shapes)
            if shape is not None
        }
        results = ["" if name == "_" else name for name in self.outputs.split()]
        step = helper.make_node(self.kind, names, results, domain=self.domain, **self.attributes)
        constants = {f"x{i}": arrays.pop(f"x{i}") for i in self.constants}
        inputs = {name: array.shape for name, array in arrays.items()}
        outputs = [tensor_info(name, None) for name in results if name]
        return model(graph([step], inputs, outputs, constants), 17, com_microsoft=1), arrays


def case(
    kind: str,
    *shapes: Shape | None,
    constants: Sequence[int] = (),
    outputs: str = "y",
    **given: Any,
) -> Case:
    domain = given.pop("domain", MICROSOFT)
    return Case(kind, shapes, constants, outputs, domain, given)


def _named(parameters: Mapping[str, float]) -> dict[str, Any]:
    return {f"activation_{name}": value for name, value in parameters.items()}


ROWS, WIDTH = (2, 3, 8), (8,)
IMAGE, TAPS = (1, 4, 6, 5), (6, 4, 3, 3)
SUMMED = (1, 6, 4, 3)
FUSED_TO_CONV: list[tuple[str, dict[str, Any]]] = [
    ("Relu", {}),
    ("LeakyRelu", {"activation_params": [0.3]}),
    ("Clip", {"activation_params": [-0.25, 0.5]}),
    ("HardSigmoid", {"activation_params": [0.3, 0.4]}),
]
FUSED_TO_GEMM: list[tuple[int, int, str, dict[str, float]]] = [
    (0, 0, "Relu", {}),
    (0, 1, "LeakyRelu", {"alpha": 0.2}),
    (1, 0, "Elu", {"alpha": 0.7}),
    (1, 1, "HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
    (0, 0, "Selu", {"alpha": 1.5, "gamma": 1.1}),
    (0, 0, "ThresholdedRelu", {"alpha": 0.4}),
    (0, 0, "Sigmoid", {}),
    (0, 0, "Tanh", {}),
    (0, 0, "Softplus", {}),
    (0, 0, "Softsign", {}),
]
CASES = [
    case("Gelu", ROWS),
    case("BiasGelu", ROWS, WIDTH),
    case("BiasGelu", ROWS, WIDTH, constants=[1]),
    case("FastGelu", ROWS),
    case("FastGelu", ROWS, WIDTH, constants=[1]),
    case("QuickGelu", ROWS),
    case("QuickGelu", ROWS, alpha=0.6),
    case("LayerNormalization", ROWS, WIDTH, WIDTH, domain="", constants=[1, 2]),
    case("SimplifiedLayerNormalization", ROWS, WIDTH, domain="", constants=[1], axis=-1),
    case("SimplifiedLayerNormalization", ROWS, (3, 8), domain="", axis=1, epsilon=0.01),
    case("SimplifiedLayerNormalization", ROWS, WIDTH, domain="", outputs="y root", epsilon=0.1),
    case("SkipLayerNormalization", ROWS, ROWS, WIDTH, WIDTH, constants=[2, 3]),
    case("SkipLayerNormalization", ROWS, ROWS, WIDTH, epsilon=0.25),
    case("SkipLayerNormalization", ROWS, (1, 3, 8), WIDTH, WIDTH, WIDTH, constants=[2, 3, 4]),
    case("SkipLayerNormalization", ROWS, (3, 8), WIDTH, None, WIDTH),
    case("SkipLayerNormalization", (3, 8), (3, 8), WIDTH),
    case("SkipLayerNormalization", ROWS, ROWS, WIDTH, WIDTH, WIDTH, outputs="y _ _ sum"),
    case("SkipSimplifiedLayerNormalization", ROWS, ROWS, WIDTH, outputs="y _ _ sum"),
    case("SkipSimplifiedLayerNormalization", ROWS, ROWS, WIDTH, WIDTH, epsilon=0.1),
    case("FusedConv", IMAGE, TAPS, (6,), constants=[1, 2], activation="Relu"),
    case("FusedConv", IMAGE, TAPS, (6,), constants=[1, 2], activation="Tanh"),
    case("FusedConv", IMAGE, TAPS, None, constants=[1], activation="Sigmoid", strides=[2, 1]),
    *(
        case("FusedConv", IMAGE, TAPS, (6,), z, constants=[1, 2], activation=kind, **given)
        for z in (None, SUMMED)
        for kind, given in FUSED_TO_CONV
    ),
    *(
        case(
            "FusedGemm",
            *((8, 3) if a else (3, 8), (5, 8) if b else (8, 5), (5,)),
            constants=[1, 2],
            transA=a,
            transB=b,
            alpha=0.5,
            beta=2.0,
            activation=kind,
            **_named(given),
        )
        for a, b, kind, given in FUSED_TO_GEMM
    ),
    case("FusedMatMul", (3, 4), (4,), alpha=0.5),
    case("FusedMatMul", (4,), (2, 4, 3), alpha=0.5),
    case("FusedMatMul", (2, 3, 4, 5), (2, 3, 5, 6), transBatchA=0, alpha=2.0),
    case("FusedMatMul", (4, 2, 3, 5), (2, 3, 5, 6), transBatchA=1),
    case("FusedMatMul", (5, 2, 3, 4), (2, 3, 5, 6), transBatchA=1, transA=1),
    case("FusedMatMul", (2, 3, 4, 5), (5, 2, 3, 6), transBatchB=1),
    case("FusedMatMul", (2, 3, 4, 5), (6, 2, 3, 5), transBatchB=1, transB=1, alpha=-1.0),
    case("FusedMatMul", (5, 2, 4), (6, 2, 5), transBatchA=1, transA=1, transBatchB=1, transB=1),
]


@pytest.mark.parametrize("operator", CASES, ids=str)
def test_operators_of_the_optimizer_agree_with_onnxruntime(operator: Case) -> None:
    agrees(*operator.model())


def test_mean_and_deviation_of_skip_normalization_agree_with_numpy() -> None:
    """onnxruntime's CPU kernel does not compute these outputs."""
    operator = case("SkipLayerNormalization", ROWS, ROWS, WIDTH, outputs="y mean root")
    proto, given = operator.model()
    found = load(proto.SerializeToString(), "net").graph
    _, mean, root = evaluate(found, [given[value.name] for value in found.inputs]).outputs
    total = (given["x0"] + given["x1"]).astype(np.float64)
    np.testing.assert_allclose(mean, total.mean(-1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(root, 1 / total.std(-1, keepdims=True), 1e-5)


@pytest.mark.parametrize(
    ("operator", "error", "text"),
    [
        (
            case("FusedConv", IMAGE, TAPS, constants=[1], activation="Mish"),
            UnsupportedError,
            "activation 'Mish' is not supported; use one of Relu, Sigmoid",
        ),
        (
            case("FusedConv", IMAGE, TAPS, activation="Clip", activation_params=[1.0]),
            ModelError,
            "'Clip' has 2 parameters, but the file has 1",
        ),
        (
            case("BiasGelu", (1, 3, 8)),
            ModelError,
            "BiasGelu.* has no input 1",
        ),
        (
            case("SkipLayerNormalization", (1, 3, 8), (2, 3, 8), WIDTH),
            ModelError,
            r"'x1' of f32\[2,3,8\] cannot be broadcast to f32\[1,3,8\]",
        ),
    ],
    ids=str,
)
def test_wrong_operators_are_refused(operator: Case, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        load(operator.model()[0].SerializeToString(), "net")


# Whole networks

EXPECTED = {
    "encoder": {"Gelu", "SkipLayerNormalization", "FusedMatMul"},
    "encoder_masked": {"Gelu", "SkipLayerNormalization", "FusedMatMul"},
    "encoder_parts": {"FastGelu", "SkipLayerNormalization", "FusedMatMul"},
    "encoder_quick": {"QuickGelu", "SkipLayerNormalization", "FusedMatMul"},
    "rms_block": set[str](),
    "quick_gelu": {"QuickGelu"},
    "products": {"FusedMatMul"},
    "dense_relu": {"FusedGemm"},
    "convolutions": {"FusedConv"},
}
"""Operators that onnxruntime 1.32 writes at level extended: without them, nothing is tested."""


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("level", ["basic", "extended"])
def test_optimized_networks_agree_with_onnxruntime(name: str, level: str, tmp_path: Path) -> None:
    proto = optimized(NETWORKS[name](), level, tmp_path)
    if level == "extended":
        own = {kind.removeprefix(f"{MICROSOFT}::") for kind in operators(proto) if "::" in kind}
        assert own >= EXPECTED[name], sorted(own)
    agrees(proto, feeds(proto))


@pytest.mark.quick(every=2)
@pytest.mark.parametrize("name", ["encoder_masked", "convolutions"])
def test_generated_code_of_optimized_networks_agrees_with_onnxruntime(
    name: str, tmp_path: Path
) -> None:
    proto = optimized(NETWORKS[name](), "extended", tmp_path)
    given = feeds(proto)
    expected = tuple(session(proto).run(None, given))
    artifact = compile_model(proto.SerializeToString())
    sample = tuple(given[value.name] for value in load(proto.SerializeToString(), "n").graph.inputs)
    assert_same(list(run(artifact, [sample]).outputs), [expected], name)


def test_cpu_specific_tensor_layouts_are_refused_with_a_remedy() -> None:
    step = helper.make_node("ReorderInput", ["x"], ["y"], domain="com.microsoft.nchwc")
    proto = model(graph([step], {"x": [1, 8, 4, 4]}, "y"), 17, com_microsoft_nchwc=1)
    with pytest.raises(UnsupportedError, match=r"ReorderInput.*ORT_ENABLE_EXTENDED"):
        load(proto.SerializeToString(), "net")


# Quantized networks


def _assert_close_to_onnxruntime(proto: onnx.ModelProto, given: Mapping[str, Array]) -> None:
    """Assert that outputs differ from onnxruntime's by at most 1e-5 of their range."""
    found = load(proto.SerializeToString(), "net").graph
    inputs = [given[value.name] for value in found.inputs]
    for network in (found, run_passes(found)):
        for y, expected in zip(
            evaluate(network, inputs).outputs, session(proto).run(None, dict(given)), strict=True
        ):
            np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.ptp(expected))


QUANTIZED = [
    pytest.param(scheme, marks=() if index % 5 == 0 else pytest.mark.slow, id=str(scheme))
    for index, scheme in enumerate(SCHEMES)
]


@pytest.mark.parametrize("scheme", QUANTIZED)
@pytest.mark.parametrize("level", LEVELS)
def test_optimized_quantized_networks_agree_with_onnxruntime(
    scheme: Scheme, level: str, tmp_path: Path
) -> None:
    for network in (image_network(), dense_network()):
        shape = [d.dim_value for d in network.graph.input[0].type.tensor_type.shape.dim]
        stored = quantize(network, scheme, samples(shape, 4, 0), tmp_path)
        proto = optimized(stored, level, tmp_path)
        _assert_close_to_onnxruntime(proto, samples(shape, 1, 7)[0])


# Embeddings


@pytest.mark.parametrize("order", ["i _ w p _ g b", "i s w p t g b m", "i s w p t g b m o"])
def test_embeddings_with_normalization_agree_with_onnxruntime(order: str) -> None:
    rng = np.random.default_rng(2)
    operands: dict[str, Array] = {
        "i": rng.integers(0, 9, (2, 5), np.int32),
        "s": rng.integers(0, 2, (2, 5), np.int32),
        "m": np.asarray([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32),
        "o": rng.integers(0, 7, (2, 5), np.int32),
        **{
            n: rng.normal(size=(k, 8)).astype(np.float32)
            for n, k in {"w": 9, "p": 7, "t": 2}.items()
        },
        **{n: rng.normal(size=8).astype(np.float32) for n in "gb"},
    }
    names = order.split()
    results = ["y", "count", "sum"]
    step = helper.make_node(
        *("EmbedLayerNormalization", ["" if n == "_" else n for n in names], results),
        domain=MICROSOFT,
        epsilon=0.01,
    )
    fed = {n: operands[n] for n in "ismo" if n in names}
    inputs = [tensor_info(n, a.shape, "i") for n, a in fed.items()]
    outputs = [tensor_info(n, None, "i" if n == "count" else "f") for n in results]
    held = {n: operands[n] for n in "wptgb" if n in names}
    agrees(model(graph([step], inputs, outputs, held), 17, com_microsoft=1), fed)


# Files of onnxruntime.transformers.optimizer


@pytest.mark.parametrize("heads", ["Attention", "MultiHeadAttention"])
@pytest.mark.parametrize("name", ["encoder", "encoder_masked", "encoder_parts", "encoder_quick"])
def test_optimized_transformers_agree_with_onnxruntime(
    name: str, heads: str, tmp_path: Path
) -> None:
    pytest.importorskip("sympy", reason="onnxruntime.transformers needs sympy (extra `test`)")
    proto = optimized_transformer(NETWORKS[name](), heads, tmp_path)
    assert operators(proto) >= {f"{MICROSOFT}::{heads}", f"{MICROSOFT}::SkipLayerNormalization"}
    agrees(proto, feeds(proto))
