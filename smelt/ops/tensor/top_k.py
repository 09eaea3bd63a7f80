"""TopK: the largest or smallest elements along an axis, in order, and their indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ir.axes import Axes, same_axes
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, axis_in_range, operands, same_quant
from smelt.ops.tensor.indices import INDEX_TYPES


@dataclass(frozen=True)
class TopK(Op):
    """The first `k` elements along `axis`, in descending order if `largest`, else ascending.

    Among equal elements, the one with the lower index comes first. The second output is the
    indices, of element type `index`.
    """

    k: int
    axis: int
    largest: bool = True
    index: DType = DType.INT64

    index_outputs = (1,)

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        (x,) = operands(self, inputs, 1)
        axis_in_range(self, self.axis, len(x.shape))
        size = x.shape[self.axis]
        if not 0 <= self.k <= size:
            raise ModelError(
                f"TopK: k = {self.k} is not from 0 to {size}, the number of elements along axis "
                f"{self.axis} of {x}; use k <= {size}"
            )
        if self.index not in INDEX_TYPES:
            raise ModelError(f"TopK does not support indices of {self.index.value}; use i32 or i64")
        shape = (*x.shape[: self.axis], self.k, *x.shape[self.axis + 1 :])
        return TensorType(shape, x.dtype), TensorType(shape, self.index)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the input; the indices have none."""
        return operands(self, inputs, 1)[0].quant

    @override
    def check(self, node: Node) -> None:
        same_quant(node)

    def overhead(self, node: Node) -> int:
        """Return the cost of sorting the elements twice."""
        return 8 * node.input(0).type.size

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        # Ranks cannot overflow when they are negated, and the sort is stable.
        ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape)
        order = np.argsort(-ranks if self.largest else ranks, axis=self.axis, kind="stable")
        order = order.take(np.arange(self.k), self.axis)
        return np.take_along_axis(x, order, self.axis), order.astype(self.index.numpy)

    def axes_rule(self, node: Node) -> Axes:
        """Return that operand and results have the same axes."""
        return same_axes(node, lambda order: replace(self, axis=order.index(self.axis)))


_INTEGERS = (DType.INT8, DType.UINT8, DType.INT32, DType.INT64, DType.UINT64)

CASES = (
    Case("row", TopK(3, 0), (Data((9,)),), (DType.FLOAT32,)),
    Case("rows", TopK(5, 1), (Data((3, 40)),), (DType.FLOAT32,)),
    Case("columns", TopK(2, 0), (Data((6, 3)),), (DType.FLOAT32,)),
    Case("middle", TopK(4, 1), (Data((2, 7, 3)),), (DType.FLOAT32,)),
    Case("least", TopK(3, 1, largest=False), (Data((2, 8)),), (DType.FLOAT32,)),
    Case("one", TopK(1, 1), (Data((2, 8)),), (DType.FLOAT32,)),
    Case("everything", TopK(8, 1, index=DType.INT32), (Data((2, 8)),), (DType.FLOAT32,)),
    Case("equal", TopK(6, 1), (Data((2, 12), -1, 1),), _INTEGERS, plain=True),
    Case("equal_least", TopK(6, 0, largest=False), (Data((12, 2), 0, 3),), _INTEGERS, plain=True),
)
