"""Unary elementwise operators, in a table with one row for each kind.

Float results are computed in double precision and rounded once (`unary_real`). `unary_integer` has
the integer arithmetic of quantized tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ir.homogeneity import Homogeneity, in_place
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, operands, quantized, symmetric_int16, tflm_rounding
from smelt.ops.core import unary_integer as integer
from smelt.ops.core import unary_real as real
from smelt.ops.core.channel_rules import ChannelFunction
from smelt.ops.core.unary_real import RealFunction, plain

_NO_TYPES = frozenset[DType]()
_BOOL = frozenset({DType.BOOL})
_INTEGERS = frozenset(d for d in DType if d.is_integer)

_INT8, _INT8_INT16 = (DType.INT8,), (DType.INT8, DType.INT16)


@dataclass(frozen=True)
class UnaryKind:
    """A row of the table.

    Attributes:
        real: computes floats (as float64) and unquantized integers.
        integer: computes quantized tensors; None if they are not supported.
        dtypes: the supported element types of quantized tensors.
        output: the quantization that the output must have, for each of `dtypes`, if it is fixed.
        plain: the supported element types besides floats, unquantized.
        floats: whether floats are supported.
        tests: whether the result is bool.
    """

    real: RealFunction
    integer: integer.UnaryArithmetic | None = None
    dtypes: tuple[DType, ...] = ()
    output: tuple[Quant, ...] = ()
    plain: frozenset[DType] = _NO_TYPES
    floats: bool = True
    tests: bool = False


def _in_double(function: RealFunction) -> Callable[[Array, float], Array]:
    """Return a function for tables: float32 arrays are computed in double precision."""
    return lambda x, alpha: function(x.astype(np.float64), alpha, 0.0)


def _elu32(x: Array, alpha: float) -> Array:
    """Return ELU in float32, as TensorFlow Lite fills the table of the quantized operator."""
    power = np.exp(x.astype(np.float64)).astype(np.float32)
    return np.where(x < 0, np.float32(alpha) * (power - np.float32(1)), x)


def _relu(activation: Activation) -> UnaryKind:
    return UnaryKind(real.within(*activation.limits), integer.clamped(activation), _INT8_INT16)


def _tabulated(
    function: RealFunction, table: Callable[[Array, float], Array] | None = None
) -> UnaryKind:
    return UnaryKind(function, integer.tabulated(table or _in_double(function)), _INT8)


def _test(function: Callable[[Array], Array]) -> UnaryKind:
    return UnaryKind(plain(function), tests=True)


_UNIT = (Quant.per_tensor(1 / 256, -128), Quant.per_tensor(1 / 32768))
_SYMMETRIC_UNIT = (Quant.per_tensor(1 / 128), Quant.per_tensor(1 / 32768))

UNARY: dict[str, UnaryKind] = {
    "relu": _relu(Activation.RELU),
    "relu6": _relu(Activation.RELU6),
    "relu_n1_to_1": _relu(Activation.RELU_N1_TO_1),
    "relu_0_to_1": _relu(Activation.RELU_0_TO_1),
    "clamp": UnaryKind(np.clip),
    "leaky_relu": UnaryKind(real.leaky_relu, integer.leaky_relu, _INT8_INT16),
    "thresholded_relu": UnaryKind(real.thresholded_relu),
    "logistic": UnaryKind(plain(real.logistic), integer.logistic_integer, _INT8_INT16, _UNIT),
    "tanh": UnaryKind(plain(np.tanh), integer.tanh_integer, _INT8_INT16, _SYMMETRIC_UNIT),
    "hard_sigmoid": UnaryKind(real.hard_sigmoid),
    "hard_swish": UnaryKind(plain(real.hard_swish), integer.hard_swish, _INT8),
    "swish": UnaryKind(real.swish),
    "mish": UnaryKind(plain(real.mish)),
    "softplus": UnaryKind(plain(real.softplus)),
    "softsign": UnaryKind(plain(real.softsign)),
    "shrink": UnaryKind(real.shrink),
    "elu": _tabulated(real.elu, _elu32),
    "celu": UnaryKind(real.celu),
    "selu": UnaryKind(real.selu),
    "gelu": _tabulated(plain(real.gelu)),
    "gelu_tanh": _tabulated(plain(real.gelu_tanh)),
    "abs": UnaryKind(plain(np.abs), integer.absolute, _INT8_INT16, plain=_INTEGERS),
    "neg": UnaryKind(plain(np.negative), plain=_INTEGERS),
    "sign": UnaryKind(plain(np.sign), plain=_INTEGERS),
    "bitwise_not": UnaryKind(plain(np.invert), plain=_INTEGERS, floats=False),
    "not": UnaryKind(plain(np.logical_not), plain=_BOOL, floats=False),
    "exp": _tabulated(plain(np.exp)),
    "log": UnaryKind(plain(np.log)),
    "sqrt": UnaryKind(plain(np.sqrt)),
    "rsqrt": UnaryKind(plain(real.rsqrt), integer.rsqrt, _INT8),
    "reciprocal": UnaryKind(plain(np.reciprocal)),
    "square": UnaryKind(plain(np.square)),
    "erf": UnaryKind(plain(real.erf)),
    "sin": UnaryKind(plain(np.sin)),
    "cos": UnaryKind(plain(np.cos)),
    "tan": UnaryKind(plain(np.tan)),
    "asin": UnaryKind(plain(np.arcsin)),
    "acos": UnaryKind(plain(np.arccos)),
    "atan": UnaryKind(plain(np.arctan)),
    "sinh": UnaryKind(plain(np.sinh)),
    "cosh": UnaryKind(plain(np.cosh)),
    "asinh": UnaryKind(plain(np.arcsinh)),
    "acosh": UnaryKind(plain(np.arccosh)),
    "atanh": UnaryKind(plain(np.arctanh)),
    "floor": UnaryKind(plain(np.floor)),
    "ceil": UnaryKind(plain(np.ceil)),
    "round": UnaryKind(plain(np.rint)),
    "to_float16": UnaryKind(plain(real.to_float16)),
    "to_bfloat16": UnaryKind(plain(real.to_bfloat16)),
    "is_nan": _test(np.isnan),
    "is_infinite": _test(np.isinf),
    "is_positive_infinite": _test(np.isposinf),
    "is_negative_infinite": _test(np.isneginf),
}


_GROWING = frozenset({"exp", "square", "reciprocal", "rsqrt", "tan", "sinh", "cosh"})
"""Functions with results that may be far larger than their operands."""

_HOMOGENEOUS = frozenset({"relu", "leaky_relu", "abs", "neg"})
"""Functions with f(s * x) = s * f(x) for s > 0."""


@dataclass(frozen=True)
class Unary(Op):
    """A function of each element; `kind` is a key of `UNARY`.

    `unary_real` documents `alpha` and `beta` for each function. They are the limits of a `clamp`.
    """

    kind: str
    alpha: float = 0.0
    beta: float = 0.0

    elementwise = True
    channel_rule = ChannelFunction()

    @property
    @override
    def name(self) -> str:
        return f"Unary({self.kind})"

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        if self.kind not in UNARY:
            raise ModelError(
                f"there is no unary operator '{self.kind}'; the kinds are "
                f"{', '.join(sorted(UNARY))}"
            )
        (x,) = operands(self, inputs, 1)
        row = UNARY[self.kind]
        served = row.floats if x.dtype.is_float else x.quant is not None or x.dtype in row.plain
        if not served:
            raise ModelError(f"{self.name} does not support element type {x.dtype.value} ({x})")
        return (TensorType(x.shape, DType.BOOL if row.tests else x.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the fixed output quantization of logistic and tanh, else None."""
        (x,) = operands(self, inputs, 1)
        row = UNARY[self.kind]
        fixed = dict(zip(row.dtypes, row.output, strict=False))
        return fixed.get(x.dtype)

    @override
    def check(self, node: Node) -> None:
        if not quantized(node, UNARY[self.kind].dtypes):
            return
        symmetric_int16(node)
        tflm_rounding(node)
        x, y = node.input(0).type, node.output.type
        required = self.output_quant([x])
        if required is not None and not _near(required, y):
            raise ModelError(
                f"{node.origin}: the output of {self.name} must have scale {required.scale[0]} "
                f"and zero point {required.zero_point[0]}, not {y.scale} and {y.zero_point}"
            )
        if self.kind == "hard_swish" and integer.hard_swish_multipliers(x, y)[0][1] > 0:
            raise ModelError(
                f"{node.origin}: input scale {x.scale} is too large for output scale {y.scale} of "
                f"{self.name}"
            )

    def overhead(self, node: Node) -> int:
        """Return the cost of computing a quantized rsqrt's table number by number."""
        return 1 << 19 if self.kind == "rsqrt" and node.output.type.is_quantized else 0

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        y, row = node.output.type, UNARY[self.kind]
        if y.quant is None or row.integer is None:
            with np.errstate(all="ignore"):
                wide = x if x.dtype.kind != "f" else x.astype(np.float64)
                result = row.real(wide, _single(self.alpha), _single(self.beta))
                return (np.asarray(result, y.dtype.numpy),)
        stored = row.integer(x.astype(np.int64), self.alpha, node.input(0).type, y)
        return (np.asarray(np.clip(stored, *y.dtype.limits), y.dtype.numpy),)

    def grows(self, node: Node) -> bool:
        """Return whether the function's results may be far larger than its operands."""
        return self.kind in _GROWING

    def homogeneity(self, node: Node) -> Sequence[Homogeneity]:
        """Return that each channel keeps its factor, for functions with f(s * x) = s * f(x)."""
        return (Homogeneity(in_place(node)),) if self.kind in _HOMOGENEOUS else ()


