"""Quantize and Dequantize."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.backends.c.unary import table_call
from smelt.codegen.lower.c_expressions import stored
from smelt.codegen.lower.kernel import Input, Kernel, KernelCall, Output, Refusal, Request
from smelt.codegen.lower.lookup_tables import tabulate
from smelt.codegen.lower.nested_loops import each_element, loops_call
from smelt.codegen.text.expressions import offset
from smelt.codegen.text.literals import c_float
from smelt.ir import DType, Node, Rounding, TensorType
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.quantize import Dequantize, Quantize, requantize_multiplier


class QuantizeKernel(Kernel[Quantize]):
    """Divides and rounds floats; looks up 8-bit integers in a table; requantizes wider ones."""

    op = Quantize

    @override
    def offer(self, node: Node[Quantize], request: Request) -> KernelCall | Refusal:
        x, y = node.input(0).type, node.output.type
        if any(t.quant is not None and not t.quant.is_per_tensor for t in (x, y)):
            return Refusal("Quantize is served for one scale per tensor, not for one per channel.")
        recentered = _recentered(x, y)
        if x.dtype.size == 1 and recentered is None:
            return table_call(tabulate(node), x, y, "requantization", "requantize_8_bits")
        low, high = (limit - y.zero_point for limit in y.dtype.limits)
        if recentered is not None:
            lines = [f"output[i] = {recentered};"]
        elif node.rounding is Rounding.ONNX:
            lines = _onnx(x, y)
        elif x.dtype.is_float:
            # Clamp before the zero point is added, so that every step is exact.
            first = f"const float rounded = roundf(input[i] / {c_float(y.scale)});"
            value = f"(int32_t)clamp_float(rounded, {low}.0f, {high}.0f)"
            expression = f"({y.dtype.c_name})({offset(value, y.zero_point)})"
            lines = [first, f"output[i] = {expression};"]
        else:
            multiplier, shift = requantize_multiplier(x, y)
            centered = offset("input[i]", -x.zero_point)
            first = f"const int32_t scaled = requantize({centered}, {multiplier}, {shift});"
            store = stored(Activation.NONE, y, saturate=y.dtype is not DType.INT32)
            expression = store(offset("scaled", y.zero_point))
            lines = [first, f"output[i] = {expression};"]
        return loops_call(
            stem="quantize",
            form="c_elementwise",
            parameters=each_element("Quantize", x, y, lines),
            operands=(Input(0, "input"), Output(0, "output")),
            in_place=((0, 0),) if x.dtype.size == y.dtype.size else (),
            summary=f"{x.dtype.value} to {y.dtype.value}, one element at a time",
        )


def _recentered(x: TensorType, y: TensorType) -> str | None:
    """Return the C that converts between int8 and uint8 if only the signedness changes; else None.

    That is the case if the scales are equal and the zero points differ by 128.
    """
    if x.dtype.size != 1 or x.dtype is y.dtype or y.dtype.size != 1 or x.scale != y.scale:
        return None
    difference = y.zero_point - x.zero_point
    if difference != y.dtype.limits[0] - x.dtype.limits[0]:
        return None
    return f"({y.dtype.c_name})({offset('input[i]', difference)})"


def _onnx(x: TensorType, y: TensorType) -> list[str]:
    """Return C lines that quantize as ONNX does: a float32 quotient, rounded with ties to even.

    Integers are first converted to real numbers by a float32 product.
    """
    low, high = (c_float(limit - y.zero_point) for limit in y.dtype.limits)
    real, lines = "input[i]", list[str]()
    if not x.dtype.is_float:
        element = "input[i]" if x.dtype.size < 4 else "(int64_t)input[i]"
        centered = offset(element, -x.zero_point)
        lines.append(f"const float real = {c_float(x.scale)} * (float)({centered});")
        real = "real"
    stored = offset(f"rounded({real} / {c_float(y.scale)}, {low}, {high})", y.zero_point)
    return [*lines, f"output[i] = ({y.dtype.c_name})({stored});"]


class DequantizeKernel(Kernel[Dequantize]):
    """Multiplies each element by the scale."""

    op = Dequantize

    @override
    def offer(self, node: Node[Dequantize], request: Request) -> KernelCall | Refusal:
        x, y = node.input(0).type, node.output.type
        if x.quant is None:
            return Refusal(
                f"Dequantize of {x.dtype.value} data computed at run time is not served."
            )
        if not x.quant.is_per_tensor:
            return Refusal(
                "Dequantize is served for one scale per tensor, not for one per channel."
            )
        # The difference of 32-bit integers is exact in int64 only.
        element = "input[i]" if x.dtype.size < 4 else "(int64_t)input[i]"
        difference = offset(element, -x.zero_point)
        line = f"output[i] = {c_float(x.scale)} * (float)({difference});"
        return loops_call(
            stem="dequantize",
            form="c_elementwise",
            parameters=each_element("Dequantize", x, y, (line,)),
            operands=(Input(0, "input"), Output(0, "output")),
            in_place=((0, 0),) if x.dtype.size == y.dtype.size else (),
            summary="one multiplication per element",
        )


KERNELS = (QuantizeKernel(), DequantizeKernel())
