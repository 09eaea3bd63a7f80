"""Quantize, Dequantize and Cast on a GPU."""

from __future__ import annotations

from smelt.codegen.kernels.base import NARROW_FLOATS, Kernel, KernelCall, Request
from smelt.codegen.kernels.c.unary import tabulate
from smelt.codegen.kernels.vulkan.elements import Body, Read, elementwise, refuse_types
from smelt.codegen.kernels.vulkan.rounding import quantized_real
from smelt.codegen.kernels.vulkan.unary import float_bits, looked_up
from smelt.ir import DType, Node, Rounding
from smelt.ops.cast import Cast
from smelt.ops.quantize import Dequantize, Quantize, requantize_multiplier
from smelt.targets import Target


class QuantizeKernel(Kernel):
    """Floats by thresholds, 8-bit integers by a table, wider ones by gemmlowp's roundings."""

    op = Quantize

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        x, y = node.input(0).type, node.output.type
        if any(t.quant is not None and not t.quant.is_per_tensor for t in (x, y)):
            return "Quantize is served for one scale per tensor, not for one per channel."
        if x.dtype is DType.INT32 and node.rounding is Rounding.ONNX:
            return "Quantize of i32 data is not served on the GPU with ONNX's rounding."
        return refuse_types(node)

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        x, y = node.input(0).type, node.output.type
        low, high = y.dtype.limits
        if x.dtype.is_float:
            even = node.rounding is Rounding.ONNX
            body = quantized_real(y, "x", low, high, ties_to_even=even)
        elif x.dtype.size == y.dtype.size == 1:
            return looked_up(node, tabulate(node), "Requantization by a table of 256 results")
        else:
            multiplier, shift = requantize_multiplier(x, y)
            body = Body(
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


class DequantizeKernel(Kernel):
    """One multiplication an element."""

    op = Dequantize

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        x = node.input(0).type
        if x.quant is None or not x.quant.is_per_tensor:
            return "Dequantize is served on the GPU for integers with one scale per tensor."
        if x.dtype.size > 1:
            return f"Dequantize of {x.dtype.value} data is not served on the GPU."
        return refuse_types(node)

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        x = node.input(0).type
        constants = {"ZERO": x.zero_point, "SCALE": float_bits(x.scale)}
        body = Body("intBitsToFloat(SCALE) * float(x - ZERO)", (), constants)
        return elementwise(node, "dequantize", "Dequantize", [Read.of(node, 0, "x")], body)


class CastKernel(Kernel):
    """One conversion an element."""

    op = Cast
    floats = NARROW_FLOATS

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        return refuse_types(node)

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        x, y = node.input(0).type.dtype, node.output.type.dtype
        read = [Read.of(node, 0, "x")]
        return elementwise(node, f"cast_{y.value}", f"Cast to {y.value}", read, _cast(x, y))


def _cast(x: DType, y: DType) -> Body:
    if y is DType.BOOL:
        return Body("int(x != 0)" if not x.is_float else "int(x != 0.0)")
    if y.is_float:
        return Body("float(x)")
    type_ = "uint" if y is DType.UINT32 else "int"
    if not x.is_float:
        return Body(f"{type_}(x)")
    # What does not fit must not be converted: GLSL leaves that undefined.
    least, greatest = y.limits
    suffix = "u" if y is DType.UINT32 else ""
    lowest = f"-{-least - 1} - 1" if least else f"0{suffix}"
    lines = (
        f"const bool fits = x >= {float(least)} && x < {float(greatest + 1)};",
        f"const {type_} beyond = x > 0.0 ? {greatest}{suffix} : x < 0.0 ? {lowest} : 0{suffix};",
    )
    return Body(f"fits ? {type_}(x) : beyond", lines)


KERNELS = (QuantizeKernel(), DequantizeKernel(), CastKernel())
