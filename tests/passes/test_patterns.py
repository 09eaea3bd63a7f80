"""Recognition of functions in several nodes, and removal of duplicate and neutral operators."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.codegen.passes.cleanup.common_subexpressions import (
    share_common_nodes,
    simplify_arithmetic,
)
from smelt.codegen.passes.fusion.normalizations import recognize_normalizations
from smelt.codegen.passes.fusion.patterns import recognize_functions
from smelt.codegen.passes.layout.reshapes import merge_reshapes, sink_reshapes
from smelt.ops.core.normalization import Normalization
from smelt.ops.core.unary import Unary
from tests.passes.test_folding import assert_equal_results, check, unchanged
from tests.passes.test_passes import body, parse

GELU = """
    input %x: f32[2,3]
    const %r: f32[] = [1.4142135]
    %d: f32[2,3] = Binary(%x, %r) {kind="div"} from DIV #0
    %e: f32[2,3] = Unary(%d) {kind="erf"} from ERF #1
    const %one: f32[] = [1.0]
    %a: f32[2,3] = Binary(%e, %one) {kind="add"} from ADD #2
    const %half: f32[1] = [0.5]
    PRODUCT
    output %y
    """
OUTER = """%m: f32[2,3] = Binary(%x, %a) {kind="mul"} from MUL #3
    %y: f32[2,3] = Binary(%m, %half) {kind="mul"} from MUL #4"""
INNER = """%m: f32[2,3] = Binary(%half, %x) {kind="mul"} from MUL #3
    %y: f32[2,3] = Binary(%a, %m) {kind="mul"} from MUL #4"""

GELU_TANH = """
    input %x: f32[2,3]
    const %three: f32[] = [3.0]
    %p: f32[2,3] = Binary(%x, %three) {kind="pow"} from POW #0
    const %k: f32[] = [0.044715]
    %q: f32[2,3] = Binary(%p, %k) {kind="mul"} from MUL #1
    %s: f32[2,3] = Binary(%x, %q) {kind="add"} from ADD #2
    const %c: f32[] = [0.7978846]
    %u: f32[2,3] = Binary(%s, %c) {kind="mul"} from MUL #3
    %t: f32[2,3] = Unary(%u) {kind="tanh"} from TANH #4
    const %one: f32[] = [1.0]
    %v: f32[2,3] = Binary(%t, %one) {kind="add"} from ADD #5
    const %half: f32[] = [0.5]
    %h: f32[2,3] = Binary(%x, %half) {kind="mul"} from MUL #6
    %y: f32[2,3] = Binary(%h, %v) {kind="mul"} from MUL #7
    output %y
    """

GELU_FAST = """
    input %x: f32[2,3]
    const %k: f32[] = [0.044715]
    const %one: f32[] = [1.0]
    const %c: f32[] = [0.7978846]
    const %half: f32[] = [0.5]
    %p: f32[2,3] = Binary(%x, %x) {kind="mul"} from MUL #0
    %q: f32[2,3] = Binary(%p, %k) {kind="mul"} from MUL #1
    %s: f32[2,3] = Binary(%one, %q) {kind="add"} from ADD #2
    %w: f32[2,3] = Binary(%x, %c) {kind="mul"} from MUL #3
    %u: f32[2,3] = Binary(%w, %s) {kind="mul"} from MUL #4
    %t: f32[2,3] = Unary(%u) {kind="tanh"} from TANH #5
    %v: f32[2,3] = Binary(%one, %t) {kind="add"} from ADD #6
    %h: f32[2,3] = Binary(%x, %half) {kind="mul"} from MUL #7
    %y: f32[2,3] = Binary(%h, %v) {kind="mul"} from MUL #8
    output %y
    """

SWISH = """
    input %x: f32[2,3]
    %s: f32[2,3] = Unary(%x) {kind="logistic"} from SIGMOID #0
    %y: f32[2,3] = Binary(%s, %x) {kind="mul"} from MUL #1
    output %y
    """

FAST_SWISH = """
    input %x: f32[2,3]
    const %k: f32[] = [1.5]
    %z: f32[2,3] = Binary(%x, %k) {kind="mul"} from MUL #0
    %s: f32[2,3] = Unary(%z) {kind="logistic"} from SIGMOID #1
    %y: f32[2,3] = Binary(%x, %s) {kind="mul"} from MUL #2
    output %y
    """

MISH = """
    input %x: f32[2,3]
    %s: f32[2,3] = Unary(%x) {kind="softplus"} from SOFTPLUS #0
    %t: f32[2,3] = Unary(%s) {kind="tanh"} from TANH #1
    %y: f32[2,3] = Binary(%x, %t) {kind="mul"} from MUL #2
    output %y
    """

