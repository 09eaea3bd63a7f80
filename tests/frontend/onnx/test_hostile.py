"""Malicious or wrong ONNX files and options: each is refused quickly, with a clear message."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidGraph, get_all_operator_schema

from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.errors import ConfigError, ModelError, UnsupportedError
from smelt.frontend import InputOptions, load
from smelt.frontend.onnx.checks import LARGEST_NETWORK
from smelt.frontend.onnx.converters import CONVERTERS
from smelt.frontend.onnx.operation import Declared
from smelt.ir import Array
from tests.support.onnx_networks import (
    agrees,
    graph,
    imported,
    ints,
    model,
    node,
    session,
    tensor_info,
    uniform,
)

# Tensors without elements

_WEIGHTS = {
    "i": (1, 8, 3),
    "r": (1, 8, 2),
    "three": (3,),
    "w": (4, 3),
    "k": (5, 2, 3, 3),
    "q": (2, 5, 3, 3),
    "scale": (2,),
    "zero": (4, 0),
}

_EMPTY: tuple[tuple[onnx.NodeProto, list[int]], ...] = (
    (node("MatMul", "x w", "y"), [0, 4]),
    (node("MatMul", "x zero", "y"), [3, 4]),
    (node("Gemm", "x w", "y"), [0, 4]),
    (node("Conv", "x k", "y"), [0, 2, 6, 6]),
    (node("ConvTranspose", "x q", "y"), [0, 2, 6, 6]),
    (node("MaxPool", "x", "y", kernel_shape=[2, 2]), [0, 2, 6, 6]),
    (node("InstanceNormalization", "x scale scale", "y"), [0, 2, 6, 6]),
    (node("LayerNormalization", "x scale", "y"), [0, 2]),
    (node("LpNormalization", "x", "y", axis=0), [0, 0]),
    (node("ReduceSum", "x", "y", axes=[1], keepdims=0), [3, 0, 0]),
    (node("ReduceMax", "x", "y", axes=[1], keepdims=0), [3, 2, 0]),
    (node("ReduceSum", "x", "y", axes=[1], keepdims=0), [3, 0, 2]),
    (node("LogSoftmax", "x", "y", axis=0), [3, 0]),
    (node("Softmax", "x", "y", axis=1), [0, 3]),
    (node("Concat", "x x", "y", axis=0), [0, 3]),
    (node("Transpose", "x", "y", perm=[1, 0]), [0, 3]),
    (node("Relu", "x", "y"), [2, 0]),
    (node("Resize", "x _ three", "y"), [1, 0, 2]),
    (node("LSTM", "x i r", "y", hidden_size=2), [0, 1, 3]),
    (node("Add", "x scale", "y"), [0, 2]),
)


@pytest.mark.parametrize(
    ("step", "shape"), _EMPTY, ids=[f"{step.op_type}{shape}" for step, shape in _EMPTY]
)
def test_tensors_without_elements_are_computed_or_refused(
    step: onnx.NodeProto, shape: list[int]
) -> None:
    """Networks of one operator agree with ONNX Runtime and compile, or are refused."""
    constants = {name: abs(uniform(*_WEIGHTS[name])) for name in step.input if name in _WEIGHTS}
    opset = 11 if step.op_type.startswith("Reduce") else 17
    proto = model(graph([step], {"x": shape}, "y", constants), opset)
    if step.op_type in _REFUSED:
        with pytest.raises((ModelError, UnsupportedError), match=_REFUSED[step.op_type]):
            imported(proto)
        return
    agrees(proto, {"x": uniform(*shape)})
    compile_model(proto.SerializeToString())


_REFUSED = {
    "Conv": "nothing to convolve",
    "ConvTranspose": "nothing to convolve",
    "MaxPool": "nothing to pool",
    "LogSoftmax": "no axis of size 0",
    "Softmax": "no axis of size 0",
    "LSTM": "is empty",
    "Resize": "nothing to resize",
}


def test_a_network_with_an_empty_output_runs() -> None:
    """The generated C compiles, and its output has no elements."""
    proto = model(graph([node("MatMul", "x w", "y")], {"x": ["T", 4]}, "y", {"w": uniform(4, 3)}))
    given = Options(inputs=InputOptions(shapes={"x": (0, 4)}))
    outputs = compile_model(proto.SerializeToString(), given).run({"x": uniform(0, 4)})
    assert [array.shape for array in outputs.values()] == [(0, 3)]


def test_col2im_without_spatial_axes_is_refused() -> None:
    proto = model(
        graph([node("Col2Im", "x s k", "y")], {"x": [1, 5, 5]}, "y", {"s": ints(), "k": ints()})
    )
    with pytest.raises(ModelError, match=r"image_shape .* and block_shape"):
        imported(proto)


# Sizes


@pytest.mark.parametrize("scale", [1e6, 1.9566236e38, 3.4e38])
def test_a_huge_scale_is_refused(scale: float) -> None:
    scales = np.asarray([1, 1, 0.5, scale], np.float32)
    proto = model(graph([node("Resize", "x _ s", "y")], {"x": [1, 1, 9, 70]}, "y", {"s": scales}))
    with pytest.raises(UnsupportedError, match=r"Resize.*scale .* makes an axis of 70 too large"):
        imported(proto)


def nested(depth: int) -> onnx.GraphProto:
    """Return a loop's body of `depth` nested loops that carry a sequence.

    Their trip count is the tensor `turns`.
    """
    sequence = helper.make_tensor_sequence_value_info
    inner = (
        node("Loop", f"turns true s{depth}", f"t{depth}", body=nested(depth - 1))
        if depth
        else node("SequenceConstruct", "x", "t0")
    )
    return graph(
        [inner, node("Identity", f"c{depth}", f"more{depth}")],
        [
            tensor_info(f"n{depth}", [], "l"),
            tensor_info(f"c{depth}", [], "b"),
            sequence(f"s{depth}", 1, None),
        ],
        [tensor_info(f"more{depth}", [], "b"), sequence(f"t{depth}", 1, None)],
    )


@pytest.mark.thorough
def test_operators_of_unrolled_nested_loops_are_counted() -> None:
    nodes = [
        node("SequenceEmpty", "", "empty"),
        node("Loop", "turns true empty", "made", body=nested(2)),
        node("ConcatFromSequence", "made", "y", axis=0),
    ]
    constants = {"turns": np.asarray(200), "true": np.asarray(True)}
    with pytest.raises(UnsupportedError, match=rf"more than {LARGEST_NETWORK:,} operators"):
        imported(model(graph(nodes, {"x": [2]}, "y", constants)))


# Names and attributes


def _renamed(data: bytes, old: bytes, new: bytes) -> bytes:
    assert len(old) == len(new)
    assert old in data
    return data.replace(old, new)


@pytest.mark.parametrize("name", [b"Sigmoid", b"the_node", b"the_made", b"the_outp", b"the_inpu"])
def test_names_that_are_not_text_are_refused(name: bytes) -> None:
    nodes = [node("Sigmoid", "the_inpu", "the_made", name="the_node")]
    nodes += [node("Relu", "the_made", "the_outp")]
    data = model(graph(nodes, {"the_inpu": [2]}, "the_outp")).SerializeToString()
    load(data)
    with pytest.raises(ModelError, match=r"which is not UTF-8"):
        load(_renamed(data, name, name[:-1] + b"\xff"))


def test_doc_strings_that_are_not_text_are_ignored() -> None:
    proto = model(graph([node("Relu", "x", "y")], {"x": [2]}, "y"))
    proto.doc_string = "nothing reads this"
    load(_renamed(proto.SerializeToString(), b"reads", b"\xff\xfe\xff\xfe\xff"))


def conv(**attributes: Any) -> onnx.ModelProto:
    steps = [node("Conv", "x w", "y", "", **attributes)]
    return model(graph(steps, {"x": [1, 3, 8, 8]}, "y", {"w": uniform(4, 3, 3, 3)}), 17)


def test_unknown_attributes_are_refused() -> None:
    """As in ONNX Runtime, which accepts only names that begin with two underscores."""
    proto = conv(stridez=[2, 2])
    with pytest.raises(InvalidGraph, match="stridez"):
        session(proto)
    with pytest.raises(
        ModelError, match=r"Conv #0 'y'.*set 17 has no attribute 'stridez'.*strides"
    ):
        imported(proto)
    session(conv(__tool="of a tool"))
    imported(conv(__tool="of a tool"))


def test_attributes_of_another_operator_set_are_refused() -> None:
    """The axes of ReduceSum are an attribute up to operator set 12, and an input since then."""
    step = node("ReduceSum", "x", "y", axes=[1])
    imported(model(graph([step], {"x": [2, 3]}, "y"), 12))
    with pytest.raises(ModelError, match=r"ReduceSum of operator set 13 has no attribute 'axes'"):
        imported(model(graph([step], {"x": [2, 3]}, "y"), 13))


@pytest.mark.parametrize("name", [name for name in CONVERTERS if "::" in name])
def test_nonstandard_operators_accept_exactly_their_declared_attributes(name: str) -> None:
    """onnxruntime declares the operators of com.microsoft; the onnx package knows the others."""
    domain, kind = name.split("::")
    if domain != "com.microsoft":
        assert onnx.defs.has(kind, domain)
        return
    converter = CONVERTERS[name]
    assert isinstance(converter, Declared)
    assert sorted(converter.attributes) == sorted(OPERATORS[kind].attributes)
    proto = model(graph([node(kind, "x", "y", domain, foo=1)], {"x": [2]}, "y"), com_microsoft=1)
    with pytest.raises(ModelError, match=rf"{kind} of .* of com.microsoft has no attribute 'foo'"):
        imported(proto)


OPERATORS = {s.name: s for s in get_all_operator_schema() if s.domain == "com.microsoft"}


def test_attributes_in_branches_are_checked() -> None:
    branches: dict[str, Any] = {
        f"{name}_branch": graph([node("LeakyRelu", "x", name, "", **{attribute: 0.5})], {}, name)
        for name, attribute in (("then", "alpha"), ("else", "alfa"))
    }
    inputs = [tensor_info("c", [], "b"), tensor_info("x", [2])]
    with pytest.raises(ModelError, match=r"LeakyRelu.*no attribute 'alfa'; it has alpha"):
        imported(model(graph([node("If", "c", "y", "", **branches)], inputs, "y")))


def test_a_wrong_declared_output_type_gives_a_note() -> None:
    proto = conv()
    proto.graph.output[0].CopyFrom(tensor_info("y", [1, 4, 6, 6], "l"))
    (note,) = imported(proto).notes
    assert note == (
        "output 'y' is declared as int64, but the operators compute float32 from the inputs"
    )
    proto.graph.output[0].CopyFrom(tensor_info("y", [1, 4, 6, "w"]))
    assert imported(proto).notes == ()


def test_two_inputs_of_one_name_are_refused() -> None:
    infos = [tensor_info("x", [2]), tensor_info("x", [2])]
    with pytest.raises(ModelError, match="two inputs called 'x'"):
        imported(model(graph([node("Relu", "x", "y")], infos, "y")))


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (InputOptions({"T": 3}, {"x": (2, 4)}), r"'x' size 2, but --dim gives it size 3, as 'T'"),
        (InputOptions({"T": (1, 9)}, {"x": (2, 4)}), r"'x' size 2.*size 1 to 9, as 'T'"),
        (InputOptions({"T": (1, 9)}, values={"x": (1,)}), r"'T' sizes from 1 to 9, but no input"),
        (InputOptions({"T": 3}, layout="nhwc"), r"nhwc is for images.*x f32\[3,4\]"),
        (InputOptions({"T": 3}, values={"x": (True,)}), r"--value x: \[True\].*float32"),
    ],
)
def test_contradicting_options_are_refused(options: InputOptions, message: str) -> None:
    proto = model(graph([node("Add", "x z", "y")], {"x": ["T", 4], "z": [4]}, "y"))
    with pytest.raises(ConfigError, match=message):
        imported(proto, options)


def test_redundant_options_that_agree_are_accepted() -> None:
    proto = model(graph([node("Relu", "x", "y")], {"x": ["T", 4]}, "y"))
    found = imported(proto, InputOptions({"T": 3}, {"x": (3, 4)}))
    assert found.graph.inputs[0].type.shape == (3, 4)


# Messages


def counting(turns: int, more: str = "going") -> onnx.ModelProto:
    """Return a network with a loop of at most `turns` turns.

    The tensor `more` is its condition for the next turn.
    """
    body = graph(
        [node("Add", "s one", "t"), node("Identity", more, "more")],
        [tensor_info("n", [], "l"), tensor_info("going", [], "b"), tensor_info("s", [2])],
        [tensor_info("more", [], "b"), tensor_info("t", [2])],
    )
    constants = {"turns": np.asarray(turns), "one": uniform(2), "no": np.asarray(False)}
    return model(graph([node("Loop", "turns _ x", "y", body=body)], {"x": [2]}, "y", constants))


def test_too_large_trip_counts_are_refused_with_the_limit() -> None:
    with pytest.raises(UnsupportedError, match=r"trip count is 1,099,511,627,776.*2,147,483,647"):
        imported(counting(2**40))
    agrees(counting(2**40, "no"), {"x": uniform(2)})
    agrees(counting(3), {"x": uniform(2)})


def sequenced(turns: str, going: str) -> onnx.ModelProto:
    """Return a network with a loop that appends to a sequence.

    Args:
        turns: tensor with the trip count.
        going: tensor with the condition for the next iteration.
    """
    sequence = helper.make_tensor_sequence_value_info
    body = graph(
        [
            node("SequenceInsert", "s x", "t"),
            node("Add", "n one", "next"),
            node("Less", "next three", "more"),
        ],
        [tensor_info("n", [], "l"), tensor_info("c", [], "b"), sequence("s", 1, None)],
        [tensor_info(going, [], "b"), sequence("t", 1, None)],
    )
    nodes = [
        node("SequenceEmpty", "", "empty"),
        node("Loop", f"{turns} true empty", "made", body=body),
        node("ConcatFromSequence", "made", "y", axis=0),
    ]
    constants = {"one": np.asarray(1), "three": np.asarray(3), "long": np.asarray(2**62)}
    constants |= {"many": np.asarray(300), "true": np.asarray(True)}
    infos = [tensor_info("x", [2]), tensor_info("limit", [], "l")]
    return model(graph(nodes, infos, "y", constants))


@pytest.mark.parametrize("turns", ["_", "long", "many"])
def test_a_sequence_may_be_ended_by_a_condition(turns: str) -> None:
    proto = sequenced(turns, "more")
    del proto.graph.input[1]
    agrees(proto, {"x": uniform(2)})


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ("_", r"at most 256 iterations$"),
        ("many", r"at most 256 iterations, but it has 300$"),
        ("limit", r"the number of iterations is known at compile time$"),
    ],
)
def test_too_long_sequences_are_refused(turns: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        imported(sequenced(turns, "c"))


def switched(kind: str, shape: list[int], step: onnx.NodeProto) -> onnx.ModelProto:
    """Return a network whose input `rate` selects Neg or `step`.

    Args:
        kind: element type of `rate`.
        shape: of `rate`.
        step: the operator of the else branch.
    """
    branches: dict[str, Any] = {
        "then_branch": graph([node("Neg", "x", "a")], {}, "a"),
        "else_branch": graph([step], {}, "b"),
    }
    nodes = [
        node("ReduceMax", "rate", "first", keepdims=0),
        node("Cast", "first", "condition", to=onnx.TensorProto.BOOL),
        node("If", "condition", "y", "", **branches),
    ]
    infos = [tensor_info("x", [2]), tensor_info("rate", shape, kind)]
    return model(graph(nodes, infos, "y"))


_UNFIT = node("Transpose", "x", "b", perm=[1, 0])
_LONGER = node("Concat", "x x", "b", axis=0)


@pytest.mark.parametrize("step", [_UNFIT, _LONGER], ids=["wrong", "other shape"])
def test_a_refused_branch_names_the_input_that_selects_it(step: onnx.NodeProto) -> None:
    for shape in ([], [1]):
        proto = switched("l", shape, step)
        with pytest.raises((ModelError, UnsupportedError), match=_HINT):
            imported(proto)
        imported(proto, InputOptions(values={"rate": (1.0,)}))


_HINT = r"If 'rate' never changes, give it with --value rate=…$"


def test_a_branch_selected_by_several_floats_gets_no_hint() -> None:
    with pytest.raises(UnsupportedError, match=r"Make the condition a constant$"):
        imported(switched("f", [7], _LONGER))


def test_lstms_with_projections_are_refused_by_name() -> None:
    constants = {"w": uniform(1, 16, 6), "r": uniform(1, 16, 2)}
    steps = [node("LSTM", "x w r", "y", hidden_size=2)]
    with pytest.raises(ModelError, match=r"recurrent weights f32\[1,16,2\].*2\. .*\(proj_size\)"):
        imported(model(graph(steps, {"x": [7, 1, 6]}, "y", constants)))
    constants = {"w": uniform(1, 16, 6), "r": uniform(1, 16, 4), "c": uniform(1, 1, 10)}
    steps = [node("LSTM", "x w r _ _ _ c", "y", hidden_size=4)]
    with pytest.raises(ModelError, match=r"state 'c' f32\[1,1,10\].*4\. .*\(proj_size\)"):
        imported(model(graph(steps, {"x": [7, 1, 6]}, "y", constants)))


# Operands that must be one number


_NUMBERS: dict[str, tuple[onnx.NodeProto, list[int], dict[str, Any], str]] = {
    "STFT step": (
        node("STFT", "x n _ k", "y"),
        [1, 32, 1],
        {"n": ints(4, 4), "k": np.asarray(8)},
        r"frame step 'n' is i64\[2\], but must be one number",
    ),
    "STFT length": (
        node("STFT", "x n _ k", "y"),
        [1, 32, 1],
        {"n": np.asarray(4), "k": ints(8, 8)},
        r"frame length 'k' is i64\[2\]",
    ),
    "STFT real step": (
        node("STFT", "x n _ k", "y"),
        [1, 32, 1],
        {"n": np.asarray(4.5, np.float32), "k": np.asarray(8)},
        r"frame step 'n' is 4\.5, but must be an integer",
    ),
    "DFT length": (node("DFT", "x n", "y"), [1, 8, 1], {"n": ints(8, 8)}, r"dft_length 'n' is i"),
    "DFT axis": (node("DFT", "x _ n", "y"), [1, 8, 1], {"n": ints(1, 1)}, r"axis 'n' is i64\[2\]"),
    "CumSum": (node("CumSum", "x n", "y"), [2, 3], {"n": ints(0, 1)}, r"axis 'n' is i64\[2\]"),
    "TopK": (node("TopK", "x n", "y i"), [8], {"n": ints(1, 2)}, r"k 'n' is i64\[2\]"),
    "Trilu": (node("Trilu", "x n", "y"), [3, 3], {"n": ints(1, 2)}, r"diagonal 'n' is i64\[2\]"),
    "Dropout": (
        node("Dropout", "x r n", "y"),
        [3],
        {"r": np.float32(0.5), "n": np.asarray([True, False])},
        r"training mode 'n' is bool\[2\]",
    ),
    "Pad": (
        node("Pad", "x p n", "y"),
        [3],
        {"p": ints(1, 1), "n": np.ones(2, np.float32)},
        r"value 'n' is f32\[2\]",
    ),
    "Range": (
        node("Range", "n n n", "y"),
        [3],
        {"n": ints(1, 2)},
        r"start 'n' is i64\[2\], but must be one number",
    ),
    "endless Range": (
        node("Range", "a b c", "y"),
        [3],
        {"a": np.asarray(-1e308), "b": np.asarray(1e308), "c": np.asarray(1e-300)},
        r"a range from -1e\+308 to 1e\+308 in steps of 1e-300",
    ),
    "Loop": (
        node("Loop", "n _ x", "y", body=counting(1).graph.node[0].attribute[0].g),
        [2],
        {"n": ints(1, 2), "one": np.ones(2, np.float32)},
        r"trip count 'n' is i64\[2\]",
    ),
    "Loop's condition": (
        node("Loop", "_ n x", "y", body=counting(1).graph.node[0].attribute[0].g),
        [2],
        {"n": np.asarray([True, True]), "one": np.ones(2, np.float32)},
        r"condition 'n' is bool\[2\], but must be one bool",
    ),
    "If": (
        node(
            "If",
            "n",
            "y",
            then_branch=graph([_UNFIT], {}, "b"),
            else_branch=graph([_UNFIT], {}, "b"),
        ),
        [2],
        {"n": ints(1, 0)},
        r"condition 'n' is i64\[2\], but must be one bool",
    ),
}


@pytest.mark.parametrize("name", _NUMBERS)
def test_operands_that_are_not_one_number_are_refused(name: str) -> None:
    step, shape, constants, message = _NUMBERS[name]
    infos = {"x": shape}
    nodes = [step, node("Identity", "x", "z")]
    with pytest.raises(ModelError, match=message):
        imported(model(graph(nodes, infos, "y z", constants)))


# Too large names, shapes and lists


def test_long_names_are_refused() -> None:
    for field in ("op_type", "domain", "name"):
        proto = model(graph([node("Relu", "x", "y")], {"x": [2]}, "y"))
        setattr(proto.graph.node[0], field, "n" * 100_000)
        with pytest.raises(ModelError, match=rf"{field} 'n{{40}}…' of 100,000 characters"):
            imported(proto)


def test_tensors_with_too_many_dimensions_are_refused() -> None:
    step = node("Reshape", "x s", "y")
    with pytest.raises(UnsupportedError, match=r"Reshape #0 'y': a tensor has 70 dimensions"):
        imported(model(graph([step], {"x": [1]}, "y", {"s": np.ones(70, np.int64)})))
    for shape in ([1] * 70, [2**62, 2**62]):
        with pytest.raises(
            UnsupportedError,
            match=r"input 'x': (a tensor has 70 dimensions|tensor .* is too large)",
        ):
            imported(model(graph([node("Relu", "x", "y")], {"x": shape}, "y")))


def test_long_messages_are_shortened() -> None:
    step = node("Transpose", "x", "y", perm=list(range(100_000)))
    with pytest.raises(
        ModelError, match=r"perm \[0, 1, .* … .*is not a permutation of the axes"
    ) as caught:
        imported(model(graph([step], {"x": [2]}, "y")))
    assert len(str(caught.value)) < 5000


def test_an_operator_with_too_many_operands_is_refused() -> None:
    step = helper.make_node("Concat", ["x"] * 70_000, ["y"], axis=0)
    with pytest.raises(UnsupportedError, match=rf"more than {LARGEST_NETWORK:,} operators"):
        imported(model(graph([step], {"x": [2]}, "y")))


# Found by a fuzzer


def test_an_operator_without_a_definition_for_its_operands_is_refused() -> None:
    body = graph([node("Neg", "a", "b")], {"a": [2]}, "b")
    step = node("SequenceMap", "x", "y", "", body=body)
    with pytest.raises(ModelError, match=r"SequenceMap.*does not define it for these operands"):
        imported(model(graph([step], {"x": [2]}, "y")))


@pytest.mark.parametrize("version", [2**31, 2**63 - 1, -1])
def test_impossible_operator_sets_are_refused(version: int) -> None:
    proto = model(graph([node("Scaler", "x", "y", "ai.onnx.ml")], {"x": [2]}, "y"), ai_onnx_ml=3)
    proto.opset_import[1].version = version
    with pytest.raises(ModelError, match=rf"operator set {version} of 'ai.onnx.ml'"):
        imported(proto)


_VAST = 2**62


@pytest.mark.parametrize(
    ("kind", "operands"),
    [
        ("ConstantOfShape", {"shape": ints(0, _VAST)}),
        ("Tile", {"x": np.zeros((0, 1), np.float32), "repeats": ints(1, _VAST)}),
        ("Expand", {"x": np.zeros((0, 1), np.float32), "shape": ints(0, _VAST)}),
    ],
)
def test_an_empty_tensor_with_huge_dimensions_is_refused(
    kind: str, operands: dict[str, Any]
) -> None:
    """numpy computes strides also for a tensor without elements, and they would overflow."""
    nodes = [node(kind, " ".join(operands), "big"), node("Concat", "i big", "y", axis=1)]
    with pytest.raises(UnsupportedError, match=r"#0 'big': tensor f32\[0,\d+\] is too large"):
        imported(model(graph(nodes, {"i": [0, 1]}, "y", operands)))


def test_a_mask_for_more_keys_than_exist_is_refused() -> None:
    nodes = [node("Attention", "q k k mask", "y", q_num_heads=1, kv_num_heads=1)]
    proto = model(graph(nodes, {"q": [1, 2, 4], "k": [1, 3, 4]}, "y", {"mask": uniform(2, 5)}))
    proto.opset_import[0].version = 23
    with pytest.raises(ModelError, match=r"mask of shape \[2, 5\] for 3 keys"):
        imported(proto)


# Constants


def added(shape: list[int]) -> onnx.ModelProto:
    return model(graph([node("Add", "x c", "y")], {"x": shape}, "y"))


@pytest.mark.parametrize("places", [ints(1, 5), np.asarray([[0, 1], [1, 2]])])
def test_sparse_constants_are_expanded(places: Array) -> None:
    """The indices are flat, or one for each axis."""
    values = numpy_helper.from_array(np.asarray([2.5, 3.5], np.float32), "c")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(places), [2, 3])
    proto = added([2, 3])
    proto.graph.sparse_initializer.append(sparse)
    agrees(proto, {"x": uniform(2, 3)})
    steps = [node("Constant", "", "c", sparse_value=sparse), node("Add", "x c", "y")]
    attribute = model(graph(steps, {"x": [3]}, "y"))
    agrees(attribute, {"x": uniform(3)})


@pytest.mark.parametrize(
    ("places", "dims", "message"),
    [
        (ints(1, 6), [2, 3], r"values outside of its shape \[2, 3\]"),
        (ints(1, -1), [2, 3], "values outside of its shape"),
        (np.asarray([[0, 1], [2, 0]]), [2, 3], "values outside of its shape"),
        (ints(1), [2, 3], r"values of shape \[2\] and indices of shape \[1\]"),
        (ints(0, 0), [], None),
        (ints(0, 1), [-1, 6], r"with shape \[-1, 6\]"),
        (ints(0, 1), [2**40], "elementary operations"),
        (ints(0, 1), [0, 2**62], "outside|large"),
    ],
)
def test_invalid_sparse_constants_are_refused(
    places: Array, dims: list[int], message: str | None
) -> None:
    values = numpy_helper.from_array(np.asarray([2.5, 3.5], np.float32), "c")
    sparse = onnx.SparseTensorProto(
        values=values, indices=numpy_helper.from_array(places), dims=dims
    )
    proto = added([2, 3])
    proto.graph.sparse_initializer.append(sparse)
    if message is None:
        imported(proto)
        return
    with pytest.raises((ModelError, UnsupportedError), match=rf"constant 'c'.*{message}"):
        imported(proto)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"float_data": [1, 2, 3]}, r"3 elements of data, but its shape \[4\] of float needs 4"),
        ({"raw_data": b"abc"}, r"3 bytes of data, but its shape \[4\] of float needs 16"),
        ({"raw_data": b"abcd" * 3}, r"12 bytes of data, but its shape \[4\] of float needs 16"),
    ],
)
def test_data_that_do_not_fit_the_shape_are_refused(data: dict[str, Any], message: str) -> None:
    proto = added([4])
    proto.graph.initializer.add(name="c", dims=[4], data_type=onnx.TensorProto.FLOAT, **data)
    with pytest.raises(ModelError, match=rf"constant 'c' has {message}"):
        imported(proto)


# Messages


@pytest.mark.parametrize("kind", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows_of_a_negative_size_are_refused(kind: str) -> None:
    steps = [node(kind, "n", "w"), node("ReduceSum", "w", "m"), node("Add", "x m", "y")]
    proto = model(graph(steps, {"x": [1]}, "y", {"n": np.asarray(-3)}))
    with pytest.raises(ModelError, match=rf"{kind} #0 'w': its size is -3"):
        imported(proto)


def test_very_large_counts_are_printed_rounded() -> None:
    bounds = {n: np.asarray(b, np.float32) for n, b in (("a", 0), ("b", 1e30), ("c", 1e-30))}
    steps = [node("Range", "a b c", "r"), node("Add", "x r", "y")]
    with pytest.raises(UnsupportedError, match=r"takes 1\.0e\+60 elementary operations"):
        imported(model(graph(steps, {"x": [1]}, "y", bounds)))


@pytest.mark.parametrize(
    ("name", "said"), [("T", "T"), ("seq len;", "'seq len;'"), ("a'b", "'a'\"'\"'b'")]
)
def test_the_suggested_option_for_a_dimension_is_quoted_for_a_shell(name: str, said: str) -> None:
    proto = model(graph([node("Neg", "x", "y")], {"x": [1, name]}, "y"))
    with pytest.raises(UnsupportedError) as caught:
        imported(proto)
    assert f"fix it with --dim {said}=1 or" in str(caught.value)
    assert f"with --dim {said}=1..64" in str(caught.value)
