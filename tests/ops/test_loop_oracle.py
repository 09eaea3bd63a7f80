"""The operator Loop, compared with ONNX's Loop and Scan in onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from smelt.ir import Array, evaluate, verify
from smelt.ir.text import parse_graph

import_module("smelt.ops")  # the parser of the text format finds imported operators only

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Shapes = dict[str, tuple[int, tuple[int, ...]]]


def infos(types: Shapes, names: Sequence[str]) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(name, *types[name]) for name in names]


def run(graph: onnx.GraphProto, feeds: Sequence[Array]) -> list[Array]:
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_inputs()]
    return [np.asarray(x) for x in session.run(None, dict(zip(names, feeds, strict=True)))]


def agree(text: str, graph: onnx.GraphProto, *feeds: Array) -> None:
    ours = verify(parse_graph(f'smelt-ir 1\ngraph "g" {{\n{text}\n}}\n', {}), "parsing")
    for mine, theirs in zip(evaluate(ours, feeds).outputs, run(graph, feeds), strict=True):
        np.testing.assert_array_equal(mine, theirs)


LOOP_TYPES: Shapes = {
    **dict.fromkeys(("go", "c", "c_same", "below"), (BOOL, ())),
    **dict.fromkeys(("limit", "i"), (INT64, ())),
    **dict.fromkeys(("x", "h", "s", "n", "y"), (FLOAT, (3,))),
    "ns": (FLOAT, (4, 3)),
}
STEP, BOUND = [1.0, 2.0, 4.0], [10.0]


def onnx_loop(
    entries: Sequence[str], body: Sequence[str], results: Sequence[str]
) -> onnx.GraphProto:
    """Return an ONNX Loop that adds a step to its state while the largest element is below 10."""
    nodes = [
        helper.make_node("Identity", ["c"], ["c_same"]),
        helper.make_node("Add", ["h", "step"], ["s"]),
        helper.make_node("Neg", ["h"], ["n"]),
        helper.make_node("ReduceMax", ["s"], ["top"], keepdims=0),
        helper.make_node("Less", ["top", "bound"], ["below"]),
    ]
    constants = [
        helper.make_tensor("step", FLOAT, (3,), STEP),
        helper.make_tensor("bound", FLOAT, (), BOUND),
    ]
    inner = helper.make_graph(
        nodes, "body", infos(LOOP_TYPES, "ich"), infos(LOOP_TYPES, body), constants
    )
    loop = helper.make_node("Loop", list(entries), list(results), body=inner)
    inputs = infos(LOOP_TYPES, [name for name in entries if name and name != "four"])
    four = helper.make_tensor("four", INT64, (), [4])
    return helper.make_graph([loop], "g", inputs, infos(LOOP_TYPES, results), [four])


OURS = """
  {inputs}
  {results} = Loop({operands}) {{body=graph "body" {{
    input %i: i64[]
    input %h: f32[3]
    const %step: f32[3] = [1.0, 2.0, 4.0]
    const %bound: f32[] = [10.0]
    %s: f32[3] = Binary(%h, %step) {{kind="add"}} from ADD #0 "s"
    %n: f32[3] = Unary(%h) {{kind="neg"}} from NEG #1 "n"
    %top: f32[] = Reduce(%s) {{kind="max", axes=(0), keep_dims=false}} from MAX #2 "top"
    %below: bool[] = Binary(%top, %bound) {{kind="less"}} from LESS #3 "below"
    {outputs}
  }}, {attributes}}} from LOOP #0 "y"
  {given}
