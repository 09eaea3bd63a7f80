"""Unary elementwise operators: one table row a kind.

Float results are rounded once from double precision. The integer arithmetic of quantized
tensors is in `unary_integer`; int8 data has 256 values, so that backends may tabulate it with
`lookup_table`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ops import unary_integer as integer
from smelt.ops.case import FLOAT_AND_INT8, Case, Data
from smelt.ops.constraints import (
    arrays,
    operands,
    quantized,
    symmetric_int16,
    tflm_rounding,
)
from smelt.ops.fixed_point import Activation

Real = Callable[[Array, float], Array]
"""A function of float64 arrays and the operator's `alpha`."""

_INT8, _INT8_INT16 = (DType.INT8,), (DType.INT8, DType.INT16)


@dataclass(frozen=True)
class UnaryKind:
    """A row of the table: `integer` serves quantized tensors of `dtypes` (none: float only).

    `output` is the quantization the output must have, for each of `dtypes`.
    """

    real: Real
    integer: integer.Integer | None = None
    dtypes: tuple[DType, ...] = ()
    output: tuple[Quant, ...] = ()


def _clamp(activation: Activation) -> Real:
    def compute(x: Array, alpha: float) -> Array:
        del alpha
        return np.clip(x, *activation.limits)

    return compute


def _plain(function: Callable[[Array], Array]) -> Real:
    def compute(x: Array, alpha: float) -> Array:
        del alpha
        return function(x)

    return compute


def _logistic(x: Array) -> Array:
    # Of the two equal forms, the one whose exponential does not overflow.
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _hard_swish(x: Array) -> Array:
    return x * np.clip(x + 3, 0, 6) / 6


def _erf(x: Array) -> Array:
    values = [math.erf(v) for v in x.ravel().tolist()]
    return np.asarray(values, np.float64).reshape(x.shape)


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _leaky_relu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, x * float(np.float32(alpha)))


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x < 0, float(np.float32(alpha)) * np.expm1(np.minimum(x, 0)), x)


def _elu32(x: Array, alpha: float) -> Array:
    """ELU in float32, as the table of the quantized operator is filled."""
    power = np.exp(x.astype(np.float64)).astype(np.float32)
    return np.where(x < 0, np.float32(alpha) * (power - np.float32(1)), x)


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def _in_double(function: Real) -> Real:
    """For tables: float32 in, computed in double precision."""
    return lambda x, alpha: function(x.astype(np.float64), alpha)


def _relu(activation: Activation) -> UnaryKind:
    return UnaryKind(_clamp(activation), integer.clamped(activation), _INT8_INT16)


def _tabulated(real: Real, table: Real | None = None) -> UnaryKind:
    return UnaryKind(real, integer.tabulated(table or _in_double(real)), _INT8)


_UNIT = (Quant.per_tensor(1 / 256, -128), Quant.per_tensor(1 / 32768))
_SYMMETRIC_UNIT = (Quant.per_tensor(1 / 128), Quant.per_tensor(1 / 32768))

UNARY: dict[str, UnaryKind] = {
    "relu": _relu(Activation.RELU),
    "relu6": _relu(Activation.RELU6),
    "relu_n1_to_1": _relu(Activation.RELU_N1_TO_1),
    "relu_0_to_1": _relu(Activation.RELU_0_TO_1),
    "leaky_relu": UnaryKind(_leaky_relu, integer.leaky_relu, _INT8_INT16),
    "logistic": UnaryKind(_plain(_logistic), integer.logistic_integer, _INT8_INT16, _UNIT),
    "tanh": UnaryKind(_plain(np.tanh), integer.tanh_integer, _INT8_INT16, _SYMMETRIC_UNIT),
    "hard_swish": UnaryKind(_plain(_hard_swish), integer.hard_swish, _INT8),
    "elu": _tabulated(_elu, _elu32),
    "gelu": _tabulated(_plain(_gelu)),
    "gelu_tanh": _tabulated(_plain(_gelu_tanh)),
    "abs": UnaryKind(_plain(np.abs), integer.absolute, _INT8_INT16),
    "neg": UnaryKind(_plain(np.negative)),
    "exp": _tabulated(_plain(np.exp)),
    "log": UnaryKind(_plain(np.log)),
    "sqrt": UnaryKind(_plain(np.sqrt)),
    "rsqrt": UnaryKind(_plain(_rsqrt), integer.rsqrt, _INT8),
    "square": UnaryKind(_plain(np.square)),
    "sin": UnaryKind(_plain(np.sin)),
    "cos": UnaryKind(_plain(np.cos)),
    "floor": UnaryKind(_plain(np.floor)),
    "ceil": UnaryKind(_plain(np.ceil)),
    "round": UnaryKind(_plain(np.rint)),
}


