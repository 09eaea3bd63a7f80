"""Tests of the text format: parsing inverts printing, and errors say where the text is wrong."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from smelt.errors import GraphError, ModelError, SmeltError, UnsupportedError
from smelt.ir import (
    Array,
    DType,
    Graph,
    Node,
    Op,
    Origin,
    Quant,
    Rounding,
    State,
    TensorType,
    Value,
    verify,
)
from smelt.ir.text import parse_graph, print_graph
from smelt.ops import all_cases
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.case import Case, build
from smelt.ops.core.convolution import Conv2D

F32 = TensorType((2,), DType.FLOAT32)


class Odd(Enum):
    FIRST_ONE = 1
    SECOND = "two words"


@dataclass(frozen=True)
class EveryField(Op):
    count: int
    ratio: float = 0.5
    flag: bool = False
    text: str = "plain"
    dtype: DType = DType.INT8
    odd: Odd = Odd.FIRST_ONE
    clamp: Activation = Activation.NONE
    pair: tuple[int, int] = (1, 1)
    many: tuple[tuple[int, float], ...] = ()
    fill: float | int | None = None
    maybe: tuple[str, ...] | None = None
    graph: Graph | None = None


def graph_of(op: Op, name: str = "y", origin: Origin | None = None) -> Graph:
    x, y = Value("x", F32), Value(name, F32)
    return Graph("g", (x,), (y,), (Node(op, (x,), (y,), origin or Origin("TEST", 0)),))


def constant_graph(array: Array, quant: Quant | None = None) -> Graph:
    value = Value.constant("c", array, quant)
    return Graph("g", (), (value,), ())


def round_trip(graph: Graph) -> Graph:
    store: dict[str, Array] = {}
    text = print_graph(graph, store)
    again: dict[str, Array] = {}
    parsed = parse_graph(text, store)
    assert print_graph(parsed, again) == text
    assert again.keys() == store.keys()
    return parsed


@pytest.mark.quick(every=6)
@pytest.mark.parametrize(
    ("case", "dtype"),
    [pytest.param(c, d, id=f"{c}-{d.value}") for c in all_cases() for d in c.dtypes],
)
def test_every_case_is_parsed_back_unchanged(case: Case, dtype: DType) -> None:
    graph = build(case, dtype)
    parsed = verify(round_trip(graph), "parsing")
    assert [v.type for v in parsed.values()] == [v.type for v in graph.values()]
    assert [v.name for v in parsed.values()] == [v.name for v in graph.values()]
    (node,), (original,) = parsed.nodes, graph.nodes
    assert node.op == original.op
    assert node.rounding == original.rounding
    assert node.origin == original.origin
    for found, expected in zip(parsed.values(), graph.values(), strict=True):
        if expected.data is None:
            assert found.data is None
        else:
            np.testing.assert_array_equal(found.array, expected.array)


def test_text_of_a_convolution() -> None:
    quant = Quant((0.5, 0.25), (0, 0), 0)
    x = Value("in", TensorType((1, 3, 3, 1), DType.INT8, Quant.per_tensor(0.0235, -128)))
    w = Value.constant("w", np.ones((2, 1, 1, 1), np.int8), quant)
    b = Value.constant("a b", np.arange(9, dtype=np.int32))
    y = Value("conv/Relu;1", TensorType((1, 2, 2, 2), DType.INT8, Quant.per_tensor(0.1, 3)))
    op = Conv2D((2, 2), ((0, 1), (0, 1)), activation=Activation.RELU)
    node = Node(op, (x, w, None), (y,), Origin("CONV_2D", 7, "conv/Relu"), Rounding.TFLM)
    assert print_graph(Graph("kws", (x,), (y, b), (node,))) == (
        "smelt-ir 1\n"
        'graph "kws" {\n'
        "  input %in: i8[1,3,3,1] q(0.0235, -128)\n"
        "  const %w: i8[2,1,1,1] q([0.5, 0.25], 0, axis=0) = [1, 1]\n"
        "  %conv/Relu;1: i8[1,2,2,2] q(0.1, 3) = Conv2D(%in, %w, _) "
        "{stride=(2, 2), padding=((0, 1), (0, 1)), activation=relu} rounding=tflm "
        'from CONV_2D #7 "conv/Relu"\n'
        '  const %"a b": i32[9] = @e287e5dec3b71e5c\n'
        "  output %conv/Relu;1\n"
        '  output %"a b"\n'
        "}\n"
    )


@pytest.mark.parametrize(
    "op",
    [
        EveryField(-3),
        EveryField(1, math.nan, True, 'a "b" \\ \n %c', DType.FLOAT16, Odd.SECOND),
        EveryField(1, -0.0, clamp=Activation.RELU_N1_TO_1, pair=(-1, 2)),
        EveryField(1, math.inf, many=((1, 1.0), (2, 5e-324))),
        EveryField(1, many=((0, -math.inf),), fill=1, maybe=()),
        EveryField(1, fill=1.0, maybe=("a", "")),
        EveryField(1, fill=-128),
        EveryField(1, graph=graph_of(EveryField(2, graph=graph_of(EveryField(3))))),
    ],
)
def test_every_kind_of_field_is_parsed_back(op: EveryField) -> None:
    (node,) = round_trip(graph_of(op)).nodes
    found = node.op
    assert isinstance(found, EveryField)
    if op.graph is None and not math.isnan(op.ratio):
        assert found == op
        assert math.copysign(1, found.ratio) == math.copysign(1, op.ratio)
        assert type(found.fill) is type(op.fill)


def test_fields_equal_to_their_default_are_omitted() -> None:
    assert '= EveryField(%x) {count=1} from TEST #0 ""\n' in print_graph(graph_of(EveryField(1)))
    assert "ratio=-0.0}" in print_graph(graph_of(replace(EveryField(1), ratio=-0.0)))


def test_a_number_is_printed_in_the_form_of_its_field() -> None:
    op = EveryField(np.int32(4), 1, fill=np.float32(0.1))  # pyright: ignore[reportArgumentType]
    (node,) = round_trip(graph_of(op)).nodes
    assert node.op == EveryField(4, 1.0, fill=float(np.float32(0.1)))


def test_a_value_that_no_field_can_have_is_reported() -> None:
    op = EveryField(1, maybe={"a"})  # pyright: ignore[reportArgumentType]
    with pytest.raises(GraphError, match=r"EveryField has the value \{'a'\}"):
        print_graph(graph_of(op))


@given(st.text(), st.text(), st.text(), st.text(), st.integers(-1, 10**6))
def test_unusual_names_are_parsed_back(
    value: str, graph: str, kind: str, name: str, index: int
) -> None:
    origin = Origin(kind, index, name)
    made = replace(graph_of(EveryField(1, text=name), value + "!", origin), name=graph)
    parsed = round_trip(made)
    assert parsed.name == graph
    assert parsed.outputs[0].name == value + "!"
    assert parsed.nodes[0].origin == origin


@pytest.mark.parametrize(("name", "text"), [("y", "#0\n"), ("", '#0 ""\n'), ("z", '#0 "z"\n')])
def test_an_origin_named_as_its_result_is_not_repeated(name: str, text: str) -> None:
    graph = graph_of(EveryField(1), origin=Origin("TEST", 0, name))
    assert f"from TEST {text}" in print_graph(graph)
    assert round_trip(graph).nodes[0].origin == graph.nodes[0].origin


@given(
    st.sampled_from(list(DType)).flatmap(
        lambda dtype: st_numpy.arrays(
            dtype.numpy, st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
        )
    )
)
def test_constants_are_parsed_back_bit_for_bit(array: Array) -> None:
    (value,) = round_trip(constant_graph(array)).outputs
    assert value.array.dtype == array.dtype
    assert value.array.shape == array.shape
    assert value.array.tobytes() == array.tobytes()
    assert not value.array.flags.writeable


def test_special_floats_are_inline_and_unusual_nans_by_digest() -> None:
    plain = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45, 0.1], np.float32)
    assert "= [nan, inf, -inf, -0.0, 1e-45, 0.1]" in print_graph(constant_graph(plain))
    odd = np.array([0x7FC00001], np.uint32).view(np.float32)
    assert "= @" in print_graph(constant_graph(odd))
    (value,) = round_trip(constant_graph(odd)).outputs
    assert value.array.view(np.uint32).tolist() == [0x7FC00001]


@given(
    st.lists(st.floats(min_value=1e-30, max_value=1e30), min_size=1, max_size=12),
    st.booleans(),
    st.integers(-128, 127),
    st.booleans(),
)
def test_scales_are_parsed_back_exactly(
    scales: list[float], single: bool, zero_point: int, same: bool
) -> None:
    exact = tuple(float(np.float32(s)) if single else s for s in scales)
    points = tuple(zero_point if same else i for i in range(len(exact)))
    quant = Quant(exact, points, 0)
    array = np.zeros(len(exact), np.int8)
    (value,) = round_trip(constant_graph(array, quant)).outputs
    assert value.type.quant == quant


def test_state_is_parsed_back() -> None:
    x, before, after = Value("x", F32), Value("h", F32), Value("h2", F32)
    node = Node(EveryField(1), (x, before), (after,), Origin("RNN", 0))
    initial = np.array([1.5, -0.0], np.float32)
    graph = Graph("g", (x,), (after,), (node,), (State(before, after, initial),))
    (state,) = round_trip(graph).states
    assert (state.before.name, state.after.name) == ("h", "h2")
    assert state.initial.tobytes() == initial.tobytes()


def body(*lines: str) -> str:
    return "\n".join(["smelt-ir 1", 'graph "g" {', "input %x: f32[2]", *lines, "}"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: expected 'smelt-ir'"),
        ("smelt-ir 2\n", "line 1, column 1: the text format has version 2, .* reads version 1"),
        ("smelt-ir 1\n", "line 2, column 1: expected 'graph', found the end"),
        (body() + " }", "line 4, column 3: expected the end of the text, found '}'"),
        (body("?"), r"line 4, column 1: '\?' cannot begin a token of the text format"),
        (body("output %z"), "line 4, column 8: %z is not defined above"),
        (body("output x"), "line 4, column 8: expected a value, as %name, found 'x'"),
        (body("input %x: f32[]"), "line 4, column 7: %x is defined a second time"),
        (body("input %y: f33[]"), "line 4, column 11: expected one of f32, .*found 'f33'"),
        (body("input %y: f32[-1]"), "line 4, column 15: expected a size, found -1"),
        (body("input %y: f32[1.5]"), "line 4, column 15: expected an integer, found '1.5'"),
        (body(f"input %y: f32[{'9' * 30}]"), "column 15: the integer does not fit in 64 bits"),
        (body(r'input %"\q": f32[]'), "line 4, column 7: not a JSON string"),
        (body("const %c: i8[1] = [128]"), "column 20: expected an integer from -128 to 127"),
        (body("const %c: i8[2] = [1]"), r"column 19: expected 2 elements for i8\[2\], found 1"),
        (body("const %c: bool[1] = [1]"), "column 22: expected 'true' or 'false', found '1'"),
        (body("const %c: i8[1] = @0123"), "column 19: constant @0123 is missing"),
        (body("state %h: f32[1] = [0.0]"), "line 5, column 1: expected 'next %h = ...'"),
        (body("next %x = %x"), "line 4, column 6: expected a state that has no 'next' yet"),
        (body("%y: f32[2] = _Convolution(%x) from A #0"), "operator '_Convolution' is unknown"),
        (body("%y: f32[2] = EveryField(%x) from A #0"), "column 29: .* needs its field 'count'"),
        (body("%y: f32[2] = Conv2D(%x) {pad=1}"), r"column 26: .*a field of Conv2D \(stride,"),
        (body("%y: f32[2] = Conv2D(%x) {groups=1, groups=1}"), "column 36: .*each once"),
        (body("%y: f32[2] = Conv2D(%x) {groups=1.0}"), "column 33: expected an integer"),
        (body("%y: f32[2] = Conv2D(%x) {stride=(1)}"), "column 33: expected 2 elements, found 1"),
        (body("%y: f32[2] = Conv2D(%x) {stride=(1, 2, 3)}"), r"column 40: expected '\)'"),
        (body("%y: f32[2] = Conv2D(%x) {activation=relux}"), "column 37: expected one of none,"),
        (body("%y: f32[2] = EveryField(%x) {fill=a}"), "of type float or int or NoneType"),
        (body("%y: f32[2] = Conv2D(%x) rounding=up"), "column 34: expected one of tflm,"),
        (body("%y: f32[2] = Conv2D(%x)"), "line 5, column 1: expected 'from', found '}'"),
        (body("%y: i8[2] q(1.0 0) = Conv2D(%x)"), "column 17: expected ',', found '0'"),
        ("smelt-ir 1\n" + 'graph "g" { ' * 2, "line 2, column 13: expected 'input',"),
    ],
)
def test_errors_say_where_and_what_was_expected(text: str, message: str) -> None:
    with pytest.raises((ModelError, UnsupportedError), match=message):
        parse_graph(text)


def test_a_similar_name_is_suggested_for_an_unknown_operator() -> None:
    text = body("%y: f32[2] = Conv2d(%x) from A #0")
    with pytest.raises(UnsupportedError, match=r"'Conv2d' is unknown \(did you mean .*Conv2D"):
        parse_graph(text)


def test_graphs_that_are_nested_too_deep_are_refused() -> None:
    start = "%y: f32[2] = EveryField(%x) {count=1, graph="
    text = "smelt-ir 1\n" + f'graph "g" {{ input %x: f32[2] {start}' * 100
    with pytest.raises(ModelError, match="nested more than 32 deep"):
        parse_graph(text)


def test_a_stored_array_must_have_the_printed_digest_and_shape() -> None:
    array = np.arange(9, dtype=np.int32)
    store: dict[str, Array] = {}
    text = print_graph(constant_graph(array), store)
    (key,) = store
    with pytest.raises(ModelError, match=f"constant @{key} is damaged"):
        parse_graph(text, {key: array + 1})
    with pytest.raises(ModelError, match=r"expected i32\[3,3\], found int32\[9\]"):
        parse_graph(text.replace("i32[9]", "i32[3,3]"), store)


TEXT = print_graph(build(all_cases()[0], DType.INT8))
WORDS = re.findall(r"[\w.%@#\"-]+|\S", TEXT)


@given(st.integers(0, len(TEXT) - 1), st.integers(0, 20), st.sampled_from([*WORDS, "", "\x00"]))
def test_damaged_text_raises_only_our_errors(start: int, length: int, word: str) -> None:
    store: dict[str, Array] = {}
    graph = build(all_cases()[0], DType.INT8)
    text = print_graph(graph, store)
    damaged = text[:start] + word + text[start + length :]
    try:
        parsed = parse_graph(damaged, store)
    except SmeltError:
        return
    round_trip(parsed)
