"""Binary elementwise operators, in a table with one row for each kind.

`binary_integer` has the integer arithmetic of quantized tensors, `binary_plain` the arithmetic of
floats and unquantized integers. Broadcasting follows numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, Rounding, TensorType
from smelt.ir.channels import Bounds
from smelt.ir.homogeneity import Homogeneity, in_place
from smelt.ops.arithmetic.fixed_point import (
    Activation,
    clamp_limits,
    dequantize_onnx,
    quantize_onnx,
)
from smelt.ops.case import Case, Constant, Data, onnx_cases
from smelt.ops.constraints import (
    arrays,
    operands,
    quantized,
    requantizing_rounding,
    same_dtype,
    same_quant,
    symmetric_int16,
)
from smelt.ops.core import binary_integer as integer
from smelt.ops.core import binary_plain as plain
from smelt.ops.core.channel_rules import MonotonicChannels, at_bound, levels

_INT8, _INT8_INT16 = (DType.INT8,), (DType.INT8, DType.INT16)
_FLOATS = frozenset(d for d in DType if d.is_float)
_INTEGERS = frozenset(d for d in DType if d.is_integer)
_NUMBERS = _FLOATS | _INTEGERS
_BOOL = frozenset({DType.BOOL})


@dataclass(frozen=True)
class BinaryKind:
    """A row of the table.

    Attributes:
        real: computes floats (as float64) and unquantized integers.
        integer: computes quantized tensors; None if they are not supported.
        dtypes: the supported element types of quantized tensors.
        rescales: False if the result is one of the stored operands, so that nothing is rescaled.
        serves: the element types that `real` supports.
        compares: whether the result is bool.
    """

    real: Callable[[Array, Array], Array]
    integer: integer.BinaryArithmetic | None = None
    dtypes: tuple[DType, ...] = ()
    rescales: bool = True
    serves: frozenset[DType] = _NUMBERS
    compares: bool = False


def _comparison(real: Callable[[Array, Array], Array], serves: frozenset[DType]) -> BinaryKind:
    return BinaryKind(real, serves=serves, compares=True)


def _bitwise(real: Callable[[Array, Array], Array]) -> BinaryKind:
    return BinaryKind(real, serves=_INTEGERS | _BOOL)


BINARY: dict[str, BinaryKind] = {
    "add": BinaryKind(np.add, integer.add, _INT8_INT16),
    "sub": BinaryKind(np.subtract, integer.sub, _INT8_INT16),
    "mul": BinaryKind(np.multiply, integer.mul, _INT8_INT16),
    "div": BinaryKind(plain.divide, integer.div, _INT8),
    "maximum": BinaryKind(np.maximum, integer.maximum, _INT8_INT16, rescales=False),
    "minimum": BinaryKind(np.minimum, integer.minimum, _INT8_INT16, rescales=False),
    "squared_difference": BinaryKind(
        plain.square_of_difference, integer.squared_difference, _INT8_INT16
    ),
    "pow": BinaryKind(plain.power),
    "floor_div": BinaryKind(plain.floor_divide),
    "mod": BinaryKind(plain.modulo),
    "fmod": BinaryKind(plain.remainder),
    "shift_left": BinaryKind(plain.shift_left, serves=_INTEGERS),
    "shift_right": BinaryKind(plain.shift_right, serves=_INTEGERS),
    "and": _bitwise(np.bitwise_and),
    "or": _bitwise(np.bitwise_or),
    "xor": _bitwise(np.bitwise_xor),
    "equal": _comparison(np.equal, _NUMBERS | _BOOL),
    "greater": _comparison(np.greater, _NUMBERS),
    "greater_equal": _comparison(np.greater_equal, _NUMBERS),
    "less": _comparison(np.less, _NUMBERS),
    "less_equal": _comparison(np.less_equal, _NUMBERS),
}


class BinaryChannels(MonotonicChannels["Binary"]):
    """Channel rule: bounds of the result are found by trying the bounds of both operands."""

    def serves(self, node: Node[Binary]) -> bool:
        """Return whether the result is monotonic in each operand."""
        return node.op.kind in ("add", "sub", "mul", "maximum", "minimum")

    def corners(
        self, node: Node[Binary], operands: Sequence[Bounds | None]
    ) -> Iterator[Sequence[Array | None]]:
        """Yield every combination of lower and upper bounds of the operands."""
        pairs = [(v, b) for v, b in zip(node.inputs, operands, strict=True) if v and b]
        for ends in product((False, True), repeat=len(pairs)):
            yield [at_bound(v, b, end) for (v, b), end in zip(pairs, ends, strict=True)]

    def magnitude(self, node: Node[Binary]) -> float:
        """Return a bound of the results' magnitude; that of a product includes both operands."""
        magnitude, other = super().magnitude(node), node.input(1).type
        return magnitude * (other.scale * levels(other)) if node.op.kind == "mul" else magnitude


