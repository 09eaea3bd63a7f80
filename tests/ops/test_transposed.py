"""Integer transposed convolutions, against LiteRT and onnxruntime, in numpy and generated C."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np
import pytest

from bench.quantized_networks import SCHEMES, departures, samples
from bench.quantized_networks import quantize as quantize_by_onnxruntime
from smelt.codegen.passes import run_passes
from smelt.errors import SmeltError
from smelt.frontend import load
from smelt.ir import Array, DType, Graph, evaluate
from smelt.ops.case import Bias, Case, Data, Weights, build
from smelt.ops.core.convolution_nd import ConvTranspose
from smelt.quant.plan import classify
from smelt.quant.quantizer import quantize
from smelt.quant.ranges.activation_statistics import observe
from smelt.quant.recipe import RECIPES
from smelt.quant.result import sqnr
from smelt.quant.weights.equalization import equalize
from smelt.samples import Sample
from tests.support.graphs import SETUPS, TWINS, Member, SampleOutputs, assert_same, run_together
from tests.support.onnx_networks import before_and_after_passes, session
from tests.support.quant_networks import outputs, stored_samples
from tests.support.tflite_networks import O, T, const, litert, network
from tests.support.transposed_networks import NETWORKS

SAME, VALID = schema.Padding.SAME, schema.Padding.VALID
_FUSED = schema.ActivationFunctionType
EVERYWHERE = [
    "host",
    *(pytest.param(setup, marks=pytest.mark.qemu) for setup in ("m0", "m4")),
]


def drawn(seed: int) -> bytes:
    """Return an int8 TRANSPOSE_CONV with random sizes, padding, activation, scales and weights."""
    r = np.random.default_rng(seed)
    (h, w), (kh, kw), (sh, sw) = r.integers(1, 6, 2), r.integers(1, 6, 2), r.integers(1, 4, 2)
    depth, filters, same = int(r.integers(1, 10)), int(r.integers(1, 11)), bool(r.integers(2))
    size = (h * sh, w * sw) if same else ((h - 1) * sh + kh, (w - 1) * sw + kw)
    shape = (int(r.integers(1, 3)), *map(int, size), filters)
    scales = tuple(float(np.float32(s)) for s in r.uniform(0.002, 0.02, filters))
    zero_point = int(r.integers(-128, 128))
    weights = r.integers(-127, 128, (filters, kh, kw, depth))
    tensors = [
        const("shape", shape, np.int32),
        const("w", weights, np.int8, scale=scales, axis=0),
        T("x", (shape[0], h, w, depth), np.int8, scale=(0.05,), zero_point=(zero_point,)),
        T("y", shape, np.int8, scale=(0.1,), zero_point=(int(r.integers(-128, 128)),)),
    ]
    if r.integers(2):
        scale = tuple(float(np.float32(np.float32(0.05) * np.float32(s))) for s in scales)
        tensors.insert(3, const("b", r.integers(-3000, 3000, filters), np.int32, scale=scale))
    fields: dict[str, Any] = {
        "strideH": int(sh),
        "strideW": int(sw),
        "padding": SAME if same else VALID,
        "fusedActivationFunction": int(r.choice([_FUSED.NONE, _FUSED.RELU, _FUSED.RELU6])),
    }
    names = [tensor.name for tensor in tensors[:-1]]
    operator = O("TRANSPOSE_CONV", names, ["y"], schema.TransposeConvOptionsT, fields)
    return network(tensors, [operator], ["x"], ["y"])


def images(graph: Graph, seed: int) -> list[Sample]:
    """Return random and extreme inputs."""
    r, shape = np.random.default_rng(seed), graph.inputs[0].type.shape
    return [(r.integers(-128, 128, shape, np.int8),), (r.choice(_ENDS, shape),)]


_ENDS = np.array([-128, 127], np.int8)


@pytest.mark.quick(setup=("host",))
@pytest.mark.parametrize("setup", EVERYWHERE)
def test_random_transposed_convolutions_equal_litert(setup: str) -> None:
    """Both the numpy reference and the generated C are compared."""
    files = [drawn(seed) for seed in range(40)]
    graphs = [load(file).graph for file in files]
    members = [Member(graph, images(graph, seed)) for seed, graph in enumerate(graphs)]
    found = run_together(members, SETUPS[setup])
    for file, member, ours in zip(files, members, found, strict=True):
        expected = [tuple(litert(file, *sample)) for sample in member.samples]
        references = [evaluate(member.graph, sample).outputs for sample in member.samples]
        assert_same(references, expected, f"the reference of {member.graph.nodes[0].op}")
        assert_same(ours, expected, f"{member.graph.nodes[0].op} on {setup}")


@pytest.mark.quick(setup=("host",), optimize=("size",))
@pytest.mark.parametrize("optimize", ["size", "ram"])
@pytest.mark.parametrize("setup", ["host", *TWINS])
def test_every_form_is_exact(setup: str, optimize: Any) -> None:
    """The forms for few registers, without scratch, and for weights too large to pack two sums."""
    ops = [ConvTranspose((2, 2), ((1, 0), (0, -1)), (1, 1)), ConvTranspose((3,), ((1, 1),), (1,))]
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((1, 5, 4, 40), (5, 6, 40, 6)),
        ((2, 9, 5), (2, 5, 3)),
    ]
    graphs = [
        build(Case("c", op, (Data(x), Weights(w, axis=len(w) - 1), Bias(w[-1]))), DType.INT8)
        for op, (x, w) in zip(ops, shapes, strict=True)
    ]
    members = [Member(graph, images(graph, 1)) for graph in graphs]
    options = {**SETUPS, **TWINS}[setup]
    found = run_together(members, replace(options, optimize=optimize))
    for member, ours in zip(members, found, strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        assert_same(ours, expected, f"{member.graph.nodes[0].op} on {setup} for {optimize}")


def test_contradicting_shapes_are_refused() -> None:
    x, y = T("x", (1, 4, 4, 3)), T("y", (1, 8, 8, 2))
    weights = const("w", np.ones((2, 3, 3, 3)))

    def refused(*tensors: T, stride: int = 2) -> str:
        fields = {"strideH": stride, "strideW": 2, "padding": SAME}
        names = [tensor.name for tensor in tensors[:-1]]
        operator = O("TRANSPOSE_CONV", names, ["y"], schema.TransposeConvOptionsT, fields)
        with pytest.raises(SmeltError) as caught:
            load(network(tensors, [operator], ["x"], ["y"]))
        return str(caught.value)

    shape = const("shape", (1, 8, 8, 2), np.int32)
    assert "but the file declares" in refused(const("shape", (1, 7, 8, 2), np.int32), weights, x, y)
    assert "is not [batch, height, width, channels]" in refused(
        const("shape", (8, 8), np.int32), weights, x, y
    )
    assert "StrideH" in refused(shape, weights, x, y, stride=0)
    assert "cannot use weights" in refused(shape, const("w", np.ones((2, 3, 3, 4))), x, y)
    assert "must be 4-D" in refused(shape, const("w", np.ones((2, 3))), x, y)
    stored = const("w", np.ones((2, 3, 3, 3)), np.int8, scale=(0.1,), zero_point=(3,))
    small = T("x", x.shape, np.int8, scale=(0.1,)), T("y", y.shape, np.int8, scale=(0.1,))
    assert "symmetric" in refused(shape, stored, *small)


# --- networks ----------------------------------------------------------------------------------


@cache
def floats(name: str) -> Graph:
    return run_passes(load(NETWORKS[name]().SerializeToString(), name).graph)


def fed(seed: int, count: int) -> list[Sample]:
    return [tuple(feed.values()) for feed in samples((1, 3, 16, 16), count, seed)]


def decibels(wanted: Array, found: Array) -> float:
    return sqnr(float(np.square(wanted).sum()), float(np.square(wanted - found).sum()))


@cache
def quantized(name: str, recipe: str) -> Graph:
    found = quantize(floats(name), fed(1, 32), RECIPES[recipe], measure=False)
    assert found.exceptions == ()
    return found.graph


@pytest.mark.quick(every=3)
@pytest.mark.parametrize("name", NETWORKS)
def test_quantization_is_better_than_by_onnxruntime(name: str, tmp_path: Path) -> None:
    """Both use the same calibration data, and all layers are int8."""
    proto, tests = NETWORKS[name](), fed(2, 24)
    wanted = outputs(floats(name), tests)
    scheme = next(s for s in SCHEMES if s.is_qdq and s.per_channel)
    feeds = [{"x": sample[0]} for sample in fed(1, 32)]
    theirs = session(quantize_by_onnxruntime(proto, scheme, feeds, tmp_path))
    found = np.stack([theirs.run(None, {"x": sample[0]})[0] for sample in tests])
    least = decibels(wanted, found.astype(np.float64))
    default, best = (
        decibels(wanted, outputs(quantized(name, recipe), tests)) for recipe in ("default", "best")
    )
    assert default > least + 1.0
    assert best > default - 0.2


@pytest.mark.parametrize("name", NETWORKS)
def test_equalization_rescales_around_transposed_convolutions(name: str) -> None:
    """Channels before and after are rescaled, and the outputs do not change."""
    graph, given = floats(name), fed(1, 8)
    plan = classify(graph)
    equal, changed = equalize(graph, plan, observe(graph, given, 0), given)
    grown = [node for node in graph.nodes if isinstance(node.op, ConvTranspose)]
    assert changed >= {node.input(0) for node in grown}
    assert any(node.output in changed for node in grown)
    wanted, found = (outputs(network, given) for network in (graph, equal))
    np.testing.assert_allclose(found, wanted, atol=1e-5 * float(np.abs(wanted).max()))


@pytest.mark.quick(setup=("host",))
@pytest.mark.parametrize("setup", EVERYWHERE)
def test_generated_code_of_quantized_networks_equals_the_reference(setup: str) -> None:
    members: list[Member] = []
    for name in NETWORKS:
        graph = quantized(name, "default")
        assert any(isinstance(node.op, ConvTranspose) for node in graph.nodes)
        members.append(Member(graph, stored_samples(graph, fed(3, 3))))
    for member, ours in zip(members, run_together(members, SETUPS[setup]), strict=True):
        expected: SampleOutputs = [
            evaluate(member.graph, sample).outputs for sample in member.samples
        ]
        assert_same(ours, expected, f"{member.graph.name} on {setup}")


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s.is_qdq], ids=str)
def test_networks_quantized_by_onnxruntime_become_integer(scheme: Any, tmp_path: Path) -> None:
    """Their transposed convolutions are imported as integer operators."""
    feeds = [{"x": sample[0]} for sample in fed(1, 8)]
    proto = quantize_by_onnxruntime(NETWORKS["autoencoder"](), scheme, feeds, tmp_path)
    _, graph = before_and_after_passes(proto)
    found = [node for node in graph.nodes if isinstance(node.op, ConvTranspose)]
    assert [node.output.type.dtype for node in found] == [DType.INT8] * 3
    tests = [{"x": sample[0]} for sample in fed(2, 8)]
    against = departures(
        proto, tests, [evaluate(graph, list(feed.values())).outputs for feed in tests]
    )
    assert against.largest <= 1
    assert against.share <= 0.005
