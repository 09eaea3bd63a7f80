"""OneHot: adds an axis that has the on value at each index and the off value elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ops.case import Case, Constant, Data
from smelt.ops.constraints import arrays, operands, same_quant


@dataclass(frozen=True)
class OneHot(Op):
    """Inputs: `values`, a vector of the off value and the on value; and `indices`, of any shape.

    The output has an additional axis of size `depth` at position `axis`. A negative index counts
    from the end of that axis. For an index out of range, all elements are the off value. Indices
    are integers, float32 or float64; floats are rounded towards zero.
    """

    depth: int
    axis: int

    moves_data = True
    chooses_by = (1,)

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        values, indices = operands(self, inputs, 2)
        if values.shape != (2,) or self.depth < 0 or not 0 <= self.axis <= len(indices.shape):
            reason = (
                f"the off and on values must be a vector of 2 elements, not {values}"
                if values.shape != (2,)
                else f"depth {self.depth} is negative"
                if self.depth < 0
                else f"axis {self.axis} is not from 0 to {len(indices.shape)}"
            )
            raise ModelError(f"OneHot of indices {indices}: {reason}")
        if indices.dtype in (DType.BOOL, DType.FLOAT16):
            raise ModelError(
                f"OneHot does not support indices {indices}; use integers, float32 or float64"
            )
        shape = (*indices.shape[: self.axis], self.depth, *indices.shape[self.axis :])
        return (TensorType(shape, values.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the off and on values."""
        return operands(self, inputs, 1)[0].quant

    @override
    def check(self, node: Node) -> None:
        same_quant(node)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        values, indices = arrays(node, inputs, 2)
        shape = [1] * len(node.output.type.shape)
        shape[self.axis] = self.depth
        places = np.expand_dims(_places(indices, self.depth), self.axis)
        hot: Array = places == np.arange(self.depth).reshape(shape)
        return (np.where(hot, values[1:], values[:1]),)

    def objection(self, node: Node) -> str | None:
        """Return an objection if the indices are real numbers, which cannot be quantized."""
        real = node.input(1).type.dtype is DType.FLOAT32
        return "the indices of OneHot are real numbers" if real else None

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return True, because each row of the output depends only on the indices of that row."""
        return True


def _places(indices: Array, depth: int) -> Array:
    """Return the position (int64) of each index; for an index out of range, one out of range."""
    if indices.dtype.kind == "f":
        whole = np.nan_to_num(np.trunc(indices.astype(np.float64)), nan=depth)
        places = np.clip(whole, -depth - 1, depth).astype(np.int64)
    elif indices.dtype.kind == "u":
        places = np.minimum(indices.astype(np.uint64), np.uint64(depth)).astype(np.int64)
    else:
        places = indices.astype(np.int64)
    return np.asarray(np.where(places < 0, places + depth, places))


_VALUES = Data((2,))

CASES = (
    Case("last", OneHot(5, 1), (_VALUES, Data((7,), -7, 7, DType.INT64))),
    Case("first", OneHot(4, 0), (_VALUES, Data((3, 2), -4, 3, DType.INT32))),
    Case("middle", OneHot(3, 1), (_VALUES, Data((2, 5), 0, 2, DType.UINT8))),
    Case("real", OneHot(4, 1), (_VALUES, Data((9,), -6, 6, DType.FLOAT32))),
    Case("wide", OneHot(3, 0), (_VALUES, Data((4,), 0, 5, DType.UINT64))),
    Case("zeros", OneHot(6, 1), (Constant((0, 1), (2,)), Data((5,), 0, 5, DType.INT64))),
    Case("scalar", OneHot(6, 0), (_VALUES, Data((), 0, 5, DType.INT64))),
)
