"""ONNX operators on elements, reductions and normalizations, against ONNX Runtime.

ONNX's backend suite covers the usual forms. These tests cover older operator sets, operands that
are computed at run time, and forms that the importer simplifies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from smelt.api.options import Options
from smelt.errors import ModelError, SmeltError, UnsupportedError
from smelt.frontend import load
from smelt.ir import Array, Graph, evaluate
from smelt.ops.core.unary import Unary
from tests.support.graphs import SETUPS, Member, run_together
from tests.support.onnx_networks import agrees, graph, ints, model, node, session, tensor_info

RNG = np.random.default_rng(3)
X = RNG.uniform(-3, 3, (2, 3, 4)).astype(np.float32)
IMAGE = RNG.uniform(-3, 3, (2, 6, 4, 5)).astype(np.float32)
SIX, SIX_MORE = (RNG.uniform(0.5, 2, 6).astype(np.float32) for _ in range(2))
INTEGERS = RNG.integers(-9, 9, (2, 3, 4)).astype(np.int32)
_KINDS = {"float32": "f", "float64": "d", "int32": "i", "int64": "l", "bool": "b", "uint8": "u8"}


def number(value: float, dtype: type = np.float32) -> Array:
    return np.asarray(value, dtype)


def floats(*values: float) -> Array:
    return np.asarray(values, np.float32)


def one(kind: str, opset: int, x: Array, *constants: Array, **attributes: Any) -> onnx.ModelProto:
    """Return a network of one operator, with an input as first operand and constants as others."""
    names = [f"c{i}" for i in range(len(constants))]
    nodes = [node(kind, " ".join(["x", *names]), "y", **attributes)]
    inputs = [tensor_info("x", x.shape, _KINDS[x.dtype.name])]
    outputs = [onnx.ValueInfoProto(name="y")]
    return model(graph(nodes, inputs, outputs, dict(zip(names, constants, strict=True))), opset)


def fed(kind: str, opset: int, *arrays: Array, **attributes: Any) -> onnx.ModelProto:
    """Return a network of one operator, whose operands are all inputs: x0, x1, …."""
    names = [f"x{i}" for i in range(len(arrays))]
    nodes = [node(kind, " ".join(names), "y", **attributes)]
    inputs = [
        tensor_info(name, a.shape, _KINDS[a.dtype.name])
        for name, a in zip(names, arrays, strict=True)
    ]
    return model(graph(nodes, inputs, [onnx.ValueInfoProto(name="y")]), opset)


ONES = {
    "clip attributes": (one("Clip", 7, X, min=-1.0, max=0.5), X),
    "clip one attribute": (one("Clip", 10, X, max=0.5), X),
    "clip constants": (one("Clip", 13, X, number(0), number(6)), X),
    "clip above": (one("Clip", 13, X, number(-0.5)), X),
    "clip crossed": (one("Clip", 13, X, number(1), number(-1)), X),
    "clip integers": (one("Clip", 13, INTEGERS, number(-2, np.int32)), INTEGERS),
    "relu integers": (one("Relu", 14, INTEGERS), INTEGERS),
    "softmax of rows": (one("Softmax", 11, X), X),
    "softmax of the last rows": (one("Softmax", 11, X, axis=-1), X),
    "softmax of all": (one("Softmax", 11, X, axis=0), X),
    "softmax of channels": (one("Softmax", 13, IMAGE, axis=1), IMAGE),
    "log softmax of channels": (one("LogSoftmax", 13, IMAGE, axis=1), IMAGE),
    "hardmax of columns": (one("Hardmax", 13, X, axis=1), X),
    "divided by powers of two": (one("Div", 13, X, floats(2, -0.25, 64, 1)), X),
    "divided by others": (one("Div", 13, X, floats(3, -0.3, 0, 1)), X),
    "divided by one tiny": (one("Div", 13, X, number(2.0**-140)), X),
    "square": (one("Pow", 13, X, number(2)), X),
    "cube": (one("Pow", 13, X, number(3, np.int32)), X),
    "root": (one("Pow", 13, np.abs(X), number(0.5)), np.abs(X)),
    "power of integers": (one("Pow", 13, INTEGERS, number(3, np.int64)), INTEGERS),
    "power in more dimensions": (one("Pow", 13, X, floats(2).reshape(1, 1, 1, 1)), X),
    "sum over axes": (one("ReduceSum", 11, X, axes=[0, -1]), X),
    "sum over all": (one("ReduceSum", 13, X), X),
    "sum over none": (one("ReduceSum", 13, X, ints(), noop_with_empty_axes=1), X),
    "norm over an operand's axes": (one("ReduceL2", 18, X, ints(1), keepdims=0), X),
    "logarithm of a sum": (one("ReduceLogSumExp", 18, X * 40, ints(-1)), X * 40),
    "cumulative": (one("CumSum", 14, X, number(-2, np.int32), reverse=1), X),
    "prelu": (one("PRelu", 9, IMAGE, floats(0.1, 0.5, -1, 2, 0, 3).reshape(6, 1, 1)), IMAGE),
    "lrn": (one("LRN", 13, IMAGE, size=3, alpha=0.3), IMAGE),
    "layer": (one("LayerNormalization", 17, X, X[0, 0], axis=-1), X),
    "layer of two axes": (one("LayerNormalization", 17, X, X[0], X[1], axis=1), X),
    "instance": (one("InstanceNormalization", 7, IMAGE, SIX, SIX_MORE), IMAGE),
    "instance of a signal": (one("InstanceNormalization", 13, X, SIX[:3], SIX[3:]), X),
    "group": (one("GroupNormalization", 21, IMAGE, SIX, SIX_MORE, num_groups=3), IMAGE),
    "mean and variance": (one("MeanVarianceNormalization", 13, IMAGE), IMAGE),
    "mean and variance of all": (one("MeanVarianceNormalization", 13, IMAGE, axes=[1, 2]), IMAGE),
    "lp": (one("LpNormalization", 13, np.abs(X), axis=1, p=1), np.abs(X)),
    "gelu": (one("Gelu", 20, X, approximate="tanh"), X),
    "batch": (one("BatchNormalization", 7, IMAGE, SIX, -SIX, SIX_MORE, SIX_MORE), IMAGE),
    "batch of a matrix": (
        one("BatchNormalization", 15, IMAGE[:, :, 0, 0], SIX, -SIX, SIX_MORE, SIX_MORE),
        IMAGE[:, :, 0, 0],
    ),
}


@pytest.mark.parametrize("name", ONES)
def test_operators_with_constant_operands_agree_with_onnx_runtime(name: str) -> None:
    proto, x = ONES[name]
    agrees(proto, {"x": x})


FED = {
    "clip between operands": ("Clip", 13, (X, number(-1), number(0.5)), {}),
    "batch normalized by operands": (
        "BatchNormalization",
        9,
        (IMAGE, SIX, -SIX, SIX_MORE, SIX_MORE),
        {},
    ),
    "power of operands": ("Pow", 13, (np.abs(X), X[0]), {}),
    "remainder": ("Mod", 13, (INTEGERS, np.abs(INTEGERS) + 1), {}),
    "remainder towards zero": ("Mod", 13, (INTEGERS, np.abs(INTEGERS) + 1), {"fmod": 1}),
    "mean of three": ("Mean", 13, (X, X[0], X[:, :1]), {}),
    "greatest of one": ("Max", 13, (X,), {}),
    "choice": ("Where", 16, (X > 0, X, X[:1, :, :1]), {}),
    "choice of integers": ("Where", 16, (X[0] > 0, INTEGERS, INTEGERS[0]), {}),
    "comparison": ("LessOrEqual", 16, (INTEGERS, INTEGERS[1]), {}),
    "comparison of truths": ("Equal", 13, (X > 0, X[0] > 0), {}),
    "logic": ("Xor", 7, (X > 0, X[0] > 0), {}),
}


@pytest.mark.parametrize("name", FED)
def test_operators_with_computed_operands_agree_with_onnx_runtime(name: str) -> None:
    kind, opset, arrays, attributes = FED[name]
    agrees(fed(kind, opset, *arrays, **attributes), {f"x{i}": a for i, a in enumerate(arrays)})


def imported(proto: onnx.ModelProto) -> Graph:
    return load(proto.SerializeToString()).graph


def test_clip_with_known_limits_becomes_one_activation() -> None:
    kinds = [n.op for n in imported(one("Clip", 13, X, number(0), number(6))).nodes]
    assert kinds == [Unary("relu6")]
    assert [n.op for n in imported(one("Clip", 7, X, min=0.0)).nodes] == [Unary("relu")]


def test_casts_of_floats_out_of_range_saturate() -> None:
    """ONNX does not define the result, but all our backends must compute the same."""
    x = floats(-np.inf, -1e10, -129, -1.5, 0, 1.5, 127.9, 1e10, np.inf, np.nan)
    graph_ = imported(one("Cast", 13, x, to=onnx.TensorProto.INT8))
    (y,) = evaluate(graph_, [x]).outputs
    np.testing.assert_array_equal(y, [-128, -128, -128, -1, 0, 1, 127, 127, 127, 0])


def assert_generated_code_equals_onnx_runtime(
    protos: list[onnx.ModelProto], feeds: list[list[Array]], options: Options
) -> None:
    """Assert that generated C gives ONNX Runtime's results, where any NaN equals any other."""
    members = [Member(imported(p), [tuple(f)]) for p, f in zip(protos, feeds, strict=True)]
    for proto, arrays, (found,) in zip(protos, feeds, run_together(members, options), strict=True):
        names = [info.name for info in proto.graph.input]
        wanted = session(proto).run(None, dict(zip(names, arrays, strict=True)))
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs, str(proto.graph.node))


