"""C code of binary operators on quantized integers with ONNX's rounding."""

from __future__ import annotations

from smelt.codegen.backends.c.binary_plain import BinaryFormula, plain_formula
from smelt.codegen.text.expressions import offset
from smelt.codegen.text.literals import c_float
from smelt.ir import DType, Node, Rounding
from smelt.ops.arithmetic.fixed_point import clamp_limits
from smelt.ops.core.binary import BINARY, Binary


def onnx_formula(node: Node[Binary]) -> BinaryFormula | None:
    """Return the formula of a node that computes in float32 as ONNX does; None for other nodes.

    The operands are dequantized. The result is quantized, with ties to even, and clamped.
    """
    op, a, b, y = node.op, node.input(0).type, node.input(1).type, node.output.type
    rescales = BINARY[op.kind].rescales and y.is_quantized
    if node.rounding is not Rounding.ONNX or not rescales:
        return None
    real = plain_formula(op.kind, DType.FLOAT32)
    low, high = clamp_limits(op.activation, y, Rounding.ONNX)
    limits = f"{c_float(low - y.zero_point)}, {c_float(high - y.zero_point)}"
    stored = offset(f"rounded(real / {c_float(y.scale)}, {limits})", y.zero_point)
    left, right = (f"{c_float(t.scale)} * (float)({offset('%s', -t.zero_point)})" for t in (a, b))
    lines = (*real.lines, f"const float real = {real.result};")
    return BinaryFormula((left, right), stored, lines, operand_type="float")
