"""Cancellation of transposes: graphs in text format, networks in ONNX's layout, random graphs."""

from __future__ import annotations

from dataclasses import replace
from time import process_time
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.api.options import Options
from smelt.codegen.passes import run_passes
from smelt.codegen.passes.layout.transposes import cancel_transposes
from smelt.ir import DType, Graph, Node, Op, Origin, TensorType, Value, evaluate, verify
from smelt.ir.text import print_graph
from smelt.ops import all_cases
from smelt.ops.case import Case, build, random_array
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.matmul import MatMul
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.softmax import Softmax
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.top_k import TopK
from smelt.ops.tensor.transpose import Transpose
from smelt.samples import random_samples
from tests.passes.test_passes import body, parse
from tests.support.graphs import Member, assert_same, run_together
from tests.support.random_networks import (
    PHASES,
    Block,
    Builder,
    binary,
    concat,
    conv,
    dense,
    depthwise,
    mean,
    pad,
    pool,
    reshape,
    resize,
    softmax,
    transpose,
    unary,
)

TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def moved(graph: Graph) -> int:
    """Return the bytes that a graph's transposes move."""
    return sum(n.output.type.bytes for n in graph.nodes if isinstance(n.op, Transpose))


def clean(graph: Graph) -> Graph:
    return verify(cancel_transposes(graph), "cancel_transposes")


def check(before: str, after: str) -> None:
    graph = parse(before)
    result = clean(graph)
    assert body(result) == body(parse(after))
    samples = random_samples(graph, 2, 0)
    expected = [evaluate(graph, sample).outputs for sample in samples]
    assert_same([evaluate(result, sample).outputs for sample in samples], expected, before)


def test_a_pair_around_elementwise_operators_cancels() -> None:
    check(
        """
        input %x: f32[1,4,5,3]
        %a: f32[1,3,4,5] = Transpose(%x) {permutation=(0, 3, 1, 2)} from T #0
        %b: f32[1,3,4,5] = Unary(%a) {kind="tanh"} from TANH #1
        const %k: f32[3,1,1] = [1.0, 2.0, 3.0]
        %c: f32[1,3,4,5] = Binary(%b, %k) {kind="mul"} from MUL #2
        %d: f32[1,4,5,3] = Transpose(%c) {permutation=(0, 2, 3, 1)} from T #3
        %y: f32[1,2,2,3] = Pool2D(%d) {kind="max", window=(2, 2), stride=(2, 2)} from POOL #4
        output %y
        """,
        """
        input %x: f32[1,4,5,3]
        %b: f32[1,4,5,3] = Unary(%x) {kind="tanh"} from TANH #1
        const %"k:transposed": f32[1,1,3] = [1.0, 2.0, 3.0]
        %c: f32[1,4,5,3] = Binary(%b, %"k:transposed") {kind="mul"} from MUL #2
        %y: f32[1,2,2,3] = Pool2D(%c) {kind="max", window=(2, 2), stride=(2, 2)} from POOL #4
        output %y
        """,
    )


def test_axes_of_concat_pad_and_reduce_follow() -> None:
    check(
        """
        input %x: f32[1,4,5,3]
        %a: f32[1,3,4,5] = Transpose(%x) {permutation=(0, 3, 1, 2)} from T #0
        %b: f32[1,6,4,5] = Concat(%a, %a) {axis=1} from CONCAT #1
        %c: f32[1,6,5,5] = Pad(%b) {padding=((0, 0), (0, 0), (1, 0), (0, 0))} from PAD #2
        %d: f32[1,6,5] = Reduce(%c) {kind="sum", axes=(3)} from SUM #3
        %y: f32[1,5,6] = Transpose(%d) {permutation=(0, 2, 1)} from T #4
        output %y
        """,
        """
        input %x: f32[1,4,5,3]
        %b: f32[1,4,5,6] = Concat(%x, %x) {axis=3} from CONCAT #1
        %c: f32[1,5,5,6] = Pad(%b) {padding=((0, 0), (1, 0), (0, 0), (0, 0))} from PAD #2
        %d: f32[1,5,6] = Reduce(%c) {kind="sum", axes=(2)} from SUM #3
        %y: f32[1,5,6] = Reshape(%d) {shape=(1, 5, 6)} from T #4
        output %y
        """,
    )


