"""Shaders of Quantize, Dequantize and Cast."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.backends.vulkan.elementwise import ElementBody, Read, elementwise, refuse_types
from smelt.codegen.backends.vulkan.rounding import quantized_real
from smelt.codegen.backends.vulkan.unary import float_bits, looked_up
from smelt.codegen.lower.kernel import NARROW_FLOATS, Kernel, KernelCall, Refusal, Request
from smelt.codegen.lower.lookup_tables import tabulate
from smelt.ir import DType, Node, Rounding
from smelt.ops.core.cast import Cast
from smelt.ops.core.quantize import Dequantize, Quantize, requantize_multiplier


class QuantizeShader(Kernel[Quantize]):
    """Quantizes floats by thresholds, 8-bit integers by a table, others by gemmlowp's rounding."""

    op = Quantize

    @override
    def offer(self, node: Node[Quantize], request: Request) -> KernelCall | Refusal:
        x, y = node.input(0).type, node.output.type
        if any(t.quant is not None and not t.quant.is_per_tensor for t in (x, y)):
            return Refusal("Quantize with one scale per channel is not served on the GPU.")
        if x.dtype is DType.INT32 and node.rounding is Rounding.ONNX:
            return Refusal("Quantize of i32 data is not served on the GPU with ONNX's rounding.")
        refusal = refuse_types(node)
        if refusal is not None:
            return refusal
        low, high = y.dtype.limits
        if x.dtype.is_float:
            even = node.rounding is Rounding.ONNX
            body = quantized_real(y, "x", low, high, ties_to_even=even)
        elif x.dtype.size == y.dtype.size == 1:
            return looked_up(node, tabulate(node), "Requantization by a table of 256 results")
        else:
            multiplier, shift = requantize_multiplier(x, y)
            body = ElementBody(
                "clamp(requantize(x - ZERO_X, MULTIPLIER, SHIFT) + ZERO, LOW, HIGH)",
                (),
                {
                    "ZERO_X": x.zero_point,
                    "ZERO": y.zero_point,
                    "MULTIPLIER": multiplier,
                    "SHIFT": shift,
                    "LOW": low,
                    "HIGH": high,
                },
            )
        return elementwise(node, "quantize", "Quantize", [Read.of(node, 0, "x")], body)


class DequantizeShader(Kernel[Dequantize]):
    """Multiplies each centered element by the scale."""

    op = Dequantize

    @override
    def offer(self, node: Node[Dequantize], request: Request) -> KernelCall | Refusal:
        x = node.input(0).type
        if x.quant is None or not x.quant.is_per_tensor:
            return Refusal(
                "Dequantize is served on the GPU for integers with one scale per tensor."
            )
        if x.dtype.size > 1:
            return Refusal(f"Dequantize of {x.dtype.value} data is not served on the GPU.")
        refusal = refuse_types(node)
        if refusal is not None:
            return refusal
        constants = {"ZERO": x.zero_point, "SCALE": float_bits(x.scale)}
        body = ElementBody("intBitsToFloat(SCALE) * float(x - ZERO)", (), constants)
        return elementwise(node, "dequantize", "Dequantize", [Read.of(node, 0, "x")], body)


class CastShader(Kernel[Cast]):
    """Converts each element to another type."""

    op = Cast
    floats = NARROW_FLOATS

    @override
    def offer(self, node: Node[Cast], request: Request) -> KernelCall | Refusal:
        refusal = refuse_types(node)
        if refusal is not None:
            return refusal
        x, y = node.input(0).type.dtype, node.output.type.dtype
        read = [Read.of(node, 0, "x")]
        return elementwise(node, f"cast_{y.value}", f"Cast to {y.value}", read, _cast(x, y))


def _cast(x: DType, y: DType) -> ElementBody:
    if y is DType.BOOL:
        return ElementBody("int(x != 0)" if not x.is_float else "int(x != 0.0)")
    if y.is_float:
        return ElementBody("float(x)")
    type_ = "uint" if y is DType.UINT32 else "int"
    if not x.is_float:
        return ElementBody(f"{type_}(x)")
    # GLSL does not define the conversion of floats outside of the integer type's range.
    least, greatest = y.limits
    suffix = "u" if y is DType.UINT32 else ""
    lowest = f"-{-least - 1} - 1" if least else f"0{suffix}"
    lines = (
        f"const bool fits = x >= {float(least)} && x < {float(greatest + 1)};",
        f"const {type_} beyond = x > 0.0 ? {greatest}{suffix} : x < 0.0 ? {lowest} : 0{suffix};",
    )
    return ElementBody(f"fits ? {type_}(x) : beyond", lines)


KERNELS = (QuantizeShader(), DequantizeShader(), CastShader())
