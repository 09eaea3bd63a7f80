"""Convolutions on a GPU, by Mesa's CPU driver: equal to numpy and to TensorFlow Lite Micro."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from smelt import targets
from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.codegen.backends.vulkan import convolution_blocks
from smelt.codegen.backends.vulkan.calls import MAX_GROUPS, ShaderCall
from smelt.codegen.backends.vulkan.gpus import gpu_called
from smelt.codegen.lower.backend import backend
from smelt.codegen.lower.kernel import Request
from smelt.ir import (
    DType,
    Graph,
    Node,
    Op,
    Origin,
    Quant,
    Rounding,
    TensorType,
    Value,
    evaluate,
    verify,
)
from smelt.ops import all_cases
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.case import Bias, Case, Data, Weights
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.fully_connected import FullyConnected
from smelt.proof.run import run
from smelt.samples import random_samples
from tests.backends.test_cases import member_of
from tests.support.graphs import assert_same, combine, compile_graph, run_together
from tests.support.shared import Network, networks, shared
from tests.support.vulkan_tools import check_arena, requires_vulkan

pytestmark = requires_vulkan

SETUP = Options(target="vulkan", backends=("vulkan", "c"))
OPERATORS = (Conv2D, DepthwiseConv2D, FullyConnected)
DTYPES = (DType.FLOAT32, DType.INT8)


@pytest.fixture(params=["lavapipe", "generic"])
def setup(request: pytest.FixtureRequest) -> Options:
    """Use the blocks of either kind of device; one of them multiplies bytes as floats."""
    return replace(SETUP, gpu=request.param)


def check(chosen: Sequence[tuple[Case, DType]], setup: Options) -> None:
    """Fail unless a shader computes each case as the reference does."""
    members = [member_of(case, dtype) for case, dtype in chosen]
    graph = combine("all", [member.graph for member in members])
    assert not on_cpu(compile_graph(graph, setup))
    found = run_together(members, setup)
    for (case, dtype), member, outputs in zip(chosen, members, found, strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        assert_same(outputs, expected, f"{case}-{dtype.value}")


def on_cpu(artifact: Artifact) -> list[str]:
    """Return the cases that no shader computes."""
    return [
        step.node.name
        for step in artifact.schedule.calls
        if isinstance(step.node.op, OPERATORS) and not isinstance(step.call, ShaderCall)
    ]


def served(case: Case, dtype: DType) -> bool:
    """Return whether shaders serve a case: its weights are constant."""
    product_ = isinstance(case.op, OPERATORS) and dtype in DTYPES
    return product_ and isinstance(case.arguments[1], Weights)


@pytest.mark.quick(every=2)
def test_every_case(setup: Options) -> None:
    chosen = [(c, d) for c in all_cases() for d in c.dtypes if served(c, d)]
    assert len(chosen) > 60
    check(chosen, setup)


def convolution(x: tuple[int, ...], w: tuple[int, ...], **fields: object) -> Case:
    op = Conv2D(**fields)  # pyright: ignore[reportArgumentType]
    return Case("shape", op, (Data(x), Weights(w, axis=0), Bias(w[0])))


def depthwise_case(x: tuple[int, ...], w: tuple[int, ...], **fields: object) -> Case:
    op = DepthwiseConv2D(**fields)  # pyright: ignore[reportArgumentType]
    return Case("shape", op, (Data(x), Weights(w, axis=3), Bias(w[3])))


def dense(x: tuple[int, ...], w: tuple[int, ...]) -> Case:
    op: Op = FullyConnected(activation=Activation.RELU)
    return Case("shape", op, (Data(x), Weights(w, axis=0), Bias(w[0])))


SAME = ((1, 1), (1, 1))
HOSTILE = (
    *(convolution((1, 4, 5, c), (c, 3, 3, c), padding=SAME) for c in (1, 2, 3, 5, 7)),
    *(depthwise_case((1, 4, 5, c), (1, 3, 3, c), padding=SAME) for c in (1, 2, 3, 5, 7)),
    *(dense((1, c), (10, c)) for c in (1, 2, 3, 5, 7, 8)),
    *(dense((3, 12), (c, 12)) for c in (1, 2, 3, 5, 12)),
    dense((1, 640), (128, 640)),
    convolution((2, 5, 1, 4), (8, 3, 1, 4), padding=((1, 1), (0, 0))),
    convolution((2, 1, 1, 8), (12, 1, 1, 8)),
    convolution((2, 7, 9, 3), (8, 3, 3, 3), stride=(2, 2), padding=((0, 1), (0, 1))),
    convolution((1, 19, 23, 4), (8, 3, 3, 4), dilation=(7, 9), padding=((7, 7), (9, 9))),
    convolution((1, 9, 33, 4), (4, 1, 11, 4), padding=((0, 0), (5, 5))),
    convolution((1, 9, 40, 8), (4, 1, 1, 8), stride=(3, 3)),
    convolution((1, 5, 40, 4), (4, 2, 3, 4), stride=(1, 2), dilation=(1, 2)),
    convolution((2, 6, 6, 12), (9, 3, 3, 4), groups=3),
    convolution((1, 3, 3, 64), (256, 1, 1, 64)),
    convolution((1, 17, 17, 4), (64, 1, 1, 4)),
    depthwise_case((2, 7, 9, 8), (1, 3, 3, 8), stride=(2, 1), padding=SAME),
    depthwise_case((1, 1, 30, 4), (1, 1, 5, 4), padding=((0, 0), (2, 2))),
    depthwise_case((1, 21, 25, 4), (1, 3, 3, 4), dilation=(8, 9), padding=((8, 8), (9, 9))),
    depthwise_case((1, 9, 9, 8), (1, 7, 7, 8), padding=((3, 3), (3, 3))),
    depthwise_case((1, 12, 12, 4), (1, 8, 9, 4)),
    depthwise_case((1, 6, 6, 4), (1, 3, 3, 16), padding=SAME),
    depthwise_case((1, 6, 6, 256), (1, 3, 3, 256), padding=SAME),
)


@pytest.mark.quick(every=2)
def test_unusual_shapes_equal_the_reference(setup: Options) -> None:
    """Few and odd channels, one column, large dilations, several images."""
    check([(case, dtype) for case in HOSTILE for dtype in DTYPES], setup)


def test_more_invocations_than_a_row_of_workgroups() -> None:
    """Numbered invocations continue in further rows of workgroups, and none is missing."""
    x = Value("x", TensorType((1, 1500, 1500, 4), DType.FLOAT32))
    y = Value("y", TensorType((1, 1500, 1500, 4), DType.FLOAT32))
    weights = Value.constant("w", np.ones((1, 3, 3, 4), np.float32))
    op = DepthwiseConv2D(padding=SAME)
    node = Node(op, (x, weights), (y,), Origin("DEPTHWISE", 0))
    call = convolution_blocks.ProductShader().offer(node, Request(targets.get("vulkan")))
    assert isinstance(call, ShaderCall)
    assert call.block is not None
    assert call.block.across
    assert call.groups[1] > 1
    assert max(call.groups) <= MAX_GROUPS
    assert prod(call.groups) * call.block.local >= 1500 * 1500 // call.block.pixels


def test_sums_that_float32_cannot_hold() -> None:
    """2,400 products of bytes can exceed 24 bits, so they are summed as integers."""
    case = dense((1, 2400), (4, 2400))
    member = member_of(case, DType.INT8)
    node = next(n for n in member.graph.nodes if isinstance(n.op, FullyConnected))
    call = backend("vulkan").find(
        node, Request(replace(targets.get("vulkan"), device=gpu_called("generic")))
    )
    assert isinstance(call, ShaderCall)
    assert call.parameters.variables["kind"] == "whole"
    check([(case, DType.INT8)], replace(SETUP, gpu="generic"))


@pytest.mark.quick(every=4)
@networks(
    "mlperf_tiny/ad_int8", "mlperf_tiny/ic_int8", "mlperf_tiny/kws_int8", "mlperf_tiny/vww_int8"
)
def test_networks_are_bit_exact(network: Network) -> None:
    artifact = compile_model(network.model, SETUP)
    assert not on_cpu(artifact)
    golden = network.golden
    count = 4
    samples = [(golden["input_0"][i],) for i in range(count)]
    found = np.stack([outputs[0] for outputs in run(artifact, samples).outputs])
    np.testing.assert_array_equal(found, golden["tflm_0"][:count].reshape(found.shape))


@pytest.mark.quick(name=("dscnn_kws",))
@pytest.mark.parametrize("name", ["mobilenet_v1_025_96", "resnet8", "dscnn_kws", "autoencoder"])
def test_float_networks(name: str) -> None:
    artifact = compile_model(shared(f"models/float/{name}.onnx"), SETUP)
    assert not on_cpu(artifact)
    check_arena(artifact)
    samples = random_samples(artifact.graph, 2, 0)
    found = list(run(artifact, samples).outputs)
    assert_same(found, [evaluate(artifact.graph, s).outputs for s in samples], name)


@pytest.mark.quick(every=6)
@pytest.mark.parametrize("zero_point", [-128, 127])
@pytest.mark.parametrize("bits", [16, 30, 31])
@pytest.mark.parametrize("op", [Conv2D(), FullyConnected()], ids=["conv", "dense"])
def test_every_shift_is_exact(op: Op, bits: int, zero_point: int, setup: Options) -> None:
    """For the largest sums, and one shift more, which gives zero (a dead channel)."""
    shifts, most = np.arange(-1, 34), 2**bits - 1
    biases = np.array([0, 1, -1, most, -most, most // 2, -most // 2])
    scales = tuple(np.repeat((1 - 2.0**-30) * 2.0**-shifts, len(biases)).tolist())
    channels = len(scales)
    x = Value("x", TensorType((1, 4), DType.INT8, Quant((1.0,), (3,))))
    small = np.tile(abs(biases) < most, len(shifts))
    weights = np.outer(small, [5, -3, 2, 1]).astype(np.int8)
    kind = Quant(scales, (0,) * channels, 0)
    w = Value.constant("w", weights, kind)
    sums = np.tile(biases, len(shifts)) // np.repeat(np.where(shifts < 0, 2, 1), len(biases))
    b = Value.constant("b", sums.astype(np.int32), kind)
    y = Value("y", TensorType((1, channels), DType.INT8, Quant((1.0,), (zero_point,))))
    if isinstance(op, Conv2D):
        image = TensorType((1, 1, 1, 4), DType.INT8, x.type.quant)
        pixels = TensorType((1, 1, 1, channels), DType.INT8, y.type.quant)
        x, y = Value("x", image), Value("y", pixels)
        w = Value.constant("w", weights.reshape(channels, 1, 1, 4), kind)
    node = Node(op, (x, w, b), (y,), Origin("product", 0), Rounding.TFLM)
    graph = verify(Graph("shifts", (x,), (y,), (node,)), "a test")
    artifact = compile_graph(graph, setup)
    assert not on_cpu(artifact)
    samples = random_samples(graph, 3, 0)
    expected = [evaluate(graph, sample).outputs for sample in samples]
    for each in (artifact, compile_graph(graph)):
        assert_same(list(run(each, samples).outputs), expected, each.platform.name)


def test_channels_are_removed_in_groups_of_four() -> None:
    """Layers of a network with many dead channels keep a multiple of four."""
    artifact = compile_model(shared("models/mlperf_tiny/vww_int8.tflite"), SETUP)
    layers = [n for n in artifact.graph.nodes if isinstance(n.op, Conv2D | DepthwiseConv2D)]
    widths = [n.output.type.shape[-1] for n in layers]
    assert widths
    assert all(width % 4 == 0 for width in widths)
