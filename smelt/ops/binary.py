"""Binary elementwise operators: one table row a kind.

Integer arithmetic: TensorFlow Lite Micro's reference kernels. Sums bring both inputs to a
common scale with `left_shift` guard bits before they add; products and quotients requantize
once. Broadcasting follows numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ops.case import Case, Constant, Data
from smelt.ops.constraints import (
    arrays,
    operands,
    quantized,
    same_dtype,
    same_quant,
    symmetric_int16,
    tflm_rounding,
)
from smelt.ops.fixed_point import (
    Activation,
    clamp_limits,
    doubling_high_multiply,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    rounding_shift_right,
    wrap_int32,
)
from smelt.ops.gemmlowp import count_leading_sign_bits, reciprocal

Multiplier = tuple[int, int]
"""Fixed-point multiplier and left shift, see `quantize_multiplier`."""


@dataclass(frozen=True)
class CommonScale:
    """How a sum brings its inputs together: `(x - zero point) << left_shift`, times a or b.

    `output` then scales the sum (or squared difference) to the output.
    """

    left_shift: int
    a: Multiplier
    b: Multiplier
    output: Multiplier


def add_scaling(a: TensorType, b: TensorType, y: TensorType) -> CommonScale:
    """Scaling of ADD, in double precision."""
    shift = 15 if y.dtype is DType.INT16 else 20
    twice = 2.0 * max(a.scale, b.scale)
    return CommonScale(
        shift,
        quantize_multiplier(a.scale / twice),
        quantize_multiplier(b.scale / twice),
        quantize_multiplier(twice / (2.0**shift * y.scale)),
    )


def sub_scaling(a: TensorType, b: TensorType, y: TensorType) -> CommonScale:
    """Scaling of SUB: ADD's, but with every quotient rounded to float32."""
    shift = 15 if y.dtype is DType.INT16 else 20
    one = np.float32
    twice = one(2) * one(max(a.scale, b.scale))
    return CommonScale(
        shift,
        quantize_multiplier(float(one(a.scale) / twice)),
        quantize_multiplier(float(one(b.scale) / twice)),
        quantize_multiplier(float(twice / (one(2.0**shift) * one(y.scale)))),
    )


def squared_difference_scaling(a: TensorType, b: TensorType, y: TensorType) -> CommonScale:
    """Scaling of SQUARED_DIFFERENCE; 7 guard bits let the square of 8-bit data fit 32 bits."""
    shift = 0 if y.dtype is DType.INT16 else 7
    twice = 2.0 * max(a.scale, b.scale)
    return CommonScale(
        shift,
        quantize_multiplier(a.scale / twice),
        quantize_multiplier(b.scale / twice),
        quantize_multiplier(twice * twice / (4.0**shift * y.scale)),
    )


def mul_scaling(a: TensorType, b: TensorType, y: TensorType) -> Multiplier:
    """Multiplier of MUL, in double precision."""
    return quantize_multiplier(a.scale * b.scale / y.scale)


def div_scaling(a: TensorType, b: TensorType, y: TensorType) -> Multiplier:
    """Multiplier of DIV, rounded to float32."""
    product = np.float32(b.scale) * np.float32(y.scale)
    return quantize_multiplier(float(np.float32(a.scale) / product))


Integer = Callable[[Array, Array, TensorType, TensorType, TensorType], Array]
"""Quantized arithmetic: int64 inputs and results, all with their zero points taken off."""


def _align(scaling: CommonScale, a: Array, b: Array) -> tuple[Array, Array]:
    """Both inputs on the common scale."""
    return (
        multiply_by_quantized_multiplier(a << scaling.left_shift, *scaling.a),
        multiply_by_quantized_multiplier(b << scaling.left_shift, *scaling.b),
    )


def _add(a: Array, b: Array, x0: TensorType, x1: TensorType, y: TensorType) -> Array:
    scaling = add_scaling(x0, x1, y)
    left, right = _align(scaling, a, b)
    return multiply_by_quantized_multiplier(left + right, *scaling.output)


def _sub(a: Array, b: Array, x0: TensorType, x1: TensorType, y: TensorType) -> Array:
    scaling = sub_scaling(x0, x1, y)
    left, right = _align(scaling, a, b)
    return multiply_by_quantized_multiplier(left - right, *scaling.output)