def test_flattening_before_a_dense_layer_permutes_its_weights() -> None:
    check(
        """
        input %x: f32[1,2,1,2]
        %a: f32[1,2,2,1] = Transpose(%x) {permutation=(0, 3, 1, 2)} from T #0
        %b: f32[1,4] = Reshape(%a) {shape=(1, 4)} from FLATTEN #1
        %c: f32[1,4] = Unary(%b) {kind="relu"} from RELU #2
        const %w: f32[2,4] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
        %y: f32[1,2] = FullyConnected(%c, %w) from GEMM #3
        output %y
        """,
        """
        input %x: f32[1,2,1,2]
        %b: f32[1,4] = Reshape(%x) {shape=(1, 4)} from FLATTEN #1
        %c: f32[1,4] = Unary(%b) {kind="relu"} from RELU #2
        const %"w:transposed": f32[2,4] = [1.0, 3.0, 2.0, 4.0, 5.0, 7.0, 6.0, 8.0]
        %y: f32[1,2] = FullyConnected(%c, %"w:transposed") from GEMM #3
        output %y
        """,
    )


def test_a_transpose_that_moves_nothing_becomes_a_reshape() -> None:
    check(
        """
        input %x: f32[1,3,1,1]
        %y: f32[1,1,1,3] = Transpose(%x) {permutation=(0, 2, 3, 1)} from T #0
        output %y
        """,
        """
        input %x: f32[1,3,1,1]
        %y: f32[1,1,1,3] = Reshape(%x) {shape=(1, 1, 1, 3)} from T #0
        output %y
        """,
    )


def test_an_output_keeps_its_layout_and_its_name() -> None:
    """The only transpose stays before the Pad, where the tensor is smaller."""
    check(
        """
        input %x: f32[1,2,2,3]
        %a: f32[1,3,2,2] = Transpose(%x) {permutation=(0, 3, 1, 2)} from T #0
        %b: f32[1,3,2,2] = Unary(%a) {kind="abs"} from ABS #1
        %y: f32[1,3,4,2] = Pad(%b) {padding=((0, 0), (0, 0), (1, 1), (0, 0))} from PAD #2
        output %y
        """,
        """
        input %x: f32[1,2,2,3]
        %a: f32[1,3,2,2] = Transpose(%x) {permutation=(0, 3, 1, 2)} from T #0
        %b: f32[1,3,2,2] = Unary(%a) {kind="abs"} from ABS #1
        %y: f32[1,3,4,2] = Pad(%b) {padding=((0, 0), (0, 0), (1, 1), (0, 0))} from PAD #2
        output %y
        """,
    )


def test_a_quantized_image_is_transposed_as_bytes() -> None:
    check(
        """
        input %x: f32[1,3,2,2]
        %a: f32[1,2,2,3] = Transpose(%x) {permutation=(0, 2, 3, 1)} from T #0
        %y: i8[1,2,2,3] q(0.5, 3) = Quantize(%a) {dtype=i8} rounding=tflm from Q #1
        output %y
        """,
        """
        input %x: f32[1,3,2,2]
        %"y:laid_out": i8[1,3,2,2] q(0.5, 3) = Quantize(%x) {dtype=i8} rounding=tflm from Q #1 "y"
        %y: i8[1,2,2,3] q(0.5, 3) = Transpose(%"y:laid_out") {permutation=(0, 2, 3, 1)} from Q #1
        output %y
        """,
    )


def builder() -> Builder:
    """Return a builder for a fixed network, without random choices by Hypothesis."""
    return Builder(DType.FLOAT32, cast(st.DrawFn, None), np.random.default_rng(3))


def image_op(b: Builder, op: Op, x: Value, *operands: Value) -> Value:
    """Add a spatial operator on an NCHW image, between transposes, as the ONNX importer does."""
    y = b.apply(op, b.apply(Transpose(TO_NHWC), x), *operands)
    return b.apply(Transpose(TO_NCHW), y)


