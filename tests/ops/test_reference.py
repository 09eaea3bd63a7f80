"""The operators' numpy references, against ONNX Runtime, the float reference, and TFLite Micro.

`EXACT` contains checksums of the outputs of TensorFlow Lite Micro's reference kernels for all
inputs; networks with known outputs are in `test_golden_reference`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import numpy as np
import pytest

from smelt.errors import ModelError, UnsupportedError
from smelt.ir import (
    Array,
    DType,
    Graph,
    Node,
    Op,
    Origin,
    Quant,
    Rounding,
    TensorType,
    Value,
    evaluate,
)
from smelt.ops import all_cases
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.case import Case, Data, build, sample_of
from smelt.ops.core.binary import Binary
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.pixel_sums import PixelSums
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.prelu import PRelu
from smelt.ops.core.quantize import Dequantize, Quantize
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.softmax import LogSoftmax, Softmax
from smelt.ops.core.unary import UNARY, Unary
from smelt.ops.sequence.lstm import Lstm
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.pad import Pad
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.resize import Resize
from smelt.ops.tensor.transpose import Transpose
from tests.support import onnx_oracle

CASES = all_cases()
FLOAT = [
    case
    for case in CASES
    if DType.FLOAT32 in case.dtypes and onnx_oracle.has(build(case, DType.FLOAT32))
]
"""Other operators exist only for ONNX; the tests of its importer cover them."""
INT8 = [
    case
    for case in CASES
    if DType.INT8 in case.dtypes and not case.plain and not isinstance(case.op, Lstm | PixelSums)
]
"""An LSTM accumulates errors from step to step; `test_lstm.py` tests it.

