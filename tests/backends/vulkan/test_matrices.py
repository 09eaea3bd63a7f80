"""MatMul and ConvTranspose on a GPU: every way of loading factors, against the references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.backends.vulkan.elementwise import Lanes
from smelt.ir import DType, Graph, Node, Origin, Rounding, TensorType, Value, evaluate, verify
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.case import Bias, Case, Data, Weights
from smelt.ops.core.convolution_nd import ConvTranspose, Pairs
from smelt.ops.core.matmul import MatMul, swapped
from smelt.proof.run import run
from smelt.samples import random_samples
from tests.backends.test_cases import member_of
from tests.support.graphs import SETUPS, assert_same, combine, compile_graph, run_together
from tests.support.vulkan_tools import program_of, requires_vulkan

pytestmark = requires_vulkan

ON_GPU = SETUPS["vulkan"]
KINDS = ((DType.FLOAT32, Rounding.TFLM), (DType.INT8, Rounding.TFLM), (DType.INT8, Rounding.ONNX))


def product(
    a: tuple[int, ...],
    b: tuple[int, ...],
    left: tuple[int, ...] = (),
    right: tuple[int, ...] = (),
    result: tuple[int, ...] = (),
) -> Case:
    return Case("shape", MatMul(left, right, result), (Data(a), Data(b, -2.0, 1.0)))


def transposed(
    x: tuple[int, ...],
    weights: tuple[int, ...],
    stride: tuple[int, ...],
    padding: Pairs = ((0, 0), (0, 0)),
    dilation: tuple[int, ...] = (1, 1),
    groups: int = 1,
) -> Case:
    op = ConvTranspose(stride, padding, dilation, groups, Activation.RELU)
    return Case("shape", op, (Data(x), Weights(weights, axis=3), Bias(weights[3])))


PRODUCTS = {
    "deep": (
        product((5, 12), (7, 12), right=(1, 0)),
        product((2, 3, 5, 8), (3, 9, 8), right=swapped(3)),
        product((1, 6, 2, 16), (1, 5, 2, 16), (0, 2, 1, 3), (0, 2, 3, 1)),
        product((1, 64), (3, 64), right=(1, 0)),
        product((3, 260), (8, 260), right=(1, 0), result=(1, 0)),
    ),
    "across": (
        product((5, 7), (7, 8)),
        product((9, 6), (9, 12), (1, 0)),
        product((3, 5), (8, 5), right=(1, 0)),
        product((8, 5), (5, 3), result=(1, 0)),
        product((5, 8), (5, 3), (1, 0), result=(1, 0)),
        product((2, 4, 7), (2, 7, 4), result=(0, 2, 1)),
        product((3, 1, 2, 5), (4, 5, 4)),
        product((1, 3, 5, 7), (1, 7, 3, 16), right=(0, 2, 1, 3), result=(0, 2, 1, 3)),
    ),
    "single": (
        product((5, 7), (7, 3)),
        product((2, 3, 5), (2, 5, 7)),
        product((1, 9), (9, 1)),
        product((3, 1, 2, 5), (3, 5, 5)),
    ),
}
TRANSPOSED = (
    *(transposed((1, 3, 4, c), (3, 3, 1, c), (2, 2), groups=c) for c in (1, 3, 4, 12)),
    *(transposed((2, 3, 4, 3), (2, 2, 3, c), (2, 2)) for c in (1, 2, 3, 4, 5, 8)),
    transposed((1, 4, 3, 6), (3, 3, 3, 8), (2, 2), ((1, 1), (0, 1)), groups=2),
    transposed((1, 4, 3, 8), (3, 3, 1, 16), (1, 2), ((1, 0), (2, 1)), groups=8),
    transposed((1, 3, 5, 4), (1, 1, 4, 8), (3, 2), ((-2, -1), (-1, 0))),
    transposed((1, 3, 5, 4), (2, 3, 4, 4), (1, 1), ((-2, -3), (-1, 0))),
    transposed((1, 4, 4, 4), (3, 2, 4, 4), (2, 3), ((2, 1), (0, 2)), (3, 2)),
    transposed((1, 5, 4, 3), (3, 3, 3, 4), (4, 4), ((-1, 0), (1, -2)), (2, 4)),
)


def calls_of(cases: Sequence[Case]) -> list[ShaderCall]:
    """Return the calls of each case, by kind; fail unless shaders compute all cases correctly."""
    chosen = [
        (replace(case, rounding=rounding), dtype) for case in cases for dtype, rounding in KINDS
    ]
    members = [member_of(case, dtype) for case, dtype in chosen]
    artifact = compile_graph(combine("all", [member.graph for member in members]), ON_GPU)
    types = MatMul | ConvTranspose
    calls = [step.call for step in artifact.schedule.calls if isinstance(step.node.op, types)]
    shaders = [call for call in calls if isinstance(call, ShaderCall)]
    assert len(shaders) == len(calls) == len(chosen)
    found = run_together(members, ON_GPU)
    for (case, dtype), member, outputs in zip(chosen, members, found, strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        assert_same(outputs, expected, f"{case.op} {case.arguments}-{dtype.value}")
    return shaders


@pytest.mark.quick(grouping=("across",))
@pytest.mark.parametrize("grouping", PRODUCTS)
def test_products_of_matrices(grouping: str) -> None:
    """Broadcast stacks and transpositions; rows that begin at a word or not."""
    calls = calls_of(PRODUCTS[grouping])
    assert {call.parameters.variables["grouping"] for call in calls} == {grouping}


def test_a_product_with_itself() -> None:
    x = Value("x", TensorType((3, 6, 8), DType.FLOAT32))
    y = Value("y", TensorType((3, 6, 6), DType.FLOAT32))
    node = Node(MatMul(right=swapped(3)), (x, x), (y,), Origin("MATMUL", 0))
    graph = verify(Graph("square", (x,), (y,), (node,)), "building a test")
    samples = random_samples(graph, 2, 0)
    found = list(run(compile_graph(graph, ON_GPU), samples).outputs)
    assert_same(found, [evaluate(graph, sample).outputs for sample in samples], "square")


def test_transposed_convolutions() -> None:
    """Groups of any width, pixels that no tap reaches, taps between the pixels."""
    calls = calls_of(TRANSPOSED)
    widths = set[tuple[int, str]]()
    for call in calls:
        lanes = call.parameters.variables["lanes"]
        assert isinstance(lanes, Lanes)
        widths.add((lanes.width, call.views["input"]))
    assert widths == {(1, "float"), (1, "int"), (4, "float"), (4, "vec4"), (4, "int")}


def test_layers_of_other_sizes_share_a_module() -> None:
    cases = [transposed((1, n, 4, 3), (n, 2, 3, 4), (2, n)) for n in (1, 2, 3)]
    cases += [product((n, 5), (5, 4 * n)) for n in (2, 3, 4)]
    members = [member_of(case, DType.FLOAT32) for case in cases]
    artifact = compile_graph(combine("all", [member.graph for member in members]), ON_GPU)
    program = program_of(artifact)
    assert program is not None
    assert len(program.modules) == 2
    assert len(program.pipelines) == len(cases)
    found = run_together(members, ON_GPU)
    for member, outputs in zip(members, found, strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        assert_same(outputs, expected, str(member.graph.nodes[0].op))
