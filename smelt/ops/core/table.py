"""Table: a lookup table of 256 results for 8-bit elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, TensorType
from smelt.ir.axes import Axes, of_first
from smelt.ops.case import Case, Constant, Data
from smelt.ops.constraints import arrays, operands
from smelt.ops.core.channel_rules import ChannelFunction


@dataclass(frozen=True)
class Table(Op):
    """A function of 8-bit elements, as 256 results for the stored inputs in ascending order.

    The second operand is the table of results; it must be constant.
    """

    elementwise = True
    channel_rule = ChannelFunction()

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, table = operands(self, inputs, 2)
        if x.dtype not in (DType.INT8, DType.UINT8) or table.shape != (256,):
            raise ModelError(
                f"Table needs 8-bit data and a table of 256 results, got {x} and {table}"
            )
        return (TensorType(x.shape, table.dtype),)

    @override
    def check(self, node: Node) -> None:
        if not node.input(1).is_constant:
            raise ModelError(f"{node.origin}: the second operand of Table must be constant")

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        x, table = arrays(node, inputs, 2)
        return (np.asarray(table[x.astype(np.int64) - np.iinfo(x.dtype).min]),)

    def axes_rule(self, node: Node) -> Axes:
        """Return that operand and result have the same axes, which the table does not have."""
        return of_first(node, lambda _: self)


_RESULTS = tuple(float((7 * i * i + 3 * i) % 251 - 125) for i in range(256))
_RESULT_TYPES = (DType.INT8, DType.INT16, DType.INT32, DType.BOOL, DType.FLOAT32)
CASES = tuple(
    Case(
        f"{dtype.value}_{len(shape)}d_to_{result.value}",
        Table(),
        (Data(shape, -200, 300), Constant(_RESULTS, (256,), result)),
        (dtype,),
        plain=True,
    )
    for dtype in (DType.INT8, DType.UINT8)
    for shape, results in (((33,), _RESULT_TYPES), ((2, 3, 5), _RESULT_TYPES[:1]))
    for result in results
)
