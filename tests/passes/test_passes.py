"""Tests of single passes on graphs in text format, and of all passes on integer networks."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from textwrap import dedent

import numpy as np
import pytest

from smelt.codegen.passes import DEFAULT, PASSES, Pass, PassContext, run_passes
from smelt.codegen.passes.cleanup.constant_folding import fold_constants
from smelt.codegen.passes.cleanup.dead_nodes import drop_dead_nodes, drop_identities
from smelt.codegen.passes.cleanup.materialize import materialize_results
from smelt.errors import GraphError, ModelError, UnsupportedError
from smelt.frontend import load
from smelt.ir import DType, Graph, evaluate, verify
from smelt.ir.text import parse_graph, print_graph
from smelt.ops import all_cases
from smelt.ops.case import Data, build
from smelt.samples import random_samples
from tests.support.graphs import compile_graph
from tests.support.shared import Network, networks


def parse(text: str) -> Graph:
    return verify(parse_graph(f'smelt-ir 1\ngraph "g" {{\n{dedent(text)}\n}}\n', {}), "parsing")


def body(graph: Graph) -> str:
    """Return the lines of the text format without indentation and the first and last line."""
    lines = print_graph(graph, {}).splitlines()[2:-1]
    return "\n".join(line.strip() for line in lines)


def check(transform: Pass, before: str, after: str) -> None:
    graph = parse(before)
    result = verify(transform(graph, DEFAULT), transform.__name__)
    assert body(result) == body(parse(after))
    for sample in random_samples(graph, 2, 0):
        for ours, theirs in zip(
            evaluate(result, sample).outputs, evaluate(graph, sample).outputs, strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)


def unchanged(transform: Pass, text: str) -> None:
    check(transform, text, text)


def test_constants_are_folded_through_a_chain() -> None:
    check(
        fold_constants,
        """
        input %x: f32[2]
        const %a: f32[2] = [1.0, 2.0]
        const %b: f32[2] = [0.5, 0.25]
        %s: f32[2] = Binary(%a, %b) {kind="add"} from ADD #0 "s"
        %n: f32[2] = Unary(%s) {kind="neg"} from NEG #1 "n"
        %y: f32[2] = Binary(%x, %n) {kind="mul"} from MUL #2 "y"
        output %y
        """,
        """
        input %x: f32[2]
        const %n: f32[2] = [-1.5, -2.25]
        %y: f32[2] = Binary(%x, %n) {kind="mul"} from MUL #2 "y"
        output %y
        """,
    )


def test_folded_constants_keep_their_quantization() -> None:
    check(
        fold_constants,
        """
        input %x: i8[2] q(0.5, 3)
        const %a: i8[2] q(0.25, -1) = [10, 20]
        %r: i8[2] q(0.5, 3) = Quantize(%a) {dtype=i8} rounding=tflm from QUANTIZE #0 "r"
        %y: i8[2] q(1.0, 0) = Binary(%x, %r) {kind="add"} rounding=tflm from ADD #1 "y"
        output %y
        """,
        """
        input %x: i8[2] q(0.5, 3)
        const %r: i8[2] q(0.5, 3) = [9, 14]
        %y: i8[2] q(1.0, 0) = Binary(%x, %r) {kind="add"} rounding=tflm from ADD #1 "y"
        output %y
        """,
    )


@pytest.mark.parametrize("axis", [0, -1])
def test_tensors_without_elements_are_compiled_or_refused(axis: int) -> None:
    """Test every operator, with each number of operands, with an empty first operand."""
    kinds = {f"{case.op.name} {len(case.arguments)}": case for case in all_cases()}
    for case in kinds.values():
        first, *others = case.arguments
        if DType.FLOAT32 not in case.dtypes or not isinstance(first, Data) or not first.shape:
            continue
        shape = list(first.shape)
        shape[axis] = 0
        alike = [replace(first, shape=tuple(shape)) if a == first else a for a in others]
        with suppress(ModelError, UnsupportedError):
            empty = (replace(first, shape=tuple(shape)), *alike)
            graph = build(replace(case, arguments=empty), DType.FLOAT32)
            compile_graph(graph)
            evaluate(graph, random_samples(graph, 1, 0)[0])


def test_a_folded_output_is_a_constant() -> None:
    check(
        fold_constants,
        """
        input %x: f32[1]
        const %a: f32[1] = [4.0]
        %y: f32[1] = Unary(%a) {kind="sqrt"} from SQRT #0 "y"
        output %y
        """,
        """
        input %x: f32[1]
        const %y: f32[1] = [2.0]
        output %y
        """,
    )


def test_nodes_that_depend_on_inputs_or_states_are_not_folded() -> None:
    unchanged(
        fold_constants,
        """
        input %x: f32[1]
        state %s: f32[1] = [1.0]
        const %a: f32[1] = [4.0]
        %t: f32[1] = Binary(%s, %a) {kind="add"} from ADD #0 "t"
        %y: f32[1] = Binary(%t, %x) {kind="add"} from ADD #1 "y"
        next %s = %t
        output %y
        """,
    )


@pytest.mark.parametrize(
    "identity",
    [
        "%i: f32[1,2,2] = Reshape(%h) {shape=(1, 2, 2)}",
        "%i: f32[1,2,2] = Transpose(%h) {permutation=(0, 1, 2)}",
        "%i: f32[1,2,2] = Pad(%h) {padding=((0, 0), (0, 0), (0, 0))}",
    ],
)
def test_identities_are_dropped(identity: str) -> None:
    frame = """
        input %x: f32[1,2,2]
        %h: f32[1,2,2] = Unary(%x) {{kind="neg"}} from NEG #0 "h"
        {}
        %y: f32[1,2,2] = Unary({}) {{kind="abs"}} from ABS #2 "y"
        output %y
        """
    before = frame.format(f'{identity} from NOTHING #1 "i"', "%i")
    check(drop_identities, before, frame.format("", "%h"))


@pytest.mark.parametrize(
    "useful",
    [
        "%i: f32[1,4] = Reshape(%x) {shape=(1, 4)}",
        "%i: f32[1,2,2] = Transpose(%x) {permutation=(0, 2, 1)}",
        "%i: f32[1,2,3] = Pad(%x) {padding=((0, 0), (0, 0), (0, 1))}",
        "%i: f32[1,2,2] = Slice(%x) {starts=(0, 0, 1), sizes=(1, 2, 2), steps=(1, 1, -1)}",
    ],
)
def test_other_operators_are_not_dropped(useful: str) -> None:
    unchanged(
        drop_identities,
        f"""
        input %x: f32[1,2,2]
        {useful} from SOMETHING #0 "i"
        {useful.split(" = ")[0].replace("%i", "%y")} = Unary(%i) {{kind="abs"}} from ABS #1 "y"
        output %y
        """,
    )


def test_requantization_is_dropped_only_if_it_keeps_the_type() -> None:
    frame = """
        input %x: i8[2] q(0.5, 3)
        {}
        {}
        %y: i8[2] q(0.5, {}) = Unary({}) {{kind="relu"}} rounding=tflm from RELU #2 "y"
        output %y
        """
    identity = '%n: i8[2] q(0.5, 3) = Quantize(%x) {dtype=i8} rounding=tflm from QUANTIZE #0 "n"'
    requantized = (
        '%r: i8[2] q(0.5, 2) = Quantize({}) {{dtype=i8}} rounding=tflm from QUANTIZE #1 "r"'
    )
    check(
        drop_identities,
        frame.format(identity, requantized.format("%n"), 2, "%r"),
        frame.format("", requantized.format("%x"), 2, "%r"),
    )


def test_identities_that_are_outputs_stay() -> None:
    """An output has its own name and buffer."""
    unchanged(
        drop_identities,
        """
        input %x: f32[2]
        %y: f32[2] = Reshape(%x) {shape=(2)} from RESHAPE #0 "y"
        output %y
        """,
    )


def test_chains_of_identities_are_dropped() -> None:
    check(
        drop_identities,
        """
        input %x: f32[2]
        %a: f32[2] = Reshape(%x) {shape=(2)} from RESHAPE #0 "a"
        %b: f32[2] = Transpose(%a) {permutation=(0)} from TRANSPOSE #1 "b"
        %y: f32[2] = Binary(%a, %b) {kind="add"} from ADD #2 "y"
        output %y
        """,
        """
        input %x: f32[2]
        %y: f32[2] = Binary(%x, %x) {kind="add"} from ADD #2 "y"
        output %y
        """,
    )


def test_dead_nodes_are_dropped_with_nodes_that_only_they_read() -> None:
    check(
        drop_dead_nodes,
        """
        input %x: f32[2]
        state %s: f32[2] = [0.0, 0.0]
        %a: f32[2] = Unary(%x) {kind="neg"} from NEG #0 "a"
        %b: f32[2] = Unary(%a) {kind="abs"} from ABS #1 "b"
        %c: f32[2] = Unary(%b) {kind="exp"} from EXP #2 "c"
        %t: f32[2] = Unary(%a) {kind="sin"} from SIN #3 "t"
        %y: f32[2] = Binary(%x, %s) {kind="add"} from ADD #4 "y"
        next %s = %t
        output %y
        """,
        """
        input %x: f32[2]
        state %s: f32[2] = [0.0, 0.0]
        %a: f32[2] = Unary(%x) {kind="neg"} from NEG #0 "a"
        %t: f32[2] = Unary(%a) {kind="sin"} from SIN #3 "t"
        %y: f32[2] = Binary(%x, %s) {kind="add"} from ADD #4 "y"
        next %s = %t
        output %y
        """,
    )


def test_constant_results_are_copied_once() -> None:
    check(
        materialize_results,
        """
        input %x: f32[1]
        const %k: f32[1] = [7.0]
        output %k
        output %x
        output %k
        """,
        """
        input %x: f32[1]
        const %k: f32[1] = [7.0]
        %"k:result": f32[1] = Copy(%k) from RESULT #0 "k"
        output %"k:result"
        output %x
        output %"k:result"
        """,
    )


def test_results_that_a_new_state_would_overwrite_are_copied() -> None:
    """The old value of a state is an output, reshaped, and the new value of another state."""
    check(
        materialize_results,
        """
        input %x: f32[2]
        state %a: f32[2] = [1.0, 2.0]
        state %b: f32[2] = [3.0, 4.0]
        state %c: f32[2] = [5.0, 6.0]
        %f: f32[1,2] = Reshape(%b) {shape=(1, 2)} from RESHAPE #0 "f"
        next %a = %b
        next %b = %x
        next %c = %c
        output %f
        """,
        """
        input %x: f32[2]
        state %a: f32[2] = [1.0, 2.0]
        state %b: f32[2] = [3.0, 4.0]
        state %c: f32[2] = [5.0, 6.0]
        %f: f32[1,2] = Reshape(%b) {shape=(1, 2)} from RESHAPE #0 "f"
        %"f:result": f32[1,2] = Copy(%f) from RESULT #0 "f"
        %"b:result": f32[2] = Copy(%b) from RESULT #1 "b"
        next %a = %"b:result"
        next %b = %x
        next %c = %c
        output %"f:result"
        """,
    )


def test_the_verifier_runs_after_every_pass() -> None:
    def break_it(graph: Graph, _: PassContext) -> Graph:
        return Graph(graph.name, (), graph.outputs, graph.nodes)

    graph = parse("input %x: f32[1]\noutput %x")
    with pytest.raises(GraphError, match="after break_it"):
        run_passes(graph, (break_it,))


def test_passes_are_observed_in_order() -> None:
    graph = parse("input %x: f32[1]\noutput %x")
    seen: list[str] = []
    run_passes(graph, observe=lambda name, _: seen.append(name))
    assert seen == [transform.__name__ for transform in PASSES]


@networks("mlperf_tiny/*", "tflm/*")
def test_passes_keep_integer_networks_exact(network: Network) -> None:
    imported = load(network.model).graph
    optimized = run_passes(imported)
    assert [v.type for v in optimized.outputs] == [v.type for v in imported.outputs]
    for sample in random_samples(imported, 1, 0):
        for ours, theirs in zip(
            evaluate(optimized, sample).outputs, evaluate(imported, sample).outputs, strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
    again = run_passes(optimized)
    assert print_graph(again, {}) == print_graph(optimized, {})
