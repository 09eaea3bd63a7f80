"""Float products and sums in blocks, for full and partial blocks, against ONNX Runtime.

The forms differ by target: vectors on the host, fused scalars on a Cortex-M4, plain ones on an M3.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from unittest.mock import Mock

import numpy as np
import pytest

from smelt.api.options import Options
from smelt.codegen.lower.backend import backend
from smelt.codegen.lower.kernel import Refusal, Request
from smelt.codegen.partition import sharing
from smelt.codegen.schedule.shared_symbols import Functions
from smelt.ir import Array, DType, Graph, Node, Op, Origin, TensorType, Value, verify
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import NO_PADDING, Conv2D, DepthwiseConv2D
from smelt.ops.core.fully_connected import FullyConnected
from smelt.proof.profile import profile_model
from smelt.samples import random_samples
from smelt.targets import Optimize, get
from tests.support.graphs import SETUPS, Member, assert_same, combine, compile_graph, run_together
from tests.support.onnx_oracle import run as onnxruntime_run

RELU, RELU6, NONE = Activation.RELU, Activation.RELU6, Activation.NONE
ROUND = ((1, 1), (1, 1))
DEPTHWISE: tuple[tuple[Op, tuple[int, ...], tuple[int, ...]], ...] = (
    (DepthwiseConv2D((1, 1), ROUND, activation=RELU), (1, 5, 5, 64), (1, 3, 3, 64)),
    (DepthwiseConv2D((2, 2), ((0, 1), (0, 1)), activation=RELU6), (1, 7, 9, 24), (1, 3, 3, 24)),
    (DepthwiseConv2D((1, 2), ((2, 2), (4, 4)), (1, 2)), (2, 4, 11, 7), (1, 5, 5, 7)),
    (DepthwiseConv2D((1, 1), ((0, 0), (9, 10))), (1, 1, 23, 5), (1, 1, 20, 5)),
    (DepthwiseConv2D(), (1, 1, 16, 3), (1, 1, 16, 3)),
    (DepthwiseConv2D((1, 1), ROUND, activation=RELU), (1, 4, 6, 3), (1, 3, 3, 12)),
    (DepthwiseConv2D((1, 1), ROUND, activation=RELU), (1, 3, 5, 40), (1, 3, 3, 40)),
)
CONVOLUTIONS: tuple[tuple[Op, tuple[int, ...], tuple[int, ...]], ...] = (
    (Conv2D((1, 1), ROUND, activation=RELU), (1, 6, 7, 16), (33, 3, 3, 16)),
    (Conv2D((2, 2), ((0, 1), (0, 1)), activation=RELU6), (1, 9, 11, 3), (18, 3, 3, 3)),
    (Conv2D((1, 1), ((1, 1), (0, 0))), (2, 5, 4, 2), (9, 3, 2, 2)),
    (Conv2D((1, 1), ((2, 2), (2, 2)), (2, 2)), (1, 8, 5, 12), (6, 3, 3, 12)),
    (Conv2D((1, 1), ((4, 5), (1, 2)), activation=RELU), (1, 25, 5, 1), (64, 10, 4, 1)),
    (Conv2D((1, 1), ROUND, groups=3), (1, 5, 6, 12), (21, 3, 3, 4)),
    (Conv2D((1, 1), NO_PADDING, activation=RELU, groups=2), (2, 3, 3, 10), (4, 1, 1, 5)),
    (Conv2D((2, 1)), (1, 6, 3, 40), (50, 1, 1, 40)),
    (Conv2D((3, 3)), (1, 13, 13, 2), (5, 11, 11, 2)),
    (FullyConnected(), (1, 37), (130, 37)),
    (FullyConnected(activation=RELU), (5, 20), (10, 20)),
    (Conv2D((1, 1), ROUND, activation=RELU), (1, 6, 7, 24), (45, 3, 3, 24)),
    (FullyConnected(), (1, 74), (104, 74)),
)
"""Layers of which some differ only in sizes, so that they can share functions."""


def graph_of(
    op: Op, x: tuple[int, ...], weights: tuple[int, ...], rng: np.random.Generator
) -> Graph:
    outputs = weights[-1] if isinstance(op, DepthwiseConv2D) else weights[0]
    values = (
        Value("x", TensorType(x, DType.FLOAT32)),
        Value.constant("weights", rng.normal(size=weights).astype(np.float32)),
        Value.constant("bias", rng.normal(size=outputs).astype(np.float32)),
    )
    (type_,) = op.infer([v.type for v in values])
    node = Node(op, values, (Value("y", type_),), Origin(op.name, 0))
    return verify(Graph("one_node", values[:1], node.outputs, (node,)), "building a test")


@cache
def members() -> tuple[Member, ...]:
    rng = np.random.default_rng(5)
    found: list[Member] = []
    for op, x, weights in (*CONVOLUTIONS, *DEPTHWISE):
        graph = graph_of(op, x, weights, rng)
        found.append(Member(graph, [(rng.uniform(-1, 1, x).astype(np.float32),)]))
    return tuple(found)


def by_onnxruntime(member: Member) -> list[tuple[Array, ...]]:
    return [(onnxruntime_run(member.graph, sample),) for sample in member.samples]


@pytest.mark.quick(setup=("host",))
@pytest.mark.parametrize("optimize", ["speed", "size"])
@pytest.mark.parametrize(
    "setup", ["host", *(pytest.param(s, marks=pytest.mark.qemu) for s in ("m3", "m4"))]
)
def test_equals_onnxruntime(setup: str, optimize: Optimize) -> None:
    found = run_together(members(), replace(SETUPS[setup], optimize=optimize))
    for member, outputs in zip(members(), found, strict=True):
        assert_same(outputs, by_onnxruntime(member), f"{member} on {setup}")


def additions() -> Iterator[Member]:
    """Return additions of rows that fill vectors or not, and with broadcast operands."""
    rng = np.random.default_rng(6)
    for a, b in (((3, 5, 7), (3, 5, 7)), ((4, 33), (33,)), ((4, 33), (4, 1)), ((16,), (1,))):
        values = [Value(n, TensorType(s, DType.FLOAT32)) for n, s in (("a", a), ("b", b))]
        for op in (Binary("add", RELU), Binary("mul", NONE)):
            (type_,) = op.infer([v.type for v in values])
            node = Node(op, tuple(values), (Value("y", type_),), Origin(op.name, 0))
            graph = verify(Graph("one_node", tuple(values), node.outputs, (node,)), "a test")
            sample = tuple(rng.normal(size=v.type.shape).astype(np.float32) for v in values)
            yield Member(graph, [sample])


def test_vectors_of_elements_equal_onnxruntime() -> None:
    chosen = list(additions())
    for member, outputs in zip(chosen, run_together(chosen, SETUPS["host"]), strict=True):
        assert_same(outputs, by_onnxruntime(member), str(member))


@pytest.mark.parametrize(("target", "call"), [("cortex-m4", True), ("cortex-m3", False)])
def test_fma_is_used_only_as_an_instruction(target: str, call: bool) -> None:
    """On other cores `fmaf` would call a function of the C library for every product."""
    for member in members():
        (node,) = member.graph.nodes
        found = backend("c").find(node, Request(get(target)))
        assert not isinstance(found, Refusal)
        functions = Functions("k")
        functions.add(node, found)
        (function,) = functions.all()
        assert ("fmaf(" in function.definition) is call


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m3", "host"])
def test_layers_of_different_sizes_share_functions(target: str) -> None:
    graph = combine("all", [member.graph for member in members()])
    files = compile_graph(graph, Options(target, "host", "size")).project.files
    text = "\n".join(text for name, text in files.items() if name.endswith("_kernels.c"))
    names = Counter(re.findall(r"net_(outputs_\w+|depthwise_\w+pixels)\(", text))
    called_twice = {name.split("_")[0] for name, count in names.items() if count > 2}
    assert called_twice == (set() if target == "host" else {"outputs", "depthwise"})


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("op", "weights"),
    [
        (Conv2D(activation=RELU), [(64, 1, 1, 64), (40, 1, 1, 48)]),
        (DepthwiseConv2D((1, 1), ROUND), [(1, 3, 3, 64), (1, 3, 3, 40)]),
    ],
)
def test_shared_functions_are_nearly_as_fast(
    op: Op, weights: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(7)
    layers = [graph_of(op, (1, 6, 12, shape[-1]), shape, rng) for shape in weights]
    graph = combine("both", layers)
    found: list[int] = []
    for size in (0, 1 << 20):
        monkeypatch.setattr(sharing, "saved_bytes", Mock(return_value=size))
        artifact = compile_graph(graph, SETUPS["m4"])
        sample = random_samples(artifact.graph, 1, 7)[0]
        found.append(profile_model(artifact, sample).instructions)
    assert found[0] != found[1]
    assert found[1] == pytest.approx(found[0], rel=0.02)
