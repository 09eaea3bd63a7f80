"""Shader of Pool2D: maximum, average and sum over sliding windows."""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf, prod

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.backends.vulkan.elementwise import Lanes, by_axis, spread, view
from smelt.codegen.backends.vulkan.unary import float_bits
from smelt.codegen.lower.kernel import (
    NARROW_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
)
from smelt.ir import DType, Node, TensorType
from smelt.ops.arithmetic.fixed_point import Activation, clamp_limits
from smelt.ops.core.pool import Pool2D, average_scale

_TYPES = (*NARROW_FLOATS, DType.INT8, DType.UINT8)


@dataclass(frozen=True)
class PoolShaderParameters(Parameters):
    """Parameters of the shader of Pool2D.

    Attributes:
        kind: The kind of Pool2D.
        lanes: How many elements an invocation computes.
        first: Initial value of the accumulator `acc`.
        load: GLSL that loads an input.
        result: GLSL of the output in terms of `acc` and of `count`, the number of elements.
        counts_padding: Whether `count` includes padding.
        functions: GLSL of shared functions.
    """

    kind: str
    lanes: Lanes
    first: str
    load: str
    result: str
    counts_padding: bool
    functions: str


class PoolShader(Kernel[Pool2D]):
    """Each invocation computes four channels of a pixel, or one."""

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
        lanes = Lanes.of(dtype, quads=y.shape[3] % 4 == 0)
        load = lanes.load(dtype, "INPUT", "at")
        if op.scales(node):
            load = f"{load} - ZERO_X"
        result, constants, ratios = _result(node, lanes)
        items = lanes.items(y.size)
        return ShaderCall(
            template="backends/vulkan/pool.comp.j2",
            stem=f"{op.kind}_pool_{x.dtype.value}",
            parameters=PoolShaderParameters(
                kind=op.kind,
                lanes=lanes,
                first=_first(op.kind, dtype),
                load=load,
                result=result,
                counts_padding=op.counts_padding,
                functions=lanes.functions(load, result),
            ),
            operands=(Input(0, "input"), *ratios, Output(0, "output")),
            views={
                "input": view(dtype, lanes.quads),
                "ratios": "float",
                "output": view(dtype, lanes.quads),
            },
            constants={
                "ITEMS": items,
                "COUNT": y.size,
                "CHANNELS": y.shape[3] // lanes.width,
                "OUT_HEIGHT": y.shape[1],
                "OUT_WIDTH": y.shape[2],
                "IN_HEIGHT": x.shape[1],
                "IN_WIDTH": x.shape[2],
                **by_axis(WINDOW=op.window, STRIDE=op.stride, DILATION=op.dilation),
                "TOP": op.padding[0][0],
                "LEFT": op.padding[1][0],
                **constants,
            },
            invocations=spread(items),
            summary=f"{op.window[0]}x{op.window[1]} windows, {lanes.width} channels at a time",
            form="vulkan_pool",
            work={"calls": 1, "taps": y.size * op.window[0] * op.window[1], "outputs": y.size},
        )


def _first(kind: str, dtype: DType) -> str:
    """Return GLSL of an accumulator's initial value."""
    if kind == "max":
        return "-3.4028235e38" if dtype.is_float else str(dtype.limits[0])
    return "0.0" if dtype.is_float else "0"


def _result(node: Node[Pool2D], lanes: Lanes) -> tuple[str, dict[str, int], tuple[Packed, ...]]:
    """Return GLSL of the output in terms of `acc` and `count`, constants, and operands."""
    op, x, y = node.op, node.input(0).type, node.output.type
    if y.dtype.is_float:
        value = "acc / float(count)" if op.kind == "average" else "acc"
        if op.activation is Activation.NONE:
            return value, {}, ()
        low, high = op.activation.limits
        most = np.inf if isinf(high) else high
        limits = {"LOW": float_bits(low), "HIGH": float_bits(most)}
        return f"bounded({value}, intBitsToFloat(LOW), intBitsToFloat(HIGH))", limits, ()
    low, high = clamp_limits(op.activation, y, node.rounding)
    constants = {"LOW": low, "HIGH": high}
    if op.scales(node):
        constants |= {"ZERO_X": x.zero_point, "ZERO": y.zero_point}
        real = "vec4" if lanes.quads else "float"
        scaled = f"clamp(roundEven({real}(acc) * RATIOS(count)), -4096.0, 4096.0)"
        whole = f"{lanes.type}({scaled})"
        return f"clamp({whole} + ZERO, LOW, HIGH)", constants, (_ratios(op, x, y),)
    # Round to nearest, ties away from zero.
    value = "sign(acc) * ((abs(acc) + count / 2) / count)" if op.kind == "average" else "acc"
    return f"clamp({value}, LOW, HIGH)", constants, ()


def _ratios(op: Pool2D, x: TensorType, y: TensorType) -> Packed:
    """Return the factors by which sums are scaled, by their number of elements.

    They are tabulated because Vulkan's quotients are not exact.
    """
    counts = np.arange(op.window[0] * op.window[1] + 1, dtype=np.float32)
    counts[0] = 1
    return Packed("ratios", (average_scale(x, y) / counts).astype(np.float32))


KERNELS = (PoolShader(),)
