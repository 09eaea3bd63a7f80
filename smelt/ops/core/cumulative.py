"""Cumulative sums and products along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, TensorType
from smelt.ir.axes import Axes, same_axes
from smelt.ir.onnx_form import OnnxForm
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, axis_in_range, operands

KINDS = ("sum", "prod")


@dataclass(frozen=True)
class Cumulative(Op):
    """Sums or products (`kind`) along `axis`: each result combines all elements up to its own.

    `exclusive` omits the element itself, `reverse` starts at the end. Integers wrap.
    """

    kind: str
    axis: int
    exclusive: bool = False
    reverse: bool = False

    @property
    @override
    def name(self) -> str:
        return f"Cumulative({self.kind})"

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        if self.kind not in KINDS:
            raise ModelError(
                f"there is no cumulative operator '{self.kind}'; the kinds are {', '.join(KINDS)}"
            )
        (x,) = operands(self, inputs, 1)
        axis_in_range(self, self.axis, len(x.shape))
        if x.quant is not None or x.dtype is DType.BOOL:
            raise ModelError(
                f"{self.name} does not support {x}: the tensor must not be bool or quantized"
            )
        return (TensorType(x.shape, x.dtype),)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        wide = x.astype(np.float64) if x.dtype.kind == "f" else x
        if self.reverse:
            wide = np.flip(wide, self.axis)
        function, first = (np.cumsum, 0) if self.kind == "sum" else (np.cumprod, 1)
        with np.errstate(over="ignore"):
            result = function(wide, axis=self.axis, dtype=wide.dtype)
            if self.exclusive:
                start = np.full_like(np.take(result, [], axis=self.axis), first)
                edge = np.full_like(result[_along(result, self.axis, slice(0, 1))], first)
                before = result[_along(result, self.axis, slice(0, -1))]
                result = np.concatenate([start, edge, before], self.axis)
            if self.reverse:
                result = np.flip(result, self.axis)
            return (np.ascontiguousarray(result).astype(x.dtype),)

    def axes_rule(self, node: Node) -> Axes:
        """Return that operand and result have the same axes."""
        return same_axes(node, lambda order: replace(self, axis=order.index(self.axis)))

    def onnx_form(self, node: Node) -> OnnxForm | None:
        """Return ONNX's CumSum, which supports sums of floats and of at least 32-bit integers."""
        if self.kind != "sum" or node.output.type.dtype.size < 4:
            return None
        attributes = {"exclusive": int(self.exclusive), "reverse": int(self.reverse)}
        return OnnxForm("CumSum", attributes, {"axis": np.asarray(self.axis, np.int64)})


def _along(x: Array, axis: int, part: slice) -> tuple[slice, ...]:
    return tuple(part if i == axis else slice(None) for i in range(x.ndim))


_PLAIN = (DType.FLOAT64, DType.INT8, DType.UINT16, DType.INT32, DType.UINT32, DType.INT64)
CASES = tuple(
    case
    for kind in KINDS
    for exclusive in (False, True)
    for reverse in (False, True)
    for name in [f"{kind}{'_exclusive' * exclusive}{'_reverse' * reverse}"]
    for case in (
        Case(
            f"{name}_inner",
            Cumulative(kind, 1, exclusive, reverse),
            (Data((2, 5, 3), -2.0, 2.0),),
            (DType.FLOAT32,),
        ),
        Case(
            f"{name}_last",
            Cumulative(kind, 1, exclusive, reverse),
            (Data((3, 6), -(2.0**63), 2.0**63),),
            _PLAIN,
            plain=True,
        ),
    )
)
