"""Folding of scales, clamps, padding and products into adjacent layers; graphs are text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.codegen.passes import DEFAULT, Pass
from smelt.codegen.passes.fusion.activations import fuse_activations
from smelt.codegen.passes.fusion.channel_scales import fold_scales
from smelt.codegen.passes.fusion.fully_connected import use_dense_layers
from smelt.codegen.passes.fusion.padding import fold_pads
from smelt.ir import Graph, Node, Op, Origin, Value, evaluate, verify
from smelt.ir.text import print_graph
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.convolution_nd import Conv3D, ConvTranspose
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.unary import Unary
from smelt.samples import random_samples
from tests.passes.test_passes import body, parse
from tests.support.graphs import assert_same
from tests.support.random_networks import PHASES


def check(transform: Pass, before: str, after: str) -> None:
    graph = parse(before)
    result = verify(transform(graph, DEFAULT), transform.__name__)
    assert body(result) == body(parse(after))
    assert_equal_results(graph, result)


def unchanged(transform: Pass, text: str) -> None:
    check(transform, text, text)


def assert_equal_results(graph: Graph, result: Graph) -> None:
    samples = random_samples(graph, 3, 0)
    expected = [evaluate(graph, sample).outputs for sample in samples]
    found = [evaluate(result, sample).outputs for sample in samples]
    assert_same(found, expected, print_graph(graph, {}))


# Scales


def test_batch_normalization_after_a_transpose_is_folded() -> None:
    """The transpose restores the layout of the file, and comes last."""
    check(
        fold_scales,
        """
        input %x: f32[1,2,2,1]
        const %w: f32[2,1,1,1] = [1.0, 2.0]
        %c: f32[1,2,2,2] = Conv2D(%x, %w) from CONV #0 "c"
        %p: f32[1,2,2,2] = Transpose(%c) {permutation=(0, 3, 1, 2)} from CONV #0 "c"
        const %s: f32[2,1,1] = [0.5, 4.0]
        %m: f32[1,2,2,2] = Binary(%s, %p) {kind="mul"} from MUL #1 "m"
        const %t: f32[1,2,1,1] = [1.0, -1.0]
        %y: f32[1,2,2,2] = Binary(%m, %t) {kind="sub"} from SUB #2 "y"
        output %y
        """,
        """
        input %x: f32[1,2,2,1]
        const %"w:scaled": f32[2,1,1,1] = [0.5, 8.0]
        const %"m:untransposed:bias": f32[2] = [-1.0, 1.0]
        %"y:untransposed": f32[1,2,2,2] = Conv2D(%x, %"w:scaled", %"m:untransposed:bias") \
