"""If, While and Loop: types, quantization, results and text format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from smelt.errors import GraphError, ModelError, UnsupportedError
from smelt.ir import (
    Array,
    DType,
    Graph,
    Node,
    Op,
    Origin,
    Quant,
    State,
    TensorType,
    Value,
    evaluate,
    verify,
)
from smelt.ir.text import parse_graph, print_graph
from smelt.ops.control.branches import If, Loop, While
from smelt.ops.control.repeated_graph import Order

I32 = TensorType((), DType.INT32)
TRUTH = TensorType((1,), DType.BOOL)


@dataclass(frozen=True)
class Scaled(Op):
    """An operator that computes `x * factor` for any type."""

    factor: int

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        return tuple(TensorType(t.shape, t.dtype) for t in inputs if t is not None)

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        return tuple(np.asarray(x * self.factor, x.dtype) for x in inputs if x is not None)

    def macs(self, node: Node) -> int:
        return self.factor


@dataclass(frozen=True)
class Below(Op):
    """An operator that returns whether the operand is below `bound`."""

    bound: int

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        return (TRUTH,)

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        return (np.reshape(x < self.bound, 1),)


def unary(name: str, op: Op, type_: TensorType, result: TensorType | None = None) -> Graph:
    x, y = Value("x", type_), Value("y", result or type_)
    return Graph(name, (x,), (y,), (Node(op, (x,), (y,), Origin("TEST", 0)),))


def if_graph(type_: TensorType = I32) -> Graph:
    op = If(unary("double", Scaled(2), type_), unary("triple", Scaled(3), type_))
    c, x, y = Value("c", TRUTH), Value("x", type_), Value("y", type_)
    return Graph("g", (c, x), (y,), (Node(op, (c, x), (y,), Origin("IF", 0)),))


def while_graph(bound: int = 100) -> Graph:
    op = While(unary("below", Below(bound), I32, TRUTH), unary("double", Scaled(2), I32))
    x, y = Value("x", I32), Value("y", I32)
    return Graph("g", (x,), (y,), (Node(op, (x,), (y,), Origin("WHILE", 0)),))


@pytest.mark.parametrize(("condition", "result"), [(True, 10), (False, 15)])
def test_if_runs_one_graph(condition: bool, result: int) -> None:
    graph = verify(if_graph(), "building it")
    inputs = [np.array([condition]), np.array(5, np.int32)]
    assert evaluate(graph, inputs).outputs[0].item() == result


@pytest.mark.parametrize(("start", "result"), [(3, 192), (100, 100), (99, 198)])
def test_while_runs_until_its_condition_fails(start: int, result: int) -> None:
    graph = verify(while_graph(), "building it")
    assert evaluate(graph, [np.array(start, np.int32)]).outputs[0].item() == result


def test_multiply_accumulates_of_graphs_are_counted() -> None:
    assert if_graph().macs == 3
    assert while_graph().macs == 2


@pytest.mark.parametrize("graph", [if_graph(), while_graph()], ids=["if", "while"])
def test_text_form_contains_graphs(graph: Graph) -> None:
    text = print_graph(graph)
    parsed = parse_graph(text)
    assert print_graph(parsed) == text
    verify(parsed, "parsing")
    inner = parsed.nodes[0].op.subgraphs
    assert [g.name for g in inner] == [g.name for g in graph.nodes[0].op.subgraphs]


def test_nested_graphs_are_indented() -> None:
    lines = print_graph(while_graph()).splitlines()
    assert '  %y: i32[] = While(%x) {condition=graph "below" {' in lines
    assert "    input %x: i32[]" in lines
    assert '  }, body=graph "double" {' in lines
    assert '  }} from WHILE #0 ""' in lines


def types(*found: TensorType | None) -> list[TensorType | None]:
    return list(found)


DOUBLE = unary("double", Scaled(2), I32)
VECTOR = TensorType((2,), DType.INT32)
STATEFUL = replace(
    DOUBLE, states=(State(Value("s", I32), DOUBLE.outputs[0], np.zeros((), np.int32)),)
)


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        (If(DOUBLE, DOUBLE), types(), "needs a condition of one bool"),
        (If(DOUBLE, DOUBLE), types(I32, I32), r"one bool .*, got \(i32\[\], i32\[\]\)"),
        (If(DOUBLE, DOUBLE), types(TensorType((2,), DType.BOOL), I32), "of one bool"),
        (If(DOUBLE, DOUBLE), types(TRUTH, None), "cannot have an absent operand"),
        (If(DOUBLE, DOUBLE), types(TRUTH), r"passes to 'double' \(\), which has \(i32\[\]\)"),
        (If(DOUBLE, DOUBLE), types(TRUTH, VECTOR), r"passes to 'double' \(i32\[2\]\)"),
        (
            If(DOUBLE, unary("other", Scaled(2), I32, VECTOR)),
            types(TRUTH, I32),
            r"expects of 'other' \(i32\[\]\), which has \(i32\[2\]\)",
        ),
        (If(DOUBLE, STATEFUL), types(TRUTH, I32), "graph 'double' in If keeps state 's'"),
        (While(DOUBLE, DOUBLE), types(I32), r"'double' with one bool .*, got \(i32"),
        (While(unary("c", Below(1), I32, TRUTH), DOUBLE), types(VECTOR), "passes to 'c'"),
        (
            While(unary("c", Below(1), I32, TRUTH), unary("b", Scaled(2), I32, VECTOR)),
            types(I32),
            r"expects of 'b' \(i32\[\]\), which has \(i32\[2\]\)",
        ),
    ],
)
def test_graphs_must_fit_the_operands(
    op: Op, inputs: list[TensorType | None], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        op.infer(inputs)


I64 = TensorType((), DType.INT64)
TABLE = TensorType((3, 2), DType.INT32)


def body(entries: Sequence[TensorType], results: Sequence[TensorType]) -> Graph:
    """Return a graph with inputs of the types `entries` and constants of the types `results`."""
    inputs = tuple(Value(f"x{i}", t) for i, t in enumerate(entries))
    outputs = tuple(
        Value.constant(f"y{i}", np.zeros(t.shape, t.dtype.numpy)) for i, t in enumerate(results)
    )
    return Graph("body", inputs, outputs, ())


def loop(
    entries: Sequence[TensorType],
    results: Sequence[TensorType],
    *,
    carried: int = 1,
    trip_count: int | None = 3,
    stops: bool = False,
    scans: int = 0,
    stacks: int = 0,
) -> Loop:
    forward = Order.FORWARD
    graph = body(entries, results)
    return Loop(graph, carried, trip_count, stops, (forward,) * scans, (forward,) * stacks)


def test_loop_infers_types_of_carried_and_stacked_values() -> None:
    op = loop((I64, I32, VECTOR, VECTOR), (I32, VECTOR), scans=1, stacks=1)
    assert op.infer([None, None, I32, TABLE, VECTOR]) == (I32, TABLE)
    graph = loop((I64, I32), (TRUTH, I32), trip_count=None, stops=True)
    assert graph.infer([I64, TRUTH, I32]) == (I32,)


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        (loop((I64, I32), (I32,)), types(None, None), "1 carried and 0 scanned operands; got 2"),
        (loop((I64, I32), (I32,)), types(I32, None, I32), "limit of one i64, got i32"),
        (loop((I64, I32), (I32,)), types(None, I32, I32), "condition of one bool, got i32"),
        (loop((I64, I32), (I32,)), types(None, None, None), "cannot have an absent operand"),
        (loop((I64, I32), (I32,)), types(I64, None, I32), "of iterations, 3, and a limit"),
        (loop((I64, I32), (I32,), trip_count=-1), types(None, None, I32), "has -1 iterations"),
        (loop((I64, I32), (I32,), trip_count=None), types(None, None, I32), "Loop never ends"),
        (loop((I32, I32), (I32,)), types(None, None, I32), "passes one i64 first to 'body'"),
        (loop((), (I32,)), types(None, None, I32), "passes one i64 first to 'body'"),
        (loop((I64, I32), (I32,)), types(None, None, VECTOR), r"passes to 'body' \(i32\[2\]\)"),
        (loop((I64, I32), (VECTOR,)), types(None, None, I32), r"expects of 'body' \(i32\[\]\)"),
        (
            loop((I64, I32), (I32,), stops=True),
            types(None, None, I32),
            "one bool as the first output",
        ),
        (loop((I64, I32), (I32, I32)), types(None, None, I32), "stacks 0 results, but 'body'"),
        (
            loop((I64, I32, VECTOR), (I32,), scans=1, trip_count=4),
            types(None, None, I32, TABLE),
            r"4 iterations cannot scan i32\[3,2\]",
        ),
    ],
)
def test_loops_must_fit_the_operands(op: Op, inputs: list[TensorType | None], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        op.infer(inputs)


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        (
            loop((I64, I32), (I32, I32), stacks=1, trip_count=None),
            types(I64, None, I32),
            "make the trip count a constant",
        ),
        (
            loop((I64, I32), (TRUTH, I32, I32), stacks=1, stops=True),
            types(None, None, I32),
            "a condition can end it early",
        ),
        (
            loop((I64, I32), (I32, I32), stacks=1),
            types(None, TRUTH, I32),
            "a condition can end it early",
        ),
    ],
)
def test_values_that_a_loop_stacks_must_have_one_shape(
    op: Op, inputs: list[TensorType | None], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        op.infer(inputs)


def test_text_form_of_a_loop_is_parsed_again() -> None:
    op = loop((I64, I32, VECTOR), (I32, VECTOR), scans=1, stacks=1)
    op = replace(op, stacks=(Order.BACKWARD,))
    x, xs, y, ys = Value("x", I32), Value("xs", TABLE), Value("y", I32), Value("ys", TABLE)
    node = Node(op, (None, None, x, xs), (y, ys), Origin("LOOP", 0))
    graph = verify(Graph("g", (x, xs), (y, ys), (node,)), "building it")
    text = print_graph(graph)
    assert "Loop(_, _, %x, %xs)" in text
    assert "carried=1, trip_count=3, scans=(forward), stacks=(backward)}" in text
    assert print_graph(verify(parse_graph(text), "parsing")) == text


@pytest.mark.parametrize("place", ["operand", "result"])
def test_quantization_of_operands_and_graphs_must_agree(place: str) -> None:
    quantized = TensorType((), DType.INT8, Quant.per_tensor(0.5, 1))
    graph = if_graph(quantized)
    verify(graph, "building it")
    other = Value("z", replace(quantized, quant=Quant.per_tensor(0.25, 1)))
    node = graph.nodes[0]
    if place == "operand":
        graph = replace(
            graph,
            inputs=(graph.inputs[0], other),
            nodes=(replace(node, inputs=(graph.inputs[0], other)),),
        )
    else:
        graph = replace(graph, outputs=(other,), nodes=(replace(node, outputs=(other,)),))
    with pytest.raises(GraphError, match="of a graph in If has"):
        verify(graph, "a pass")


def test_graphs_in_operators_are_verified() -> None:
    graph = while_graph()
    (node,) = graph.nodes
    double = unary("double", Scaled(2), I32)
    broken = replace(double, nodes=double.nodes * 2)
    assert isinstance(node.op, While)
    op = replace(node.op, body=broken)
    with pytest.raises(
        GraphError, match=r"While \(WHILE #0\), in graph 'double': value 'y' is defined a second"
    ):
        verify(replace(graph, nodes=(replace(node, op=op),)), "a pass")