The sums of `PixelSums` are those of stored integers, not of real numbers.
"""


def test_names_of_cases_are_unique() -> None:
    names = [str(case) for case in CASES]
    assert sorted(set(names)) == sorted(names)


def _samples(case: Case, graph: Graph, seed: int) -> list[Array]:
    """Return inputs within the ranges of the case."""
    rng = np.random.default_rng(seed)
    data = [argument for argument in case.arguments if isinstance(argument, Data)]
    return [sample_of(d, v.type, rng) for d, v in zip(data, graph.inputs, strict=True)]


@pytest.mark.parametrize("case", FLOAT, ids=str)
def test_float_equals_onnx_runtime(case: Case) -> None:
    graph = build(case, DType.FLOAT32)
    inputs = _samples(case, graph, 1)
    expected = onnx_oracle.run(graph, inputs)
    (result,) = evaluate(graph, inputs).outputs
    assert result.shape == expected.shape == graph.outputs[0].type.shape
    assert result.dtype == graph.outputs[0].type.dtype.numpy
    if result.dtype == np.int8:
        np.testing.assert_array_equal(result, expected)
        return
    span = float(np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(result, expected, rtol=2e-6, atol=max(2e-6 * span, 1e-7))


def _float_twin(node: Node) -> Node:
    """Return the node with all quantized values, including constants, as float32."""

    def twin(value: Value) -> Value:
        if value.type.quant is None:
            return value
        data = None if value.data is None else _dequantized(value, value.data)
        return Value(value.name, TensorType(value.type.shape, DType.FLOAT32), data)

    inputs = tuple(None if v is None else twin(v) for v in node.inputs)
    return replace(node, inputs=inputs, outputs=tuple(map(twin, node.outputs)), rounding=None)


def _dequantized(value: Value, stored: Array) -> Array:
    quant = value.type.quant
    assert quant is not None, value.name
    shape = [-1 if axis == quant.axis else 1 for axis in range(stored.ndim)]
    scale, zero_point = np.asarray(quant.scale), np.asarray(quant.zero_point)
    if quant.axis is not None:
        scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
    else:
        scale, zero_point = scale[0], zero_point[0]
    return np.asarray(scale * (stored.astype(np.int64) - zero_point), np.float32)


@pytest.mark.parametrize("case", INT8, ids=str)
def test_int8_is_near_the_real_result(case: Case) -> None:
    """The difference is at most two steps of the output, over the whole range of the inputs."""
    graph = build(case, DType.INT8)
    (node,) = graph.nodes
    stored = _samples(case, graph, 2)
    result = evaluate(graph, stored)
    y = node.output.type
    assert (result.outputs[0].shape, result.outputs[0].dtype) == (y.shape, y.dtype.numpy)
    if y.quant is None and y.dtype.is_float:
        np.testing.assert_array_equal(result.outputs[0], _dequantized(graph.inputs[0], stored[0]))
        return
    reals = [
        None
        if v is None
        else _dequantized(v, result.values[v])
        if v.type.is_quantized
        else result.values[v]
        for v in node.inputs
    ]
    if isinstance(node.op, Quantize):
        real = reals[0]
        assert real is not None
    else:
        (real,) = node.op.reference(_float_twin(_real_padding(node)), reals)
    if y.quant is None:
        np.testing.assert_array_equal(result.outputs[0], real)
        return
    with np.errstate(invalid="ignore"):
        expected = np.clip(real / y.scale + y.zero_point, *y.dtype.limits)
    # Where the real operator is undefined (division by zero), the integer one is too.
    defined = np.isfinite(real)
    assert defined.any()
    difference = np.abs(result.outputs[0] - expected)[defined]
    assert difference.max() <= 2.0


def _real_padding(node: Node) -> Node:
    """Convert the stored value of a Pad to the real number for the float node."""
    if not isinstance(node.op, Pad) or node.op.value is None:
        return node
    x = node.input(0).type
    return replace(node, op=replace(node.op, value=x.scale * (node.op.value - x.zero_point)))


@dataclass(frozen=True)
class Exact:
    """A node with one or two data inputs, and the CRC-32 of TFLite Micro's output.

    The inputs contain all stored integers (for two int8 inputs, all pairs).
    """

    op: Op
    inputs: tuple[Quant, ...]
    output: Quant
    dtype: DType
    crc: int

    def __str__(self) -> str:
        return f"{self.op.name}-{self.dtype.value}-{self.inputs[0].scale[0]:g}"


_Q = Quant.per_tensor
_I8, _I16 = DType.INT8, DType.INT16
EXACT = (
    Exact(Unary("logistic"), (_Q(0.05, -7),), _Q(1 / 256, -128), _I8, 0xC24D6DD9),
    Exact(Unary("tanh"), (_Q(0.05, -7),), _Q(1 / 128), _I8, 0xFE7C36A2),
    Exact(Unary("logistic"), (_Q(0.3, 100),), _Q(1 / 256, -128), _I8, 0x584E695C),
    Exact(Unary("tanh"), (_Q(0.3, 100),), _Q(1 / 128), _I8, 0x912264E0),
    Exact(Unary("logistic"), (_Q(11.0, -3),), _Q(1 / 256, -128), _I8, 0x4BB6F339),
    Exact(Unary("tanh"), (_Q(11.0, -3),), _Q(1 / 128), _I8, 0x4BB6F339),
    Exact(Unary("logistic"), (_Q(0.000244140625),), _Q(1 / 32768), _I16, 0x928F0A46),
    Exact(Unary("tanh"), (_Q(0.000244140625),), _Q(1 / 32768), _I16, 0xABDD53CC),
    Exact(Unary("logistic"), (_Q(0.00048828125),), _Q(1 / 32768), _I16, 0xB68DBA64),
    Exact(Unary("tanh"), (_Q(0.00048828125),), _Q(1 / 32768), _I16, 0x20F0F708),
    Exact(Unary("logistic"), (_Q(0.0003),), _Q(1 / 32768), _I16, 0x771CE0FA),
    Exact(Unary("tanh"), (_Q(0.0003),), _Q(1 / 32768), _I16, 0x1222AC94),
    Exact(Unary("logistic"), (_Q(0.001),), _Q(1 / 32768), _I16, 0xF4645B2E),
    Exact(Unary("tanh"), (_Q(0.001),), _Q(1 / 32768), _I16, 0x25EF99D0),
    Exact(Unary("hard_swish"), (_Q(0.05, -3),), _Q(0.03, -110), _I8, 0xF8D0C63F),
    Exact(Unary("hard_swish"), (_Q(0.4, 20),), _Q(0.41, 9), _I8, 0x61E0D11B),
    Exact(Unary("hard_swish"), (_Q(0.0005),), _Q(0.0004), _I8, 0xE712A143),
    Exact(Unary("hard_swish"), (_Q(0.001, 5),), _Q(0.7, -20), _I8, 0x114D4C2D),
    Exact(Unary("leaky_relu", 0.1), (_Q(0.04, 9),), _Q(0.03, -60), _I8, 0xF2EA56CC),
    Exact(Unary("leaky_relu", -0.4), (_Q(0.04, 9),), _Q(0.03, -60), _I8, 0xB97830BB),
    Exact(Unary("leaky_relu", 2.5), (_Q(0.04, 9),), _Q(0.03, -60), _I8, 0xF0F88CFF),
    Exact(Unary("rsqrt"), (_Q(0.03, -128),), _Q(0.02, -100), _I8, 0xFB937C0C),
    Exact(
        Binary("add"),
        (
            _Q(0.02, -5),
            _Q(0.07, 30),
        ),
        _Q(0.08, 11),
        _I8,
        0xD94CB0EC,
    ),
    Exact(
        Binary("add"),
        (
            _Q(0.5, 100),
            _Q(0.001, -100),
        ),
        _Q(0.3, -128),
        _I8,
        0x9B151A71,
    ),
    Exact(
        Binary("add"),
        (
            _Q(0.0002),
            _Q(7e-05),
        ),
        _Q(0.0003),
        _I16,
        0x2BB9D864,
    ),
    Exact(
        Binary("sub"),
        (
            _Q(0.02, -5),
            _Q(0.07, 30),
        ),
        _Q(0.08, 11),
        _I8,
        0xDD34C1D5,
    ),
    Exact(
        Binary("sub"),
        (
            _Q(0.5, 100),
            _Q(0.001, -100),
        ),
        _Q(0.3, -128),
        _I8,
        0x143AE5DE,
    ),
    Exact(
        Binary("sub"),
        (
            _Q(0.0002),
            _Q(7e-05),
        ),
        _Q(0.0003),
        _I16,
        0x0E4E5527,
    ),
    Exact(
        Binary("mul"),
        (
            _Q(0.02, -5),
            _Q(0.07, 30),
        ),
        _Q(0.08, 11),
        _I8,
        0x5FC1D673,
    ),
    Exact(
        Binary("mul"),
        (
            _Q(0.5, 100),
            _Q(0.001, -100),
        ),
        _Q(0.3, -128),
        _I8,
        0xBA8EA5BA,
    ),
    Exact(
        Binary("mul"),
        (
            _Q(0.0002),
            _Q(7e-05),
        ),
        _Q(0.0003),
        _I16,
        0x7C5A8C9E,
    ),
    Exact(
        Binary("squared_difference"),
        (
            _Q(0.02, -5),
            _Q(0.07, 30),
        ),
        _Q(0.08, 11),
        _I8,
        0xC4C9C2AB,
    ),
    Exact(
        Binary("squared_difference"),
        (
            _Q(0.5, 100),
            _Q(0.001, -100),
        ),
        _Q(0.3, -128),
        _I8,
        0x594B7B85,
    ),
    Exact(
        Binary("squared_difference"),
        (
            _Q(0.0002),
            _Q(7e-05),
        ),
        _Q(0.0003),
        _I16,
        0x2302CBFD,
    ),
    Exact(Softmax(), (_Q(0.1, 4),), _Q(1 / 256, -128), _I8, 0xF8A2A5B1),
    Exact(LogSoftmax(), (_Q(0.1, 4),), _Q(1 / 16, 127), _I8, 0x8728EAFB),
    Exact(Softmax(), (_Q(0.004, 4),), _Q(1 / 256, -128), _I8, 0x29259C0B),
    Exact(LogSoftmax(), (_Q(0.004, 4),), _Q(1 / 16, 127), _I8, 0x5B000D22),
    Exact(Softmax(), (_Q(3.0, 4),), _Q(1 / 256, -128), _I8, 0xD51EBA6F),
    Exact(LogSoftmax(), (_Q(3.0, 4),), _Q(1 / 16, 127), _I8, 0x5BCE6B74),
    Exact(Softmax(), (_Q(0.0003),), _Q(1 / 32768), _I16, 0xC34C21B2),
)


def exact_inputs(dtype: DType, count: int) -> list[Array]:
    low, high = dtype.limits
    values = np.arange(low, high + 1, dtype=np.int64).astype(dtype.numpy)
    if count == 1:
        return [values]
    if dtype is DType.INT8:
        return [np.repeat(values, 256), np.tile(values, 256)]
    return [values, np.roll(values[::-1], 12345)]


@pytest.mark.parametrize("exact", EXACT, ids=str)
def test_integers_equal_tflite_micro(exact: Exact) -> None:
    arrays = exact_inputs(exact.dtype, len(exact.inputs))
    node = make_node(exact.op, arrays, exact.inputs, exact.output)
    node.op.check(node)
    assert zlib.crc32(node.op.reference(node, arrays)[0].tobytes()) == exact.crc


def make_node(
    op: Op, arrays: list[Array], inputs: tuple[Quant | None, ...], output: Quant | None
) -> Node:
    """Return a node with operands of the arrays' shapes and types."""
    types = [TensorType(a.shape, DType.of(a), q) for a, q in zip(arrays, inputs, strict=True)]
    values = tuple(Value(f"x{i}", t) for i, t in enumerate(types))
    (y,) = op.infer(types)
    result = Value("y", TensorType(y.shape, y.dtype, output))
    return Node(op, values, (result,), Origin(op.name, 0), Rounding.TFLM)


