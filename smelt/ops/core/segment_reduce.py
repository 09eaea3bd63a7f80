"""SegmentReduce: sum, product or extremum of the elements of each segment along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, TensorType
from smelt.ir.axes import Axes, of_first
from smelt.ir.homogeneity import Homogeneity, in_place, together
from smelt.ops.case import Case, Constant, Data
from smelt.ops.constraints import arrays, axis_in_range, operands, quantized
from smelt.ops.tensor.indices import require_indices

_UFUNCS: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


@dataclass(frozen=True)
class SegmentReduce(Op):
    """Reduction by segment. Inputs: the data, and a segment's index for each place along `axis`.

    Indices are int32 or int64. In the result, the axis has a place for each of the `segments`: the
    sum, product or extremum (`kind`) of the segment's elements. Elements with an index outside of
    [0, segments) are ignored. For a segment without elements, a sum is 0, a product is 1, a maximum
    is the smallest finite number and a minimum the largest. Integers wrap.
    """

    kind: str
    segments: int
    axis: int = 0

    @property
    @override
    def name(self) -> str:
        return f"SegmentReduce({self.kind})"

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, indices = operands(self, inputs, 2)
        if self.kind not in _UFUNCS:
            raise ModelError(
                f"there is no segment reduction '{self.kind}'; the kinds are "
                f"{', '.join(sorted(_UFUNCS))}"
            )
        if x.dtype is DType.BOOL or self.segments < 1:
            raise ModelError(
                f"{self.name} of {x} into {self.segments} segments: the data must not be bool, "
                "and there must be at least 1 segment"
            )
        axis_in_range(self, self.axis, len(x.shape))
        require_indices(self, indices)
        if indices.shape != x.shape[self.axis : self.axis + 1]:
            raise ModelError(
                f"{self.name} along axis {self.axis} of {x} has indices {indices}; it needs one "
                f"for each of the {x.shape[self.axis]} elements of that axis"
            )
        shape = (*x.shape[: self.axis], self.segments, *x.shape[self.axis + 1 :])
        return (TensorType(shape, x.dtype),)

    @override
    def check(self, node: Node) -> None:
        quantized(node, ())

    def overhead(self, node: Node) -> int:
        """Return the elements that are copied to double precision: operand and result."""
        return node.input(0).type.size + node.output.type.size

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, indices = arrays(node, inputs, 2)
        dtype = node.output.type.dtype
        wide = np.float64 if dtype.is_float else dtype.numpy
        result = np.full(node.output.type.shape, self.of_nothing(dtype), wide)
        inside = (indices >= 0) & (indices < self.segments)
        rows = np.moveaxis(x, self.axis, 0)[inside].astype(wide)
        with np.errstate(all="ignore"):
            _UFUNCS[self.kind].at(np.moveaxis(result, self.axis, 0), indices[inside], rows)
            return (result.astype(dtype.numpy),)

    def of_nothing(self, dtype: DType) -> Array:
        """Return the result of a segment without elements, as an array without axes."""
        if self.kind in ("sum", "prod"):
            return np.asarray(int(self.kind == "prod"), dtype.numpy)
        range_ = np.finfo(dtype.numpy) if dtype.is_float else np.iinfo(dtype.numpy)
        return np.asarray(range_.min if self.kind == "max" else range_.max, dtype.numpy)

    def grows(self, node: Node) -> bool:
        """Return whether this is a sum or a product."""
        return self.kind in ("sum", "prod")

    def homogeneity(self, node: Node) -> Sequence[Homogeneity]:
        """Return how factors propagate through a sum; added channels share one factor."""
        if self.kind != "sum":
            return ()
        mixed = self.axis == len(node.input(0).type.shape) - 1
        return (Homogeneity(together(node) if mixed else in_place(node)),)

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether rows lie along an axis that is not reduced, and share their indices."""
        return axes[0] != self.axis and axes[1] is None

    def axes_rule(self, node: Node) -> Axes:
        """Return that data and result have the same axes."""
        return of_first(node, lambda order: replace(self, axis=order.index(self.axis)))


_FLOAT = (DType.FLOAT32,)
_INTEGERS = (DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.UINT32, DType.INT64)
_WHOLE = (-(2.0**63), 2.0**63)
_INDICES = Constant((3, 0, 2, 0, 1, 3), (6,), DType.INT32)
_GAPS = Constant((4, 1, -1, 1, 5, 4), (6,), DType.INT64)
"""Indices of five segments: some segments are empty, and some indices are out of range."""
_READ = Data((6,), -2, 5, DType.INT32)

CASES = tuple(
    Case(f"{kind}_{name}", SegmentReduce(kind, segments, axis), (x, indices), dtypes, plain=True)
    for kind in _UFUNCS
    for name, segments, axis, x, indices, dtypes in (
        ("rows", 4, 0, Data((6, 3)), _INDICES, _FLOAT),
        ("inner", 4, 1, Data((2, 6, 2, 3), -1.0, 3.0), _INDICES, _FLOAT),
        ("last", 4, 2, Data((2, 3, 6)), _INDICES, _FLOAT),
        ("vector", 4, 0, Data((6,)), _INDICES, (DType.FLOAT64,)),
        ("gaps", 5, 0, Data((6, 3)), _GAPS, _FLOAT),
        ("integers", 5, 1, Data((3, 6, 2), *_WHOLE), _GAPS, _INTEGERS),
        ("read", 5, 0, Data((6, 2), -9.0, 9.0), _READ, (DType.FLOAT32, DType.INT32)),
    )
)