NAN = floats(1, np.nan, 3, -2, -np.nan, 0, 7, -np.inf, np.inf) * np.ones((4, 9), np.float32)
"""NaN with both signs, in rows that are long enough for vector instructions."""
LIMITS = (one("Relu", 14, NAN), one("Clip", 13, NAN, number(0), number(6)))
EXTREMA = {
    "largest": fed("Max", 13, NAN, NAN[:, ::-1]),
    "smallest": fed("Min", 13, NAN, NAN[:, ::-1]),
    "largest of columns": fed("Max", 13, NAN, NAN[:, ::-1][:, :1]),
}


def convolution_and(*rest: onnx.NodeProto) -> onnx.ModelProto:
    """Return a convolution of `x` to `s`, followed by the nodes `rest`, which clamp `s` to `y`."""
    constants = {
        "w": np.eye(4, dtype=np.float32).reshape(4, 4, 1),
        "six": number(6),
        "o": number(0),
    }
    nodes = [node("Conv", "x w", "s"), *rest]
    return model(graph(nodes, {"x": [1, 4, 9]}, "y", constants), 14)


CONVOLVED = [
    convolution_and(node("Relu", "s", "y")),
    convolution_and(node("Clip", "s o six", "y")),
    convolution_and(node("Max", "s o", "y")),
]


