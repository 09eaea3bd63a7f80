"""The TFLite frontend: all converters against LiteRT, and the messages of refusals."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np
import pytest

from smelt.codegen.passes import run_passes
from smelt.errors import ModelError, SmeltError, UnsupportedError
from smelt.frontend import load
from smelt.frontend.tflite import CONVERTERS, comparison, control_flow, indexing, recurrent
from smelt.ir import Array, DType, Graph, Quant, Rounding, evaluate
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.tensor.reshape import Reshape
from smelt.proof.run import run
from tests.support.graphs import compile_graph
from tests.support.tflite_networks import (
    DIGITS,
    O,
    T,
    const,
    dequantized_weights,
    edited,
    litert,
    network,
)

SAME, VALID = schema.Padding.SAME, schema.Padding.VALID
FUSED = schema.ActivationFunctionType
INT8 = schema.TensorType.INT8
RNG = np.random.default_rng(7)


def _real(*shape: int) -> Array:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def one(
    kind: str,
    x: tuple[int, ...],
    y: tuple[int, ...],
    *operands: T,
    options: Any = None,
    **fields: Any,
) -> bytes:
    """Return a float32 network of one operator.

    Args:
        kind: the operator.
        x: shape of its first operand.
        y: shape of its result.
        operands: other operands; those without data are inputs of the network.
        options: class of the operator's options.
        fields: of the options.
    """
    tensors = (T("x", x), *operands, T("y", y))
    fed = ["x", *(o.name for o in operands if o.data is None)]
    names = ["x", *(o.name for o in operands)]
    return network(tensors, [O(kind, names, ["y"], options, fields)], fed, ["y"])


def _conv(x: tuple[int, ...], y: tuple[int, ...], w: tuple[int, ...], **fields: Any) -> bytes:
    fields = {"strideH": 1, "strideW": 1, "padding": SAME} | fields
    operands = const("w", _real(*w)), const("b", _real(w[0]))
    return one("CONV_2D", x, y, *operands, options=schema.Conv2DOptionsT, **fields)


def _depthwise(x: tuple[int, ...], y: tuple[int, ...], w: tuple[int, ...], **fields: Any) -> bytes:
    fields = {"strideH": 1, "strideW": 1, "depthMultiplier": w[3] // x[3]} | fields
    operands = const("w", _real(*w)), const("b", _real(w[3]))
    options = schema.DepthwiseConv2DOptionsT
    return one("DEPTHWISE_CONV_2D", x, y, *operands, options=options, **fields)


def _dense(x: tuple[int, ...], y: tuple[int, ...], *operands: T, **fields: Any) -> bytes:
    options = schema.FullyConnectedOptionsT
    return one("FULLY_CONNECTED", x, y, *operands, options=options, **fields)


def _matmul(x: tuple[int, ...], y: tuple[int, ...], z: T, **fields: Any) -> bytes:
    return one("BATCH_MATMUL", x, y, z, options=schema.BatchMatMulOptionsT, **fields)


def _transposed(
    x: tuple[int, ...], y: tuple[int, ...], w: tuple[int, ...], *bias: T, **fields: Any
) -> bytes:
    fields = {"strideH": 2, "strideW": 2, "padding": SAME} | fields
    operands = const("shape", y, np.int32), const("w", _real(*w)), T("x", x), *bias, T("y", y)
    names = [operand.name for operand in operands[:-1]]
    operator = O("TRANSPOSE_CONV", names, ["y"], schema.TransposeConvOptionsT, fields)
    return network(operands, [operator], ["x"], ["y"])


def _pool(kind: str, y: tuple[int, ...], **fields: Any) -> bytes:
    fields = {"strideH": 2, "strideW": 1, "filterHeight": 3, "filterWidth": 2} | fields
    return one(kind, (1, 7, 6, 3), y, options=schema.Pool2DOptionsT, **fields)


def _reduce(kind: str, y: tuple[int, ...], axes: Any, keep: bool) -> bytes:
    operand = const("axes", axes, np.int32)
    return one(kind, (1, 4, 5, 3), y, operand, options=schema.ReducerOptionsT, keepDims=keep)


def _resize(kind: str, align: bool = False, centers: bool = False) -> bytes:
    options = (
        schema.ResizeBilinearOptionsT
        if kind == "RESIZE_BILINEAR"
        else schema.ResizeNearestNeighborOptionsT
    )
    size = const("size", [7, 9], np.int32)
    fields = {"alignCorners": align, "halfPixelCenters": centers}
    return one(kind, (1, 4, 5, 2), (1, 7, 9, 2), size, options=options, **fields)


def _shape(kind: str, x: tuple[int, ...], y: tuple[int, ...], *numbers: Any) -> bytes:
    return one(kind, x, y, *(const(f"n{i}", n, np.int32) for i, n in enumerate(numbers)))


X4 = (1, 4, 5, 3)
UNARY_NAMES = (
    *("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "LOGISTIC", "TANH", "HARD_SWISH", "ELU"),
    *("ABS", "NEG", "EXP", "SQUARE", "SIN", "COS", "FLOOR", "CEIL", "ROUND"),
)
POSITIVE_NAMES = ("LOG", "SQRT", "RSQRT")
NETWORKS: dict[str, bytes] = {
    **{name.lower(): one(name, X4, X4) for name in (*UNARY_NAMES, *POSITIVE_NAMES)},
    **{
        name.lower(): one(name, X4, X4, T("z", X4))
        for name in (
            *("ADD", "SUB", "MUL", "DIV", "FLOOR_DIV", "FLOOR_MOD", "MAXIMUM", "MINIMUM"),
            "SQUARED_DIFFERENCE",
        )
    },
    "add_scalar": one("ADD", X4, X4, const("z", 0.5), options=schema.AddOptionsT),
    "sub_row_relu": one(
        *("SUB", X4, X4, const("z", _real(3))),
        options=schema.SubOptionsT,
        fusedActivationFunction=FUSED.RELU,
    ),
    "mul_channel_relu6": one(
        *("MUL", X4, X4, const("z", 9 * _real(1, 1, 1, 3))),
        options=schema.MulOptionsT,
        fusedActivationFunction=FUSED.RELU6,
    ),
    "div_n1": one(
        *("DIV", X4, X4, const("z", [0.5])),
        options=schema.DivOptionsT,
        fusedActivationFunction=FUSED.RELU_N1_TO_1,
    ),
    "add_n": one("ADD_N", X4, X4, T("z", X4), const("c", _real(*X4)), options=schema.AddNOptionsT),
    "leaky_relu": one("LEAKY_RELU", X4, X4, options=schema.LeakyReluOptionsT, alpha=0.2),
    "gelu": one("GELU", X4, X4, options=schema.GeluOptionsT),
    "gelu_tanh": one("GELU", X4, X4, options=schema.GeluOptionsT, approximate=True),
    "l2_normalization": one("L2_NORMALIZATION", X4, X4, options=schema.L2NormOptionsT),
    "log_softmax": one("LOG_SOFTMAX", (2, 9), (2, 9)),
    "prelu": one("PRELU", X4, X4, const("slopes", _real(1, 1, 3))),
    "softmax": one("SOFTMAX", (2, 9), (2, 9), options=schema.SoftmaxOptionsT, beta=2.0),
    "conv_same": _conv((1, 7, 6, 3), (1, 4, 6, 4), (4, 3, 3, 3), strideH=2),
    "conv_valid": _conv((1, 7, 6, 3), (1, 5, 3, 4), (4, 3, 2, 3), strideW=2, padding=VALID),
    "conv_dilated": _conv(
        *((1, 9, 9, 2), (1, 9, 9, 3), (3, 3, 3, 2)), dilationHFactor=2, dilationWFactor=3
    ),
    "conv_grouped": _conv((1, 5, 5, 4), (1, 5, 5, 6), (6, 3, 3, 2)),
    "conv_relu": _conv(X4, (1, 4, 5, 2), (2, 1, 1, 3), fusedActivationFunction=FUSED.RELU),
    "depthwise_same": _depthwise((1, 7, 6, 3), (1, 4, 3, 3), (1, 3, 3, 3), strideH=2, strideW=2),
    "depthwise_multiplier": _depthwise(X4, (1, 2, 4, 6), (1, 3, 2, 6), padding=VALID),
    "depthwise_dilated": _depthwise(
        *((1, 9, 9, 2), (1, 9, 9, 2), (1, 3, 3, 2)), dilationHFactor=2, dilationWFactor=2
    ),
    "depthwise_implied": _depthwise(X4, (1, 4, 5, 6), (1, 3, 3, 6), depthMultiplier=2),
    "transposed_same": _transposed((1, 4, 5, 3), (1, 8, 10, 2), (2, 3, 3, 3)),
    "transposed_odd": _transposed((1, 4, 5, 3), (1, 7, 9, 2), (2, 2, 4, 3)),
    "transposed_valid": _transposed(
        *((2, 4, 5, 3), (2, 10, 15, 4), (4, 3, 2, 3), const("b", _real(4))),
        strideH=2,
        strideW=3,
        padding=VALID,
    ),
    "transposed_relu": _transposed(
        *((1, 3, 3, 2), (1, 3, 3, 5), (5, 3, 3, 2)),
        strideH=1,
        strideW=1,
        fusedActivationFunction=FUSED.RELU,
    ),
    "dense": _dense((3, 8), (3, 5), const("w", _real(5, 8)), const("b", _real(5))),
    "dense_no_bias": _dense((1, 2, 2, 2), (1, 5), const("w", _real(5, 8))),
    "dense_keep": _dense((1, 3, 8), (1, 3, 5), const("w", _real(5, 8)), keepNumDims=True),
    "batch_matmul": _matmul((2, 3, 4, 6), (2, 3, 4, 5), T("z", (2, 3, 6, 5))),
    "batch_matmul_adjoint": _matmul((2, 6, 4), (2, 4, 5), T("z", (5, 6)), adjX=True, adjY=True),
    "batch_matmul_constant": _matmul((2, 4, 6), (2, 4, 5), const("z", _real(6, 5))),
    **{
        f"cumsum_{exclusive:d}{reverse:d}": one(
            *("CUMSUM", X4, X4, const("axis", -2, np.int32)),
            options=schema.CumsumOptionsT,
            exclusive=exclusive,
            reverse=reverse,
        )
        for exclusive in (False, True)
        for reverse in (False, True)
    },
    "average_pool": _pool("AVERAGE_POOL_2D", (1, 4, 6, 3)),
    "average_pool_valid": _pool("AVERAGE_POOL_2D", (1, 3, 5, 3), padding=VALID),
    "l2_pool": _pool("L2_POOL_2D", (1, 4, 6, 3)),
    "l2_pool_valid": _pool("L2_POOL_2D", (1, 3, 5, 3), padding=VALID),
    "max_pool_relu": _pool("MAX_POOL_2D", (1, 4, 6, 3), fusedActivationFunction=FUSED.RELU),
    "mean": _reduce("MEAN", (1, 3), [1, 2], keep=False),
    "mean_keep": _reduce("MEAN", (1, 1, 1, 3), [-3, 2], keep=True),
    "sum_scalar_axis": _reduce("SUM", (1, 4, 5), 3, keep=False),
    "reduce_max": _reduce("REDUCE_MAX", (1, 5, 3), [1], keep=False),
    "reduce_min": _reduce("REDUCE_MIN", (1, 4, 5, 1), [-1], keep=True),
    "reduce_prod": _reduce("REDUCE_PROD", (1, 4, 3), [2], keep=False),
    **{
        f"segment_{kind}": one(
            *(f"UNSORTED_SEGMENT_{kind.upper()}", (6, 2, 3), (5, 2, 3)),
            const("places", [3, 0, -1, 3, 4, 0], np.int32),
            const("count", 5, np.int32),
        )
        for kind in ("sum", "prod", "max", "min")
    },
    "segment_planes": one(
        *("UNSORTED_SEGMENT_SUM", X4, (7, 5, 3)),
        const("places", [[3, 6, 0, 3]], np.int32),
        const("count", [7], np.int32),
    ),
    "concatenation": one(
        *("CONCATENATION", X4, (1, 4, 7, 3), T("z", (1, 4, 2, 3))),
        options=schema.ConcatenationOptionsT,
        axis=-2,
    ),
    "pad": _shape("PAD", X4, (1, 5, 8, 3), [[0, 0], [1, 0], [1, 2], [0, 0]]),
    "padv2": one(
        *("PADV2", (2, 3), (4, 3)),
        const("counts", [[1, 1], [0, 0]], np.int32),
        const("fill", 2.5),
    ),
    "reshape": _shape("RESHAPE", X4, (3, 20), [3, -1]),
    "reshape_by_option": one(
        *("RESHAPE", X4, (3, 20)), options=schema.ReshapeOptionsT, newShape=[3, 20]
    ),
    "squeeze": one("SQUEEZE", (1, 4, 1, 3), (4, 3), options=schema.SqueezeOptionsT),
    "expand_dims": _shape("EXPAND_DIMS", (4, 3), (4, 1, 3), 1),
    "tile": _shape("TILE", (2, 1, 3), (2, 4, 6), [1, 4, 2]),
    "transpose": _shape("TRANSPOSE", X4, (1, 3, 4, 5), [0, 3, 1, 2]),
    "resize_nearest_neighbor": _resize("RESIZE_NEAREST_NEIGHBOR"),
    "resize_nearest_aligned": _resize("RESIZE_NEAREST_NEIGHBOR", align=True),
    "resize_nearest_centers": _resize("RESIZE_NEAREST_NEIGHBOR", centers=True),
    "resize_bilinear": _resize("RESIZE_BILINEAR"),
    "resize_bilinear_aligned": _resize("RESIZE_BILINEAR", align=True),
    "resize_bilinear_centers": _resize("RESIZE_BILINEAR", centers=True),
    "quantize_dequantize": network(
        [
            T("x", (1, 50)),
            T("q", (1, 50), np.int8, scale=(0.01,), zero_point=(3,)),
            T("r", (1, 50), np.int8, scale=(0.02,), zero_point=(-7,)),
            T("y", (1, 50)),
        ],
        [
            O("QUANTIZE", ["x"], ["q"]),
            O("QUANTIZE", ["q"], ["r"]),
            O("DEQUANTIZE", ["r"], ["y"]),
        ],
        ["x"],
        ["y"],
    ),
}
NOT_IN_LITERT: dict[str, Callable[[Array], Array]] = {
    "ceil": np.ceil,
    "elu": lambda x: np.where(x < 0, np.expm1(x), x),
    "relu_0_to_1": lambda x: np.clip(x, 0, 1),
    "round": np.rint,
}
"""Functions of the operators that have no reference kernel in LiteRT."""


def _inputs(graph: Graph, name: str) -> list[Array]:
    low, high = (0.1, 4.0) if name.upper() in POSITIVE_NAMES else (-4.0, 4.0)
    return [RNG.uniform(low, high, v.type.shape).astype(np.float32) for v in graph.inputs]


@pytest.mark.parametrize("name", sorted(set(NETWORKS) - set(NOT_IN_LITERT)))
def test_converted_operators_agree_with_litert(name: str) -> None:
    imported = load(NETWORKS[name])
    inputs = _inputs(imported.graph, name)
    outputs = evaluate(imported.graph, inputs).outputs
    for output, expected in zip(outputs, litert(NETWORKS[name], *inputs), strict=True):
        assert output.shape == expected.shape
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)
    assert imported.notes == ()


@pytest.mark.parametrize("name", NOT_IN_LITERT)
def test_operators_that_litert_lacks_agree_with_numpy(name: str) -> None:
    graph = load(NETWORKS[name]).graph
    (x,) = _inputs(graph, name)
    (output,) = evaluate(graph, [x]).outputs
    np.testing.assert_allclose(output, NOT_IN_LITERT[name](x), rtol=1e-6, atol=1e-6)


_INT8_PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], bool, bool]] = {
    "plain": ((5, 7), (7, 3), (5, 3), False, False),
    "stacked": ((2, 3, 4, 16), (2, 3, 16, 5), (2, 3, 4, 5), False, False),
    "broadcast": ((2, 1, 4, 16), (3, 16, 5), (2, 3, 4, 5), False, False),
    "adjoint": ((2, 16, 4), (2, 5, 16), (2, 4, 5), True, True),
    "adjoint_right": ((2, 4, 33), (2, 5, 33), (2, 4, 5), False, True),
}
"""Shapes of both operands and the result; whether the first and second operand is transposed."""


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("zero_points", [(-3, 11), (0, 0), (-128, 5), (127, -128)])
@pytest.mark.parametrize("name", _INT8_PRODUCTS)
def test_int8_products_equal_litert(
    name: str, zero_points: tuple[int, int], constant: bool
) -> None:
    left, right, result, adj_x, adj_y = _INT8_PRODUCTS[name]
    x, z = (RNG.integers(-128, 128, shape, np.int8) for shape in (left, right))
    tensors = [
        T("x", left, np.int8, scale=(0.037,), zero_point=zero_points[:1]),
        T("z", right, np.int8, z if constant else None, (0.011,), zero_points[1:]),
        T("y", result, np.int8, scale=(0.13,), zero_point=(-9,)),
    ]
    options = {"adjX": adj_x, "adjY": adj_y}
    operator = O("BATCH_MATMUL", ["x", "z"], ["y"], schema.BatchMatMulOptionsT, options)
    data = network(tensors, [operator], ["x"] if constant else ["x", "z"], ["y"])
    inputs = [x] if constant else [x, z]
    (expected,) = litert(data, *inputs)
    graph = load(data).graph
    for form in (graph, run_passes(graph)):
        np.testing.assert_array_equal(evaluate(form, inputs).outputs[0], expected)


_INTEGER_OPERATORS: dict[str, Any] = {
    "ADD": schema.AddOptionsT,
    "SUB": schema.SubOptionsT,
    "MUL": schema.MulOptionsT,
    "DIV": schema.DivOptionsT,
    "MAXIMUM": schema.MaximumMinimumOptionsT,
    "MINIMUM": schema.MaximumMinimumOptionsT,
    "SQUARED_DIFFERENCE": schema.SquaredDifferenceOptionsT,
}


_NO_INT64_IN_LITERT = ("DIV", "SQUARED_DIFFERENCE")


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (kind, dtype)
        for kind in _INTEGER_OPERATORS
        for dtype in (np.int32, np.int64)
        if dtype is np.int32 or kind not in _NO_INT64_IN_LITERT
    ],
)
def test_arithmetic_of_integers_equals_litert(kind: str, dtype: type) -> None:
    tensors = [T(name, X4 if name != "b" else X4[-1:], dtype) for name in "aby"]
    data = network(tensors, [O(kind, "ab", ["y"], _INTEGER_OPERATORS[kind])], "ab", ["y"])
    a = RNG.integers(-90, 90, X4).astype(dtype)
    b = np.asarray([7, -3, 90], dtype)
    (found,) = evaluate(load(data).graph, [a, b]).outputs
    np.testing.assert_array_equal(found, litert(data, a, b)[0])


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.bool_])
def test_integers_are_moved_as_by_litert(dtype: type) -> None:
    """Concatenations, transposes and paddings move integers and booleans of any size."""
    tensors = [
        *(T("a", (2, 3), dtype), T("b", (1, 3), dtype), T("joined", (3, 3), dtype)),
        *(T("turned", (3, 3), dtype), T("y", (4, 5), dtype)),
        *(const("order", [1, 0], np.int32), const("counts", [[1, 0], [0, 2]], np.int32)),
    ]
    operators = [
        O("CONCATENATION", "ab", ["joined"], schema.ConcatenationOptionsT, {"axis": 0}),
        O("TRANSPOSE", ["joined", "order"], ["turned"], schema.TransposeOptionsT),
        O("PAD", ["turned", "counts"], ["y"], schema.PadOptionsT),
    ]
    data = network(tensors, operators, "ab", ["y"])
    a, b = RNG.integers(0, 2, (2, 3)).astype(dtype), np.ones((1, 3), dtype)
    (found,) = evaluate(load(data).graph, [a, b]).outputs
    if dtype is np.bool_:  # LiteRT pads no booleans
        np.testing.assert_array_equal(found, np.pad(np.concatenate([a, b]).T, ((1, 0), (0, 2))))
    else:
        np.testing.assert_array_equal(found, litert(data, a, b)[0])


def _segments(kind: str, places: T, *count: int) -> bytes:
    """Return a network that reduces six int32 rows to four, by segment.

    Args:
        kind: SUM, PROD, MAX or MIN.
        places: the segment of each row.
        count: number of segments, as an array of this length.
    """
    tensors = [T("x", (6, 3), np.int32), places, const("n", count, np.int32)]
    made = T("y", (4, 3), np.int32)
    operator = O(f"UNSORTED_SEGMENT_{kind}", [tensor.name for tensor in tensors], ["y"])
    fed = ["x"] if places.data is not None else ["x", places.name]
    return network([*tensors, made], [operator], fed, ["y"])


@pytest.mark.parametrize("kind", ["SUM", "PROD", "MAX", "MIN"])
def test_integer_segments_equal_litert(kind: str) -> None:
    """The segments are read at run time; sums and products wrap."""
    data = _segments(kind, T("places", (6,), np.int32), 4)
    graph = load(data).graph
    for _ in range(4):
        x = RNG.integers(-(2**31), 2**31, (6, 3), np.int32)
        places = RNG.integers(-2, 4, 6, np.int32)
        (expected,) = litert(data, x, places)
        np.testing.assert_array_equal(evaluate(graph, [x, places]).outputs[0], expected)


@pytest.mark.parametrize(
    ("places", "count", "message"),
    [
        (const("places", [0] * 5, np.int32), (4,), r"indices i32\[5\] must be the start"),
        (const("places", 0, np.int32), (4,), r"indices i32\[\] must be the start"),
        (const("places", [0] * 6, np.int32), (4, 4), "number of segments must be a single number"),
        (const("places", [0] * 6, np.int32), (0,), "into 0 segments"),
        (const("places", [0] * 6, np.float32), (4,), "needs int32 or int64 indices"),
    ],
)
def test_wrong_segments_are_refused(places: T, count: tuple[int, ...], message: str) -> None:
    with pytest.raises(ModelError, match=f"UNSORTED_SEGMENT_SUM #0.*{message}"):
        load(_segments("SUM", places, *count))


_TENTHS = np.arange(-30, 31).astype(np.float32) * np.float32(0.1)
_EDGES = np.asarray([-(2**31), -(2**31) + 1, -7, -1, 0, 1, 7, 2**31 - 1])


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("FLOOR_DIV", _TENTHS),
        ("FLOOR_DIV", _EDGES.astype(np.int32)),
        ("FLOOR_MOD", _TENTHS),
        ("FLOOR_MOD", _EDGES.astype(np.int32)),
        ("FLOOR_MOD", _EDGES.astype(np.int64) * 2**32),
    ],
    ids=lambda x: x if isinstance(x, str) else str(x.dtype),
)
def test_floor_division_equals_litert(kind: str, numbers: Array) -> None:
    """All pairs, except those at which LiteRT aborts: division by 0, and INT_MIN / -1."""
    x, z = (pair.ravel() for pair in np.meshgrid(numbers, numbers))
    stops = z == 0
    if numbers.dtype.kind == "i":
        stops |= (x == np.iinfo(numbers.dtype).min) & (z == -1)
    tensors = [T(name, (int((~stops).sum()),), numbers.dtype.type) for name in "xzy"]
    data = network(tensors, [O(kind, ["x", "z"], ["y"])], ["x", "z"], ["y"])
    inputs = [x[~stops], z[~stops]]
    (expected,), graph = litert(data, *inputs), load(data).graph
    np.testing.assert_array_equal(evaluate(graph, inputs).outputs[0], expected)
    ours = run(compile_graph(graph), [tuple(inputs)]).outputs[0]
    np.testing.assert_array_equal(ours[0], expected)


def test_a_convolution_may_have_no_bias() -> None:
    weights = const("w", _real(2, 1, 1, 3))
    options: dict[str, Any] = {"options": schema.Conv2DOptionsT, "strideH": 1, "strideW": 1}
    without = load(one("CONV_2D", X4, (1, 4, 5, 2), weights, **options)).graph
    zero = load(one("CONV_2D", X4, (1, 4, 5, 2), weights, const("b", [0, 0]), **options)).graph
    assert len(without.nodes[0].inputs) == 3
    assert without.nodes[0].inputs[2] is None
    x = _real(*X4)
    np.testing.assert_array_equal(evaluate(without, [x]).outputs, evaluate(zero, [x]).outputs)


def test_every_converter_is_tested() -> None:
    kinds = {n.origin.kind for data in NETWORKS.values() for n in load(data).graph.nodes}
    tested_elsewhere = (comparison, control_flow, indexing, recurrent)
    assert kinds == set(CONVERTERS).difference(*(module.CONVERTERS for module in tested_elsewhere))


def test_same_padding_becomes_explicit() -> None:
    (node,) = load(
        _conv((1, 7, 6, 3), (1, 4, 3, 4), (4, 3, 3, 3), strideH=2, strideW=2)
    ).graph.nodes
    assert node.op == Conv2D(stride=(2, 2), padding=((1, 1), (0, 1)))


def test_groups_are_inferred_from_the_channels() -> None:
    (node,) = load(NETWORKS["conv_grouped"]).graph.nodes
    assert isinstance(node.op, Conv2D)
    assert node.op.groups == 2


def test_a_missing_depth_multiplier_is_inferred_from_the_weights() -> None:
    data = _depthwise(X4, (1, 4, 5, 6), (1, 3, 3, 6), depthMultiplier=0)
    (node,) = load(data).graph.nodes
    assert isinstance(node.op, DepthwiseConv2D)


# --- the example network ---------------------------------------------------------------------


def _digits(name: str) -> bytes:
    return (DIGITS / f"digits_{name}.tflite").read_bytes()


def test_integer_nodes_have_rounding_and_origin() -> None:
    imported = load(DIGITS / "digits_int8.tflite")
    assert imported.graph.name == "digits_int8"
    for index, node in enumerate(imported.graph.nodes):
        moves_data = isinstance(node.op, Reshape)
        assert node.rounding is (None if moves_data else Rounding.TFLM)
        assert (node.origin.index, node.origin.name) == (index, node.name)
    assert imported.tensors[0] is imported.graph.inputs[0]


def test_float_nodes_have_no_rounding() -> None:
    assert {n.rounding for n in load(DIGITS / "digits_float32.tflite").graph.nodes} == {None}


def test_float16_weights_become_float32_constants() -> None:
    data = _digits("f16")
    imported = load(data)
    assert "float16" in imported.notes[0]
    assert len(imported.notes) == 1
    assert all(n.origin.kind != "DEQUANTIZE" for n in imported.graph.nodes)
    x = RNG.uniform(0, 1, imported.graph.inputs[0].type.shape).astype(np.float32)
    output = evaluate(imported.graph, [x]).outputs[0]
    np.testing.assert_allclose(output, litert(data, x)[0], rtol=1e-5, atol=1e-5)


def test_dynamic_range_weights_are_dequantized() -> None:
    data = _digits("drq")
    imported = load(data)
    assert "dynamic-range" in imported.notes[0]
    constants = [v for v in imported.graph.values() if v.is_constant]
    assert {v.type.dtype for v in constants} == {DType.FLOAT32}
    x = RNG.uniform(0, 1, imported.graph.inputs[0].type.shape).astype(np.float32)
    expected = litert(dequantized_weights(data), x)[0]
    np.testing.assert_allclose(evaluate(imported.graph, [x]).outputs[0], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("deprecated", "current", "kind"),
    [
        (0, schema.BuiltinOperator.SUB, "sub"),
        (schema.BuiltinOperator.SUB, schema.BuiltinOperator.SUB, "sub"),
        (schema.BuiltinOperator.SUB, 0, "sub"),
        (0, 0, "add"),
        (127, schema.BuiltinOperator.RELU_0_TO_1, "relu_0_to_1"),
        (0, schema.BuiltinOperator.RELU_0_TO_1, "relu_0_to_1"),
        # If the two differ, TensorFlow Lite uses the larger code.
        (schema.BuiltinOperator.MUL, schema.BuiltinOperator.SUB, "sub"),
        (schema.BuiltinOperator.SUB, schema.BuiltinOperator.MUL, "sub"),
    ],
)
def test_the_operator_code_is_the_larger_of_both_fields(
    deprecated: int, current: int, kind: str
) -> None:
    def change(model: Any) -> None:
        (code,) = model.operatorCodes
        code.deprecatedBuiltinCode, code.builtinCode = deprecated, current

    operands = () if kind == "relu_0_to_1" else (const("z", 0.5),)
    data = edited(one("ADD", X4, X4, *operands), change)
    graph = load(data).graph
    assert [getattr(node.op, "kind", "") for node in graph.nodes] == [kind]
    x = _real(*X4)
    np.testing.assert_array_equal(evaluate(graph, [x]).outputs[0], litert(data, x)[0])


def test_names_of_the_file_are_made_unique() -> None:
    def change(model: Any) -> None:
        tensors = model.subgraphs[0].tensors
        tensors[0].name = "twice"
        tensors[-1].name = "twice"
        tensors[2].name = None
        tensors[3].name = "two\nlines"

    names = [v.name for v in load(edited(_digits("int8"), change)).graph.values()]
    assert len(set(names)) == len(names)
    assert {"twice", "tensor_2", "two_lines"} <= set(names)
    assert any(name.startswith("twice_") for name in names)


def test_transposed_weights_may_have_several_readers() -> None:
    fields = {"strideH": 2, "strideW": 2, "padding": SAME}
    small, large = (1, 4, 5, 3), (1, 8, 10, 3)
    tensors = (
        *(const(name, shape, np.int32) for name, shape in (("s", small), ("l", large))),
        const("w", _real(3, 3, 3, 3)),
        *(T("x", (1, 2, 3, 3)), T("y", small), T("z", large)),
    )
    operators = [
        O("TRANSPOSE_CONV", names, [made], schema.TransposeConvOptionsT, fields)
        for names, made in ((("s", "w", "x"), "y"), (("l", "w", "y"), "z"))
    ]
    data = network(tensors, operators, ["x"], ["z", "w"])
    x = _real(1, 2, 3, 3)
    for output, expected in zip(
        evaluate(load(data).graph, [x]).outputs, litert(data, x), strict=True
    ):
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["y:blocks", "y:moved"])
def test_names_of_added_values_differ_from_names_of_the_file(name: str) -> None:
    tensors = (T(name, (1, 4, 6, 2)), T("y", (1, 2, 3, 8)))
    kind = O("SPACE_TO_DEPTH", [name], ["y"], schema.SpaceToDepthOptionsT, {"blockSize": 2})
    names = [v.name for v in load(network(tensors, [kind], [name], ["y"])).graph.values()]
    assert len(set(names)) == len(names)
    assert name in names


def test_a_bias_may_name_the_quantized_axis_of_its_weights() -> None:
    def change(model: Any) -> None:
        _operand(model, "CONV_2D", 2).quantization.quantizedDimension = 3

    bias = load(edited(_digits("int8"), change)).graph.nodes[0].input(2)
    assert bias.type.quant is not None
    assert bias.type.quant.axis == 0


def test_an_unknown_batch_is_one() -> None:
    def change(model: Any) -> None:
        tensor = model.subgraphs[0].tensors[model.subgraphs[0].inputs[0]]
        tensor.shapeSignature = [-1, *list(tensor.shape)[1:]]

    assert load(edited(_digits("int8"), change)).graph.inputs[0].type.shape[0] == 1


def test_uint8_inputs_and_outputs_are_requantized() -> None:
    data = network(
        [
            T("x", (1, 256), np.uint8, scale=(0.5,), zero_point=(128,)),
            T("q", (1, 256), np.int8, scale=(0.5,), zero_point=(0,)),
            T("y", (1, 256), np.uint8, scale=(0.5,), zero_point=(128,)),
        ],
        [O("QUANTIZE", ["x"], ["q"]), O("QUANTIZE", ["q"], ["y"])],
        ["x"],
        ["y"],
    )
    x = np.arange(256, dtype=np.uint8).reshape(1, 256)
    np.testing.assert_array_equal(evaluate(load(data).graph, [x]).outputs[0], x)


def test_operators_that_compute_a_known_shape_are_removed() -> None:
    """Flatten with an unknown batch: SHAPE, STRIDED_SLICE and PACK compute a static shape."""
    data = network(
        [
            T("x", (1, 2, 3)),
            T("shape", (3,), np.int32),
            const("start", [0], np.int32),
            const("end", [1], np.int32),
            const("step", [1], np.int32),
            T("batch", (), np.int32),
            const("rest", 6, np.int32),
            T("packed", (2,), np.int32),
            T("y", (1, 6)),
        ],
        [
            O("SHAPE", ["x"], ["shape"], schema.ShapeOptionsT),
            O("STRIDED_SLICE", ["shape", "start", "end", "step"], ["batch"]),
            O("PACK", ["batch", "rest"], ["packed"], schema.PackOptionsT, {"valuesCount": 2}),
            O("RESHAPE", ["x", "packed"], ["y"]),
        ],
        ["x"],
        ["y"],
    )
    assert [node.op for node in load(data).graph.nodes] == [Reshape((1, 6))]


# --- refusals --------------------------------------------------------------------------------


def _input(model: Any) -> Any:
    return model.subgraphs[0].tensors[model.subgraphs[0].inputs[0]]


def _operator(model: Any, kind: str) -> Any:
    number = getattr(schema.BuiltinOperator, kind)
    return next(
        operator
        for operator in model.subgraphs[0].operators
        if model.operatorCodes[operator.opcodeIndex].builtinCode == number
    )


def _operand(model: Any, kind: str, index: int) -> Any:
    return model.subgraphs[0].tensors[_operator(model, kind).inputs[index]]


def _set(target: Callable[[Any], Any], **fields: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for name, value in fields.items():
            setattr(target(model), name, value)

    return change


def _conv_weights(model: Any) -> Any:
    return _operand(model, "CONV_2D", 1)


def _conv_options(model: Any) -> Any:
    return _operator(model, "CONV_2D").builtinOptions


def _make_uint8(model: Any) -> None:
    for tensor in model.subgraphs[0].tensors:
        if tensor.type == INT8:
            tensor.type = schema.TensorType.UINT8
            tensor.quantization.zeroPoint = [128] * len(tensor.quantization.scale)


def _swap_operators(model: Any) -> None:
    model.subgraphs[0].operators[:2] = model.subgraphs[0].operators[1::-1]


def _make_twice(model: Any) -> None:
    first, second = model.subgraphs[0].operators[:2]
    second.outputs = first.outputs


def _make_custom(model: Any) -> None:
    code = model.operatorCodes[_operator(model, "SOFTMAX").opcodeIndex]
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.CUSTOM
    code.customCode = b"MyDetector"


def _shorten_buffer(model: Any) -> None:
    buffer = model.buffers[_conv_weights(model).buffer]
    buffer.data = buffer.data[:-1]


def _drop_weights(model: Any) -> None:
    """Make the weights an input of the network."""
    _conv_weights(model).buffer = 0
    graph = model.subgraphs[0]
    graph.inputs = [*graph.inputs, _operator(model, "CONV_2D").inputs[1]]


Q = schema.QuantizationParametersT
DAMAGED: dict[str, tuple[Callable[[Any], None], type[SmeltError], Sequence[str]]] = {
    "version": (_set(lambda m: m, version=2), UnsupportedError, ["version 2"]),
    "no subgraph": (_set(lambda m: m, subgraphs=[]), ModelError, ["no subgraph"]),
    "custom": (_make_custom, UnsupportedError, ["'MyDetector'", "#", "plugin", "smelt ops"]),
    "uint8": (_make_uint8, UnsupportedError, ["uint8", "legacy", "int8", "CONV_2D #"]),
    "int16": (
        _set(_input, type=schema.TensorType.INT16, quantization=Q(scale=[0.1], zeroPoint=[0])),
        UnsupportedError,
        ["int16", "float32, int8"],
    ),
    "int4": (_set(_conv_weights, type=schema.TensorType.INT4), UnsupportedError, ["int4", "int8"]),
    "int2": (_set(_conv_weights, type=schema.TensorType.INT2), UnsupportedError, ["int2", "int8"]),
    "string": (_set(_input, type=schema.TensorType.STRING), UnsupportedError, ["string"]),
    "complex": (_set(_input, type=schema.TensorType.COMPLEX64), UnsupportedError, ["complex64"]),
    "type": (_set(_input, type=99), ModelError, ["element type 99"]),
    "variable": (_set(_input, isVariable=True), UnsupportedError, ["variable", "state"]),
    "sparse": (
        _set(_conv_weights, sparsity=schema.SparsityParametersT()),
        UnsupportedError,
        ["sparse", "dense"],
    ),
    "dynamic": (
        _set(_input, shapeSignature=[-1, -1, 8, 1]),
        UnsupportedError,
        ["[-1, -1, 8, 1]", "fixed input shape"],
    ),
    "unknown dimension": (
        _set(_input, shape=[1, -1, 8, 1], shapeSignature=None),
        UnsupportedError,
        ["[1, -1, 8, 1]"],
    ),
    "huge": (_set(_input, shape=[1, 2**30, 8, 1], shapeSignature=None), ModelError, ["2 GiB"]),
    "signature": (_set(_input, shapeSignature=[1, 8]), ModelError, ["signature"]),
    "rank": (_set(_input, shape=[1] * 9, shapeSignature=None), ModelError, ["9 dimensions"]),
    "input shape": (_set(_input, shape=[1, 8, 8, 3], shapeSignature=None), ModelError, ["CONV_2D"]),
    "empty": (_set(_input, shape=[1, 0, 8, 1], shapeSignature=None), UnsupportedError, ["empty"]),
    "scale count": (
        _set(lambda m: _conv_weights(m).quantization, scale=[0.5, 0.5], zeroPoint=[0, 0]),
        ModelError,
        ["2 scales"],
    ),
    "zero points": (
        _set(lambda m: _input(m).quantization, zeroPoint=[0, 0]),
        ModelError,
        ["1 scales and 2 zero points"],
    ),
    "zero point": (
        _set(lambda m: _input(m).quantization, zeroPoint=[200]),
        ModelError,
        ["range, -128 to 127"],
    ),
    "scale": (_set(lambda m: _input(m).quantization, scale=[0.0]), ModelError, ["not positive"]),
    "nan": (
        _set(lambda m: _input(m).quantization, scale=[float("nan")]),
        ModelError,
        ["not positive"],
    ),
    "large scale": (
        _set(lambda m: _input(m).quantization, scale=[1e30]),
        ModelError,
        ["1e+30"],
    ),
    "weights scales": (
        _set(
            lambda m: _conv_weights(m).quantization,
            zeroPoint=[1] * 64,
            scale=[0.5] * 64,
        ),
        ModelError,
        ["64 scales"],
    ),
    "buffer": (_shorten_buffer, ModelError, ["buffer has", "truncated"]),
    "buffer index": (_set(_input, buffer=999), ModelError, ["buffer 999"]),
    "constant input": (_set(_input, buffer=2), ModelError, ["constant"]),
    "order": (_swap_operators, ModelError, ["before any operator makes it"]),
    "made twice": (_make_twice, ModelError, ["again"]),
    "tensor index": (
        _set(lambda m: _operator(m, "CONV_2D"), inputs=[0, 999, 2]),
        ModelError,
        ["tensor 999"],
    ),
    "no input": (_set(lambda m: _operator(m, "CONV_2D"), inputs=[0]), ModelError, ["no input 1"]),
    "no output": (_set(lambda m: m.subgraphs[0], outputs=[-1]), ModelError, ["-1"]),
    "opcode": (_set(lambda m: _operator(m, "CONV_2D"), opcodeIndex=77), ModelError, ["code 77"]),
    "computed weights": (_drop_weights, UnsupportedError, ["weights", "constant", "CONV_2D #"]),
    "far stride": (_set(_conv_options, dilationHFactor=2**20), ModelError, ["1048576"]),
    "stride": (_set(_conv_options, strideH=0), ModelError, ["StrideH", "CONV_2D #"]),
    "padding": (_set(_conv_options, padding=9), ModelError, ["padding 9"]),
    "fused": (
        _set(_conv_options, fusedActivationFunction=FUSED.TANH),
        UnsupportedError,
        ["TANH", "CONV_2D #"],
    ),
    "sign bit": (
        _set(_conv_options, fusedActivationFunction=FUSED.SIGN_BIT),
        UnsupportedError,
        ["SIGN_BIT"],
    ),
    "unknown fused": (_set(_conv_options, fusedActivationFunction=77), ModelError, ["77"]),
    "no options": (
        _set(lambda m: _operator(m, "CONV_2D"), builtinOptionsType=0, builtinOptions=None),
        ModelError,
        ["no Conv2DOptions"],
    ),
    "other options": (
        _set(
            lambda m: _operator(m, "CONV_2D"),
            builtinOptionsType=schema.BuiltinOptions.Pool2DOptions,
            builtinOptions=schema.Pool2DOptionsT(),
        ),
        ModelError,
        ["Pool2DOptions instead of Conv2DOptions"],
    ),
    "weights format": (
        _set(lambda m: _operator(m, "FULLY_CONNECTED").builtinOptions, weightsFormat=1),
        UnsupportedError,
        ["shuffled", "FULLY_CONNECTED #"],
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_networks_are_refused_with_the_reason(name: str) -> None:
    change, kind, fragments = DAMAGED[name]
    with pytest.raises(kind) as caught:
        load(edited(_digits("int8"), change))
    for fragment in fragments:
        assert fragment in str(caught.value)
    assert type(caught.value) is kind


def test_unsupported_operators_are_named_with_place_and_remedy() -> None:
    data = network(
        [T("a", (1, 4)), T("b", (1, 4)), T("c", (1, 4)), T("d", (1, 4))],
        [
            O("RELU", ["a"], ["b"]),
            O("SIGN", ["b"], ["c"]),
            O("LOCAL_RESPONSE_NORMALIZATION", ["c"], ["d"]),
        ],
        ["a"],
        ["d"],
    )
    with pytest.raises(UnsupportedError) as caught:
        load(data)
    for fragment in ("SIGN", "#1", "'b'", "'c'", "LOCAL_RESPONSE", "smelt ops", "plugin"):
        assert fragment in str(caught.value)


def test_unused_subgraphs_give_a_note() -> None:
    def change(model: Any) -> None:
        model.subgraphs.append(model.subgraphs[0])

    assert "2 subgraphs" in load(edited(_digits("int8"), change)).notes[0]


# --- files -----------------------------------------------------------------------------------


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"gone\.tflite: cannot be read: No such file"):
        load(tmp_path / "gone.tflite")


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"hello, world, not a network"])
def test_a_file_of_another_format_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="not a TFLite file"):
        load(path)
    with pytest.raises(ModelError, match=r"not a readable ONNX file|has no network"):
        load(content)


@pytest.mark.parametrize(
    ("stem", "name"), [("my-net.v2", "my_net_v2"), ("2nd", "network_2nd"), ("ok", "ok")]
)
def test_the_graph_is_named_after_the_file(tmp_path: Path, stem: str, name: str) -> None:
    path = tmp_path / f"{stem}.tflite"
    path.write_bytes(NETWORKS["relu"])
    assert load(path).graph.name == name
    assert load(str(path), "other").graph.name == "other"
    assert load(NETWORKS["relu"]).graph.name == "network"


@pytest.mark.parametrize("role", ["inputs", "outputs"])
def test_a_network_without_inputs_or_outputs_is_refused(role: str) -> None:
    def change(model: Any) -> None:
        setattr(model.subgraphs[0], role, [])

    with pytest.raises(ModelError, match=f"the network has no {role}"):
        load(edited(_digits("int8"), change))


@pytest.mark.parametrize("name", NETWORKS)
def test_tensors_without_elements_are_refused(name: str) -> None:
    """Each tensor gets each of its axes declared 0, or left open and computed as 0.

    Either the network is refused, or none of its tensors is empty.
    """
    model: Any = schema.ModelT.InitFromPackedBuf(NETWORKS[name], 0)
    tensors: list[Any] = model.subgraphs[0].tensors
    for index, tensor in enumerate(tensors):
        for axis, size in itertools.product(range(len(tensor.shape)), (0, -1)):
            changed = edited(
                NETWORKS[name], partial(_make_empty, index=index, axis=axis, size=size)
            )
            with suppress(ModelError, UnsupportedError):
                graph = load(changed).graph
                assert all(value.type.size for value in graph.values() if not value.is_constant)


def _make_empty(model: Any, *, index: int, axis: int, size: int) -> None:
    """Give a tensor an axis of size 0, declared so (`size` 0) or left open (-1).

    Computed tensors with the same size along that axis get the same signature.
    """
    graph = model.subgraphs[0]
    tensor = graph.tensors[index]
    for other in graph.tensors:
        if other.buffer == 0 and list(other.shape[axis : axis + 1]) == [tensor.shape[axis]]:
            other.shapeSignature = [size if i == axis else n for i, n in enumerate(other.shape)]
    tensor.shape = [0 if i == axis else n for i, n in enumerate(tensor.shape)]
    tensor.shapeSignature = [0 if i == axis and not size else n for i, n in enumerate(tensor.shape)]


SELECTING = {
    "SLICE": (
        schema.SliceOptionsT,
        [const("begin", [0, 1], np.int32), const("n", [0, 4], np.int32)],
    ),
    "STRIDED_SLICE": (
        schema.StridedSliceOptionsT,
        [const(n, v, np.int32) for n, v in (("a", [3, 0]), ("b", [3, 4]), ("c", [1, 1]))],
    ),
}


@pytest.mark.parametrize("kind", SELECTING)
def test_slices_without_elements_are_refused(kind: str) -> None:
    """The file leaves the shape open, so that it is known only from the operator to be empty."""
    options, constants = SELECTING[kind]
    tensors = [T("x", (3, 5)), *constants, T("y", (1, 4)), T("z", (1, 4))]
    steps = [
        O(kind, ["x", *(c.name for c in constants)], ["y"], options),
        O("RELU", ["y"], ["z"]),
    ]

    def opened(model: Any) -> None:
        for tensor in model.subgraphs[0].tensors[-2:]:
            tensor.shapeSignature = [-1, -1]

    with pytest.raises(UnsupportedError, match=f"{kind} #0.* makes an empty tensor"):
        load(edited(network(tensors, steps, ["x"], ["z"]), opened))


# Per-channel scales where only one scale is possible


@pytest.mark.parametrize("kind", ["input", "computed", "output"])
def test_per_channel_scales_of_activations_are_refused(kind: str) -> None:
    """TensorFlow Lite permits them for weights and biases only."""

    def change(model: Any) -> None:
        graph = model.subgraphs[0]
        tensor = {
            "input": graph.inputs[0],
            "computed": _operator(model, "CONV_2D").outputs[0],
            "output": graph.outputs[0],
        }[kind]
        stored = graph.tensors[tensor]
        channels, quant = int(stored.shape[-1]), stored.quantization
        quant.scale = [float(quant.scale[0])] * max(channels, 2)
        quant.zeroPoint = [int(quant.zeroPoint[0])] * max(channels, 2)
        quant.quantizedDimension = len(stored.shape) - 1
        if channels == 1:  # the digits are gray images: use their rows instead of channels
            quant.quantizedDimension, rows = 1, int(stored.shape[1])
            quant.scale, quant.zeroPoint = quant.scale[:1] * rows, quant.zeroPoint[:1] * rows

    data = edited((DIGITS / "digits_int8.tflite").read_bytes(), change)
    with pytest.raises(
        ModelError, match=r"has \d+ scales, along dimension \d, but it is not const"
    ):
        load(data)


def test_per_channel_scales_of_a_constant_operand_are_refused() -> None:
    quant: Any = {"scale": (0.1, 0.2), "zero_point": (0, 0), "axis": 1}
    tensors = [
        T("x", (1, 2), np.int8, scale=(0.1,), zero_point=(0,)),
        const("c", [[1, 2]], np.int8, **quant),
        T("y", (1, 2), np.int8, scale=(0.1,), zero_point=(0,)),
    ]
    operators = [O("ADD", ["x", "c"], ["y"], schema.AddOptionsT)]
    data = network(tensors, operators, ["x"], ["y"])
    with pytest.raises(
        ModelError, match=r"ADD #0 'y': .* does not support data quantized per channel"
    ):
        load(data)
    with pytest.raises(ModelError, match=r"a tensor has 2 scales, along dimension 1, but its op"):
        _ = Quant((0.1, 0.2), (0, 0), 1).scalar
