"""Unary operators on quantized int16 data: by requantization, or by interpolation of samples.

The arithmetic is that of `smelt.ops.core.unary_integer`.
"""

from __future__ import annotations

import numpy as np

from smelt.codegen.lower.c_expressions import stored
from smelt.codegen.lower.kernel import Input, KernelCall, Operand, Output, Packed, Refusal
from smelt.codegen.lower.nested_loops import each_element, loops_call
from smelt.ir import Node, TensorType
from smelt.ops.arithmetic.fixed_point import INT32_MAX, Activation, rescale_multiplier
from smelt.ops.core.lookup import sigmoid_samples
from smelt.ops.core.unary import Unary
from smelt.ops.core.unary_integer import TABLE_SHIFTS, leaky_scales, scale_ratio, table_scaling

_CLAMPS = {kind: Activation(kind) for kind in ("relu", "relu6", "relu_n1_to_1", "relu_0_to_1")}
_SERVED = (*_CLAMPS, *TABLE_SHIFTS, "abs", "leaky_relu")


def unary_int16(node: Node[Unary]) -> KernelCall | Refusal:
    """Return the call that computes a node of int16 data, or why it is not served."""
    op, x, y = node.op, node.input(0).type, node.output.type
    if op.kind not in _SERVED:
        return Refusal(f"{op.name} is not served for i16 data.")
    samples: tuple[Operand, ...] = ()
    if op.kind in TABLE_SHIFTS:
        multiplier, shift = table_scaling(x, TABLE_SHIFTS[op.kind])
        if -x.dtype.limits[0] * multiplier + (1 << shift >> 1) > INT32_MAX:
            return Refusal(
                f"{op.name} of i16 data is not served for so large an input scale as {x.scale}."
            )
        samples = (Packed("samples", sigmoid_samples().astype(np.uint16)),)
        statements, result = [], _sampled(op.kind, multiplier, shift)
    else:
        statements, result = _requantized(op, x, y)

    def lines(i: str) -> list[str]:
        return [f"const int32_t x = input[{i}];", *statements, f"output[{i}] = {result};"]

    return loops_call(
        stem=f"{op.kind}_int16",
        form="c_elementwise",
        parameters=each_element(op.kind.capitalize(), x, y, lines),
        operands=(Input(0, "input"), *samples, Output(0, "output")),
        in_place=((0, 0),),
        summary=f"{op.kind} of int16, one element at a time",
    )


def _sampled(kind: str, multiplier: int, shift: int) -> str:
    """Return the C expression of the output for `x`, by interpolation of samples."""
    position = f"x * {multiplier}"
    if shift:
        position = f"({position} + {1 << (shift - 1)}) >> {shift}"
    # The results of both functions are in the range of int16.
    return f"(int16_t){kind}_int16({position}, samples)"


def _requantized(op: Unary, x: TensorType, y: TensorType) -> tuple[list[str], str]:
    """Return C statements and the expression of the output for `x`, by requantization."""
    store = stored(_CLAMPS.get(op.kind, Activation.NONE), y, saturate=True)
    multiplier, value = rescale_multiplier(scale_ratio(x, y)), "x"
    if op.kind == "leaky_relu":
        slope = leaky_scales(x, y, op.alpha)[1]
        below = _scaled("x", rescale_multiplier(abs(slope)))
        sign = "-" if slope < 0 else ""
        lines = [f"const int32_t scaled = x >= 0 ? {_scaled('x', multiplier)} : {sign}{below};"]
    else:
        if op.kind == "abs":
            value = "(x < 0 ? -x : x)"
        same = op.kind == "abs" and x.scale == y.scale
        lines = [f"const int32_t scaled = {value if same else _scaled(value, multiplier)};"]
    return lines, store("scaled")


def _scaled(value: str, multiplier: tuple[int, int]) -> str:
    return f"requantize({value}, {multiplier[0]}, {multiplier[1]})"
