"""Quantize and Dequantize."""

from __future__ import annotations

from dataclasses import replace

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
        if x.dtype.size == 1 and _recentering(x, y) is None:
            return table_call(tabulate(node), x, y, "requantization", "requantize_8_bits")
        return loops_call(
            stem="quantize",
            form="c_elementwise",
            parameters=each_element("Quantize", x, y, lambda i: _lines(node, i)),
            operands=(Input(0, "input"), Output(0, "output")),
            in_place=((0, 0),) if x.dtype.size == y.dtype.size else (),
            summary=f"{x.dtype.value} to {y.dtype.value}, one element at a time",
        )


def _lines(node: Node[Quantize], i: str) -> list[str]:
    """Return the C lines that quantize element `i`."""
    x, y = node.input(0).type, node.output.type
    element, recentering = f"input[{i}]", _recentering(x, y)
    low, high = (limit - y.zero_point for limit in y.dtype.limits)
    lines: list[str] = []
    if recentering is not None:
        result = f"({y.dtype.c_name})({offset(element, recentering)})"
    elif node.rounding is Rounding.ONNX:
        lines, result = _onnx(x, y, element)
    elif x.dtype.is_float:
        # Clamp before the zero point is added, so that every step is exact.
        lines = [
            f"const float rounded = roundf({element} / {c_float(y.scale)});",
            f"const float clamped = clamp_float(rounded, {low}.0f, {high}.0f);",
        ]
        result = f"({y.dtype.c_name})({offset('(int32_t)clamped', y.zero_point)})"
    else:
        multiplier, shift = requantize_multiplier(x, y)
        centered = offset(element, -x.zero_point)
        lines = [f"const int32_t scaled = requantize({centered}, {multiplier}, {shift});"]
        store = stored(Activation.NONE, y, saturate=y.dtype is not DType.INT32)
        result = store(offset("scaled", y.zero_point))
    return [*lines, f"output[{i}] = {result};"]


def _recentering(x: TensorType, y: TensorType) -> int | None:
    """Return what to add to stored numbers if only the signedness changes; else None.

    Only the signedness changes between int8 and uint8 of equal scales, whose zero points differ by
    128.
    """
    if x.dtype.size != 1 or x.dtype is y.dtype or y.dtype.size != 1 or x.scale != y.scale:
        return None
    difference = y.zero_point - x.zero_point
    if difference != y.dtype.limits[0] - x.dtype.limits[0]:
        return None
    return difference


def _onnx(x: TensorType, y: TensorType, element: str) -> tuple[list[str], str]:
    """Return C lines and the expression of the output, computed as ONNX does.

    ONNX rounds a float32 quotient, with ties to even.

    Integers are first converted to real numbers by a float32 product.
    """
    low, high = (c_float(limit - y.zero_point) for limit in y.dtype.limits)
    real, lines = element, list[str]()
    if not x.dtype.is_float:
        centered = offset(element if x.dtype.size < 4 else f"(int64_t){element}", -x.zero_point)
        lines.append(f"const float real = {c_float(x.scale)} * (float)({centered});")
        real = "real"
    stored = offset(f"rounded({real} / {c_float(y.scale)}, {low}, {high})", y.zero_point)
    return lines, f"({y.dtype.c_name})({stored})"


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
        wide = "(int64_t)" if x.dtype.size >= 4 else ""

        def difference(i: str) -> str:
            return offset(f"{wide}input[{i}]", -x.zero_point)

        def lines(i: str) -> list[str]:
            return [f"output[{i}] = {c_float(x.scale)} * (float)({difference(i)});"]

        call = loops_call(
            stem="dequantize",
            form="c_elementwise",
            parameters=each_element("Dequantize", x, y, lines),
            operands=(Input(0, "input"), Output(0, "output")),
            in_place=((0, 0),) if x.dtype.size == y.dtype.size else (),
            summary="one multiplication per element",
        )
        return replace(call, details={"scale": difference("i") + c_float(x.scale)})


KERNELS = (QuantizeKernel(), DequantizeKernel())
