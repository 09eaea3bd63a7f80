"""Operators for sizes that are known only at run time.

Types have the largest sizes. A tensor of a smaller size is stored at the start of its buffer.
`smelt.ops.run_time_lengths` finds the dimensions that depend on such a size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ops.case import Case, Constant, Data
from smelt.ops.constraints import arrays, axis_in_range, operands, same_quant
from smelt.ops.tensor.transpose import Transpose


@dataclass(frozen=True)
class LengthOf(Op):
    """The size of dimension `length` (see `Graph.lengths`), `count` times: int32 `[count]`.

    `size` is the result of the reference. It is the largest size, unless the graph was made for
    another one.
    """

    length: str
    size: int
    count: int = 1

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        return (TensorType((self.count,), DType.INT32),)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        return (np.full(self.count, self.size, np.int32),)


FILLS: dict[str, float] = {"zero": 0, "one": 1, "lowest": -np.inf, "highest": np.inf}
"""Names of what `FillRows` may write to rows beyond the length."""


@dataclass(frozen=True)
class FillRows(Op):
    """`size` rows: those of the operand up to the length, then rows of `fill`.

    Operands: a tensor, with all axes before `axis` of size 1; and the length, int32 `[1]`.
    """

    size: int
    axis: int = 0
    fill: str = "zero"

    length_operand = 1

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, length = operands(self, inputs, 2)
        axis_in_range(self, self.axis, len(x.shape))
        _require_length(self, length)
        if self.fill not in FILLS or prod(x.shape[: self.axis]) != 1 or x.dtype is DType.BOOL:
            raise ModelError(f"FillRows along axis {self.axis} of {x} with fill '{self.fill}'")
        shape = (*x.shape[: self.axis], self.size, *x.shape[self.axis + 1 :])
        return (TensorType(shape, x.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the input."""
        return operands(self, inputs, 2)[0].quant

    @override
    def check(self, node: Node) -> None:
        same_quant(node)
        if node.output.type.is_quantized and self.fill not in ("lowest", "highest"):
            raise ModelError(f"FillRows of {node.output.type} cannot fill with '{self.fill}'")

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, length = arrays(node, inputs, 2)
        shape = node.output.type.shape
        count = int(np.clip(length[0], 0, min(self.size, x.shape[self.axis])))
        result = np.full(shape, fill_of(self.fill, node.output.type.dtype), x.dtype)
        first = (slice(None),) * self.axis + (slice(count),)
        result[first] = x[first]
        return (result,)

    @override
    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return True: a row up to the length is the same row of the operand."""
        return True


def fill_of(fill: str, dtype: DType) -> float:
    """Return the element that a key of `FILLS` stands for."""
    value = FILLS[fill]
    return value if dtype.is_float or np.isfinite(value) else dtype.limits[value > 0]


@dataclass(frozen=True)
class TransposeLength(Op):
    """Transpose of a tensor with a run-time length: `axis` has `factor` times the length.

    Operands: the tensor, and the length, int32 `[1]`. Operand and result are stored at the start of
    their buffers.
    """

    permutation: tuple[int, ...]
    axis: int
    factor: int = 1

    length_operand = 1

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, length = operands(self, inputs, 2)
        axis_in_range(self, self.axis, len(x.shape))
        _require_length(self, length)
        if x.shape[self.axis] % self.factor:
            raise ModelError(
                f"TransposeLength of {x}: axis {self.axis} is not a multiple of {self.factor}"
            )
        return Transpose(self.permutation).infer((x,))

    @override
    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        return Transpose(self.permutation).output_quant(inputs[:1])

    @override
    def check(self, node: Node) -> None:
        Transpose(self.permutation).check(node)

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        """Transpose a tensor that already has the length's size, as the evaluated graph's do."""
        x, _ = arrays(node, inputs, 2)
        return (np.ascontiguousarray(x.transpose(self.permutation)),)


def _require_length(op: Op, length: TensorType) -> None:
    if (length.shape, length.dtype) != ((1,), DType.INT32):
        raise ModelError(f"{op.name} needs a length of i32[1], got {length}")


_PLAIN = (DType.FLOAT32, DType.INT8, DType.INT64)
_LENGTH = Data((1,), 0, 7, DType.INT32)


def _transposed(name: str, order: tuple[int, ...], axis: int, x: Data, factor: int = 1) -> Case:
    length = Constant((x.shape[axis] // factor,), (1,), DType.INT32)
    return Case(name, TransposeLength(order, axis, factor), (x, length))


CASES = (
    *(
        Case(fill, FillRows(5, 0, fill), (Data((5, 3), -9, 9), _LENGTH), _PLAIN, plain=True)
        for fill in FILLS
    ),
    Case("second_axis", FillRows(6, 1), (Data((1, 6, 2, 2)), _LENGTH), (DType.FLOAT32,)),
    Case("vector", FillRows(7, 0, "highest"), (Data((7,)), _LENGTH), (DType.FLOAT32,)),
    _transposed("to_rows", (0, 2, 1), 2, Data((1, 4, 6))),
    _transposed("from_rows", (2, 0, 1), 0, Data((6, 2, 3))),
    _transposed("batch", (1, 0, 2), 1, Data((2, 6, 3))),
    _transposed("twice", (1, 2, 0), 1, Data((3, 6, 2)), 2),
)
