"""ScatterElements, ScatterND and TensorScatter: data with elements replaced at given indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError, UnsupportedError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ir.budget import OPERATOR
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, axis_in_range, operands, same_dtype, same_quant
from smelt.ops.tensor.gather import element_positions, require_within, tuple_positions
from smelt.ops.tensor.indices import require_elements, require_indices

_UFUNCS: dict[str, Any] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}
REDUCTIONS = ("none", *_UFUNCS)
"""How an element is updated: `none` replaces it, the others combine it with the update."""


@dataclass(frozen=True)
class _Scatter(Op):
    """Inputs: the data, the updates, the indices (int32 or int64; see `smelt.ops.tensor.indices`).

    Updates are applied in row-major order: if several replace the same element, the last one is
    stored. Integers wrap.
    """

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the data."""
        return operands(self, inputs, 1)[0].quant

    @override
    def check(self, node: Node) -> None:
        same_quant(node, 2)
        reduction = getattr(self, "reduction", "none")
        if node.output.type.is_quantized and reduction in ("add", "mul"):
            raise UnsupportedError(
                f"{node.origin}: {self.name} of quantized data does not support reduction "
                f"'{reduction}'; keep this operator in float"
            )


def _require_reduction(op: Op, reduction: str, x: TensorType) -> None:
    if reduction not in REDUCTIONS:
        raise ModelError(
            f"{op.name} does not support reduction '{reduction}'; use {', '.join(REDUCTIONS)}"
        )
    if x.dtype is DType.BOOL and reduction != "none":
        raise ModelError(
            f"{op.name} of bool data does not support reduction '{reduction}'; use 'none'"
        )