@pytest.mark.quick(setup=("host", "m4"))
@pytest.mark.parametrize("setup", ["host", "m4", "m55"])
def test_nan_operands_give_nan(setup: str) -> None:
    protos, feeds = [*LIMITS, *EXTREMA.values()], [[NAN]] * len(LIMITS)
    feeds += [[NAN, NAN[:, ::-1]], [NAN, NAN[:, ::-1]], [NAN, NAN[:, ::-1][:, :1]]]
    finite = np.where(np.isinf(NAN), np.float32(5), NAN).reshape(1, 4, 9)
    assert_generated_code_equals_onnx_runtime(
        protos + CONVOLVED, feeds + [[finite]] * len(CONVOLVED), SETUPS[setup]
    )


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
def test_argmax_and_argmin_select_nan(kind: str, last: int) -> None:
    """As in NumPy and PyTorch; in ONNX Runtime, the result depends on the order of the elements."""
    graph_ = imported(one(kind, 13, NAN, axis=1, select_last_index=last))
    (found,) = run_together([Member(graph_, [(NAN,)])], SETUPS["host"])[0]
    np.testing.assert_array_equal(found[0].ravel(), 4 if last else 1)


def cast_and_back(code: int, size: int) -> onnx.ModelProto:
    nodes = [node("Cast", "x", "narrow", to=code), node("Cast", "narrow", "y", to=1)]
    return model(graph(nodes, {"x": [size]}, "y"))


def neighbors(stored: Array) -> Array:
    """Return the numbers of a narrow type, the midpoints between them, and the floats next to both.

    Args:
        stored: all numbers of the narrow type as float32, ordered by their bits.
    """
    up, down = np.float32(np.inf), np.float32(-np.inf)
    halfway = ((stored[:-1].astype(np.float64) + stored[1:]) / 2).astype(np.float32)
    points = np.concatenate([stored, halfway])
    return np.concatenate([points, np.nextafter(points, up), np.nextafter(points, down)])