def _squared_difference(a: Array, b: Array, x0: TensorType, x1: TensorType, y: TensorType) -> Array:
    scaling = squared_difference_scaling(x0, x1, y)
    left, right = _align(scaling, a, b)
    square = wrap_int32((left - right) * (left - right))
    return multiply_by_quantized_multiplier(square, *scaling.output)


def _mul(a: Array, b: Array, x0: TensorType, x1: TensorType, y: TensorType) -> Array:
    return multiply_by_quantized_multiplier(a * b, *mul_scaling(x0, x1, y))


def _div(a: Array, b: Array, x0: TensorType, x1: TensorType, y: TensorType) -> Array:
    """Reciprocal in fixed point; a divisor of zero gives what a shift by 32 to zero would."""
    multiplier, shift = div_scaling(x0, x1, y)
    a, b = np.broadcast_arrays(np.where(b < 0, -a, a), np.abs(b))
    inverse, bits = reciprocal(b, 31)
    headroom = count_leading_sign_bits(a)
    quotient = doubling_high_multiply(a << headroom, inverse)
    scaled = doubling_high_multiply(quotient, multiplier)
    return rounding_shift_right(scaled, np.clip(bits + headroom - shift, 0, 62))


def _maximum(a: Array, b: Array, x0: TensorType, x1: TensorType, y: TensorType) -> Array:
    del x0, x1, y
    return np.maximum(a, b)


def _minimum(a: Array, b: Array, x0: TensorType, x1: TensorType, y: TensorType) -> Array:
    del x0, x1, y
    return np.minimum(a, b)


def _real_div(a: Array, b: Array) -> Array:
    """Quotient; of integers truncated towards zero, as in C (and 0 where b is 0)."""
    if a.dtype.kind == "f":
        return a / b
    floor = a // b
    inexact = floor * b != a
    return np.where(b == 0, 0, floor + (inexact & ((a < 0) != (b < 0)))).astype(a.dtype)


def _square_of_difference(a: Array, b: Array) -> Array:
    return (a - b) * (a - b)


_INT8, _INT8_INT16 = (DType.INT8,), (DType.INT8, DType.INT16)


@dataclass(frozen=True)
class BinaryKind:
    """A row of the table.

    `real` computes floats (given as float64) and unquantized integers, `integer` quantized
    tensors of `dtypes`; `rescales` is False where stored integers are merely selected.
    """

    real: Callable[[Array, Array], Array]
    integer: Integer
    dtypes: tuple[DType, ...] = _INT8_INT16
    rescales: bool = True


BINARY: dict[str, BinaryKind] = {
    "add": BinaryKind(np.add, _add),
    "sub": BinaryKind(np.subtract, _sub),
    "mul": BinaryKind(np.multiply, _mul),
    "div": BinaryKind(_real_div, _div, _INT8),
    "maximum": BinaryKind(np.maximum, _maximum, rescales=False),
    "minimum": BinaryKind(np.minimum, _minimum, rescales=False),
    "squared_difference": BinaryKind(_square_of_difference, _squared_difference),
}


