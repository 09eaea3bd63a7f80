"""Tests of the names of generated functions, which show how their layers differ."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.codegen.lower.function_names import FunctionNames, described
from smelt.codegen.lower.kernel import KernelCall, LayerStruct
from smelt.codegen.text.parameters import Parameters
from smelt.ir import DType
from smelt.ops.case import Case, build
from smelt.ops.core import convolution, convolution_nd, fully_connected, pool
from tests.support.graphs import compile_graph
from tests.support.projects import digits
from tests.support.shared import shared

LONGEST = 40
"""Most characters of a function's name, without the network's prefix."""


def _names(artifact: Artifact) -> list[str]:
    prefix = artifact.schedule.functions[0].name.split("_net_")[0] + "_net_"
    return [function.name.removeprefix(prefix) for function in artifact.schedule.functions]


@pytest.mark.parametrize(
    ("cases", "case", "name"),
    [
        (convolution.CASES, "Conv2D-pointwise", "conv_1x1_c16_c8"),
        (convolution.CASES, "Conv2D-first_layer_stride2", "conv_3x3_s2_c3_c8"),
        (convolution.CASES, "DepthwiseConv2D-stride2", "depthwise_3x3_s2_c4"),
        (convolution.CASES, "DepthwiseConv2D-multiplier", "depthwise_3x3_c3_c12"),
        (convolution.CASES, "Conv2D-dilated", "conv_3x3_d2x3_c4_c4"),
        (convolution_nd.CASES, "Conv3D-strided", "conv_2x1x3_s2x1x2_c2_c5"),
        (fully_connected.CASES, "FullyConnected-classifier", "fully_connected_c16_c10"),
        (pool.CASES, "Pool2D(max)-max_2x2", "max_pool_2x2"),
        (pool.CASES, "Pool2D(max)-max_overlapping", "max_pool_3x3_s1x2"),
    ],
)
def test_name_of_a_function(cases: Sequence[Case], case: str, name: str) -> None:
    found = next(c for c in cases if str(c) == case)
    assert _names(compile_graph(build(found, DType.FLOAT32))) == [name]


@pytest.mark.parametrize("target", ["rv32imac", "vulkan"])
def test_names_of_a_network_say_what_differs(target: str) -> None:
    model = shared("models/mlperf_tiny/kws_int8.tflite")
    files = compile_model(model, Options(target=target)).project.files
    numbered = re.compile(r"_v\d+\b")
    assert not [name for name in files if numbered.search(name)]
    assert not numbered.search(files["kws_int8_net_kernels.c"])


def test_equal_names_get_a_suffix() -> None:
    names = FunctionNames()
    taken = [names.distinct(name) for name in ("add", "conv_1x1", "add", "add")]
    assert taken == ["add", "conv_1x1", "add_v2", "add_v3"]


def test_equal_names_get_the_details_that_differ() -> None:
    names = FunctionNames()
    plain, signed, other = (
        {"form": "plain"},
        {"form": "signed"},
        {"form": "signed", "left": "left9"},
    )
    assert names.distinct("dense", plain) == "dense"
    assert names.distinct("dense", plain) == "dense_v2"
    assert names.distinct("dense", signed) == "dense_signed"
    assert names.distinct("dense", other) == "dense_signed_left9"
    assert names.distinct("dense", signed) == "dense_v3"
    assert names.distinct("dense_signed") == "dense_signed_v2"


def test_names_get_more_details_if_those_that_differ_are_taken() -> None:
    names = FunctionNames()
    first, second, third = (
        {"form": form, "bias": bias}
        for form, bias in (("plain", "unbiased"), ("signed", "biased"), ("signed", "unbiased"))
    )
    assert names.distinct("output", first) == "output"
    assert names.distinct("output", second) == "output_signed"
    assert names.distinct("output", third) == "output_signed_unbiased"


def test_names_in_networks_say_what_differs() -> None:
    names = {
        target: _names(digits(Options(target=target))) for target in ("cortex-m0", "cortex-m4")
    }
    assert names["cortex-m0"][4] == names["cortex-m4"][4] == "conv_1x1_c16_c32_signed"
    float32 = _names(digits(Options(target="host"), model="digits_float32"))
    assert float32[4] == "conv_1x1_c16_c32_linear"


@pytest.mark.parametrize("target", ["host", "cortex-m0", "cortex-m4", "cortex-m55"])
def test_names_in_a_network_are_short(target: str) -> None:
    names = _names(digits(Options(target=target)))
    assert names[0] == "conv_3x3_c1_c16"
    assert names[-2:] == ["fully_connected_c128_c10", "softmax"]
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) and len(name) <= LONGEST for name in names)
    assert not [name for name in names if re.search(r"[a-z]_\d+$", name)]


@pytest.mark.parametrize("target", ["host", "cortex-m0", "cortex-m3", "cortex-m55"])
def test_no_function_of_a_network_needs_a_number_to_differ(target: str) -> None:
    functions = digits(Options(target=target)).schedule.functions
    text = "".join(function.definition for function in functions)
    assert re.findall(r"\w+_v\d+", text) == []


def test_the_name_of_a_shared_body_contains_no_channels() -> None:
    node = build(convolution.CASES[0], DType.FLOAT32).nodes[0]
    struct = LayerStruct("layer", "conv", {"inputs": 16, "outputs": 8})
    call = KernelCall(
        template="conv.j2", stem="conv_1x1", parameters=Parameters(), operands=(struct,)
    )
    assert described(node, call) == "conv_1x1"