@dataclass(frozen=True)
class Unary(Op):
    """A function of each element; `kind` is in `UNARY`.

    `alpha` is the slope (leaky_relu) or the scale (elu) of the negative side.
    """

    kind: str
    alpha: float = 0.0

    @property
    def name(self) -> str:
        """See `Op.name`."""
        return f"Unary({self.kind})"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """See `Op.infer`."""
        if self.kind not in UNARY:
            raise ModelError(f"there is no unary operator '{self.kind}'; see {sorted(UNARY)}")
        (x,) = operands(self, inputs, 1)
        if x.quant is None and not x.dtype.is_float:
            raise ModelError(f"{self.name} needs a float or a quantized tensor, got {x}")
        return (TensorType(x.shape, x.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """The fixed one of logistic and tanh."""
        (x,) = operands(self, inputs, 1)
        row = UNARY[self.kind]
        fixed = dict(zip(row.dtypes, row.output, strict=False))
        return fixed.get(x.dtype)

    def check(self, node: Node) -> None:
        """See `Op.check`."""
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
                f"{node.origin}: {self.name} cannot bring input scale {x.scale} to output scale "
                f"{y.scale}"
            )

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        """See `Op.reference`."""
        (x,) = arrays(node, inputs, 1)
        y, row = node.output.type, UNARY[self.kind]
        if y.quant is None or row.integer is None:
            with np.errstate(all="ignore"):
                result = row.real(x.astype(np.float64), self.alpha)
                return (np.asarray(result, y.dtype.numpy),)
        stored = row.integer(x.astype(np.int64), self.alpha, node.input(0).type, y)
        return (np.asarray(np.clip(stored, *y.dtype.limits), y.dtype.numpy),)


def lookup_table(node: Node) -> Array:
    """Outputs of an int8 `Unary` node for the stored inputs -128 … 127, in this order."""
    low, high = node.input(0).type.dtype.limits
    return node.op.reference(node, [np.arange(low, high + 1, dtype=np.int8)])[0]


def _near(required: Quant, y: TensorType) -> bool:
    scale, zero_point = required.scalar
    return zero_point == y.zero_point and abs(y.scale - scale) <= 1e-3 * scale


def _case(kind: str, name: str, x: Data, alpha: float = 0.0) -> Case:
    dtypes = FLOAT_AND_INT8 if DType.INT8 in UNARY[kind].dtypes else (DType.FLOAT32,)
    return Case(f"{kind}_{name}" if name else kind, Unary(kind, alpha), (x,), dtypes)


_SHAPE = (1, 3, 5, 7)
_ALPHA = {"leaky_relu": 0.1, "elu": 1.0}
_POSITIVE = {"log": Data((2, 33), 0.01, 9.0), "sqrt": Data((2, 33), 0.0, 9.0)}
_RANGED = ("relu", "relu6", "leaky_relu", "logistic", "tanh", "hard_swish", "elu", "gelu", "abs")
CASES = (
    *(
        _case(kind, "", _POSITIVE.get(kind, Data(_SHAPE, -8.0, 8.0)), _ALPHA.get(kind, 0.0))
        for kind in UNARY
        if kind not in ("exp", "rsqrt")
    ),
    *(
        _case(kind, name, data, _ALPHA.get(kind, 0.0))
        for kind in _RANGED
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
)
