"""Cast: converts elements to another element type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, TensorType
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, operands


@dataclass(frozen=True)
class Cast(Op):
    """Each element converted to element type `to`; operand and result are not quantized.

    Floats become integers by truncation towards zero and saturation, and NaN becomes 0, as by
    Arm's instructions. Integers that do not fit wrap. As bool, everything but 0 is true.
    """

    to: DType

    elementwise = True
    converts = True

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        (x,) = operands(self, inputs, 1)
        if x.quant is not None:
            raise ModelError(f"Cast does not support quantized data ({x}); dequantize it first")
        return (TensorType(x.shape, self.to),)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        if x.dtype.kind == "f" and self.to.is_integer:
            return (_integers(x.astype(np.float64), self.to),)
        with np.errstate(over="ignore"):
            return (x.astype(self.to.numpy),)


def _integers(x: Array, to: DType) -> Array:
    least, greatest = to.limits
    inside = (x > least - 1) & (x < greatest + 1)
    # The limits are Python integers, because float64 cannot represent those of 64-bit types.
    beyond = np.where(x > 0, np.array(greatest, to.numpy), np.array(least, to.numpy))
    stored = np.where(inside, np.trunc(np.where(inside, x, 0)), 0).astype(to.numpy)
    return np.where(inside, stored, np.where(np.isnan(x), np.array(0, to.numpy), beyond))


_SERVED = tuple(d for d in DType if d is not DType.FLOAT16)
_SOURCES = (
    ("near", (-3.0, 3.0), (DType.FLOAT32, DType.FLOAT64, DType.INT8, DType.UINT16, DType.BOOL)),
    ("bytes", (-300.0, 300.0), (DType.FLOAT32, DType.INT16)),
    ("words", (-5e9, 5e9), (DType.FLOAT32, DType.INT64)),
    ("wide", (-4e19, 4e19), (DType.FLOAT32, DType.UINT64)),
)
CASES = tuple(
    Case(f"{to.value}_{name}", Cast(to), (Data((3, 11), low, high),), dtypes, plain=True)
    for to in _SERVED
    for name, (low, high), dtypes in _SOURCES
)