HARD_SWISH = """
    input %x: f32[2,3]
    %s: f32[2,3] = Unary(%x) {kind="hard_sigmoid", alpha=0.16666667, beta=0.5} from HARD #0
    %y: f32[2,3] = Binary(%x, %s) {kind="mul"} from MUL #1
    output %y
    """

RELU6_SWISH = """
    input %x: f32[2,3]
    const %three: f32[] = [3.0]
    %a: f32[2,3] = Binary(%x, %three) {kind="add"} from ADD #0
    %c: f32[2,3] = Unary(%a) {kind="CLAMP"} from CLIP #1
    %m: f32[2,3] = Binary(%x, %c) {kind="mul"} from MUL #2
    const %six: f32[] = [6.0]
    %y: f32[2,3] = Binary(%m, %six) {kind="div"} from DIV #3
    output %y
    """


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (GELU.replace("PRODUCT", OUTER), "gelu"),
        (GELU.replace("PRODUCT", INNER), "gelu"),
        (GELU_TANH, "gelu_tanh"),
        (GELU_FAST, "gelu_tanh"),
        (SWISH, "swish"),
        (FAST_SWISH, "swish"),
        (MISH, "mish"),
        (HARD_SWISH, "hard_swish"),
        (RELU6_SWISH.replace("CLAMP", "relu6"), "hard_swish"),
        (RELU6_SWISH.replace('CLAMP"', 'clamp", beta=6.0'), "hard_swish"),
    ],
)
def test_functions_are_recognized(text: str, kind: str) -> None:
    graph = parse(text)
    result = recognize_functions(graph)
    (node,) = result.nodes
    assert isinstance(node.op, Unary)
    assert node.op.kind == kind
    assert_equal_results(graph, result)


@pytest.mark.parametrize(
    "text",
    [
        GELU.replace("PRODUCT", OUTER).replace("1.4142135", "1.5"),
        GELU.replace("PRODUCT", OUTER).replace("[1.0]", "[2.0]"),
        GELU.replace("PRODUCT", OUTER).replace("[0.5]", "[0.25]"),
        GELU_TANH.replace("0.044715", "0.05"),
        GELU_FAST.replace("0.7978846", "0.8"),
        SWISH.replace("f32[2,3]", "f32[3]", 1)
        .replace("%s: f32[2,3]", "%s: f32[3]")
        .replace("Binary(%s, %x)", "Binary(%s, %w)")
        .replace("input %x: f32[3]", "input %x: f32[3]\ninput %w: f32[2,3]"),
        HARD_SWISH.replace("0.16666667", "0.2"),
        RELU6_SWISH.replace("CLAMP", "relu6").replace("[3.0]", "[2.0]"),
        MISH.replace("Unary(%x)", "Unary(%z)").replace("input", "input %z: f32[2,3]\ninput"),
    ],
)
def test_similar_expressions_are_not_recognized(text: str) -> None:
    graph = parse(text)
    assert body(recognize_functions(graph)) == body(graph)


LAYER_NORM = """
    input %x: f32[2,3,4]
    %m: f32[2,3,1] = Reduce(%x) {kind="mean", axes=(2), keep_dims=true} from MEAN #0
    %d: f32[2,3,4] = Binary(%x, %m) {kind="sub"} from SUB #1
    %q: f32[2,3,4] = Unary(%d) {kind="square"} from POW #2
    %v: f32[2,3,1] = Reduce(%q) {kind="mean", axes=(2), keep_dims=true} from MEAN #3
    const %eps: f32[] = [0.001]
    %e: f32[2,3,1] = Binary(%v, %eps) {kind="add"} from ADD #4
    %r: f32[2,3,1] = Unary(%e) {kind="sqrt"} from SQRT #5
    %n: f32[2,3,4] = Binary(%d, %r) {kind="div"} from DIV #6
    const %g: f32[4] = [1.0, 2.0, 3.0, -1.0]
    %s: f32[2,3,4] = Binary(%n, %g) {kind="mul"} from MUL #7
    const %b: f32[4] = [0.5, 1.5, -1.0, 0.0]
    %y: f32[2,3,4] = Binary(%b, %s) {kind="add"} from ADD #8
    output %y
    """