def _single(number: float) -> float:
    return float(np.float32(number))


def _near(required: Quant, y: TensorType) -> bool:
    scale, zero_point = required.scalar
    return zero_point == y.zero_point and abs(y.scale - scale) <= 1e-3 * scale


def _case(kind: str, name: str, x: Data, alpha: float = 0.0, beta: float = 0.0) -> Case:
    dtypes = (DType.FLOAT32, *UNARY[kind].dtypes)
    return Case(f"{kind}_{name}" if name else kind, Unary(kind, alpha, beta), (x,), dtypes)


def _plain_cases(kind: str) -> Case:
    dtypes = tuple(d for d in DType if d in UNARY[kind].plain)
    return Case(f"{kind}_plain", Unary(kind), (Data((65,), -(2**63), 2**64),), dtypes, plain=True)


_SHAPE = (1, 3, 5, 7)
_CONSTANTS = {
    "clamp": (-1.5, 2.25),
    "leaky_relu": (0.1, 0.0),
    "elu": (1.0, 0.0),
    "celu": (1.5, 0.0),
    "selu": (1.67326319, 1.05070102),
    "swish": (1.25, 0.0),
    "thresholded_relu": (1.5, 0.0),
    "hard_sigmoid": (0.2, 0.5),
    "shrink": (1.5, 0.5),
}
_RANGE = {
    "log": Data((2, 33), 0.01, 9.0),
    "sqrt": Data((2, 33), 0.0, 9.0),
    "asin": Data((2, 33)),
    "acos": Data((2, 33)),
    "acosh": Data((2, 33), 1.0, 9.0),
    "atanh": Data((2, 33), -0.98, 0.98),
    "reciprocal": Data((2, 33), 0.125, 4.0),
    "erf": Data((2, 33), -3.0, 3.0),
}
_RANGED = ("relu", "relu6", "leaky_relu", "logistic", "tanh", "hard_swish", "elu", "gelu", "abs")
_WITH_LARGE_INPUTS = (*_RANGED, "swish", "mish", "softplus", "softsign", "celu", "selu")
CASES = (
    *(
        _case(kind, "", _RANGE.get(kind, Data(_SHAPE, -8.0, 8.0)), *_CONSTANTS.get(kind, ()))
        for kind, row in UNARY.items()
        if row.floats and kind not in ("exp", "rsqrt")
    ),
    *(
        Case(
            f"{kind}_wide",
            Unary(kind),
            (_RANGE.get(kind, Data((9,))),),
            (DType.FLOAT64,),
            plain=True,
        )
        for kind in ("exp", "tanh", "atanh", "softplus", "abs", "sign", "round", "erf", "is_nan")
    ),
    *(_plain_cases(kind) for kind, row in UNARY.items() if row.plain),
    *(
        _case(kind, name, data, *_CONSTANTS.get(kind, ()))
        for kind in _WITH_LARGE_INPUTS
        for name, data in (
            ("tiny", Data((5,), -1e-3, 1e-3)),
            ("huge", Data((1, 257), -300.0, 900.0)),
            ("positive", Data((2, 3), 0.0, 6.0)),
            ("negative", Data((2, 3), -6.0, 0.0)),
        )
    ),
    _case("exp", "", Data(_SHAPE, -8.0, 2.0)),
    _case("rsqrt", "", Data((1, 257), 0.0, 9.0)),
    _case("rsqrt", "tiny", Data((1, 257), 0.0, 1e-3)),
    _case("leaky_relu", "steep", Data((64,), -2.0, 1.0), 3.0),
    _case("leaky_relu", "falling", Data((64,), -2.0, 1.0), -0.5),
    _case("relu", "scalar", Data((), -1.0, 1.0)),
    _case("to_float16", "large", Data((257,), -6e4, 6e4)),
    _case("to_float16", "subnormal", Data((257,), -1e-4, 1e-4)),
    _case("to_bfloat16", "large", Data((257,), -1e38, 1e38)),
    _case("clamp", "from_below", Data((9,), -4.0, 4.0), -1.0, math.inf),
    _case("clamp", "from_above", Data((9,), -4.0, 4.0), -math.inf, 1.0),
)