@pytest.mark.parametrize("kind", ["log", "sqrt", "rsqrt", "exp"])
def test_float_follows_ieee_outside_the_domain(kind: str) -> None:
    x = np.array([-1.0, 0.0, np.inf, 1000.0], np.float32)
    node = make_node(Unary(kind), [x], (None,), None)
    (result,) = node.op.reference(node, [x])
    with np.errstate(all="ignore"):
        expected = {"log": np.log(x), "sqrt": np.sqrt(x), "rsqrt": x**-0.5, "exp": np.exp(x)}
    np.testing.assert_allclose(result, expected[kind], rtol=1e-6)


def test_integers_without_quantization_wrap_and_truncate() -> None:
    a = np.array([2**31 - 1, -7, 7, 5], np.int32)
    b = np.array([1, 2, -2, 0], np.int32)
    for kind, expected in (("add", [-(2**31), -5, 5, 5]), ("div", [2**31 - 1, -3, -3, 0])):
        node = make_node(Binary(kind), [a, b], (None, None), None)
        node.op.check(node)
        np.testing.assert_array_equal(node.op.reference(node, [a, b])[0], expected)


_F = DType.FLOAT32
MISFITS: tuple[tuple[Op, tuple[tuple[int, ...], ...]], ...] = (
    (FullyConnected(), ((1, 7), (3, 4))),
    (FullyConnected(), ((1, 4), (3, 4, 1))),
    (FullyConnected(), ((1, 4), (3, 4), (2,))),
    (FullyConnected(keep_dims=True), ((1, 8), (3, 4))),
    (FullyConnected(), ((1, 4),)),
    (Binary("add"), ((2, 3), (2, 4))),
    (Binary("add"), ((2, 3),)),
    (Binary("modulo"), ((2,), (2,))),
    (Unary("sine"), ((2,),)),
    (Unary("relu"), ()),
    (PRelu(), ((1, 4, 3), (2,))),
    (PRelu(), ((3,), (2, 3))),
    (Pool2D("max", (2, 2)), ((4, 4, 3),)),
    (Pool2D("median", (2, 2)), ((1, 4, 4, 3),)),
    (Pool2D("average", (5, 5)), ((1, 4, 4, 3),)),
    (Pool2D("average", (2, 2), (0, 1)), ((1, 4, 4, 3),)),
    (Pool2D("average", (2, 2), (1, 1), ((2, 0), (0, 0))), ((1, 4, 4, 3),)),
    (Pool2D("average", (2, 2), (1, 1), ((-1, 0), (0, 0))), ((1, 4, 4, 3),)),
    (Reduce("mean", (-1,)), ((2, 3),)),
    (Reduce("mean", (2,)), ((2, 3),)),
    (Reduce("sum", (1, 1)), ((2, 3),)),
    (Reduce("median", (1,)), ((2, 3),)),
    (Softmax(), ((),)),
    (LogSoftmax(), ((2, 0),)),
    (Concat(2), ((2, 3), (2, 3))),
    (Concat(-1), ((2, 3), (2, 3))),
    (Concat(0), ((2, 3), (2, 4))),
    (Concat(0), ()),
    (Pad(((1, 1),)), ((2, 3),)),
    (Pad(((1, -1), (0, 0))), ((2, 3),)),
    (Reshape((4,)), ((2, 3),)),
    (Transpose((0,)), ((2, 3),)),
    (Transpose((1, 1)), ((2, 3),)),
    (Transpose((-1, 0)), ((2, 3),)),
    (Resize("nearest", (2, 2)), ((4, 4, 3),)),
    (Resize("nearest", (0, 2)), ((1, 4, 4, 3),)),
    (Resize("cubic", (2, 2)), ((1, 4, 4, 3),)),
    (Resize("bilinear", (2, 2), True, True), ((1, 4, 4, 3),)),
    (Quantize(DType.FLOAT32), ((2,),)),
)