RMS_NORM = """
    input %x: f32[2,3,4]
    %q: f32[2,3,4] = Binary(%x, %x) {kind="mul"} from MUL #0
    %v: f32[2,3,1] = Reduce(%q) {kind="mean", axes=(2), keep_dims=true} from MEAN #1
    const %eps: f32[] = [0.001]
    const %one: f32[] = [1.0]
    %e: f32[2,3,1] = Binary(%eps, %v) {kind="add"} from ADD #2
    %r: f32[2,3,1] = Unary(%e) {kind="sqrt"} from SQRT #3
    %i: f32[2,3,1] = INVERSE from DIV #4
    %n: f32[2,3,4] = Binary(%x, %i) {kind="mul"} from MUL #5
    const %g: f32[4] = [1.0, 2.0, 3.0, -1.0]
    %y: f32[2,3,4] = Binary(%g, %n) {kind="mul"} from MUL #6
    output %y
    """


def test_layer_normalization_is_recognized() -> None:
    check(
        recognize_normalizations,
        LAYER_NORM,
        """
        input %x: f32[2,3,4]
        const %g: f32[4] = [1.0, 2.0, 3.0, -1.0]
        const %b: f32[4] = [0.5, 1.5, -1.0, 0.0]
        %y: f32[2,3,4] = Normalization(%x, %g, %b) {axes=(2), epsilon=EPSILON} from DIV #6 "n"
        output %y
        """.replace("EPSILON", repr(float(np.float32(0.001)))),
    )


@pytest.mark.parametrize(
    "inverse", ['Binary(%one, %r) {kind="div"}', 'Unary(%r) {kind="reciprocal"}']
)
def test_rms_normalization_is_recognized(inverse: str) -> None:
    graph = parse(RMS_NORM.replace("INVERSE", inverse))
    result = recognize_normalizations(graph)
    (node,) = result.nodes
    assert isinstance(node.op, Normalization)
    assert not node.op.centered
    assert_equal_results(graph, result)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('Reduce(%q) {kind="mean", axes=(2)', 'Reduce(%q) {kind="sum", axes=(2)'),
        ('Unary(%d) {kind="square"}', 'Unary(%d) {kind="abs"}'),
        ('Unary(%d) {kind="square"}', 'Unary(%x) {kind="square"}'),
        ('Unary(%e) {kind="sqrt"}', 'Unary(%e) {kind="exp"}'),
    ],
)
def test_similar_normalizations_are_not_recognized(old: str, new: str) -> None:
    graph = parse(LAYER_NORM.replace(old, new))
    assert body(recognize_normalizations(graph)) == body(graph)


def test_equal_nodes_are_computed_once() -> None:
    check(
        share_common_nodes,
        """
        input %x: f32[2,3]
        %a: f32[3,2] = Transpose(%x) {permutation=(1, 0)} from T #0
        %b: f32[3,2] = Transpose(%x) {permutation=(1, 0)} from T #1
        %c: f32[3,2] = Unary(%a) {kind="abs"} from ABS #2
        %d: f32[3,2] = Unary(%b) {kind="abs"} from ABS #3
        %e: f32[3,2] = Unary(%b) {kind="neg"} from NEG #4
        %y: f32[3,2] = Binary(%c, %d) {kind="add"} from ADD #5
        output %y
        output %e
        """,
        """
        input %x: f32[2,3]
        %a: f32[3,2] = Transpose(%x) {permutation=(1, 0)} from T #0
        %c: f32[3,2] = Unary(%a) {kind="abs"} from ABS #2
        %e: f32[3,2] = Unary(%a) {kind="neg"} from NEG #4
        %y: f32[3,2] = Binary(%c, %c) {kind="add"} from ADD #5
        output %y
        output %e
        """,
    )


def test_equal_outputs_stay_separate() -> None:
    unchanged(
        share_common_nodes,
        """
        input %x: f32[2]
        %a: f32[2] = Unary(%x) {kind="abs"} from ABS #0
        %b: f32[2] = Unary(%x) {kind="abs"} from ABS #1
        output %a
        output %b
        """,
    )


def test_consecutive_reshapes_become_one() -> None:
    check(
        merge_reshapes,
        """
        input %x: f32[2,3]
        %a: f32[6] = Reshape(%x) {shape=(6)} from R #0
        %b: f32[3,2] = Reshape(%a) {shape=(3, 2)} from R #1
        %c: f32[2,3] = Reshape(%b) {shape=(2, 3)} from R #2
        %y: f32[2,3] = Binary(%c, %x) {kind="add"} from ADD #3
        output %y
        output %b
        """,
        """
        input %x: f32[2,3]
        %b: f32[3,2] = Reshape(%x) {shape=(3, 2)} from R #1
        %y: f32[2,3] = Binary(%x, %x) {kind="add"} from ADD #3
        output %y
        output %b
        """,
    )