@pytest.mark.parametrize(("code", "dtype"), [(10, np.uint16), (16, np.uint32)])
def test_casts_to_narrow_floats_round_to_nearest_even(code: int, dtype: type) -> None:
    """Cast all numbers of float16 and bfloat16, and every tie between two of them."""
    bits = np.arange(1 << 16, dtype=dtype)
    if code == onnx.TensorProto.FLOAT16:
        stored = bits.view(np.float16).astype(np.float32)
    else:
        stored = (bits << 16).view(np.float32)
    with np.errstate(all="ignore"):
        x = np.concatenate([neighbors(stored), floats(65519.99, 65520, -65520, 7e4, 1e-9, 3e38)])
    proto = cast_and_back(code, len(x))
    assert_generated_code_equals_onnx_runtime([proto], [[x]], SETUPS["host"])
    assert len(np.unique(x[np.isfinite(x)])) > 190_000


def test_float64_and_int64_round_to_float16() -> None:
    x, integers = X.astype(np.float64) * 3e4, np.arange(2000, 70000, 77)
    nodes = [
        node("Cast", "x", "x16", to=onnx.TensorProto.FLOAT16),
        node("CastLike", "i x16", "i16"),
        node("Cast", "x16", "y", to=1),
        node("Cast", "i16", "z", to=1),
    ]
    inputs = [tensor_info("x", x.shape, "d"), tensor_info("i", integers.shape, "l")]
    proto = model(graph(nodes, inputs, "y z"))
    assert_generated_code_equals_onnx_runtime([proto], [[x, integers]], SETUPS["host"])


def test_types_that_float16_represents_are_not_rounded() -> None:
    for kind, dtype in (("h", np.float16), ("i8", np.int8), ("b", np.bool_)):
        cast = node("Cast", "x", "y", to=onnx.TensorProto.FLOAT16)
        proto = model(graph([cast], [tensor_info("x", [3], kind)], [tensor_info("y", [3], "h")]))
        assert not any(isinstance(n.op, Unary) for n in imported(proto).nodes), dtype


def test_castlike_in_a_function_casts_to_the_type_of_the_operand() -> None:
    """The function's operand is float16 in the file, which the importer computes as float32."""
    like = node("CastLike", "a b", "c")
    function = onnx.helper.make_function(
        "local", "Like", ["a", "b"], ["c"], [like], [onnx.helper.make_opsetid("", 21)]
    )
    nodes = [
        node("Cast", "x", "h", to=onnx.TensorProto.FLOAT16),
        node("Neg", "h", "n"),
        node("Like", "x n", "c", domain="local"),
        node("Cast", "c", "y", to=1),
    ]
    proto = model(graph(nodes, {"x": X.shape}, "y"), local=1)
    proto.functions.append(function)
    agrees(proto, {"x": X})
    (rounded,) = evaluate(imported(proto), [X]).outputs
    np.testing.assert_array_equal(rounded, X.astype(np.float16))


TRAINING = one("BatchNormalization", 15, IMAGE, SIX, SIX, SIX, SIX, training_mode=1)
FLOAT8 = one("Cast", 19, X, to=onnx.TensorProto.FLOAT8E4M3FN)
REFUSED: dict[str, tuple[onnx.ModelProto, type[SmeltError], str]] = {
    "training": (TRAINING, UnsupportedError, "export the network for inference"),
    "float8": (FLOAT8, UnsupportedError, "float8e4m3fn"),
    "string": (one("Cast", 13, X, to=onnx.TensorProto.STRING), UnsupportedError, "string"),
    "too few channels": (
        one("BatchNormalization", 15, IMAGE, SIX[:5], SIX, SIX, SIX),
        ModelError,
        "each of the 6 channels",
    ),
    "groups": (
        one("GroupNormalization", 21, IMAGE, SIX, SIX, num_groups=4),
        ModelError,
        "into 4 groups",
    ),
    "axis": (one("Softmax", 13, X, axis=3), ModelError, "axis 3"),
    "limit": (one("Clip", 13, X, floats(1, 2)), ModelError, "must be a single number"),
    "broadcast": (one("Add", 13, X, SIX), ModelError, "cannot broadcast"),
    "negative variance": (
        one("BatchNormalization", 15, IMAGE, SIX, SIX, SIX, -SIX),
        ModelError,
        "must be positive",
    ),
    "norm": (one("LpNormalization", 13, X, p=3), ModelError, "attribute 'p' is 3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_operators_are_refused_with_the_reason(name: str) -> None:
    proto, error, reason = REFUSED[name]
    with pytest.raises(error, match=reason):
        imported(proto)