@pytest.mark.parametrize(("op", "shapes"), MISFITS, ids=str)
def test_inputs_of_wrong_shapes_are_refused(op: Op, shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ModelError):
        op.infer([TensorType(shape, _F) for shape in shapes])


def test_mixed_element_types_are_refused() -> None:
    with pytest.raises(ModelError, match="one element type"):
        Binary("add").infer([TensorType((2,), _F), TensorType((2,), DType.INT32)])
    with pytest.raises(ModelError, match="it must be an integer from -128 to 127"):
        Pad(((1, 1),), 0.5).infer([TensorType((2,), DType.INT8)])


_BYTE, _ONE = np.zeros((1, 2, 2, 3), np.int8), (_Q(0.1, 3),)
_UNSIGNED, _SHORT = _BYTE.astype(np.uint8), _BYTE.astype(np.int16)
REFUSALS: tuple[tuple[Op, Array, tuple[Quant | None, ...], Quant | None, type[Exception]], ...] = (
    (Binary("add"), _UNSIGNED, _ONE * 2, _Q(0.1), UnsupportedError),
    (Binary("div"), _SHORT, (_Q(0.1), _Q(0.1)), _Q(0.1), UnsupportedError),
    (Binary("mul"), _SHORT, _ONE * 2, _Q(0.1), ModelError),
    (Binary("add"), _BYTE, (_Q(0.1), None), _Q(0.1), ModelError),
    (Binary("add"), _BYTE, (_Q(1.0), _Q(1.0)), _Q(1e-7), ModelError),
    (Binary("maximum"), _BYTE, (_Q(0.1), _Q(0.2)), _Q(0.1), ModelError),
    (Unary("relu"), _UNSIGNED, _ONE, _Q(0.1), UnsupportedError),
    (Unary("sin"), _BYTE, _ONE, _Q(0.1), UnsupportedError),
    (Unary("logistic"), _BYTE, _ONE, _Q(1 / 256, 0), ModelError),
    (Unary("tanh"), _BYTE, _ONE, _Q(0.5), ModelError),
    (Unary("hard_swish"), _BYTE, _ONE, _Q(1e-5), ModelError),
    (Pool2D("average", (2, 2)), _BYTE, _ONE, _Q(0.2, 3), ModelError),
    (Pool2D("sum", (2, 2)), _BYTE, _ONE, _ONE[0], UnsupportedError),
    (Reduce("prod", (1,)), _BYTE, _ONE, _Q(0.1), UnsupportedError),
    (Reduce("max", (1,)), _BYTE, _ONE, _Q(0.1), ModelError),
    (Softmax(), _BYTE, _ONE, _Q(1 / 256), ModelError),
    (Softmax(), _UNSIGNED, _ONE, _Q(1 / 256), UnsupportedError),
    (Softmax(), _BYTE, (_Q(1e-9),), _Q(1 / 256, -128), ModelError),
    (LogSoftmax(), _BYTE, _ONE, _Q(1 / 256, -128), ModelError),
    (Concat(0), _BYTE, (_ONE[0], _Q(0.1, 4)), _ONE[0], ModelError),
    (Pad(((0, 0),) * 4), _BYTE, _ONE, _Q(0.1), ModelError),
    (Transpose((0, 1, 2, 3)), _BYTE, _ONE, _Q(0.2, 3), ModelError),
    (Resize("bilinear", (2, 2)), _SHORT, (_Q(0.1),), _Q(0.1), UnsupportedError),
    (Resize("nearest", (2, 2)), _BYTE, _ONE, _Q(0.3), ModelError),
    (Quantize(DType.UINT8), _SHORT, (_Q(0.1),), _Q(0.1), UnsupportedError),
    (Quantize(DType.INT8), _BYTE, (None,), _Q(0.1), ModelError),
    (Quantize(DType.INT8), _BYTE, _ONE, None, ModelError),
    (Dequantize(), _BYTE, (None,), None, ModelError),
)


