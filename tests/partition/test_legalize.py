"""Tests of rewrites for backends: what each of them computes, and when they are applied."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.cli.show import report as show
from smelt.codegen.lower.backend import Backend, backend
from smelt.codegen.lower.kernel import Kernel, KernelCall, Refusal, Request
from smelt.codegen.partition.legalizations import LEGALIZATIONS
from smelt.codegen.partition.legalize import legalize
from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.passes.subgraphs import Names
from smelt.ir import DType, Graph, Node, Op, Rounding, evaluate, verify
from smelt.ops import all_cases
from smelt.ops.case import Case, Data, build
from smelt.ops.core.convolution import Conv2D
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.matmul import MatMul
from smelt.ops.core.table import Table
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.pad import Pad
from smelt.ops.tensor.slice import Slice
from smelt.ops.tensor.transpose import Transpose
from smelt.samples import random_samples
from smelt.targets import get
from tests.passes.test_exact import extremes
from tests.support.graphs import assert_same
from tests.support.shared import Network

CASES = [(case, dtype) for case in all_cases() for dtype in case.dtypes]


def rewritten(graph: Graph, name: str) -> Graph | None:
    """Return a graph of one node after a rewrite, or None if the rewrite does not apply."""
    (node,) = graph.nodes
    nodes = LEGALIZATIONS[name](node, Names(graph))
    return None if nodes is None else verify(replace(graph, nodes=tuple(nodes)), name)


def cases_that_change(name: str) -> list[tuple[Case, DType]]:
    return [(case, dtype) for case, dtype in CASES if rewritten(build(case, dtype), name)]


@pytest.mark.parametrize("name", LEGALIZATIONS)
def test_each_rewrite_keeps_the_results(name: str) -> None:
    """Compare all operator cases that the rewrite applies to, which must be some."""
    found = cases_that_change(name)
    assert found
    for case, dtype in found:
        before = build(case, dtype)
        after = rewritten(before, name)
        assert after is not None
        samples = random_samples(before, 3, seed=7)
        if all(v.type.dtype.is_integer for v in before.inputs):
            samples += extremes(before)
        results = [evaluate(after, sample).outputs for sample in samples]
        expected = [evaluate(before, sample).outputs for sample in samples]
        assert_same(results, expected, f"{name} of {case}-{dtype.value}")


EXPECTED: dict[str, tuple[type[Op], ...]] = {
    "split_groups": (Slice, Conv2D, Concat),
    "dense_to_convolution": (Conv2D,),
    "convolution_to_dense": (FullyConnected,),
    "explicit_padding": (Pad,),
    "function_to_table": (Table,),
    "matmul_to_dense": (FullyConnected,),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", LEGALIZATIONS)
def test_each_rewrite_produces_the_expected_operators(name: str) -> None:
    case, dtype = cases_that_change(name)[0]
    after = rewritten(build(case, dtype), name)
    assert after is not None
    kinds = {type(node.op) for node in after.nodes}
    assert kinds.issuperset(EXPECTED[name])


def test_dense_layers_with_scales_that_round_differently_are_not_rewritten() -> None:
    """TFLM multiplies a dense layer's scales in float32, and a convolution's in double."""
    refused = 0
    for case, dtype in CASES:
        if not isinstance(case.op, FullyConnected) or dtype is not DType.INT8:
            continue
        graph = build(case, dtype)
        (node,) = graph.nodes
        if node.rounding is Rounding.TFLM and rewritten(graph, "dense_to_convolution") is None:
            refused += 1
    assert refused


def test_long_stacks_of_matrices_are_not_rewritten() -> None:
    """A dense layer for each matrix would take too long to build, and as many calls."""
    for count, applied in ((64, True), (65, False)):
        case = Case("stack", MatMul(), (Data((count, 4, 8)), Data((count, 8, 4))))
        assert (rewritten(build(case, DType.FLOAT32), "matmul_to_dense") is not None) == applied


class Ungrouped(Kernel):
    """Backend c's kernel for convolutions, limited to one group."""

    op = Conv2D

    def __init__(self) -> None:
        (self._kernel,) = [k for k in backend("c").kernels if k.op is Conv2D]

    def offer(self, node: Node, request: Request) -> KernelCall | Refusal:
        if isinstance(node.op, Conv2D) and node.op.groups > 1:
            return Refusal("one group only.")
        return self._kernel.offer(node, request)


def partitioner(*groups: Sequence[Backend]) -> Partitioner:
    return Partitioner(groups, Request(get("host")))


def grouped_convolution() -> Graph:
    case, dtype = cases_that_change("split_groups")[0]
    return build(case, dtype)


def test_a_preferred_backend_gets_what_it_can_serve_after_a_rewrite() -> None:
    few = Backend("few", (Ungrouped(),))
    chooser = partitioner((few,), (backend("c"),))
    after, done = legalize(grouped_convolution(), chooser)
    assert [(one.operator, one.rewrite) for one in done] == [("Conv2D", "split_groups")]
    assert done[0].why == "A backend that --backends prefers serves the rewritten nodes."
    served = {n.op.name: chooser.choose(n).taken.backend for n in after.nodes}
    assert served == {"Slice": "c", "Conv2D": "few", "Concat": "c"}
    sample = random_samples(after, 1, seed=1)[0]
    for found, expected in zip(
        evaluate(after, sample).outputs,
        evaluate(grouped_convolution(), sample).outputs,
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)


def test_a_node_that_no_backend_serves_is_rewritten() -> None:
    others = tuple(k for k in backend("c").kernels if k.op is not Conv2D)
    chooser = partitioner((Backend("few", (Ungrouped(), *others)),))
    after, done = legalize(grouped_convolution(), chooser)
    assert "Slice" in {n.op.name for n in after.nodes}
    assert [one.why for one in done] == ["No backend serves the original operator."]


def test_the_report_shows_the_cycles_of_a_rewrite() -> None:
    artifact = compile_model(Network("mlperf_tiny", "sww_int8").model, Options(target="cortex-m3"))
    text = StringIO()
    show.partition(Console(file=text, width=200), artifact.report, candidates=True)
    assert re.search(
        r"rewritten: Conv2D of CONV_2D #7 '.*': convolution_to_dense\. The rewrite takes [\d,]+ "
        r"cycles instead of [\d,]+\.",
        text.getvalue(),
    )
    assert "note: no layer is rewritten" not in text.getvalue()


def test_a_node_that_the_backend_serves_is_not_rewritten() -> None:
    after, done = legalize(grouped_convolution(), partitioner((backend("c"),)))
    assert (done, len(after.nodes)) == ((), 1)
    assert all(type(n.op) is not Transpose for n in after.nodes)


def test_images_keep_their_rows_where_ram_is_limited() -> None:
    """A 1x1 convolution can be computed a few rows at a time, but not between views."""
    model = Network("mlperf_tiny", "vww_int8").model
    images: dict[int | None, int] = {}
    for max_ram in (None, 32_000):
        artifact = compile_model(model, Options("cortex-m3", optimize="size", max_ram=max_ram))
        nodes = artifact.graph.nodes
        dense = [n.input(0).type.shape[0] for n in nodes if isinstance(n.op, FullyConnected)]
        images[max_ram] = sum(rows > 1 for rows in dense)
    assert images[None] > 0 == images[32_000]
