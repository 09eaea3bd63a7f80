"""Converters of elementwise arithmetic and functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from smelt.frontend.onnx.operation import OnnxConverter, Operation
from smelt.ir import Array, DType, Value
from smelt.ops.core.binary import Binary
from smelt.ops.core.cast import Cast
from smelt.ops.core.prelu import PRelu
from smelt.ops.core.unary import UNARY, Unary


def unary(operation: Operation, op: Unary, x: Value) -> Value:
    """Apply a function to each element. Raises `UnsupportedError` for unsupported types."""
    row, dtype = UNARY[op.kind], x.type.dtype
    if x.type.quant is None and not (row.floats if dtype.is_float else dtype in row.plain):
        raise operation.refuse(
            f"it does not support element type {dtype.value} ('{x.name}' is {x.type})"
        )
    return operation.emit(op, x)


def binary(operation: Operation, kind: str, a: Value, b: Value) -> Value:
    """Apply an operator to two tensors of one element type, broadcast to each other."""
    return operation.emit(Binary(kind), a, b)


def _unary(kind: str) -> OnnxConverter:
    return lambda operation: unary(operation, Unary(kind), operation.value(0))


def _parametric(kind: str, **defaults: float) -> OnnxConverter:
    """Return a converter of a function with constants, given by these attributes in order."""

    def convert(operation: Operation) -> Value:
        constants = [operation.real(name, default) for name, default in defaults.items()]
        return unary(operation, Unary(kind, *constants), operation.value(0))

    return convert


def _binary(kind: str) -> OnnxConverter:
    return lambda operation: binary(operation, kind, operation.value(0), operation.value(1))


def _variadic(kind: str) -> OnnxConverter:
    def convert(operation: Operation) -> Value:
        if not operation.count:
            raise operation.wrong("it has no inputs")
        return reduce(lambda a, b: binary(operation, kind, a, b), operation.values())

    return convert


def _mean(operation: Operation) -> Value:
    total = _variadic("add")(operation)
    assert isinstance(total, Value)
    return binary(operation, "mul", total, operation.scalar(1 / operation.count, total))


def _relu(operation: Operation) -> Value:
    x = operation.value(0)
    if x.type.dtype is DType.FLOAT32:
        return operation.emit(Unary("relu"), x)
    return binary(operation, "maximum", x, operation.scalar(0, x))


def _gelu(operation: Operation) -> Value:
    form = operation.text("approximate", "none")
    if form not in ("none", "tanh"):
        raise operation.wrong(f"attribute 'approximate' is '{form}'; it must be 'none' or 'tanh'")
    return unary(operation, Unary("gelu" if form == "none" else "gelu_tanh"), operation.value(0))


def _clip(operation: Operation) -> Value:
    """Convert Clip to a clamp if the limits are constant, else to a maximum and a minimum."""
    x = operation.value(0)
    limits = [_limit(operation, i, name, x) for i, name in ((1, "min"), (2, "max"))]
    if x.type.dtype is DType.FLOAT32 and all(v is None or v.is_constant for v in limits):
        return _clamp(operation, x, *(None if v is None else v.array for v in limits))
    for kind, limit in zip(("maximum", "minimum"), limits, strict=True):
        x = x if limit is None else binary(operation, kind, x, limit)
    return x


def _limit(operation: Operation, index: int, name: str, x: Value) -> Value | None:
    if operation.has(name):
        return operation.scalar(operation.real(name), x)
    limit = operation.optional(index)
    if limit is not None and limit.type.size != 1:
        raise operation.wrong(
            f"its limit '{limit.name}' is {limit.type}, but must be a single number"
        )
    return None if limit is None else operation.reshape(limit, ())


def _clamp(operation: Operation, x: Value, least: Array | None, greatest: Array | None) -> Value:
    bound = float(np.finfo(np.float32).max)
    low = -np.inf if least is None or least <= -bound else float(least)
    high = np.inf if greatest is None or greatest >= bound else float(greatest)
    # If the limits are in the wrong order, the upper limit applies.
    limits = (min(low, high), high)
    if limits == (-np.inf, np.inf):
        return x
    kind = {(0.0, np.inf): "relu", (0.0, 6.0): "relu6"}.get(limits)
    return operation.emit(Unary("clamp", *limits) if kind is None else Unary(kind), x)


def _prelu(operation: Operation) -> Value:
    x, slope = operation.value(0), operation.weights(1, "slope")
    if not x.type.dtype.is_float:
        raise operation.refuse(f"it supports only floats, but '{x.name}' is {x.type}")
    shape = x.type.shape
    if len(slope.type.shape) == 1 < len(shape) and slope.type.size == shape[1] != shape[-1]:
        # Before operator set 7, there is a slope for each channel.
        slope = operation.reshape(slope, (shape[1], *(1 for _ in shape[2:])))
    return operation.emit(PRelu(), x, slope)


def _div(operation: Operation) -> Value:
    """Convert Div; division by powers of two becomes multiplication, which is exact and faster."""
    a, b = operation.value(0), operation.value(1)
    if b.data is not None and b.type.dtype.is_float:
        with np.errstate(divide="ignore", over="ignore"):
            inverse = np.asarray(1 / b.data, b.data.dtype)
        normal = np.abs(inverse) >= np.finfo(inverse.dtype).tiny
        if (np.isfinite(inverse) & normal & (np.abs(np.frexp(b.data)[0]) == 0.5)).all():
            return binary(operation, "mul", a, operation.literal(inverse))
    return binary(operation, "div", a, b)


def _pow(operation: Operation) -> Value:
    """Convert Pow; the result has the element type of the base.

    For common constant exponents, a cheaper operator is used.
    """
    base, exponent = operation.value(0), operation.value(1)
    if base.type.dtype.is_float and exponent.data is not None and exponent.type.size == 1:
        form = _POWERS.get(float(exponent.data.reshape(())))
        if form is not None and len(exponent.type.shape) <= len(base.type.shape):
            return form(operation, base)
    dtypes = base.type.dtype, exponent.type.dtype
    if dtypes[0] is dtypes[1]:
        return binary(operation, "pow", base, exponent)
    integers = DType.FLOAT32 if dtypes[1].is_float else DType.INT64
    wide = dtypes[0] if dtypes[0].is_float else integers
    result = binary(operation, "pow", *(_as(operation, v, wide) for v in (base, exponent)))
    return _as(operation, result, dtypes[0])


def _as(operation: Operation, value: Value, dtype: DType) -> Value:
    return value if value.type.dtype is dtype else operation.emit(Cast(dtype), value)


_POWERS: dict[float, Callable[[Operation, Value], Value]] = {
    -1.0: lambda operation, x: operation.emit(Unary("reciprocal"), x),
    -0.5: lambda operation, x: operation.emit(Unary("rsqrt"), x),
    0.5: lambda operation, x: operation.emit(Unary("sqrt"), x),
    1.0: lambda operation, x: x,
    2.0: lambda operation, x: operation.emit(Unary("square"), x),
    3.0: lambda operation, x: binary(operation, "mul", operation.emit(Unary("square"), x), x),
}


def _mod(operation: Operation) -> Value:
    kind = "fmod" if operation.flag("fmod") else "mod"
    return binary(operation, kind, operation.value(0), operation.value(1))


def _bit_shift(operation: Operation) -> Value:
    direction = operation.text("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise operation.wrong(f"attribute 'direction' is '{direction}'; it must be LEFT or RIGHT")
    return binary(operation, f"shift_{direction.lower()}", operation.value(0), operation.value(1))


_SAME_NAME = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor Log Mish Neg Reciprocal "
    "Round Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh"
)
CONVERTERS: dict[str, OnnxConverter] = {
    **{name: _unary(name.lower()) for name in _SAME_NAME.split()},
    "BitwiseNot": _unary("bitwise_not"),
    "Sigmoid": _unary("logistic"),
    "HardSwish": _unary("hard_swish"),
    "Relu": _relu,
    "LeakyRelu": _parametric("leaky_relu", alpha=0.01),
    "ThresholdedRelu": _parametric("thresholded_relu", alpha=1.0),
    "PRelu": _prelu,
    "Elu": _parametric("elu", alpha=1.0),
    "Celu": _parametric("celu", alpha=1.0),
    "Selu": _parametric("selu", alpha=1.67326319, gamma=1.05070102),
    "HardSigmoid": _parametric("hard_sigmoid", alpha=0.2, beta=0.5),
    "Shrink": _parametric("shrink", lambd=0.5, bias=0.0),
    "Swish": _parametric("swish", alpha=1.0),
    "Gelu": _gelu,
    "Clip": _clip,
    "Add": _binary("add"),
    "Sub": _binary("sub"),
    "Mul": _binary("mul"),
    "Div": _div,
    "Pow": _pow,
    "Mod": _mod,
    "BitShift": _bit_shift,
    "BitwiseAnd": _binary("and"),
    "BitwiseOr": _binary("or"),
    "BitwiseXor": _binary("xor"),
    "Max": _variadic("maximum"),
    "Min": _variadic("minimum"),
    "Sum": _variadic("add"),
    "Mean": _mean,
}
