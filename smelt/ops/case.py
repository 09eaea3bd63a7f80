"""Named test cases of operators. Each operator's module has a table of them.

The tests run every case on every backend. A case has an operator and its arguments in real numbers.
`build` makes a graph of one node from it, for a given element type. Quantized graphs follow the
TensorFlow Lite 8-bit specification, with the output's range observed from the float reference.

An argument with its own `dtype` (indices, conditions) is quantized only if it has a `quant`. In a
`plain` case, arguments have the graph's element type and nothing is quantized.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from smelt.ir import Array, DType, Graph, Node, Op, Origin, Quant, Rounding, TensorType, Value
from smelt.ir.verify import verify


@dataclass(frozen=True)
class Data:
    """An input that is given at run time, with elements uniform in [low, high].

    If `dtype` is given, the input has this element type, and the quantization `quant` if any.
    """

    shape: tuple[int, ...]
    low: float = -1.0
    high: float = 1.0
    dtype: DType | None = None
    quant: Quant | None = None


@dataclass(frozen=True)
class Weights:
    """Constant weights; quantized to symmetric int8, per channel along `axis` or per tensor."""

    shape: tuple[int, ...]
    axis: int | None = None


@dataclass(frozen=True)
class Bias:
    """A constant vector; int32 or int64 if quantized, with scale input scale * weights scale."""

    size: int


@dataclass(frozen=True)
class Constant:
    """A constant operand with these real values; it is quantized like data.

    If `dtype` is given, it has this element type instead.
    """

    values: tuple[float, ...]
    shape: tuple[int, ...]
    dtype: DType | None = None


CaseOperand = Data | Weights | Bias | Constant | None

FLOAT_AND_INT8 = (DType.FLOAT32, DType.INT8)


@dataclass(frozen=True)
class Case:
    """An operator with arguments, and the element types to test it with.

    Attributes:
        name: unique among the operator's cases.
        op: the operator.
        arguments: its operands.
        dtypes: element types of the graphs made from the case.
        rounding: rounding of the quantized graphs.
        same_scale: quantize all inputs alike, for their common range. Operators that only move
            data need it.
        output: real range of the outputs, if it does not follow from the arguments (Quantize).
        plain: integers are not quantized, and `dtypes` may have any element types.
    """

    name: str
    op: Op
    arguments: tuple[CaseOperand, ...]
    dtypes: tuple[DType, ...] = FLOAT_AND_INT8
    rounding: Rounding = Rounding.TFLM
    same_scale: bool = False
    output: tuple[float, float] | None = None
    plain: bool = False

    def __str__(self) -> str:
        return f"{self.op.name}-{self.name}"


def onnx_cases(cases: tuple[Case, ...], *names: str) -> tuple[Case, ...]:
    """Return copies of the named cases for int8 with ONNX's rounding."""
    return tuple(
        replace(case, name=f"onnx_{case.name}", dtypes=(DType.INT8,), rounding=Rounding.ONNX)
        for case in cases
        if case.name in names
    )


def wide_cases(cases: tuple[Case, ...], *names: str) -> tuple[Case, ...]:
    """Return copies of the named cases for int16 data and int8 weights.

    There are two copies of each: one with int64 biases and one with int32 biases.
    """
    return tuple(
        replace(case, name=f"{word}_{case.name}", dtypes=(DType.INT16,), rounding=rounding)
        for word, rounding in (("wide", Rounding.TFLM16), ("wide_int32", Rounding.TFLM))
        for case in cases
        if case.name in names
    )


