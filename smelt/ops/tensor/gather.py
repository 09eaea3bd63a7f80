"""Gather, GatherElements and GatherND: elements selected by indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ir.axes import Axes, reduced, same_axes
from smelt.ops.case import Case, Constant, Data
from smelt.ops.constraints import arrays, axis_in_range, operands, same_quant
from smelt.ops.tensor.indices import positions, require_elements, require_indices


@dataclass(frozen=True)
class _GatherOp(Op):
    """Inputs: the data, and indices (int32 or int64; see `smelt.ops.tensor.indices`)."""

    moves_data = True
    chooses_by = (1,)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the data."""
        return operands(self, inputs, 1)[0].quant

    @override
    def check(self, node: Node) -> None:
        same_quant(node)


@dataclass(frozen=True)
class Gather(_GatherOp):
    """Slices of the data along `axis`, selected by indices of any shape.

    The first `batch_dims` axes of data and indices are the same axes. In the result, the other
    axes of the indices replace `axis`.
    """

    axis: int = 0
    batch_dims: int = 0

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, indices = operands(self, inputs, 2)
        require_indices(self, indices)
        axis_in_range(self, self.axis, len(x.shape))
        batch = self.batch_dims
        if not 0 <= batch <= self.axis or x.shape[:batch] != indices.shape[:batch]:
            raise ModelError(
                f"Gather along axis {self.axis} of {x} by indices {indices} cannot have {batch} "
                "batch dimensions: these must be equal in both, and come before the axis"
            )
        require_elements(self, indices, x.shape[self.axis])
        shape = (*x.shape[: self.axis], *indices.shape[batch:], *x.shape[self.axis + 1 :])
        return (TensorType(shape, x.dtype),)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, indices = arrays(node, inputs, 2)
        where = positions(indices, x.shape[self.axis])
        if not self.batch_dims:
            return (x.take(where, self.axis),)
        batch = x.shape[: self.batch_dims]
        rows = x.reshape(-1, *x.shape[self.batch_dims :])
        per_row = where.reshape(rows.shape[0], *where.shape[self.batch_dims :])
        taken = [
            row.take(own, self.axis - self.batch_dims)
            for row, own in zip(rows, per_row, strict=True)
        ]
        if not taken:
            return (np.zeros(node.output.type.shape, x.dtype),)
        return (np.stack(taken).reshape(*batch, *taken[0].shape),)

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether rows are selected as a whole, or each index is a row of the result."""
        return axes[0] != self.axis and (axes[0] is None or axes[1] is None)

    def axes_rule(self, node: Node) -> Axes | None:
        """Return the correspondence of axes for a vector of indices, or one index; else None."""
        rank = len(node.input(1).type.shape)
        if self.batch_dims or rank > 1:
            return None
        gone = () if rank else (self.axis,)
        return reduced(node, gone, lambda o: replace(self, axis=o.index(self.axis)), (None,))


@dataclass(frozen=True)
class GatherElements(_GatherOp):
    """An element for each index: from the index's own position, except along `axis`.

    The output has the indices' shape. Along the other axes, it must not exceed that of the data.
    """

    axis: int = 0

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, indices = operands(self, inputs, 2)
        require_indices(self, indices)
        axis_in_range(self, self.axis, len(x.shape))
        require_within(self, x, indices, self.axis)
        return (TensorType(indices.shape, x.dtype),)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, indices = arrays(node, inputs, 2)
        return (x[element_positions(indices, x.shape, self.axis)],)

    def axes_rule(self, node: Node) -> Axes:
        """Return that data and indices have the same axes."""
        return same_axes(node, lambda order: replace(self, axis=order.index(self.axis)))


@dataclass(frozen=True)
class GatherND(_GatherOp):
    """Slices of the data; each row of the last axis of `indices` is the position of one.

    The first `batch_dims` axes of data and indices are the same axes.
    """

    batch_dims: int = 0

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, indices = operands(self, inputs, 2)
        require_indices(self, indices)
        batch = self.batch_dims
        if not 0 <= batch < len(indices.shape) or indices.shape[-1] == 0:
            raise ModelError(
                f"GatherND has indices {indices} and {batch} batch dimensions; the indices need "
                "more axes than that, and a last axis that is not empty"
            )
        depth = indices.shape[-1]
        if x.shape[:batch] != indices.shape[:batch] or batch + depth > len(x.shape):
            raise ModelError(
                f"GatherND of {x} by indices {indices} with {batch} batch dimensions: these must "
                f"be equal in both, and be followed by at least {depth} axes of the data"
            )
        for size in x.shape[batch : batch + depth]:
            require_elements(self, indices, size)
        return (TensorType((*indices.shape[:-1], *x.shape[batch + depth :]), x.dtype),)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, indices = arrays(node, inputs, 2)
        own = np.indices(indices.shape[:-1])[: self.batch_dims]
        return (x[(*own, *tuple_positions(indices, x.shape[self.batch_dims :]))],)


def require_within(op: Op, x: TensorType, indices: TensorType, axis: int) -> None:
    """Raise `ModelError` unless the shape of indices of single elements fits data of type `x`."""
    fits = len(indices.shape) == len(x.shape) and all(
        own <= size or i == axis
        for i, (own, size) in enumerate(zip(indices.shape, x.shape, strict=True))
    )
    if not fits:
        raise ModelError(
            f"{op.name} along axis {axis} of {x} cannot have indices {indices}: along the other "
            "axes, they must not be larger than the data"
        )
    require_elements(op, indices, x.shape[axis])


def element_positions(indices: Array, shape: Sequence[int], axis: int) -> tuple[Array, ...]:
    """Return the numpy index of the elements that indices along `axis` select."""
    found = positions(indices, shape[axis])
    own = np.indices(indices.shape)
    return tuple(found if i == axis else own[i] for i in range(indices.ndim))


def tuple_positions(indices: Array, shape: Sequence[int]) -> tuple[Array, ...]:
    """Return the numpy index from the last axis of `indices`, for the first axes of `shape`."""
    return tuple(positions(indices[..., i], shape[i]) for i in range(indices.shape[-1]))


def _indices(shape: tuple[int, ...], size: int, dtype: DType = DType.INT64) -> Data:
    return Data(shape, -size, size - 1, dtype)


CASES = (
    Case("rows", Gather(0), (Data((5, 3)), _indices((4,), 5))),
    Case("columns", Gather(1), (Data((2, 5)), _indices((3,), 5, DType.INT32))),
    Case("middle", Gather(1), (Data((2, 4, 3)), _indices((2, 2), 4))),
    Case("scalar", Gather(1), (Data((2, 4, 3)), _indices((), 4))),
    Case("vector", Gather(0), (Data((7,)), _indices((2, 3), 7, DType.INT32))),
    Case("batch", Gather(1, 1), (Data((2, 4, 3)), _indices((2, 5), 4))),
    Case("batch_skipping", Gather(2, 1), (Data((2, 3, 4)), _indices((2, 2), 4, DType.INT32))),
    Case("outside", Gather(0), (Data((4, 2)), Data((6,), -9, 9, DType.INT64))),
    Case("constant", Gather(0), (Data((5, 2)), Constant((3, -1, 0, 3), (4,), DType.INT64))),
    Case("from_table", Gather(0), (Constant((0.5, -1, 1, 0.25), (2, 2)), _indices((3,), 2))),
    Case("rows", GatherElements(0), (Data((3, 4)), _indices((5, 4), 3))),
    Case("columns", GatherElements(1), (Data((3, 4)), _indices((2, 6), 4, DType.INT32))),
    Case("part", GatherElements(1), (Data((3, 4, 5)), _indices((2, 3, 4), 4))),
    Case("outside", GatherElements(0), (Data((4,)), Data((6,), -9, 9, DType.INT32))),
    Case("slices", GatherND(), (Data((3, 4, 2)), Data((5, 2), -3, 2, DType.INT64))),
    Case("elements", GatherND(), (Data((3, 3)), Data((2, 2, 2), -3, 2, DType.INT32))),
    Case("batch", GatherND(1), (Data((2, 4, 3)), _indices((2, 3, 1), 4))),
    Case("outside", GatherND(), (Data((3, 2)), Data((4, 2), -9, 9, DType.INT64))),
)
