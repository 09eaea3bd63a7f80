"""Layers of different sizes share a function that reads the sizes from a struct."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from smelt.api.artifact import Artifact
from smelt.api.options import Options
from smelt.codegen.schedule.steps import Call
from smelt.ir import DType, evaluate
from smelt.ops.case import Bias, Case, Data, Weights, build
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.fully_connected import FullyConnected
from smelt.samples import random_samples
from tests.support.graphs import SETUPS, Member, assert_same, combine, compile_graph, run_together
from tests.support.sanitized import run_sanitized

NOTHING = ((0, 0), (0, 0))
SAME = ((1, 1), (1, 1))
BACKENDS = ("c",)


def convolution(image: tuple[int, ...], outputs: int, kernel: int, stride: int = 1) -> Case:
    """Return a convolution of an image `[h, w, c]`, padded if its window has several taps."""
    op = Conv2D((stride, stride), SAME if kernel > 1 else NOTHING)
    weights = Weights((outputs, kernel, kernel, image[2]), 0)
    return Case("conv", op, (Data((1, *image)), weights, Bias(outputs)))


def depthwise(image: tuple[int, ...], kernel: int = 3, stride: int = 1) -> Case:
    """Return a padded depthwise convolution of an image `[h, w, c]`."""
    before = kernel // 2
    op = DepthwiseConv2D((stride, stride), ((before, before), (before, before)))
    weights = Weights((1, kernel, kernel, image[2]), 3)
    return Case("own", op, (Data((1, *image)), weights, Bias(image[2])))


def dense(rows: int, depth: int, outputs: int, axis: int | None = 0) -> Case:
    """Return a dense layer; with `axis` None, all its weights have one scale."""
    weights = Weights((outputs, depth), axis)
    return Case("rows", FullyConnected(), (Data((rows, depth)), weights, Bias(outputs)))


IMAGES = ((3, 5, 8), (4, 4, 12), (5, 3, 9), (2, 7, 16), (6, 6, 23), (5, 4, 18))
FAMILIES = {
    "conv_1x1": [convolution(image, 20 + i, 1) for i, image in enumerate(IMAGES)],
    "conv_3x3": [convolution(image, 8 + i, 3) for i, image in enumerate(IMAGES)],
    "conv_3x3_s2": [convolution(image, 14 - i, 3, 2) for i, image in enumerate(IMAGES)],
    "depthwise_3x3": [depthwise(image) for image in IMAGES],
    "depthwise_3x3_s2": [depthwise(image, stride=2) for image in IMAGES],
    "depthwise_5x5": [depthwise(image, 5) for image in IMAGES],
    "fully_connected": [dense(rows, 8 * rows, 21 + rows) for rows in range(2, 7)]
    + [dense(1, 8 * i, 4 * i + 8, None) for i in range(2, 7)],
}
"""Cases whose functions have the same name, by that name."""


def members() -> list[Member]:
    """Return the quantized network of each case, with samples."""
    graphs = [build(case, DType.INT8) for cases in FAMILIES.values() for case in cases]
    return [Member(graph, random_samples(graph, 2, 7)) for graph in graphs]


def users(artifact: Artifact) -> Counter[str]:
    """Return how many layers each function with a struct computes, by its name."""
    shared = {f.name for f in artifact.schedule.functions if "layer_t *layer" in f.signature}
    calls = Counter(s.function for s in artifact.schedule.steps if isinstance(s, Call))
    return Counter({name: calls[name] for name in shared})


@pytest.mark.parametrize("target", ["host", "cortex-m0", "cortex-m3"])
def test_layers_of_different_sizes_share_functions(target: str, tmp_path: Path) -> None:
    graph = combine("all", [member.graph for member in members()])
    artifact = compile_graph(graph, Options(target, "host", "size", backends=BACKENDS))
    found = users(artifact)
    assert all(found[f"all_net_{name}"] > 1 for name in FAMILIES), found
    samples = random_samples(artifact.graph, 2, 7)
    outputs = run_sanitized(artifact, samples, tmp_path / "project")
    assert_same(outputs, [evaluate(artifact.graph, s).outputs for s in samples], target)


@pytest.mark.qemu
@pytest.mark.parametrize("setup", ["m0"])
def test_shared_functions_compute_what_the_reference_does(setup: str) -> None:
    chosen = members()
    options = replace(SETUPS[setup], optimize="size", backends=BACKENDS)
    for member, outputs in zip(chosen, run_together(chosen, options), strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        assert_same(outputs, expected, repr(member))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_layer_alone_and_fast_layers_have_functions_of_their_own(name: str) -> None:
    graphs = [build(case, DType.INT8) for case in FAMILIES[name]]
    alone = Options("host", optimize="size", backends=BACKENDS)
    assert not users(compile_graph(graphs[0], alone))
    assert not users(compile_graph(combine("all", graphs), replace(alone, optimize="speed")))