def build(case: Case, dtype: DType, seed: int = 0) -> Graph:
    """Return a case's graph of one node: float32, quantized to `dtype`, or plain with `dtype`."""
    rng = np.random.default_rng(seed)
    kind = dtype if case.plain else DType.FLOAT32
    reals = [_array(argument, kind, rng) for argument in case.arguments]
    inputs = tuple(
        None if real is None else _value(f"{_KIND[type(a)]}{i}", a, real, None)
        for i, (a, real) in enumerate(zip(case.arguments, reals, strict=True))
    )
    graph = _graph(case, inputs, (None,) * 8, None)
    if case.plain or dtype is DType.FLOAT32:
        return verify(graph, f"building {case}")
    if case.output is not None:
        quantized = _quantize_inputs(case, reals, dtype)
        return verify(_graph(case, quantized, (None,) * 8, case.rounding), f"building {case}")
    samples = [[_array(a, kind, rng) for a in case.arguments] for _ in range(3)]
    operands = [
        [
            r if c is None or not isinstance(a, Data) else c
            for a, r, c in zip(case.arguments, reals, sample, strict=True)
        ]
        for sample in samples
    ]
    results = [case.op.reference(graph.nodes[0], o) for o in (reals, *operands)]
    quantized = _quantize_inputs(case, reals, dtype)
    types = [None if v is None else v.type for v in quantized]
    fixed = case.op.output_quant(types)
    quants: list[Quant | None] = []
    for index, value in enumerate(graph.outputs):
        observed = np.concatenate([np.ravel(r[index]) for r in results])
        quant = fixed or quant_of_range(float(observed.min()), float(observed.max()), dtype)
        quants.append(quant if value.type.dtype.is_float else None)
    return verify(_graph(case, quantized, tuple(quants), case.rounding), f"building {case}")


def sample_of(data: Data, type_: TensorType, rng: np.random.Generator) -> Array:
    """Return random elements for an input of a case's graph.

    Floats and plain integers are uniform in the range of `data`. Quantized integers are uniform
    over the whole range of their type.
    """
    if type_.is_quantized or type_.dtype is DType.BOOL:
        return random_array(type_, rng)
    if type_.dtype.is_float:
        return rng.uniform(data.low, data.high, type_.shape).astype(type_.dtype.numpy)
    low, high = sample_limits(data, type_)
    return rng.integers(int(low), int(high), type_.shape, type_.dtype.numpy, endpoint=True)


def sample_limits(data: Data, type_: TensorType) -> tuple[float, float]:
    """Return the smallest and largest element that `sample_of` may return."""
    if type_.dtype.is_float:
        return data.low, data.high
    if type_.dtype is DType.BOOL:
        return 0, 1
    low, high = type_.dtype.limits
    if type_.is_quantized:
        return low, high
    return max(low, math.ceil(data.low)), min(high, math.floor(data.high))


def quant_of_range(low: float, high: float, dtype: DType) -> Quant:
    """Return an affine quantization of [low, high], extended to represent 0 exactly."""
    low, high = min(low, 0.0), max(high, 0.0)
    first, last = dtype.limits
    if dtype is DType.INT16:
        return Quant.per_tensor(max(-low, high, 1e-6) / last, 0)
    scale = float(np.float32(max(high - low, 1e-6) / (last - first)))
    return Quant.per_tensor(scale, int(np.clip(round(first - low / scale), first, last)))


def quantize(real: Array, quant: Quant, dtype: DType) -> Array:
    """Return the nearest stored integers, clamped; per channel if `quant` has an axis."""
    shape = [1] * real.ndim
    if quant.axis is not None:
        shape[quant.axis] = -1
    scaled = real / np.reshape(quant.scale, shape) + np.reshape(quant.zero_point, shape)
    return np.clip(np.rint(scaled), *dtype.limits).astype(dtype.numpy)


def random_array(type_: TensorType, rng: np.random.Generator) -> Array:
    """Return random elements: in [-1, 1] for floats, over the whole range for integers."""
    if type_.dtype.is_float:
        return rng.uniform(-1, 1, type_.shape).astype(type_.dtype.numpy)
    if type_.dtype is DType.BOOL:
        return rng.integers(0, 2, type_.shape).astype(np.bool_)
    low, high = type_.dtype.limits
    return rng.integers(low, high, type_.shape, type_.dtype.numpy, endpoint=True)


_KIND: dict[type, str] = {Data: "x", Weights: "weights", Bias: "bias", Constant: "constant"}


