"""UpdateSlice: replaces a part of a tensor by another tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ops.case import Case, Constant, Data
from smelt.ops.constraints import arrays, operands, same_dtype, same_quant
from smelt.ops.tensor.indices import require_indices


@dataclass(frozen=True)
class UpdateSlice(Op):
    """Inputs: the data, the update, and a start for each axis of the data (int32 or int64).

    A start from which the update would not fit is moved to the nearest from which it fits.
    """

    moves_data = True
    chooses_by = (2,)

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the type of the data."""
        x, update, starts = operands(self, inputs, 3)
        require_indices(self, starts)
        rank = len(x.shape)
        if starts.shape != (rank,) or len(update.shape) != rank:
            raise ModelError(
                f"UpdateSlice of {x} by {update} has starts {starts}; the update needs {rank} "
                f"dimensions, and the starts must be a vector of {rank}"
            )
        if any(own > size for own, size in zip(update.shape, x.shape, strict=True)):
            raise ModelError(f"UpdateSlice: the update {update} is larger than the data {x}")
        return (TensorType(x.shape, same_dtype(self, (x, update))),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the data."""
        return operands(self, inputs, 1)[0].quant

    def check(self, node: Node) -> None:
        """Check that data and update have the same quantization: both are copied as stored."""
        same_quant(node, 2)

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        """Return a copy of the data with the update written to it."""
        x, update, starts = arrays(node, inputs, 3)
        most = np.subtract(x.shape, update.shape, dtype=np.int64)
        begin = np.clip(starts.astype(np.int64), 0, most)
        result = x.copy()
        result[tuple(slice(b, b + n) for b, n in zip(begin, update.shape, strict=True))] = update
        return (result,)


def _starts(*values: int, dtype: DType = DType.INT32) -> Constant:
    return Constant(values, (len(values),), dtype)


def _case(name: str, x: tuple[int, ...], update: tuple[int, ...], starts: Data | Constant) -> Case:
    return Case(name, UpdateSlice(), (Data(x), Data(update), starts), same_scale=True)


_PLAIN = (DType.BOOL, DType.INT16, DType.UINT32, DType.INT64, DType.FLOAT64)

CASES = (
    _case("image", (2, 4, 5, 3), (1, 2, 5, 3), _starts(1, 1, 0, 0)),
    _case("row", (6, 4), (1, 4), Data((2,), 0, 5, DType.INT32)),
    _case("outside", (4, 5, 2), (2, 3, 2), Data((3,), -9, 9, DType.INT64)),
    _case("whole", (3, 2), (3, 2), Data((2,), -1, 1, DType.INT64)),
    _case("element", (7,), (1,), _starts(5, dtype=DType.INT64)),
    Case(
        "plain",
        UpdateSlice(),
        (Data((4, 6)), Data((2, 3)), _starts(1, 2)),
        _PLAIN,
        plain=True,
    ),
)