@pytest.mark.parametrize(("op", "data", "inputs", "output", "error"), REFUSALS)
def test_unusable_quantization_is_refused(
    op: Op,
    data: Array,
    inputs: tuple[Quant | None, ...],
    output: Quant | None,
    error: type[Exception],
) -> None:
    node = make_node(op, [data] * len(inputs), inputs, output)
    with pytest.raises(error, match=r"#0"):
        op.check(node)


@pytest.mark.parametrize("rounding", [None, Rounding.SINGLE])
def test_requantizing_needs_tflm_rounding(rounding: Rounding | None) -> None:
    error = ModelError if rounding is None else UnsupportedError
    node = make_node(Binary("mul"), [_BYTE, _BYTE], _ONE * 2, _Q(0.1))
    with pytest.raises(error, match="rounding"):
        node.op.check(replace(node, rounding=rounding))


def test_every_unary_kind_has_a_case() -> None:
    kinds = {case.op.kind for case in CASES if isinstance(case.op, Unary)}
    assert kinds == set(UNARY)


def test_activation_clamps_in_real_numbers() -> None:
    op = Binary("add", Activation.RELU6)
    a, b = np.array([-9.0, 1.0, 9.0], np.float32), np.zeros(3, np.float32)
    node = make_node(op, [a, b], (None, None), None)
    np.testing.assert_array_equal(op.reference(node, [a, b])[0], [0.0, 1.0, 6.0])


@pytest.mark.parametrize("op", [Transpose(()), Pad(()), Pad((), mode="edge")], ids=repr)
def test_scalars_stay_scalars(op: Op) -> None:
    x = Value("x", TensorType((), DType.FLOAT32))
    (type_,) = op.infer([x.type])
    y = Value("y", type_)
    graph = Graph("g", (x,), (y,), (Node(op, (x,), (y,), Origin(op.name, 0)),))
    (found,) = evaluate(graph, (np.array(1.5, np.float32),)).outputs
    assert (found.shape, found.tolist()) == ((), 1.5)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("less", DType.FLOAT32), ("equal", DType.INT8), ("and", DType.BOOL)]
)
def test_no_activation_is_fused_to_a_bool_result(kind: str, dtype: DType) -> None:
    types = [TensorType((3,), dtype)] * 2
    assert Binary(kind).infer(types)[0].dtype is DType.BOOL
    with pytest.raises(ModelError, match="has a bool result, which cannot be clamped"):
        Binary(kind, Activation.RELU).infer(types)