def _array(argument: CaseOperand, kind: DType, rng: np.random.Generator) -> Array | None:
    """Return an argument's elements, of its own element type if it has one, else of `kind`."""
    match argument:
        case None:
            return None
        case Data(shape, _, _, dtype):
            return sample_of(argument, TensorType(shape, dtype or kind), rng)
        case Weights(shape):
            return rng.uniform(-0.5, 0.5, shape).astype(np.float32)
        case Bias(size):
            return rng.uniform(-0.5, 0.5, size).astype(np.float32)
        case Constant(values, shape, dtype):
            return np.asarray(values, (dtype or kind).numpy).reshape(shape)


def _value(name: str, argument: CaseOperand, array: Array, quant: Quant | None) -> Value:
    if isinstance(argument, Data):
        return Value(name, TensorType(array.shape, DType.of(array), quant))
    return Value.constant(name, array, quant)


def _quantize_inputs(
    case: Case, reals: list[Array | None], dtype: DType
) -> tuple[Value | None, ...]:
    quants: list[Quant | None] = []
    for argument, real in zip(case.arguments, reals, strict=True):
        match argument:
            case Data(_, low, high, None):
                quants.append(quant_of_range(low, high, dtype))
            case Constant(elements, _, None):
                quants.append(quant_of_range(min(elements), max(elements), dtype))
            case Weights(_, axis) if real is not None:
                quants.append(_symmetric(real, axis))
            case _:
                quants.append(None)
    if case.same_scale:
        shared = next(q for q in quants if q is not None)
        quants = [None if q is None else shared for q in quants]
    values: list[Value | None] = []
    for i, (argument, real) in enumerate(zip(case.arguments, reals, strict=True)):
        quant, kind = quants[i], dtype
        if real is None:
            values.append(None)
            continue
        if isinstance(argument, Weights):
            kind = DType.INT8
        if isinstance(argument, Bias):
            quant = _bias_quant(quants[0], quants[1])
            kind = DType.INT64 if case.rounding is Rounding.TFLM16 else DType.INT32
        if isinstance(argument, (Data, Constant)) and argument.dtype is not None:
            own = argument.quant if isinstance(argument, Data) else None
            values.append(_value(f"{_KIND[type(argument)]}{i}", argument, real, own))
            continue
        if quant is None:
            raise ValueError(f"{case}: argument {i} has no quantization")
        stored = quantize(real, quant, kind)
        values.append(_value(f"{_KIND[type(argument)]}{i}", argument, stored, quant))
    return tuple(values)


def _symmetric(weights: Array, axis: int | None) -> Quant:
    others = None if axis is None else tuple(i for i in range(weights.ndim) if i != axis)
    peaks = np.atleast_1d(np.abs(weights).max(axis=others))
    scale = tuple(float(np.float32(peak / 127)) for peak in peaks)
    return Quant(scale, (0,) * len(scale), axis)


def _bias_quant(x: Quant | None, weights: Quant | None) -> Quant:
    if x is None or weights is None:
        raise ValueError("a bias needs a quantized input and weights before it")
    scale = tuple(float(np.float32(x.scale[0] * s)) for s in weights.scale)
    return Quant(scale, (0,) * len(scale), None if weights.axis is None else 0)


def _graph(
    case: Case,
    inputs: tuple[Value | None, ...],
    quants: tuple[Quant | None, ...],
    rounding: Rounding | None,
) -> Graph:
    inferred = case.op.infer([None if v is None else v.type for v in inputs])
    if case.output is not None:
        quants = tuple(
            quant_of_range(*case.output, t.dtype) if t.dtype.is_integer else None for t in inferred
        )
    outputs = tuple(
        Value(f"y{i}", TensorType(t.shape, t.dtype, quants[i] if t.dtype.is_integer else None))
        for i, t in enumerate(inferred)
    )
    node = Node(case.op, inputs, outputs, Origin(case.op.name, 0, case.name), rounding)
    fed = tuple(v for v in inputs if v is not None and not v.is_constant)
    return Graph(case.name, fed, outputs, (node,))
