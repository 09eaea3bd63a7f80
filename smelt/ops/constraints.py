"""Checks that operators share: operands are present, and have a supported type and quantization."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.errors import ModelError, UnsupportedError
from smelt.ir import Array, DType, Node, Op, Quant, Rounding, TensorType


def operands(op: Op, inputs: Sequence[TensorType | None], count: int) -> list[TensorType]:
    """Return the types of the first `count` inputs. Raises `ModelError` if one is missing."""
    present = [t for t in inputs[:count] if t is not None]
    if len(present) != count:
        raise ModelError(f"{op.name} needs {count} inputs, but has {len(present)}")
    return present


def arrays(node: Node, inputs: Sequence[Array | None], count: int) -> list[Array]:
    """Return the first `count` operands of a reference. Raises `ModelError` if one is missing."""
    present = [a for a in inputs[:count] if a is not None]
    if len(present) != count:
        raise ModelError(f"{node.origin}: {node.op.name} needs {count} inputs, has {len(present)}")
    return present


def same_dtype(op: Op, types: Sequence[TensorType]) -> DType:
    """Return the element type of all operands. Raises `ModelError` if they differ."""
    kinds = {t.dtype for t in types}
    if len(kinds) != 1:
        raise ModelError(
            f"{op.name} needs operands of one element type, got {', '.join(map(str, types))}"
        )
    return types[0].dtype


def quantized(node: Node, dtypes: Sequence[DType], operand_count: int = 1) -> bool:
    """Return whether the node computes on quantized integers.

    Args:
        node: a node. Its outputs and its first `operand_count` inputs must all be quantized per
            tensor, or none of them.
        dtypes: the element types that are supported if they are quantized.
        operand_count: number of leading inputs that are data.

    Raises:
        ModelError: some are quantized and others are not, or one is quantized per channel.
        UnsupportedError: an element type is not in `dtypes`.
    """
    types = [v.type for v in (*node.inputs[:operand_count], *node.outputs) if v is not None]
    quants = [t.quant for t in types if t.quant is not None]
    if not quants:
        return False
    if len(quants) != len(types):
        raise ModelError(
            f"{node.origin}: {node.op.name} mixes quantized and unquantized tensors "
            f"({', '.join(map(str, types))}): quantize all of them, or none"
        )
    if any(not quant.is_per_tensor for quant in quants):
        raise ModelError(
            f"{node.origin}: {node.op.name} does not support data quantized per channel; "
            "quantize it per tensor"
        )
    for kind in (t.dtype for t in types):
        if kind not in dtypes:
            served = " or ".join(d.value for d in dtypes) or "float only"
            raise UnsupportedError(
                f"{node.origin}: {node.op.name} does not support quantized {kind.value} "
                f"(supported: {served}); convert the model with int8 quantization, or keep this "
                "operator in float"
            )
    return True


def symmetric_int16(node: Node, operand_count: int = 1) -> None:
    """Raise `ModelError` if an int16 tensor has a zero point; 16-bit data must be symmetric."""
    for value in (*node.inputs[:operand_count], *node.outputs):
        if value is None or value.type.dtype is not DType.INT16 or value.type.quant is None:
            continue
        if value.type.zero_point:
            raise ModelError(
                f"{node.origin}: int16 tensor '{value.name}' has zero point "
                f"{value.type.zero_point}; {node.op.name} needs 0"
            )


def tflm_rounding(node: Node) -> None:
    """Check that a requantizing node rounds as TensorFlow Lite Micro does.

    Raises:
        ModelError: the node has no rounding.
        UnsupportedError: it has another rounding.
    """
    if node.rounding is None:
        raise ModelError(f"{node.origin}: a quantized {node.op.name} needs a rounding mode")
    if node.rounding is not Rounding.TFLM:
        raise UnsupportedError(
            f"{node.origin}: quantized {node.op.name} supports only rounding mode "
            f"'{Rounding.TFLM.value}', not '{node.rounding.value}'"
        )


def requantizing_rounding(node: Node) -> Rounding:
    """Return the rounding of a node that requantizes: TensorFlow Lite Micro's or ONNX's.

    Raises:
        ModelError: the node has no rounding.
        UnsupportedError: it has another rounding.
    """
    if node.rounding is Rounding.ONNX:
        return Rounding.ONNX
    tflm_rounding(node)
    return Rounding.TFLM


def same_quant(node: Node, operand_count: int = 1) -> None:
    """Raise `ModelError` if an operand and the first output are quantized differently.

    Operators that only move or select data copy the stored integers unchanged. A relative
    difference of scales up to 0.001 is accepted, because exporters round scales differently.
    """
    y = node.outputs[0].type
    for value in node.inputs[:operand_count]:
        if value is not None and not _nearly_equal(value.type.quant, y.quant):
            raise ModelError(
                f"{node.origin}: {node.op.name} copies stored integers, so input and output must "
                f"have the same quantization; but '{value.name}' has {value.type.quant} and "
                f"'{node.outputs[0].name}' has {y.quant}"
            )


def _nearly_equal(a: Quant | None, b: Quant | None) -> bool:
    if a is None or b is None:
        return a is b
    scales = zip(a.scale, b.scale, strict=False)
    return (a.axis, a.zero_point) == (b.axis, b.zero_point) and all(
        abs(s - t) <= 1e-3 * max(s, t) for s, t in scales
    )


def sum_type(x: TensorType, sums: bool) -> DType:
    """Return the output's element type: int32 if it is the accumulator itself, else that of `x`."""
    return DType.INT32 if sums else x.dtype


def check_sums(node: Node, clamped: bool) -> None:
    """Raise `ModelError` if a node with accumulators as output has the wrong quantization.

    Input and weights must be quantized. The output must be neither quantized nor clamped.
    """
    x, weights, y = node.input(0).type, node.input(1).type, node.output.type
    if not x.is_quantized or not weights.is_quantized or y.is_quantized or clamped:
        raise ModelError(
            f"{node.origin}: an int32 sum of products needs a quantized input (is {x}) and "
            f"quantized weights (are {weights}), and must not be quantized or clamped itself"
        )


def check_quantized_together(node: Node) -> None:
    """Raise `ModelError` unless input, weights and output are all quantized, or none of them."""
    x, weights, y = node.input(0).type, node.input(1).type, node.output.type
    if len({x.is_quantized, weights.is_quantized, y.is_quantized}) != 1:
        raise ModelError(
            f"{node.origin}: input {x}, weights {weights} and output {y} must all be "
            "quantized, or none"
        )


def axis_in_range(op: Op, axis: int, rank: int) -> None:
    """Raise `ModelError` if the axis is not in [0, rank). Importers resolve negative axes."""
    if not 0 <= axis < rank:
        raise ModelError(
            f"{op.name}: axis {axis} does not exist in a tensor with {rank} dimensions"
        )