def _updated(x: Array, where: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    """Return `x` with `updates` applied in order; float32 data is combined in float32."""
    result = x.copy()
    if reduction == "none":
        result[where] = updates
    else:
        _UFUNCS[reduction].at(result, where, updates)
    return result


@dataclass(frozen=True)
class ScatterElements(_Scatter):
    """Updates one element for each index, at the position of the index in its tensor.

    Only along `axis`, the element's position is the value of the index.
    """

    axis: int = 0
    reduction: str = "none"

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, updates, indices = operands(self, inputs, 3)
        require_indices(self, indices)
        axis_in_range(self, self.axis, len(x.shape))
        require_within(self, x, indices, self.axis)
        _require_reduction(self, self.reduction, x)
        if updates.shape != indices.shape:
            raise ModelError(
                f"{self.name} needs an update for each index, but updates are {updates} and "
                f"indices {indices}"
            )
        return (TensorType(x.shape, same_dtype(self, [x, updates])),)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, updates, indices = arrays(node, inputs, 3)
        where = element_positions(indices, x.shape, self.axis)
        return (_updated(x, where, updates, self.reduction),)


@dataclass(frozen=True)
class ScatterND(_Scatter):
    """Updates slices of the data. Each row of the last axis of `indices` is a slice's position."""

    reduction: str = "none"

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, updates, indices = operands(self, inputs, 3)
        require_indices(self, indices)
        _require_reduction(self, self.reduction, x)
        if not indices.shape or not 0 < indices.shape[-1] <= len(x.shape):
            raise ModelError(
                f"ScatterND into {x} has indices {indices}; their last axis must have from 1 to "
                f"{len(x.shape)} elements"
            )
        depth = indices.shape[-1]
        if updates.shape != (*indices.shape[:-1], *x.shape[depth:]):
            raise ModelError(
                f"ScatterND into {x} with indices {indices} has updates {updates}; their shape "
                f"must be {[*indices.shape[:-1], *x.shape[depth:]]}"
            )
        for size in x.shape[:depth]:
            require_elements(self, indices, size)
        return (TensorType(x.shape, same_dtype(self, [x, updates])),)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, updates, indices = arrays(node, inputs, 3)
        return (_updated(x, tuple_positions(indices, x.shape), updates, self.reduction),)


@dataclass(frozen=True)
class TensorScatter(_Scatter):
    """A cache into which `updates` are written along `axis`, from one index for each batch element.

    Batch elements are along axis 0. A `circular` cache takes indices modulo its length, and
    continues at its beginning. In a linear cache, an index from which the updates would not fit is
    moved to the last one from which they fit. Without indices, the updates start at 0.
    """

    axis: int
    circular: bool = False

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, updates = operands(self, inputs, 2)
        axis_in_range(self, self.axis, len(x.shape))
        length = updates.shape[self.axis] if len(updates.shape) == len(x.shape) else 0
        shape = (*x.shape[: self.axis], length, *x.shape[self.axis + 1 :])
        if self.axis == 0 or updates.shape != shape or length > x.shape[self.axis]:
            raise ModelError(
                f"TensorScatter along axis {self.axis} of {x} has updates {updates}; they must "
                "have its shape, with at most as many elements along this axis. The axis must not "
                "be 0"
            )
        indices = inputs[2] if len(inputs) > 2 else None
        if indices is not None:
            require_indices(self, indices)
            if indices.shape != x.shape[:1]:
                raise ModelError(
                    f"TensorScatter into {x} has indices {indices}; it needs one for each element "
                    "of axis 0"
                )
        return (TensorType(x.shape, same_dtype(self, [x, updates])),)

    def overhead(self, node: Node) -> int:
        """Return the cost of a Python loop over the batch."""
        return node.input(0).type.shape[0] * OPERATOR

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, updates = arrays(node, inputs, 2)
        indices = inputs[2] if len(inputs) > 2 else None
        result = x.copy()
        size, count = x.shape[self.axis], updates.shape[self.axis]
        begins = np.zeros(x.shape[0], np.int64) if indices is None else indices.astype(np.int64)
        begins = begins % max(size, 1) if self.circular else np.clip(begins, 0, size - count)
        for row, update, begin in zip(result, updates, begins, strict=True):
            along = (slice(None),) * (self.axis - 1)
            row[(*along, (begin + np.arange(count)) % max(size, 1))] = update
        return (result,)


def _elements(name: str, axis: int, shape: tuple[int, ...], count: tuple[int, ...]) -> Case:
    size = shape[axis]
    indices = Data(count, -size, size - 1, DType.INT64)
    return Case(name, ScatterElements(axis), (Data(shape), Data(count), indices), same_scale=True)


CASES = (
    _elements("rows", 0, (4, 3), (2, 3)),
    _elements("columns", 1, (3, 5), (2, 4)),
    _elements("part", 1, (3, 4, 5), (2, 6, 4)),
    Case(
        "outside",
        ScatterElements(0),
        (Data((4,)), Data((6,)), Data((6,), -9, 9, DType.INT32)),
        same_scale=True,
    ),
    *(
        Case(
            reduction,
            ScatterElements(1, reduction),
            (Data((2, 5)), Data((2, 4)), Data((2, 4), -5, 4, DType.INT32)),
            (DType.FLOAT32,),
        )
        for reduction in ("add", "mul", "max", "min")
    ),
    *(
        Case(
            f"{reduction}_integers",
            ScatterElements(1, reduction),
            (Data((2, 5), -9, 9), Data((2, 4), -9, 9), Data((2, 4), -5, 4, DType.INT64)),
            (DType.INT8, DType.UINT16, DType.INT32, DType.INT64),
            plain=True,
        )
        for reduction in ("add", "mul", "max", "min")
    ),
    Case(
        "slices",
        ScatterND(),
        (Data((4, 3, 2)), Data((2, 3, 2)), Data((2, 1), -4, 3, DType.INT64)),
        same_scale=True,
    ),
    Case(
        "elements",
        ScatterND(),
        (Data((3, 3)), Data((2, 3)), Data((2, 3, 2), -3, 2, DType.INT32)),
        same_scale=True,
    ),
    Case(
        "outside",
        ScatterND(),
        (Data((3, 2)), Data((5, 2)), Data((5, 1), -9, 9, DType.INT64)),
        same_scale=True,
    ),
    *(
        Case(
            reduction,
            ScatterND(reduction),
            (Data((4, 3)), Data((3, 3)), Data((3, 1), -4, 3, DType.INT64)),
            (DType.FLOAT32,),
        )
        for reduction in ("add", "mul", "max", "min")
    ),
    Case(
        "linear",
        TensorScatter(2),
        (Data((2, 1, 4, 3)), Data((2, 1, 2, 3)), Data((2,), 0, 2, DType.INT64)),
        same_scale=True,
    ),
    Case(
        "circular",
        TensorScatter(1, circular=True),
        (Data((2, 5, 3)), Data((2, 3, 3)), Data((2,), 0, 4, DType.INT64)),
        same_scale=True,
    ),
    Case("at_the_beginning", TensorScatter(1), (Data((2, 5)), Data((2, 3))), same_scale=True),
)