@dataclass(frozen=True)
class Binary(Op):
    """Two tensors of one element type, broadcast against each other; `kind` is in `BINARY`."""

    kind: str
    activation: Activation = Activation.NONE

    @property
    def name(self) -> str:
        """See `Op.name`."""
        return f"Binary({self.kind})"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """See `Op.infer`."""
        if self.kind not in BINARY:
            raise ModelError(f"there is no binary operator '{self.kind}'; see {sorted(BINARY)}")
        a, b = operands(self, inputs, 2)
        dtype = same_dtype(self, (a, b))
        if dtype is DType.BOOL:
            raise ModelError(f"{self.name} cannot be computed on {a}")
        try:
            shape = np.broadcast_shapes(a.shape, b.shape)
        except ValueError as error:
            raise ModelError(f"{self.name} cannot broadcast {a} with {b}") from error
        return (TensorType(shape, dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """The first input's, where stored integers are merely selected."""
        a = operands(self, inputs, 2)[0]
        return None if BINARY[self.kind].rescales else a.quant

    def check(self, node: Node) -> None:
        """See `Op.check`."""
        row = BINARY[self.kind]
        if not quantized(node, row.dtypes, 2):
            return
        symmetric_int16(node, 2)
        if not row.rescales:
            same_quant(node, 2)
            return
        tflm_rounding(node)
        a, b, y = node.input(0).type, node.input(1).type, node.output.type
        # Beyond this the sum's multiplier exceeds one, which the integer arithmetic excludes.
        limit = y.scale * (2.0**14 if y.dtype is DType.INT16 else 2.0**19)
        if self.kind in ("add", "sub") and max(a.scale, b.scale) >= limit:
            raise ModelError(
                f"{node.origin}: input scales {a.scale} and {b.scale} are too large for the "
                f"output scale {y.scale}"
            )

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        """See `Op.reference`."""
        a, b = arrays(node, inputs, 2)
        y, row = node.output.type, BINARY[self.kind]
        if y.quant is None:
            return (self._unquantized(a, b, y),)
        x0, x1 = node.input(0).type, node.input(1).type
        centred = (a.astype(np.int64) - x0.zero_point, b.astype(np.int64) - x1.zero_point)
        result = row.integer(*centred, x0, x1, y) + y.zero_point
        clamped = np.clip(result, *clamp_limits(self.activation, y))
        return (np.asarray(clamped, y.dtype.numpy),)

    def _unquantized(self, a: Array, b: Array, y: TensorType) -> Array:
        if y.dtype.is_float:
            a, b = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(all="ignore"):
            result = BINARY[self.kind].real(a, b)
            low, high = self.activation.limits
            if y.dtype.is_integer:
                low, high = max(low, y.dtype.limits[0]), min(high, y.dtype.limits[1])
            return np.asarray(np.clip(result, low, high), y.dtype.numpy)


def _case(
    kind: str,
    name: str,
    a: Data | Constant,
    b: Data | Constant,
    *,
    activation: Activation = Activation.NONE,
) -> Case:
    same_scale = not BINARY[kind].rescales
    return Case(f"{kind}_{name}", Binary(kind, activation), (a, b), same_scale=same_scale)


_IMAGE = (1, 4, 3, 5)
_DIVISOR = Data((1, 1, 1, 5), 0.5, 2.0)
CASES = (
    *(
        case
        for kind in ("add", "sub", "mul", "maximum", "minimum", "squared_difference")
        for case in (
            _case(kind, "image", Data(_IMAGE), Data(_IMAGE, -0.5, 2.0)),
            _case(kind, "channels", Data(_IMAGE), Data((1, 1, 1, 5), -3.0, 1.0)),
            _case(kind, "both_ways", Data((2, 1, 3)), Data((4, 1), 0.0, 2.0)),
            _case(kind, "scalar_first", Constant((0.75,), ()), Data((7,), -2.0, 2.0)),
        )
    ),
    *(
        _case(kind, f"constant_{clamp.value}", Data((1, 3, 3, 3), -9.0, 9.0), b, activation=clamp)
        for kind, b in (
            ("add", Constant((0.5, -1.0, 2.0), (3,))),
            ("sub", Constant((0.5, -1.0, 2.0), (1, 1, 1, 3))),
            ("mul", Constant((1.5, -0.25, 0.01), (3,))),
        )
        for clamp in (Activation.RELU, Activation.RELU6, Activation.RELU_N1_TO_1)
    ),
    _case("add", "scales_apart", Data((1, 33), -1e-3, 1e-3), Data((1, 33), -100.0, 50.0)),
    _case("sub", "scales_apart", Data((1, 33), -100.0, 50.0), Data((1, 33), -1e-3, 1e-3)),
    _case("mul", "scales_apart", Data((1, 33), -1e-4, 0.0), Data((1, 33), -1000.0, 500.0)),
    _case("add", "one_sided", Data((31,), 0.0, 6.0), Data((31,), -6.0, 0.0)),
    _case("div", "image", Data(_IMAGE), Data(_IMAGE, 0.25, 4.0)),
    _case("div", "channels", Data(_IMAGE, -4.0, 2.0), _DIVISOR, activation=Activation.RELU),
    _case("div", "numerator", Data((1,), 0.5, 1.0), Data((9,), 0.5, 8.0)),
)