"""
X = np.array([0.5, -1.0, 2.0], np.float32)


def test_a_loop_with_constant_trip_count_stacks() -> None:
    text = OURS.format(
        inputs="input %x: f32[3]",
        results="%y: f32[3], %ns: f32[4,3]",
        operands="_, _, %x",
        outputs="output %s\n output %n",
        attributes="carried=1, trip_count=4, stacks=(forward)",
        given="output %y\n output %ns",
    )
    theirs = onnx_loop(("four", "", "x"), ("c_same", "s", "n"), ("y", "ns"))
    agree(text, theirs, X)


@pytest.mark.parametrize("limit", [-1, 0, 1, 2, 3, 100])
@pytest.mark.parametrize("go", [True, False])
def test_a_loop_ends_at_its_limit_or_by_its_condition(limit: int, go: bool) -> None:
    text = OURS.format(
        inputs="input %limit: i64[]\n input %go: bool[]\n input %x: f32[3]",
        results="%y: f32[3]",
        operands="%limit, %go, %x",
        outputs="output %below\n output %s",
        attributes="carried=1, stops=true",
        given="output %y",
    )
    theirs = onnx_loop(("limit", "go", "x"), ("below", "s"), ("y",))
    agree(text, theirs, np.array(limit), np.array(go), X)


def test_a_loop_without_trip_count_ends_by_its_condition() -> None:
    text = OURS.format(
        inputs="input %x: f32[3]",
        results="%y: f32[3]",
        operands="_, _, %x",
        outputs="output %below\n output %s",
        attributes="carried=1, stops=true",
        given="output %y",
    )
    agree(text, onnx_loop(("", "", "x"), ("below", "s"), ("y",)), X)


SCAN_TYPES: Shapes = {
    **dict.fromkeys(("x", "h", "a", "b", "s", "p", "y"), (FLOAT, (2,))),
    **dict.fromkeys(("as_", "bs", "ss", "ps"), (FLOAT, (5, 2))),
}


@pytest.mark.parametrize("backward", [(0, 1, 0, 1), (1, 0, 1, 0), (0, 0, 1, 1)])
def test_scan_agrees_in_both_directions(backward: tuple[int, ...]) -> None:
    """Two tensors are scanned and two are stacked, each forwards or backwards."""
    nodes = [
        helper.make_node("Add", ["h", "a"], ["s"]),
        helper.make_node("Mul", ["h", "b"], ["p"]),
    ]
    body = helper.make_graph(
        [*nodes, helper.make_node("Identity", ["s"], ["y"])],
        "body",
        infos(SCAN_TYPES, "hab"),
        infos(SCAN_TYPES, ("s", "y", "p")),
    )
    scan = helper.make_node(
        "Scan",
        ["x", "as_", "bs"],
        ["y", "ss", "ps"],
        body=body,
        num_scan_inputs=2,
        scan_input_directions=list(backward[:2]),
        scan_output_directions=list(backward[2:]),
    )
    theirs = helper.make_graph(
        [scan],
        "g",
        infos(SCAN_TYPES, ("x", "as_", "bs")),
        infos(SCAN_TYPES, ("y", "ss", "ps")),
    )
    words = [("forward", "backward")[i] for i in backward]
    text = f"""
      input %x: f32[2]
      input %as: f32[5,2]
      input %bs: f32[5,2]
      %y: f32[2], %ss: f32[5,2], %ps: f32[5,2] = Loop(_, _, %x, %as, %bs) {{body=graph "body" {{
        input %i: i64[]
        input %h: f32[2]
        input %a: f32[2]
        input %b: f32[2]
        %s: f32[2] = Binary(%h, %a) {{kind="add"}} from ADD #0 "s"
        %p: f32[2] = Binary(%h, %b) {{kind="mul"}} from MUL #1 "p"
        output %s
        output %s
        output %p
      }}, carried=1, trip_count=5, scans=({words[0]}, {words[1]}), stacks=({words[2]}, {words[3]})}}
      from SCAN #0 "y"
      output %y
      output %ss
      output %ps
    """
    rng = np.random.default_rng(0)
    agree(
        text, theirs, *(rng.standard_normal(s).astype(np.float32) for s in ((2,), (5, 2), (5, 2)))
    )
