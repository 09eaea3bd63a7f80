"""Quantize and Dequantize."""

from __future__ import annotations

from smelt.codegen.kernels.base import Input, Kernel, KernelCall, Output, Request
from smelt.codegen.kernels.c.store import helpers_in, offset, stored
from smelt.codegen.kernels.c.unary import table_call, tabulate
from smelt.codegen.render import c_float
from smelt.ir import DType, Node
from smelt.ops.fixed_point import Activation
from smelt.ops.quantize import Dequantize, Quantize, requantize_multiplier
from smelt.targets import Target


class QuantizeKernel(Kernel):
    """Floats are divided and rounded; 8-bit integers looked up, wider ones requantized."""

    op = Quantize

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        if node.input(0).type.dtype is DType.FLOAT16:
            return "Quantize is not served for f16 data."
        return None

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        x, y = node.input(0).type, node.output.type
        if x.dtype.size == 1:
            return table_call(tabulate(node), x, y, "requantization", "requantize_8_bits")
        low, high = (limit - y.zero_point for limit in y.dtype.limits)
        if x.dtype.is_float:
            # Clamped before the zero point is added: then every step is exact.
            first = f"const float rounded = roundf(input[i] / {c_float(y.scale)});"
            value = f"(int32_t)clamp_float(rounded, {low}.0f, {high}.0f)"
            expression = f"({y.dtype.c_name})({offset(value, y.zero_point)})"
        else:
            multiplier, shift = requantize_multiplier(x, y)
            centred = offset("input[i]", -x.zero_point)
            first = f"const int32_t scaled = requantize({centred}, {multiplier}, {shift});"
            store = stored(Activation.NONE, y, saturate=y.dtype is not DType.INT32)
            expression = store(offset("scaled", y.zero_point))
        lines = [first, f"output[i] = {expression};"]
        return KernelCall(
            template="c/elementwise.j2",
            stem="quantize",
            parameters={
                "what": "Quantize",
                "x": x,
                "y": y,
                "lines": lines,
            },
            operands=(Input(0, "input"), Output(0, "output")),
            in_place=((0, 0),) if x.dtype.size == y.dtype.size else (),
            helpers=helpers_in(lines),
            summary=f"{x.dtype.value} to {y.dtype.value}, one element at a time",
        )


class DequantizeKernel(Kernel):
    """One multiplication an element."""

    op = Dequantize

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        x = node.input(0).type
        if x.quant is None:
            return f"Dequantize of {x.dtype.value} data computed at run time is not served."
        if not x.quant.is_per_tensor:
            return "Dequantize is served for one scale per tensor, not for one per channel."
        return None

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        x, y = node.input(0).type, node.output.type
        # int64 keeps the difference of 32-bit numbers exact.
        element = "input[i]" if x.dtype.size < 4 else "(int64_t)input[i]"
        difference = offset(element, -x.zero_point)
        return KernelCall(
            template="c/elementwise.j2",
            stem="dequantize",
            parameters={
                "what": "Dequantize",
                "x": x,
                "y": y,
                "lines": [f"output[i] = {c_float(x.scale)} * (float)({difference});"],
            },
            operands=(Input(0, "input"), Output(0, "output")),
            in_place=((0, 0),) if x.dtype.size == y.dtype.size else (),
            summary="one multiplication an element",
        )


KERNELS = (QuantizeKernel(), DequantizeKernel())
