"""Converters of reductions, and of cumulative sums and products."""

from __future__ import annotations

from smelt.frontend.onnx.operation import OnnxConverter, Operation
from smelt.ir import DType, Value
from smelt.ops.core.cast import Cast
from smelt.ops.core.cumulative import Cumulative
from smelt.ops.core.reduce import REDUCE, Reduce


def _reduce(kind: str) -> OnnxConverter:
    def convert(operation: Operation) -> Value:
        x = operation.value(0)
        rank = len(x.type.shape)
        axes = operation.axes(operation.attribute_or_operand("axes", 1) or (), rank)
        if not axes and not operation.flag("noop_with_empty_axes"):
            axes = tuple(range(rank))
        op = Reduce(kind, tuple(sorted(axes)), operation.flag("keepdims", True))
        if REDUCE[kind].integers or not x.type.dtype.is_integer:
            return operation.emit(op, x)
        # Roots and logarithms of integers are computed in float and truncated.
        result = operation.emit(op, operation.emit(Cast(DType.FLOAT32), x))
        return operation.emit(Cast(x.type.dtype), result)

    return convert


def _cumulative(kind: str) -> OnnxConverter:
    def convert(operation: Operation) -> Value:
        x = operation.value(0)
        op = Cumulative(
            kind,
            operation.axis(operation.whole_number(1, "axis"), len(x.type.shape)),
            operation.flag("exclusive"),
            operation.flag("reverse"),
        )
        return operation.emit(op, x)

    return convert


CONVERTERS: dict[str, OnnxConverter] = {
    "ReduceSum": _reduce("sum"),
    "ReduceMean": _reduce("mean"),
    "ReduceMax": _reduce("max"),
    "ReduceMin": _reduce("min"),
    "ReduceProd": _reduce("prod"),
    "ReduceL1": _reduce("l1"),
    "ReduceL2": _reduce("l2"),
    "ReduceLogSum": _reduce("log_sum"),
    "ReduceLogSumExp": _reduce("log_sum_exp"),
    "ReduceSumSquare": _reduce("sum_square"),
    "CumSum": _cumulative("sum"),
    "CumProd": _cumulative("prod"),
}
