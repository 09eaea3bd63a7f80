"""Pool2D on a GPU: maximum, average and total over sliding windows."""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf, prod

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.backends.vulkan.elementwise import element, quad, spread, view
from smelt.codegen.backends.vulkan.functions import called_in, definitions
from smelt.codegen.backends.vulkan.unary import float_bits
from smelt.codegen.lower.offer import (
    NARROW_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Operand,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.text.helpers import when
from smelt.ir import Array, DType, Node, TensorType
from smelt.ops.arithmetic.fixed_point import Activation, clamp_limits
from smelt.ops.core.pool import Pool2D, average_scale

_TYPES = (*NARROW_FLOATS, DType.INT8, DType.UINT8)


@dataclass(frozen=True)
class PoolShaderParameters(Parameters):
    """`acc` begins with `first`, and `result` is GLSL of what becomes of it."""

    kind: str
    quads: bool
    bytes: bool
    type: str
    first: str
    load: str
    result: str
    counts_padding: bool
    functions: str


class PoolShader(Kernel[Pool2D]):
    """Each invocation goes through the windows of four channels, or of one element."""

    op = Pool2D
    floats = NARROW_FLOATS

    @override
    def entries(self, node: Node[Pool2D]) -> int:
        return prod(node.op.window)

    @override
    def offer(self, node: Node[Pool2D], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        dtype = x.dtype
        if dtype not in _TYPES or (op.kind == "sum" and not dtype.is_float):
            return Refusal(f"{op.name} of {dtype.value} data is not served on the GPU.")
        _, height, width, channels = y.shape
        quads, bytes_ = channels % 4 == 0, y.dtype.size == 1
        wide = 4 if quads else 1
        load = (quad if quads else element)(x.dtype, "INPUT", "at")
        result, constants, ratios = _result(node, quads=quads)
        first = "0.0" if y.dtype.is_float else "0"
        if op.kind == "max":
            first = "-3.4028235e38" if y.dtype.is_float else str(y.dtype.limits[0])
        if op.scales(node):
            load = f"{load} - ZERO_X"
        type_ = _type(y.dtype, quads)
        items = y.size // 4 if quads else -(-y.size // 4) if bytes_ else y.size
        tables: list[Operand] = [] if ratios is None else [Packed("ratios", ratios)]
        (top, _), (left, _) = op.padding
        return ShaderCall(
            template="backends/vulkan/pool.comp.j2",
            stem=f"{op.kind}_pool_{x.dtype.value}",
            parameters=PoolShaderParameters(
                kind=op.kind,
                quads=quads,
                bytes=bytes_,
                type=type_,
                first=first,
                load=load,
                result=result,
                counts_padding=op.counts_padding,
                functions=definitions(called_in(load, result), when(quads and bytes_, "packed")),
            ),
            operands=(Input(0, "input"), *tables, Output(0, "output")),
            views={
                "input": view(x.dtype, quads),
                "ratios": "float",
                "output": view(y.dtype, quads),
            },
            constants={
                "ITEMS": items,
                "COUNT": y.size,
                "CHANNELS": channels // wide,
                "OUT_HEIGHT": height,
                "OUT_WIDTH": width,
                "IN_HEIGHT": x.shape[1],
                "IN_WIDTH": x.shape[2],
                "WINDOW_Y": op.window[0],
                "WINDOW_X": op.window[1],
                "STRIDE_Y": op.stride[0],
                "STRIDE_X": op.stride[1],
                "DILATION_Y": op.dilation[0],
                "DILATION_X": op.dilation[1],
                "TOP": top,
                "LEFT": left,
                **constants,
            },
            invocations=spread(items),
            summary=f"{op.window[0]}x{op.window[1]} windows, {wide} channels at a time",
            form="vulkan_pool",
            work={"calls": 1, "taps": y.size * op.window[0] * op.window[1], "outputs": y.size},
        )


def _type(dtype: DType, quads: bool) -> str:
    if dtype.is_float:
        return "vec4" if quads else "float"
    return "ivec4" if quads else "int"


def _result(node: Node[Pool2D], *, quads: bool) -> tuple[str, dict[str, int], Array | None]:
    """GLSL of what becomes of `acc` over `count` elements, constants, and a table of factors."""
    op, x, y = node.op, node.input(0).type, node.output.type
    if y.dtype.is_float:
        value = "acc / float(count)" if op.kind == "average" else "acc"
        if op.activation is Activation.NONE:
            return value, {}, None
        low, high = op.activation.limits
        most = np.inf if isinf(high) else high
        limits = {"LOW": float_bits(low), "HIGH": float_bits(most)}
        return f"bounded({value}, intBitsToFloat(LOW), intBitsToFloat(HIGH))", limits, None
    low, high = clamp_limits(op.activation, y, node.rounding)
    constants = {"LOW": low, "HIGH": high}
    if op.scales(node):
        constants |= {"ZERO_X": x.zero_point, "ZERO": y.zero_point}
        real = "vec4" if quads else "float"
        scaled = f"clamp(roundEven({real}(acc) * RATIOS(count)), -4096.0, 4096.0)"
        whole = f"{_type(y.dtype, quads)}({scaled})"
        return f"clamp({whole} + ZERO, LOW, HIGH)", constants, _ratios(op, x, y)
    # To nearest, ties away from zero.
    value = "sign(acc) * ((abs(acc) + count / 2) / count)" if op.kind == "average" else "acc"
    return f"clamp({value}, LOW, HIGH)", constants, None


def _ratios(op: Pool2D, x: TensorType, y: TensorType) -> Array:
    """What sums of so many elements are multiplied by: Vulkan's quotients are not exact."""
    counts = np.arange(op.window[0] * op.window[1] + 1, dtype=np.float32)
    counts[0] = 1
    return (average_scale(x, y) / counts).astype(np.float32)


KERNELS = (PoolShader(),)