_ARITHMETIC = ("add", "sub", "mul", "div", "maximum", "minimum", "squared_difference")
"""Kinds with a result that kernels can clamp."""


@dataclass(frozen=True)
class Binary(Op):
    """Two tensors of one element type, broadcast to each other; `kind` is a key of `BINARY`."""

    kind: str
    activation: Activation = Activation.NONE

    elementwise = True
    sixteen_bits = True
    channel_rule = BinaryChannels()

    @property
    def fused_activation(self) -> Activation | None:
        """The clamp at the end; only arithmetic kinds have one."""
        return self.activation if self.kind in _ARITHMETIC else None

    @override
    def with_activation(self, activation: Activation) -> Op:
        return replace(self, activation=activation)

    @property
    @override
    def name(self) -> str:
        return f"Binary({self.kind})"

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        if self.kind not in BINARY:
            raise ModelError(
                f"there is no binary operator '{self.kind}'; the kinds are "
                f"{', '.join(sorted(BINARY))}"
            )
        a, b = operands(self, inputs, 2)
        dtype = same_dtype(self, (a, b))
        row = BINARY[self.kind]
        if dtype not in row.serves:
            names = ", ".join(d.value for d in DType if d in row.serves)
            raise ModelError(
                f"{self.name} does not support element type {dtype.value} (operands {a} and {b}); "
                f"it supports {names}"
            )
        result = DType.BOOL if row.compares else dtype
        if result is DType.BOOL and self.activation is not Activation.NONE:
            raise ModelError(
                f"{self.name} has a bool result, which cannot be clamped by activation "
                f"'{self.activation.value}'"
            )
        try:
            shape = np.broadcast_shapes(a.shape, b.shape)
        except ValueError as error:
            raise ModelError(f"{self.name} cannot broadcast {a} with {b}") from error
        return (TensorType(shape, result),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the first input if the result is one of the inputs."""
        a = operands(self, inputs, 2)[0]
        return None if BINARY[self.kind].rescales else a.quant

    @override
    def check(self, node: Node) -> None:
        row = BINARY[self.kind]
        if not quantized(node, row.dtypes, 2):
            return
        symmetric_int16(node, 2)
        if not row.rescales:
            same_quant(node, 2)
            return
        if requantizing_rounding(node) is Rounding.ONNX:
            return
        a, b, y = node.input(0).type, node.input(1).type, node.output.type
        # With larger scales the sum's multiplier would exceed 1, which is not supported.
        limit = y.scale * (2.0**14 if y.dtype is DType.INT16 else 2.0**19)
        if self.kind in ("add", "sub") and max(a.scale, b.scale) >= limit:
            raise ModelError(
                f"{node.origin}: input scales {a.scale} and {b.scale} are too large for output "
                f"scale {y.scale}; they must be below {limit:.7g}"
            )

    def overhead(self, node: Node) -> int:
        """Return 16 operations per element for powers, which multiply once per exponent bit."""
        return 16 * node.output.type.size if self.kind == "pow" else 0

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        a, b = arrays(node, inputs, 2)
        y, row = node.output.type, BINARY[self.kind]
        if y.quant is None:
            return (self._unquantized(a, b, y),)
        x0, x1 = node.input(0).type, node.input(1).type
        if node.rounding is Rounding.ONNX and row.rescales:
            return (self._onnx(node, a, b),)
        centered = (a.astype(np.int64) - x0.zero_point, b.astype(np.int64) - x1.zero_point)
        if row.integer is None:
            raise ValueError(f"{self.name} of quantized data")
        result = row.integer(*centered, x0, x1, y) + y.zero_point
        clamped = np.clip(result, *clamp_limits(self.activation, y))
        return (np.asarray(clamped, y.dtype.numpy),)

    def _onnx(self, node: Node, a: Array, b: Array) -> Array:
        """Dequantize, compute in float32, and quantize."""
        x0, x1, y = node.input(0).type.quant, node.input(1).type.quant, node.output.type
        if x0 is None or x1 is None or y.quant is None:
            raise ModelError(f"{node.origin}: {self.name} needs quantized operands")
        left, right = dequantize_onnx(a, x0), dequantize_onnx(b, x1)
        with np.errstate(all="ignore"):
            real = BINARY[self.kind].real(left, right)
        stored = quantize_onnx(real, y.quant, y)
        return np.clip(stored, *clamp_limits(self.activation, y, node.rounding))

    def _unquantized(self, a: Array, b: Array, y: TensorType) -> Array:
        if a.dtype.kind == "f":
            a, b = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(all="ignore"):
            result = BINARY[self.kind].real(a, b)
            if self.activation is Activation.NONE:
                return np.asarray(result, y.dtype.numpy)
            low, high = self.activation.limits
            if y.dtype.is_integer:
                low, high = max(low, y.dtype.limits[0]), min(high, y.dtype.limits[1])
            return np.asarray(np.clip(result, low, high), y.dtype.numpy)

    @override
    def selects(self, node: Node) -> int:
        """Return 2 for maximum and minimum, as their result is one of the two operands."""
        chooses = self.kind in ("maximum", "minimum") and self.activation is Activation.NONE
        return 2 if chooses else 0

    def homogeneity(self, node: Node) -> Sequence[Homogeneity]:
        """Return how factors propagate.

        In sums, both terms must have the same factors, so constant terms are scaled. A constant of
        one element cannot be scaled per channel, unless it is 0. In products and in quotients with
        a constant divisor, one operand has the factors.
        """
        if not self.activation.is_homogeneous:
            return ()
        constants = tuple(i for i in (0, 1) if node.input(i).is_constant)
        links = in_place(node, (i for i in (0, 1) if i not in constants))
        if self.kind in ("add", "sub", "maximum", "minimum"):
            whole = (v for v in map(node.input, constants) if v.type.size == 1)
            free = not any(v.array.any() for v in whole)
            return (Homogeneity(links, scaled=constants),) if free else ()
        if self.kind == "mul" and not constants:
            return tuple(Homogeneity([link], fixed=(1 - link.operand,)) for link in links)
        divides = self.kind == "div" and 1 in constants
        return (Homogeneity(links),) if self.kind == "mul" or divides else ()

    def grows(self, node: Node) -> bool:
        """Return whether the operator squares its operand."""
        square = self.kind == "mul" and node.input(0) is node.input(1)
        return square or self.kind == "squared_difference"


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


_ROW, _COLUMN = (1, 4), (5, 3, 1)
_SAMPLES = frozenset(
    {DType.FLOAT32, DType.FLOAT64, DType.INT8, DType.UINT8, DType.INT32, DType.UINT64, DType.BOOL}
)
_WHOLE = (-(2.0**63), 2.0**64)
"""Beyond the range of every integer type, so that cases use the whole range of each type."""


def _plain_case(
    kind: str,
    name: str,
    a: tuple[float, float],
    b: tuple[float, float],
    dtypes: frozenset[DType] | None = None,
) -> Case:
    """Return a case for floats, unquantized integers and bool, as far as the kind supports them."""
    served = BINARY[kind].serves & _SAMPLES if dtypes is None else dtypes
    return Case(
        f"{kind}_{name}",
        Binary(kind),
        (Data(_COLUMN, *a), Data(_ROW, *b)),
        tuple(d for d in DType if d in served),
        plain=True,
    )


def _plain_cases() -> Iterator[Case]:
    for kind, row in BINARY.items():
        if row.compares:
            yield _plain_case(kind, "near", (-2.0, 2.0), (-2.0, 2.0))
        yield _plain_case(kind, "whole", _WHOLE, _WHOLE, row.serves & _INTEGERS)
    yield _plain_case("pow", "real", (0.0, 4.0), (-2.0, 3.0), _SAMPLES & _FLOATS)
    yield _plain_case("pow", "small", (-4.0, 4.0), (-2.0, 3.0), _SAMPLES & _INTEGERS)
    for kind in ("div", "floor_div", "mod", "fmod"):
        yield _plain_case(kind, "small", (-9.0, 9.0), (-4.0, 4.0), _SAMPLES & _INTEGERS)
    for kind in ("floor_div", "mod", "fmod"):
        yield _plain_case(kind, "real", (-9.0, 9.0), (0.75, 4.0), _SAMPLES & _FLOATS)
    for kind in ("shift_left", "shift_right"):
        yield _plain_case(kind, "inside", _WHOLE, (-2.0, 9.0))
    for kind in ("and", "or", "xor"):
        yield _plain_case(kind, "truth", (0.0, 1.0), (0.0, 1.0), _BOOL)


_IMAGE = (1, 4, 3, 5)
_DIVISOR = Data((1, 1, 1, 5), 0.5, 2.0)
_CASES = (
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
    *_plain_cases(),
)
CASES = _CASES + onnx_cases(
    _CASES,
    "add_image",
    "add_channels",
    "add_scales_apart",
    "add_constant_relu6",
    "sub_image",
    "mul_image",
    "mul_constant_relu",
    "maximum_image",
    "div_image",
    "squared_difference_both_ways",
)