def test_elementwise_operators_move_before_reshapes() -> None:
    check(
        sink_reshapes,
        """
        input %x: f32[1,2,3]
        input %z: f32[1,2,3]
        %a: f32[2,1,3] = Reshape(%x) {shape=(2, 1, 3)} from R #0
        %b: f32[2,1,3] = Unary(%a) {kind="relu"} from RELU #1
        const %k: f32[3] = [1.0, 2.0, 3.0]
        %c: f32[2,1,3] = Binary(%k, %b) {kind="mul"} from MUL #2
        %d: f32[2,1,3] = Reshape(%z) {shape=(2, 1, 3)} from R #3
        %e: f32[2,1,3] = Binary(%c, %d) {kind="add"} from ADD #4
        const %m: f32[2,1,3] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        %y: f32[2,1,3] = Binary(%e, %m) {kind="sub"} from S #5
        output %y
        """,
        """
        input %x: f32[1,2,3]
        input %z: f32[1,2,3]
        %"b:reshaped": f32[1,2,3] = Unary(%x) {kind="relu"} from RELU #1 "b"
        const %k: f32[3] = [1.0, 2.0, 3.0]
        %"c:reshaped": f32[1,2,3] = Binary(%k, %"b:reshaped") {kind="mul"} from MUL #2 "c"
        %"e:reshaped": f32[1,2,3] = Binary(%"c:reshaped", %z) {kind="add"} from ADD #4 "e"
        const %"m:reshaped": f32[1,2,3] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        %"y:reshaped": f32[1,2,3] = Binary(%"e:reshaped", %"m:reshaped") {kind="sub"} from S #5 "y"
        %y: f32[2,1,3] = Reshape(%"y:reshaped") {shape=(2, 1, 3)} from S #5
        output %y
        """,
    )


@pytest.mark.parametrize(
    "operation",
    [
        'Binary(%a, %k) {kind="mul"}',  # along an axis that the reshape splits
        'Binary(%a, %z) {kind="add"}',  # the other operand is not reshaped
        "Softmax(%a)",
    ],
)
def test_other_operators_stay_after_reshapes(operation: str) -> None:
    graph = parse(
        f"""
        input %x: f32[6]
        input %z: f32[2,3]
        const %k: f32[3] = [1.0, 2.0, 3.0]
        %a: f32[2,3] = Reshape(%x) {{shape=(2, 3)}} from R #0
        %y: f32[2,3] = {operation} from OP #1
        output %y
        output %z
        """
    )
    assert body(sink_reshapes(graph)) == body(graph)


@pytest.mark.parametrize(
    ("operation", "kept"),
    [
        ('Binary(%h, %one) {kind="mul"}', False),
        ('Binary(%one, %h) {kind="mul"}', False),
        ('Binary(%h, %one) {kind="div"}', False),
        ('Binary(%h, %zero) {kind="add"}', False),
        ('Binary(%zero, %h) {kind="add"}', False),
        ('Binary(%h, %zero) {kind="sub"}', False),
        ('Binary(%one, %h) {kind="div"}', True),
        ('Binary(%zero, %h) {kind="sub"}', True),
        ('Binary(%h, %zero) {kind="mul"}', True),
        ('Binary(%h, %zero) {kind="maximum"}', True),
        ('Binary(%h, %one) {kind="mul", activation=relu}', True),
    ],
)
def test_neutral_operands_are_dropped(operation: str, kept: bool) -> None:
    graph = parse(
        f"""
        input %x: f32[2]
        const %one: f32[2] = [1.0, 1.0]
        const %zero: f32[1] = [0.0]
        %h: f32[2] = Unary(%x) {{kind="exp"}} from EXP #0
        %i: f32[2] = {operation} from OP #1
        %y: f32[2] = Unary(%i) {{kind="abs"}} from ABS #2
        output %y
        """
    )
    result = simplify_arithmetic(graph)
    assert len(result.nodes) == (3 if kept else 2)
    assert_equal_results(graph, result)


def test_a_neutral_operand_that_broadcasts_stays() -> None:
    graph = parse(
        """
        input %x: f32[2]
        const %one: f32[3,1] = [1.0, 1.0, 1.0]
        %h: f32[3,2] = Binary(%x, %one) {kind="mul"} from MUL #0
        %y: f32[3,2] = Unary(%h) {kind="abs"} from ABS #1
        output %y
        """
    )
    assert body(simplify_arithmetic(graph)) == body(graph)


def test_second_powers_become_squares() -> None:
    check(
        simplify_arithmetic,
        """
        input %x: f32[3]
        const %two: f32[] = [2.0]
        %y: f32[3] = Binary(%x, %two) {kind="pow"} from POW #0
        output %y
        """,
        """
        input %x: f32[3]
        %y: f32[3] = Unary(%x) {kind="square"} from POW #0
        output %y
        """,
    )