from CONV #0 "c"
        %y: f32[1,2,2,2] = Transpose(%"y:untransposed") {permutation=(0, 3, 1, 2)} from CONV #0 "c"
        output %y
        """,
    )


def test_scales_along_other_axes_after_a_transpose_stay() -> None:
    unchanged(
        fold_scales,
        """
        input %x: f32[1,2,2,1]
        const %w: f32[2,1,1,1] = [1.0, 2.0]
        %c: f32[1,2,2,2] = Conv2D(%x, %w) from CONV #0 "c"
        %p: f32[1,2,2,2] = Transpose(%c) {permutation=(0, 3, 1, 2)} from CONV #0 "c"
        const %s: f32[2] = [0.5, 4.0]
        %y: f32[1,2,2,2] = Binary(%s, %p) {kind="mul"} from MUL #1 "m"
        output %y
        """,
    )


def test_batch_normalization_is_folded_into_weights_and_bias() -> None:
    check(
        fold_scales,
        """
        input %x: f32[1,2,2,1]
        const %w: f32[2,1,1,1] = [1.0, 2.0]
        %c: f32[1,2,2,2] = Conv2D(%x, %w) from CONV #0 "c"
        const %s: f32[1,1,2] = [0.5, 4.0]
        %m: f32[1,2,2,2] = Binary(%s, %c) {kind="mul"} from MUL #1 "m"
        const %t: f32[2] = [1.0, -1.0]
        %y: f32[1,2,2,2] = Binary(%m, %t) {kind="sub", activation=relu} from SUB #2 "y"
        output %y
        """,
        """
        input %x: f32[1,2,2,1]
        const %"w:scaled": f32[2,1,1,1] = [0.5, 8.0]
        const %"m:bias": f32[2] = [-1.0, 1.0]
        %y: f32[1,2,2,2] = Conv2D(%x, %"w:scaled", %"m:bias") {activation=relu} from CONV #0 "c"
        output %y
        """,
    )


@pytest.mark.parametrize(
    "reason",
    [
        '%o: f32[1,2] = Unary(%c) {kind="abs"} from ABS #2 "o"\noutput %o',
        "output %c",
    ],
)
def test_layers_with_another_user_are_not_scaled(reason: str) -> None:
    unchanged(
        fold_scales,
        f"""
        input %x: f32[1,2]
        const %w: f32[2,2] = [1.0, 2.0, 3.0, 4.0]
        %c: f32[1,2] = FullyConnected(%x, %w) from FC #0 "c"
        const %k: f32[2] = [0.5, 4.0]
        %y: f32[1,2] = Binary(%c, %k) {{kind="mul"}} from MUL #1 "y"
        {reason}
        output %y
        """,
    )


@pytest.mark.parametrize(
    ("fields", "constant"),
    [
        ('kind="mul"', "[2] = [inf, 1.0]"),
        ('kind="mul"', "[2] = [nan, 1.0]"),
        ('kind="mul"', "[2] = [3e38, 1.0]"),
        ('kind="div"', "[2] = [0.0, 1.0]"),
        ('kind="maximum"', "[2] = [0.0, 1.0]"),
        ('kind="mul"', "[2,1] = [2.0, 1.0]"),
    ],
)
def test_operations_that_weights_cannot_represent_stay(fields: str, constant: str) -> None:
    graph = parse(
        f"""
        input %x: f32[2,2]
        const %w: f32[2,2] = [1.0, 20.0, 3.0, 4.0]
        %c: f32[2,2] = FullyConnected(%x, %w) from FC #0 "c"
        const %k: f32{constant}
        %y: f32[2,2] = Binary(%c, %k) {{{fields}}} from OP #1 "y"
        output %y
        """
    )
    assert body(fold_scales(graph)) == body(graph)


def test_an_addition_before_a_padded_layer_stays() -> None:
    unchanged(
        fold_scales,
        """
        input %x: f32[1,2,2,1]
        const %t: f32[1] = [1.0]
        %a: f32[1,2,2,1] = Binary(%x, %t) {kind="add"} from ADD #0 "a"
        const %w: f32[1,2,2,1] = [1.0, 2.0, 3.0, 4.0]
        %y: f32[1,2,2,1] = Conv2D(%a, %w) {padding=((1, 0), (0, 1))} from CONV #1 "y"
        output %y
        """,
    )


def test_consecutive_scales_and_shifts_are_joined() -> None:
    check(
        fold_scales,
        """
        input %x: f32[1,2]
        const %a: f32[2] = [1.0, 2.0]
        %p: f32[1,2] = Binary(%x, %a) {kind="mul"} from MUL #0 "p"
        const %b: f32[1] = [4.0]
        %q: f32[1,2] = Binary(%p, %b) {kind="div"} from DIV #1 "q"
        const %c: f32[] = [0.5]
        %r: f32[1,2] = Binary(%q, %c) {kind="add"} from ADD #2 "r"
        %y: f32[1,2] = Binary(%r, %a) {kind="sub", activation=relu} from SUB #3 "y"
        output %y
        """,
        """
        input %x: f32[1,2]
        const %"q:mul": f32[2] = [0.25, 0.5]
        %q: f32[1,2] = Binary(%x, %"q:mul") {kind="mul"} from DIV #1 "q"
        const %"y:add": f32[2] = [-0.5, -1.5]
        %y: f32[1,2] = Binary(%q, %"y:add") {kind="add", activation=relu} from SUB #3 "y"
        output %y
        """,
    )


def test_sums_with_large_numbers_stay() -> None:
    """Networks round to integers by adding and subtracting a large number."""
    unchanged(
        fold_scales,
        """
        input %x: f32[3]
        const %k: f32[] = [12582912.0]
        %a: f32[3] = Binary(%x, %k) {kind="add"} from ADD #0 "a"
        %y: f32[3] = Binary(%a, %k) {kind="sub"} from SUB #1 "y"
        output %y
        """,
    )


LINEAR: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, Op]] = {
    "conv": ((1, 4, 5, 3), (4, 3, 2, 3), 4, Conv2D()),
    "padded": ((1, 4, 5, 3), (4, 3, 2, 3), 4, Conv2D(padding=((1, 0), (2, 1)))),
    "groups": ((1, 4, 5, 6), (4, 3, 2, 3), 4, Conv2D(groups=2)),
    "depthwise": ((2, 4, 5, 3), (1, 3, 3, 6), 6, DepthwiseConv2D(padding=((0, 1), (1, 0)))),
    "dense": ((2, 6), (5, 6), 5, FullyConnected()),
    "rows": ((2, 3, 6), (5, 6), 5, FullyConnected(keep_dims=True)),
    "flattening": ((2, 2, 3, 4), (5, 24), 5, FullyConnected()),
    "volume": ((1, 3, 4, 5, 4), (2, 2, 2, 2, 6), 6, Conv3D((1,) * 3, ((0, 0),) * 3, (1,) * 3, 2)),
    "transposed": (
        (1, 3, 4, 4),
        (3, 2, 2, 6),
        6,
        ConvTranspose((2, 1), ((0, 1), (1, 0)), (1, 1), 2),
    ),
}


@pytest.mark.parametrize("name", LINEAR)
@given(data=st.data())
@settings(max_examples=30, phases=PHASES)
def test_scales_around_every_linear_operator_are_folded(name: str, data: st.DataObject) -> None:
    shape, weights, outputs, op = LINEAR[name]
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    nodes: list[Node] = []

    def constant(*size: int) -> Value:
        return Value.constant(f"k{len(nodes)}_{len(size)}", rng.uniform(0.5, 2, size).astype("f4"))

    def apply(op: Op, *operands: Value) -> Value:
        (type_,) = op.infer([v.type for v in operands])
        nodes.append(Node(op, operands, (Value(f"v{len(nodes)}", type_),), Origin("N", len(nodes))))
        return nodes[-1].output

    def scaled(x: Value) -> Value:
        for _ in range(data.draw(st.integers(0, 3))):
            size = data.draw(st.sampled_from([(), (1,), x.type.shape[-1:]]))
            kind = data.draw(st.sampled_from(["add", "sub", "mul", "div"]))
            pair = (x, constant(*size))
            swap = kind in ("add", "sub", "mul") and data.draw(st.booleans())
            x = apply(Binary(kind), *(pair[::-1] if swap else pair))
        return x

    x = start = Value("x", Value.constant("x", np.zeros(shape, np.float32)).type)
    x = scaled(x)
    matrix = Value.constant("w", rng.uniform(-1, 1, weights).astype(np.float32))
    bias = Value.constant("b", rng.uniform(-1, 1, outputs).astype(np.float32))
    x = apply(op, x, matrix, *((bias,) if data.draw(st.booleans()) else ()))
    x = scaled(x)
    if x is start:
        return
    graph = verify(Graph("g", (start,), (x,), tuple(nodes)), "building")
    result = verify(fold_scales(graph), "fold_scales")
    assert not isinstance(result.nodes[-1].op, Binary)
    assert_equal_results(graph, result)


# Activations


def fused(kinds: Sequence[str], dtype: str = "f32", quant: str = "") -> str:
    lines = [f"input %x: {dtype}[1,4] {quant}"]
    rounding = "rounding=tflm" if quant else ""
    lines.append(
        f'%v0: {dtype}[1,4] {quant} = Binary(%x, %x) {{kind="add"}} {rounding} from ADD #0'
    )
    for index, fields in enumerate(kinds, 1):
        lines.append(
            f"%v{index}: {dtype}[1,4] {quant} = Unary(%v{index - 1}) {{{fields}}} {rounding} "
            f"from CLAMP #{index}"
        )
    return "\n".join([*lines, f"output %v{len(kinds)}"])


@pytest.mark.parametrize(
    ("kinds", "activation"),
    [
        (['kind="relu"'], "relu"),
        (['kind="relu"', 'kind="relu"'], "relu"),
        (['kind="relu"', 'kind="relu6"'], "relu6"),
        (['kind="relu6"', 'kind="relu"'], "relu6"),
        (['kind="relu6"', 'kind="relu_n1_to_1"'], "relu_0_to_1"),
        (['kind="clamp", beta=6.0'], "relu6"),
        (['kind="clamp", alpha=-1.0, beta=1.0'], "relu_n1_to_1"),
    ],
)
def test_clamps_are_fused(kinds: list[str], activation: str) -> None:
    graph = parse(fused(kinds))
    result = verify(fuse_activations(graph), "fuse_activations")
    (node,) = result.nodes
    assert isinstance(node.op, Binary)
    assert node.op.activation.value == activation
    assert_equal_results(graph, result)


@pytest.mark.parametrize("fields", ['kind="clamp", beta=5.0', 'kind="tanh"'])
def test_other_functions_are_not_fused(fields: str) -> None:
    graph = parse(fused([fields]))
    assert body(fuse_activations(graph)) == body(graph)


def test_a_clamp_of_a_value_with_other_readers_is_not_fused() -> None:
    """Otherwise, the layer would be computed once for each reader."""
    unchanged(
        fuse_activations,
        """
        input %x: f32[1,2]
        const %w: f32[2,2] = [1.0, 2.0, 3.0, 4.0]
        %c: f32[1,2] = FullyConnected(%x, %w) from FC #0 "c"
        %r: f32[1,2] = Unary(%c) {kind="relu"} from RELU #1 "r"
        %n: f32[1,2] = Unary(%c) {kind="neg"} from NEG #2 "n"
        output %r
        output %n
        """,
    )


def test_minimum_and_maximum_become_a_clamp() -> None:
    check(
        fuse_activations,
        """
        input %x: f32[1,2]
        const %w: f32[2,2] = [1.0, 2.0, 3.0, 4.0]
        %c: f32[1,2] = FullyConnected(%x, %w) from FC #0 "c"
        const %zero: f32[] = [0.0]
        %m: f32[1,2] = Binary(%zero, %c) {kind="maximum"} from MAX #1 "m"
        const %six: f32[1] = [6.0]
        %y: f32[1,2] = Binary(%m, %six) {kind="minimum"} from MIN #2 "y"
        output %y
        """,
        """
        input %x: f32[1,2]
        const %w: f32[2,2] = [1.0, 2.0, 3.0, 4.0]
        %y: f32[1,2] = FullyConnected(%x, %w) {activation=relu6} from FC #0 "c"
        output %y
        """,
    )


def test_quantized_clamps_of_equal_quantization_are_fused() -> None:
    graph = parse(fused(['kind="relu"'], "i8", "q(0.05, -20)"))
    result = fuse_activations(graph)
    assert [type(node.op) for node in result.nodes] == [Binary]
    assert_equal_results(graph, result)
    other = parse(
        fused(['kind="relu"'], "i8", "q(0.05, -20)").replace(
            "%v1: i8[1,4] q(0.05, -20)", "%v1: i8[1,4] q(0.05, -128)"
        )
    )
    assert [type(node.op) for node in fuse_activations(other).nodes] == [Binary, Unary]


# Padding


@pytest.mark.parametrize(
    ("pad", "op", "folded"),
    [
        ("", "Conv2D(%p, %w) {stride=(2, 2)}", "{stride=(2, 2), padding=((1, 1), (0, 1))}"),
        ("", "Conv2D(%p, %w) {padding=((0, 0), (0, 1))}", "{padding=((1, 1), (0, 2))}"),
        (", value=-inf", 'Pool2D(%p) {kind="max", window=(3, 3)}', "padding=((1, 1), (0, 1))"),
        ("", 'Pool2D(%p) {kind="average", window=(3, 3)}', "counts_padding=true"),
        ("", 'Pool2D(%p) {kind="sum", window=(3, 3)}', "padding=((1, 1), (0, 1))"),
    ],
)
def test_padding_with_zero_is_folded(pad: str, op: str, folded: str) -> None:
    graph = parse(padded(pad, op))
    result = verify(fold_pads(graph), "fold_pads")
    assert len(result.nodes) == 1
    assert folded.strip("{}") in body(result)
    assert_equal_results(graph, result)


@pytest.mark.parametrize(
    ("pad", "op"),
    [
        (", value=1.0", "Conv2D(%p, %w)"),
        ("", 'Pool2D(%p) {kind="max", window=(3, 3)}'),
        ("", 'Pool2D(%p) {kind="average", window=(3, 3), padding=((1, 1), (1, 1))}'),
        ("", 'Pool2D(%p) {kind="average", window=(1, 1)}'),
    ],
)
def test_other_padding_stays(pad: str, op: str) -> None:
    graph = parse(padded(pad, op))
    assert body(fold_pads(graph)) == body(graph)


def padded(pad: str, op: str) -> str:
    """Return a graph that pads a 4 x 4 image to 6 x 5 and applies an operator."""
    frame = """
        input %x: f32[1,4,4,1]
        %p: f32[1,6,5,1] = Pad(%x) {{padding=((0, 0), (1, 1), (0, 1), (0, 0)){}}} from PAD #0 "p"
        {}
        %y: f32[1,{},{},1] = {} from OP #1 "y"
        output %y
        """
    weights = "const %w: f32[1,2,3,1] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]" if "%w" in op else ""
    shape = (4, 3)
    for fields, size in SIZES.items():
        if fields in op:
            shape = size
    return frame.format(pad, weights, *shape, op)


SIZES = {
    "Conv2D": (5, 3),
    "stride=(2, 2)": (3, 2),
    "padding=((0, 0), (0, 1))": (5, 4),
    "padding=((1, 1), (1, 1))": (6, 5),
    "window=(1, 1)": (6, 5),
}
"""Height and width of the results."""


def test_quantized_padding_with_the_zero_point_is_folded() -> None:
    text = """
        input %x: i8[1,3,3,1] q(0.5, 4)
        %p: i8[1,5,4,1] q(0.5, 4) = Pad(%x) {padding=((0, 0), (1, 1), (0, 1), (0, 0))VALUE}
          from PAD #0
        const %w: i8[1,2,2,1] q(0.1, 0) = [1, -2, 3, 4]
        %y: i8[1,4,3,1] q(0.5, 1) = Conv2D(%p, %w) rounding=tflm from CONV #1 "y"
        output %y
        """
    graph = parse(text.replace("VALUE", ""))
    result = verify(fold_pads(graph), "fold_pads")
    assert len(result.nodes) == 1
    assert_equal_results(graph, result)
    other = parse(text.replace("VALUE", ", value=0"))
    assert body(fold_pads(other)) == body(other)


# Products


def test_a_product_with_a_constant_matrix_becomes_a_dense_layer() -> None:
    check(
        use_dense_layers,
        """
        input %x: f32[1,2,3]
        const %m: f32[3,2] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        %y: f32[1,2,2] = MatMul(%x, %m) from MATMUL #0 "y"
        output %y
        """,
        """
        input %x: f32[1,2,3]
        const %"m:weights": f32[2,3] = [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]
        %y: f32[1,2,2] = FullyConnected(%x, %"m:weights") {keep_dims=true} from MATMUL #0 "y"
        output %y
        """,
    )


@pytest.mark.parametrize(
    "product",
    [
        "%y: f32[2,1,2] = MatMul(%x, %m) {left=(0, 2, 1)}",
        "%y: f32[2,2,1] = MatMul(%x, %m) {result=(0, 2, 1), left=(0, 2, 1)}",
        "%y: f32[2,3,2] = MatMul(%x, %n)",
        "%y: f32[1,2,3,2] = MatMul(%x, %o)",
    ],
)
def test_other_products_stay(product: str) -> None:
    unchanged(
        use_dense_layers,
        f"""
        input %x: f32[2,3,1]
        const %m: f32[3,2] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        const %n: f32[2,1,2] = [1.0, 2.0, 3.0, 4.0]
        const %o: f32[1,1,1,2] = [1.0, 2.0]
        {product} from MATMUL #0 "y"
        output %y
        """,
    )
