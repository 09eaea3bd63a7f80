"""ReverseSequence: reverses the first elements of each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, axis_in_range, operands, same_quant
from smelt.ops.tensor.indices import require_indices


@dataclass(frozen=True)
class ReverseSequence(Op):
    """Inputs: the data, and a length along `time_axis` for each index of `batch_axis`.

    The elements before the length are reversed; those after it stay in place. A negative length
    counts as 0, and a length above the axis' size counts as that size.
    """

    batch_axis: int
    time_axis: int

    moves_data = True
    chooses_by = (1,)

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, lengths = operands(self, inputs, 2)
        require_indices(self, lengths)
        axis_in_range(self, self.batch_axis, len(x.shape))
        axis_in_range(self, self.time_axis, len(x.shape))
        same = self.batch_axis == self.time_axis
        if same or lengths.shape != (x.shape[self.batch_axis],):
            raise ModelError(
                f"ReverseSequence of {x}: lengths {lengths} must be a vector with an element for "
                f"each index of batch axis {self.batch_axis}, and the time axis "
                f"({self.time_axis}) must be another one"
            )
        return (TensorType(x.shape, x.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the data."""
        return operands(self, inputs, 1)[0].quant

    @override
    def check(self, node: Node) -> None:
        same_quant(node)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, lengths = arrays(node, inputs, 2)
        size = node.output.type.shape[self.time_axis]
        time = np.arange(size)
        length = np.clip(lengths.astype(np.int64), 0, size)[:, None]
        source = np.where(time < length, length - 1 - time, time)
        batch_first = np.moveaxis(x, (self.batch_axis, self.time_axis), (0, 1))
        moved = batch_first[np.arange(len(lengths))[:, None], source]
        result = np.moveaxis(moved, (0, 1), (self.batch_axis, self.time_axis))
        return (np.ascontiguousarray(result),)


CASES = (
    Case("time_first", ReverseSequence(1, 0), (Data((6, 3)), Data((3,), 0, 6, DType.INT64))),
    Case("batch_first", ReverseSequence(0, 1), (Data((3, 5, 2)), Data((3,), 1, 5, DType.INT32))),
    Case("channels", ReverseSequence(0, 2), (Data((2, 3, 4)), Data((2,), -9, 9, DType.INT64))),
    Case("between", ReverseSequence(2, 0), (Data((4, 2, 3)), Data((3,), 0, 4, DType.INT32))),
)
