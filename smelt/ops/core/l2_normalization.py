"""L2Normalization: scales vectors to length 1.

The integer arithmetic is that of TensorFlow Lite Micro's reference kernel of L2_NORMALIZATION.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError, UnsupportedError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ir.budget import OPERATOR
from smelt.ops.arithmetic.fixed_point import multiply_by_quantized_multiplier
from smelt.ops.arithmetic.gemmlowp import inverse_sqrt
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, operands, quantized, tflm_rounding

_OUTPUT = Quant.per_tensor(1 / 128)
_OUTPUT_BITS = 7

_DEPTH_LIMIT = 1 << 15
"""The sum of fewer squares than this fits in int32: |int8 number - zero point| is at most 255."""


@dataclass(frozen=True)
class L2Normalization(Op):
    """`x` divided by the square root of the sum of its squares along the last axis.

    For floats, the divisor is at least `least`.
    """

    least: float = 1e-6

    settles = True

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        (x,) = operands(self, inputs, 1)
        if not x.shape or (x.quant is None and not x.dtype.is_float):
            raise ModelError(
                f"{self.name} needs a tensor of floats or quantized data with at least one axis, "
                f"got {x}"
            )
        return (TensorType(x.shape, x.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the fixed quantization of int8 outputs, with range [-1, 1)."""
        return _OUTPUT if operands(self, inputs, 1)[0].dtype is DType.INT8 else None

    @override
    def check(self, node: Node) -> None:
        if not quantized(node, (DType.INT8,)):
            return
        tflm_rounding(node)
        x, y = node.input(0).type, node.output.type
        if (y.scale, y.zero_point) != _OUTPUT.scalar:
            raise ModelError(
                f"{node.origin}: the output of {self.name} must have scale 1/128 and zero point 0, "
                f"not {y.scale} and {y.zero_point}"
            )
        if x.shape[-1] >= _DEPTH_LIMIT:
            raise UnsupportedError(
                f"{node.origin}: the sum of {x.shape[-1]} squares of int8 numbers may exceed 32 "
                f"bits; {self.name} supports fewer than {_DEPTH_LIMIT}. Keep this operator in float"
            )

    def overhead(self, node: Node) -> int:
        """Return the cost of the integer square roots: at most one for each vector."""
        x = node.input(0).type
        return 8 * OPERATOR * x.size // x.shape[-1] if x.is_quantized and x.size else 0

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        y = node.output.type
        if y.quant is None:
            real = x.astype(np.float64)
            norm = np.sqrt(np.square(real).sum(axis=-1, keepdims=True))
            return ((real / np.maximum(norm, float(np.float32(self.least)))).astype(x.dtype),)
        centered = x.astype(np.int64) - node.input(0).type.zero_point
        sums, which = np.unique(np.square(centered).sum(axis=-1), return_inverse=True)
        found = np.array([inverse_sqrt(int(total)) for total in sums], np.int64).reshape(-1, 2)
        factors = found[which.reshape(x.shape[:-1])]
        multiplier, shift = factors[..., :1], factors[..., 1:] + _OUTPUT_BITS
        scaled = multiply_by_quantized_multiplier(centered, multiplier, shift)
        return (np.clip(scaled, *y.dtype.limits).astype(y.dtype.numpy),)


CASES = tuple(
    Case(name, L2Normalization(), (Data(shape, low, high),))
    for name, shape, low, high in (
        ("rows", (5, 16), -1.0, 1.0),
        ("image", (1, 3, 4, 7), -3.0, 5.0),
        ("single", (9, 1), -1.0, 1.0),
        ("vector", (130,), -2.0, 1.0),
        ("positive", (4, 6), 0.0, 3.0),
        ("wide", (2, 700), -4.0, 4.0),
    )
)
