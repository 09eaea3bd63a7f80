"""What operators demand of their operands: presence, element types, quantization."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.errors import ModelError, UnsupportedError
from smelt.ir import Array, DType, Node, Op, Quant, Rounding, TensorType


def operands(op: Op, inputs: Sequence[TensorType | None], count: int) -> list[TensorType]:
    """The first `count` inputs' types; `ModelError` where one is missing."""
    present = [t for t in inputs[:count] if t is not None]
    if len(present) != count:
        raise ModelError(f"{op.name} needs {count} inputs, {len(present)} are given")
    return present


def arrays(node: Node, inputs: Sequence[Array | None], count: int) -> list[Array]:
    """The first `count` operands of `Op.reference`; `ModelError` where one is missing."""
    present = [a for a in inputs[:count] if a is not None]
    if len(present) != count:
        raise ModelError(f"{node.origin}: {node.op.name} needs {count} inputs")
    return present


def same_dtype(op: Op, types: Sequence[TensorType]) -> DType:
    """The element type that all operands share; `ModelError` where they differ."""
    kinds = {t.dtype for t in types}
    if len(kinds) != 1:
        raise ModelError(
            f"{op.name} needs operands of one element type, got {', '.join(map(str, types))}"
        )
    return types[0].dtype


def quantized(node: Node, dtypes: Sequence[DType], operand_count: int = 1) -> bool:
    """Whether the node computes on quantized integers.

    Args:
        node: the node; its first `operand_count` inputs and its outputs must be quantized per
            tensor, or none of them.
        dtypes: the element types that are served when quantized.
        operand_count: how many leading inputs are data.

    Raises:
        ModelError: some are quantized and some are not, or one is quantized per channel.
        UnsupportedError: the element type is none of `dtypes`.
    """
    types = [v.type for v in (*node.inputs[:operand_count], *node.outputs) if v is not None]
    quants = [t.quant for t in types if t.quant is not None]
    if not quants:
        return False
    if len(quants) != len(types):
        raise ModelError(
            f"{node.origin}: {node.op.name} of {', '.join(map(str, types))}: all of them must be "
            "quantized, or none"
        )
    if any(not quant.is_per_tensor for quant in quants):
        raise ModelError(f"{node.origin}: {node.op.name} cannot use per-channel quantized data")
    for kind in (t.dtype for t in types):
        if kind not in dtypes:
            served = " or ".join(d.value for d in dtypes) or "float only"
            raise UnsupportedError(
                f"{node.origin}: {node.op.name} of quantized {kind.value} is not supported "
                f"({served}); convert the model with int8 quantization, or keep this operator "
                "in float"
            )
    return True


def symmetric_int16(node: Node, operand_count: int = 1) -> None:
    """`ModelError` where an int16 tensor has a zero point: 16-bit activations are symmetric."""
    for value in (*node.inputs[:operand_count], *node.outputs):
        if value is None or value.type.dtype is not DType.INT16 or value.type.quant is None:
            continue
        if value.type.zero_point:
            raise ModelError(
                f"{node.origin}: int16 tensor '{value.name}' has zero point "
                f"{value.type.zero_point}; {node.op.name} needs 0"
            )


def tflm_rounding(node: Node) -> None:
    """Demand that a requantizing node rounds as TensorFlow Lite Micro does.

    Raises:
        ModelError: the node carries no rounding.
        UnsupportedError: it carries another one.
    """
    if node.rounding is None:
        raise ModelError(f"{node.origin}: a quantized {node.op.name} needs a rounding")
    if node.rounding is not Rounding.TFLM:
        raise UnsupportedError(
            f"{node.origin}: quantized {node.op.name} is defined for rounding "
            f"'{Rounding.TFLM.value}' only, not '{node.rounding.value}'"
        )


def requantizing_rounding(node: Node) -> Rounding:
    """The rounding of a node that requantizes: TensorFlow Lite Micro's or ONNX's.

    Raises:
        ModelError: the node carries no rounding.
        UnsupportedError: it carries another one.
    """
    if node.rounding is Rounding.ONNX:
        return Rounding.ONNX
    tflm_rounding(node)
    return Rounding.TFLM


def same_quant(node: Node, operand_count: int = 1) -> None:
    """`ModelError` where an operand and the (first) output are quantized differently.

    Operators that only move or select data keep the stored integers as they are. Scales may
    differ by the rounding of the tools that wrote them.
    """
    y = node.outputs[0].type
    for value in node.inputs[:operand_count]:
        if value is not None and not _near(value.type.quant, y.quant):
            raise ModelError(
                f"{node.origin}: {node.op.name} keeps its data as stored, but '{value.name}' "
                f"has {value.type.quant} and '{node.outputs[0].name}' has {y.quant}"
            )


def _near(a: Quant | None, b: Quant | None) -> bool:
    if a is None or b is None:
        return a is b
    scales = zip(a.scale, b.scale, strict=False)
    return (a.axis, a.zero_point) == (b.axis, b.zero_point) and all(
        abs(s - t) <= 1e-3 * max(s, t) for s, t in scales
    )


def sum_type(x: TensorType, sums: bool) -> DType:
    """The element type of an output that is the sums of products themselves, or is like `x`."""
    return DType.INT32 if sums else x.dtype


def check_sums(node: Node, clamped: bool) -> None:
    """`ModelError` unless a node whose output is its int32 sums has quantized operands."""
    x, weights, y = node.input(0).type, node.input(1).type, node.output.type
    if not x.is_quantized or not weights.is_quantized or y.is_quantized or clamped:
        raise ModelError(
            f"{node.origin}: the sums of input {x} times weights {weights} need both quantized, "
            "are not so themselves, and are not clamped"
        )


def check_quantized_together(node: Node) -> None:
    """`ModelError` unless input, weights and output are all quantized, or none is."""
    x, weights, y = node.input(0).type, node.input(1).type, node.output.type
    if len({x.is_quantized, weights.is_quantized, y.is_quantized}) != 1:
        raise ModelError(
            f"{node.origin}: input {x}, weights {weights} and output {y} must all be "
            "quantized, or none"
        )


def axis_in_range(op: Op, axis: int, rank: int) -> None:
    """`ModelError` for an axis outside [0, rank); importers resolve negative ones."""
    if not 0 <= axis < rank:
        raise ModelError(f"{op.name} along axis {axis} of a tensor of rank {rank}")
