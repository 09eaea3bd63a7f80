"""Quantized ONNX networks against onnxruntime without optimizations.

If onnxruntime computes with integers (QOperator), all elements are equal, except where its kernels
differ from DequantizeLinear, operator, QuantizeLinear. If it dequantizes (QDQ), its rounding errors
decide how values almost halfway between two integers round: a few elements differ, by one.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

from bench.quantized_networks import (
    SCHEMES,
    Departures,
    Feeds,
    Scheme,
    dense_network,
    departures,
    image_network,
    quantize,
    samples,
)
from smelt.ir import DType, Graph, Rounding, evaluate
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.fully_connected import FullyConnected
from tests.support.graphs import SETUPS, Member, assert_same, run_together
from tests.support.onnx_networks import before_and_after_passes, session
from tests.support.shared import load as load_shared
from tests.support.shared import shared

FEW = 0.005
"""Fraction of elements that may differ by one, because onnxruntime rounds real numbers."""


def compared(network: Graph, proto: onnx.ModelProto, feeds: Sequence[Feeds]) -> Departures:
    """Compare the network's outputs with onnxruntime's."""
    return departures(
        proto, feeds, [evaluate(network, list(feed.values())).outputs for feed in feeds]
    )


@pytest.mark.quick(every=3)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("network", [image_network, dense_network])
def test_networks_quantized_by_onnxruntime_agree_with_it(
    network: Any, scheme: Scheme, tmp_path: Path
) -> None:
    proto = network()
    shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    quantized = quantize(proto, scheme, samples(shape, 8, 1), tmp_path)
    _, found = before_and_after_passes(quantized)
    against = compared(found, quantized, samples(shape, 16, 2))
    assert against.largest <= 1
    assert against.share <= (FEW if scheme.is_qdq else 0)
    products = [n for n in found.nodes if isinstance(n.op, _PRODUCTS)]
    assert len(products) >= 2
    for step in products:
        assert step.output.type.dtype is DType.INT8, step.origin
        assert step.rounding is Rounding.ONNX


_PRODUCTS = (Conv2D, DepthwiseConv2D, FullyConnected)


@pytest.mark.quick(setup=("host",))
@pytest.mark.parametrize("setup", ["host", pytest.param("m4", marks=pytest.mark.qemu)])
def test_generated_code_of_quantized_networks_equals_the_reference(
    setup: str, tmp_path: Path
) -> None:
    members: list[Member] = []
    for network in (image_network, dense_network):
        proto = network()
        shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
        for scheme in SCHEMES:
            quantized = quantize(proto, scheme, samples(shape, 8, 1), tmp_path)
            feeds = [tuple(feed.values()) for feed in samples(shape, 2, 3)]
            members.append(Member(before_and_after_passes(quantized)[1], feeds))
    for member, found in zip(members, run_together(members, SETUPS[setup]), strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        for ours, wanted in zip(found, expected, strict=True):
            for a, b in zip(ours, wanted, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["dscnn_0", "mbv3_0", "c1d_0", "gru_0", "mlp_0"])
@pytest.mark.parametrize("scheme", SCHEMES[1::4], ids=str)
def test_trained_networks_quantized_by_onnxruntime_agree_with_it(
    name: str, scheme: Scheme, tmp_path: Path
) -> None:
    proto = onnx.load(shared(f"quant/{name}.onnx"))
    digits = load_shared("quant/digits_split.npz")
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    images = digits["X"].reshape(-1, *shape).astype(np.float32)
    feed = proto.graph.input[0].name
    calibration = [{feed: images[i]} for i in digits["calib"][:40]]
    quantized = quantize(proto, scheme, calibration, tmp_path)
    tests = [{feed: images[i]} for i in digits["test"][:25]]
    against = compared(before_and_after_passes(quantized)[1], quantized, tests)
    assert against.largest <= 1
    # Averages of 8 elements are often halfway between two integers. Smelt rounds such ties to the
    # even integer; in onnxruntime, the rounding errors of its real numbers decide.
    assert against.share <= (0.25 if name == "c1d_0" and scheme.is_qdq else FEW)


@pytest.mark.thorough
def test_dynamically_quantized_networks_agree_with_onnxruntime(tmp_path: Path) -> None:
    onnx.save(dense_network(), tmp_path / "float.onnx")
    for kind in (QuantType.QInt8, QuantType.QUInt8):
        quantize_dynamic(tmp_path / "float.onnx", tmp_path / "dynamic.onnx", weight_type=kind)
        proto = onnx.load(tmp_path / "dynamic.onnx")
        found = before_and_after_passes(proto)[1]
        assert any(isinstance(n.op, FullyConnected) and n.op.sums for n in found.nodes)
        for feed in samples((4, 20), 5, 4):
            expected = [tuple(session(proto).run(None, dict(feed)))]
            ours = [tuple(evaluate(found, list(feed.values())).outputs)]
            assert_same(ours, expected, "dynamic")
            (generated,) = run_together(
                [Member(found, [tuple(feed.values())])], SETUPS["host"], "dynamic"
            )
            assert_same(generated, expected, "dynamic, generated code")


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