def image_conv(b: Builder, x: Value, channels: int, size: int = 3, stride: int = 1) -> Value:
    border = (size // 2, size // 2)
    weights = b.weights(x, (channels, size, size, x.type.shape[1]), 0)
    return image_op(b, Conv2D((stride, stride), (border, border)), x, *weights)


def finished(b: Builder, *outputs: Value) -> Graph:
    return verify(Graph("g", tuple(b.inputs), outputs, tuple(b.nodes)), "building")


def assert_equal_results(graph: Graph, result: Graph) -> None:
    assert [(v.name, v.type) for v in result.outputs] == [(v.name, v.type) for v in graph.outputs]
    samples = random_samples(graph, 2, 0)
    expected = [evaluate(graph, sample).outputs for sample in samples]
    found = [evaluate(result, sample).outputs for sample in samples]
    assert_same(found, expected, print_graph(graph, {}))


def permutations(graph: Graph) -> list[tuple[int, ...]]:
    """Return the permutations of the transposes in a graph."""
    return [n.op.permutation for n in graph.nodes if isinstance(n.op, Transpose)]


def test_a_residual_network_transposes_only_its_input() -> None:
    b = builder()
    x = b.apply(Unary("relu"), image_conv(b, b.input((2, 3, 8, 8)), 8))
    for stride in (1, 2):
        branch = b.apply(Unary("relu"), image_conv(b, x, 8, stride=stride))
        branch = image_conv(b, branch, 8)
        skip = x if stride == 1 else image_conv(b, x, 8, 1, stride)
        x = b.apply(Unary("relu"), b.apply(Binary("add"), branch, skip))
    gate = b.apply(Reduce("mean", (2, 3), keep_dims=True), x)
    gate = b.apply(Unary("logistic"), image_conv(b, gate, 8, 1))
    x = b.apply(Concat(1), b.apply(Binary("mul"), x, gate), x)
    x = b.apply(Reshape((2, x.type.size // 2)), x)
    graph = finished(b, b.apply(FullyConnected(), x, *b.weights(x, (5, x.type.shape[1]), 0)))
    result = clean(graph)
    assert permutations(result) == [TO_NHWC]
    assert_equal_results(graph, result)


def test_channel_shuffle_moves_its_channels_once() -> None:
    b = builder()
    x = image_conv(b, b.input((1, 3, 4, 4)), 8)
    y = b.apply(Transpose((0, 2, 1, 3, 4)), b.apply(Reshape((1, 2, 4, 4, 4)), x))
    y = b.apply(Reshape((1, 8, 4, 4)), y)
    y = image_conv(b, y, 8)
    y = b.apply(Reduce("mean", (2, 3)), y)
    graph = finished(b, y)
    result = clean(graph)
    assert moved(result) == (3 + 8) * 4 * 4 * 4
    assert_equal_results(graph, result)


def test_detection_heads_are_not_transposed() -> None:
    """Detectors flatten maps of boxes to [n, boxes, 4] and concatenate them."""
    b = builder()
    x = b.apply(Transpose(TO_NCHW), b.input((1, 8, 8, 3)))
    heads: list[Value] = []
    for stride in (1, 2):
        y = image_conv(b, x, 8, stride=stride)
        y = b.apply(Transpose(TO_NHWC), y)
        heads.append(b.apply(Reshape((1, y.type.size // 4, 4)), y))
    graph = finished(b, b.apply(Softmax(), b.apply(Concat(1), *heads)))
    result = clean(graph)
    assert permutations(result) == []
    assert_equal_results(graph, result)


def test_patches_become_tokens_without_transpose() -> None:
    """A vision transformer reshapes [n,c,h,w] to [n,c,hw] and transposes to [n,hw,c]."""
    b = builder()
    x = image_conv(b, b.input((1, 1, 8, 8)), 6)
    tokens = b.apply(Transpose((0, 2, 1)), b.apply(Reshape((1, 6, 64)), x))
    dense = FullyConnected(keep_dims=True)
    graph = finished(b, b.apply(dense, tokens, *b.weights(tokens, (5, 6), 0)))
    result = clean(graph)
    assert permutations(result) == []
    assert_equal_results(graph, result)


def attention(b: Builder, x: Value, heads: int) -> Value:
    """Add self-attention as PyTorch exports it."""
    n, tokens, width = x.type.shape
    parted = (n, tokens, heads, width // heads)
    dense = FullyConnected(keep_dims=True)

    def part(permutation: tuple[int, ...]) -> Value:
        y = b.apply(dense, x, *b.weights(x, (width, width), 0))
        return b.apply(Transpose(permutation), b.apply(Reshape(parted), y))

    queries, keys, values = part((0, 2, 1, 3)), part((0, 2, 3, 1)), part((0, 2, 1, 3))
    scores = b.apply(Softmax(), b.apply(MatMul(), queries, keys))
    context = b.apply(Transpose((0, 2, 1, 3)), b.apply(MatMul(), scores, values))
    joined = b.apply(Reshape((n, tokens, width)), context)
    return b.apply(Binary("add"), x, b.apply(dense, joined, *b.weights(x, (width, width), 0)))


def test_products_of_attention_need_no_transpose() -> None:
    b = builder()
    x = attention(b, attention(b, b.input((1, 5, 12)), 3), 2)
    graph = finished(b, x)
    result = clean(graph)
    assert permutations(result) == []
    assert_equal_results(graph, result)


def test_a_deep_network_is_processed_in_seconds() -> None:
    b = builder()
    x = b.input((1, 3, 4, 4))
    for _ in range(40):
        y = b.apply(Unary("relu"), image_conv(b, x, 4, 1))
        x = b.apply(Binary("add"), image_conv(b, x, 4, 1), b.apply(Concat(1), y))
    x = b.apply(Transpose((0, 2, 1)), b.apply(Reshape((1, 4, 16)), x))
    for _ in range(12):
        x = attention(b, x, 2)
    graph = finished(b, x)
    start = process_time()
    result = clean(graph)
    assert process_time() - start < 20
    assert permutations(result) == [TO_NHWC]


def as_onnx(block: Block) -> Block:
    """Return the NHWC block between transposes, for an NCHW image."""

    def apply(b: Builder, x: Value) -> Value:
        return b.apply(Transpose(TO_NCHW), block(b, b.apply(Transpose(TO_NHWC), x)))

    return apply


def split(b: Builder, x: Value) -> Value:
    """Add a reshape to four axes that merges and splits adjacent axes."""
    n, c, h, w = x.type.shape
    shapes = ((n, c, 1, h * w), (n, c * h, w, 1), (n * c, h, w, 1), (1, n * c, h, w))
    halves = ((n, c // 2, 2 * h, w),) if c % 2 == 0 else ()
    return b.apply(Reshape(b.draw(st.sampled_from([*shapes, *halves]))), x)


SPATIAL = tuple(map(as_onnx, (conv, depthwise, pool, resize)))
ANY = (binary, concat, dense, mean, pad, reshape, softmax, transpose, unary, split)
BLOCKS = (*SPATIAL, *SPATIAL, *ANY)
SMALL = 3000


@st.composite
def networks(draw: st.DrawFn, dtype: DType) -> Member:
    """Draw a random network as an importer of NCHW files would write it."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    b = Builder(dtype, draw, rng)
    b.input((b.pick(1, 2), b.pick(1, 2, 3), b.pick(1, 4, 5), b.pick(1, 3, 4)))
    for _ in range(draw(st.integers(2, 10))):
        images = [v for v in b.computed() if len(v.type.shape) == 4]
        x = draw(st.sampled_from(images[-4:]))
        blocks = BLOCKS if x.type.size <= SMALL else (binary, unary, mean, transpose)
        draw(st.sampled_from(blocks))(b, x)
    used = {v for node in b.nodes for v in node.inputs}
    outputs = [node.output for node in b.nodes if node.output not in used]
    outputs += draw(st.lists(st.sampled_from(b.computed()), max_size=2))
    graph = finished(b, *dict.fromkeys(outputs))
    return Member(graph, [tuple(random_array(v.type, rng) for v in b.inputs) for _ in range(2)])


@pytest.mark.quick(every=2)
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8])
@given(data=st.data())
@settings(max_examples=80, phases=PHASES)
def test_random_networks_keep_their_results_and_move_less(
    dtype: DType, data: st.DataObject
) -> None:
    member = data.draw(networks(dtype))
    graph = member.graph
    result = verify(cancel_transposes(graph), "cancel_transposes")
    assert [(v.name, v.type) for v in result.outputs] == [(v.name, v.type) for v in graph.outputs]
    assert moved(result) <= moved(graph)
    expected = [evaluate(graph, sample).outputs for sample in member.samples]
    found = [evaluate(result, sample).outputs for sample in member.samples]
    assert_same(found, expected, repr(member))
    assert cancel_transposes(result) is result


@pytest.mark.thorough
@given(members=st.lists(networks(DType.INT8), min_size=4, max_size=6))
@settings(max_examples=6, phases=PHASES)
def test_generated_code_of_random_networks_is_exact(members: list[Member]) -> None:
    for member, found in zip(members, run_together(members, Options()), strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        assert_same(found, expected, repr(member))


@given(member=networks(DType.FLOAT32))
@settings(max_examples=60, phases=PHASES)
def test_all_passes_keep_the_results_of_random_networks(member: Member) -> None:
    result = run_passes(member.graph)
    expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
    assert_same([evaluate(result, s).outputs for s in member.samples], expected, repr(member))


def between_transposes(graph: Graph, order: tuple[int, ...]) -> Graph:
    """Return the graph with transposes at its inputs and outputs of this rank.

    The new inputs and outputs have their axes in the given order.
    """
    inverse = tuple(map(int, np.argsort(order)))
    renamed: dict[Value, Value] = {}
    inputs: list[Value] = []
    nodes: list[Node] = []

    def transposed(value: Value, permutation: tuple[int, ...]) -> Value:
        op = Transpose(permutation)
        (type_,) = op.infer([value.type])
        quant = op.output_quant([value.type])
        turned = Value(f"{value.name}:turned", replace(type_, quant=quant))
        nodes.append(Node(op, (value,), (turned,), Origin("TURN", len(nodes))))
        return turned

    for value in graph.inputs:
        if len(value.type.shape) != len(order):
            inputs.append(value)
            continue
        shape = tuple(value.type.shape[axis] for axis in order)
        inputs.append(replace(value, type=value.type.with_shape(shape)))
        renamed[value] = transposed(inputs[-1], inverse)
    for node in graph.nodes:
        operands = tuple(None if v is None else renamed.get(v, v) for v in node.inputs)
        nodes.append(replace(node, inputs=operands))
    outputs = [
        transposed(v, order) if len(v.type.shape) == len(order) else v for v in graph.outputs
    ]
    return verify(Graph("g", tuple(inputs), tuple(outputs), tuple(nodes)), "turning")


def test_unused_outputs_of_a_node_do_not_need_a_transpose() -> None:
    x, turned, y = floats("x", 1, 4, 6, 5), floats("t", 1, 6, 5, 4), floats("y", 1, 2, 6, 5)
    values, indices = floats("v", 1, 6, 5, 2), Value("i", TensorType((1, 6, 5, 2), DType.INT64))
    nodes = (
        Node(Transpose((0, 2, 3, 1)), (x,), (turned,), Origin("TRANSPOSE", 0)),
        Node(TopK(2, 3), (turned,), (values, indices), Origin("TOPK", 1)),
        Node(Transpose((0, 3, 1, 2)), (values,), (y,), Origin("TRANSPOSE", 2)),
    )
    before = verify(Graph("g", (x,), (y,), nodes), "building a test")
    after = clean(before)
    assert moved(after) == 0
    assert_equal_results(before, after)


def floats(name: str, *shape: int) -> Value:
    return Value(name, TensorType(shape, DType.FLOAT32))


CASES = [
    pytest.param(case, dtype, id=f"{case}-{dtype.value}")
    for case in all_cases()
    for dtype in case.dtypes
    if dtype in (DType.FLOAT32, DType.INT8)
]


@pytest.mark.quick(every=6)
@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_every_operator_between_transposes_computes_the_same(case: Case, dtype: DType) -> None:
    graph = build(case, dtype)
    ranks = {len(v.type.shape) for v in (*graph.inputs, *graph.outputs)}
    rng = np.random.default_rng(7)
    for rank in ranks - {0, 1}:
        orders = {tuple(range(rank))[::-1], (0, *range(2, rank), 1)}
        orders.add(tuple(int(axis) for axis in rng.permutation(rank)))
        for order in orders:
            before = between_transposes(graph, order)
            after = clean(before)
            assert moved(after) <= moved(before)
            assert_equal_results(before, after)
