"""ArgReduce: the index of the largest or smallest element along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, TensorType
from smelt.ir.axes import Axes, reduced
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, axis_in_range, operands
from smelt.ops.tensor.indices import INDEX_TYPES


@dataclass(frozen=True)
class ArgReduce(Op):
    """The index of the largest or smallest element (`kind` "max" or "min") along `axis`.

    `index` is the element type of the result.


    If several elements are equal, the result is the index of the first or, with `last`, of the
    last. NaN counts as more extreme than any number. With `keep_dims`, the axis stays with size 1.
    """

    kind: str
    axis: int
    keep_dims: bool = True
    last: bool = False
    index: DType = DType.INT64

    index_outputs = (0,)

    @property
    def name(self) -> str:
        """The operator's name with its kind."""
        return f"ArgReduce({self.kind})"

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        (x,) = operands(self, inputs, 1)
        axis_in_range(self, self.axis, len(x.shape))
        if self.kind not in ("max", "min") or self.index not in INDEX_TYPES:
            raise ModelError(
                f"ArgReduce has kind '{self.kind}' and indices of {self.index.value}; supported "
                f"are kinds 'max' and 'min' and indices of "
                f"{' or '.join(d.value for d in INDEX_TYPES)}"
            )
        if x.shape[self.axis] == 0:
            raise ModelError(f"{self.name}: axis {self.axis} of {x} has no elements to search")
        kept = (1,) if self.keep_dims else ()
        shape = (*x.shape[: self.axis], *kept, *x.shape[self.axis + 1 :])
        return (TensorType(shape, self.index),)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        find = np.argmax if self.kind == "max" else np.argmin
        if self.last:
            found = x.shape[self.axis] - 1 - find(np.flip(x, self.axis), self.axis)
        else:
            found = find(x, self.axis)
        if self.keep_dims:
            found = np.expand_dims(found, self.axis)
        return (np.asarray(found, self.index.numpy),)

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether rows lie along another axis than the one that is searched."""
        return axes[0] != self.axis

    def axes_rule(self, node: Node) -> Axes:
        """Return the correspondence of axes; without `keep_dims`, the result lacks one axis."""
        gone = () if self.keep_dims else (self.axis,)
        return reduced(node, gone, lambda order: replace(self, axis=order.index(self.axis)))


_TYPES = (DType.FLOAT32, DType.INT8)
_INTEGERS = (DType.INT8, DType.UINT8, DType.INT32, DType.UINT32, DType.INT64)

CASES = (
    Case("classes", ArgReduce("max", 1), (Data((2, 10)),), _TYPES),
    Case("least", ArgReduce("min", 1, keep_dims=False), (Data((3, 7)),), _TYPES),
    Case("columns", ArgReduce("max", 0, keep_dims=False), (Data((6, 5)),), _TYPES),
    Case("middle", ArgReduce("min", 1), (Data((2, 5, 3)),), _TYPES),
    Case("scalar", ArgReduce("max", 0, False, index=DType.INT32), (Data((9,)),), _TYPES),
    Case("first", ArgReduce("max", 1), (Data((3, 12), 0, 2),), _INTEGERS, plain=True),
    Case("last", ArgReduce("max", 1, last=True), (Data((3, 12), 0, 2),), _INTEGERS, plain=True),
    Case(
        "last_least", ArgReduce("min", 0, last=True), (Data((9, 4), 0, 2),), _INTEGERS, plain=True
    ),
)
