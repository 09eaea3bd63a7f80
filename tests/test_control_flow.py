"""If and While: types, quantization, what they compute, their text form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from smelt.errors import GraphError, ModelError
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
from smelt.ops.control import If, While

I32 = TensorType((), DType.INT32)
TRUTH = TensorType((1,), DType.BOOL)


@dataclass(frozen=True)
class Scaled(Op):
    """`x * factor`, of any type."""

    factor: int

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        return tuple(TensorType(t.shape, t.dtype) for t in inputs if t is not None)

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        return tuple(np.asarray(x * self.factor, x.dtype) for x in inputs if x is not None)

    def macs(self, node: Node) -> int:
        return self.factor


@dataclass(frozen=True)
class Below(Op):
    """Whether the operand is below `bound`."""

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


def test_multiply_accumulates() -> None:
    assert if_graph().macs == 3
    assert while_graph().macs == 2


@pytest.mark.parametrize("graph", [if_graph(), while_graph()], ids=["if", "while"])
def test_text_form_holds_graphs(graph: Graph) -> None:
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
        (If(DOUBLE, DOUBLE), types(), "needs a condition of one bool first"),
        (If(DOUBLE, DOUBLE), types(I32, I32), r"one bool first, got \(i32\[\], i32\[\]\)"),
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
        (While(DOUBLE, DOUBLE), types(I32), r"one bool of its condition 'double', got \(i32"),
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


@pytest.mark.parametrize("place", ["operand", "result"])
def test_quantization_must_fit(place: str) -> None:
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


def test_graphs_inside_are_verified() -> None:
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
