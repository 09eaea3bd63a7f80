"""Shader of ConvTranspose: each output sums the taps that contribute to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.backends.vulkan.convolution_parameters import channel_axis, refuse, variants_of
from smelt.codegen.backends.vulkan.elementwise import (
    Lanes,
    element,
    operand_of,
    spread,
    view,
)
from smelt.codegen.backends.vulkan.output_stage import FinishParameters, ShaderFinish
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
from smelt.codegen.lower.quantized_products import constant_bias, sums
from smelt.ir import Node
from smelt.ops.arithmetic.fixed_point import convolution_scales
from smelt.ops.core.convolution_nd import ConvTranspose

_RANK = 4
"""Largest rank of the input: an image has rank 4; a row is an image of height 1."""


@dataclass(frozen=True)
class TransposedShaderParameters(Parameters):
    """Parameters of the shader of ConvTranspose.

    Attributes:
        finish: How sums become outputs.
        lanes: How many elements an invocation computes.
        functions: GLSL of shared functions.
        weight: GLSL of the weight.
        factor: GLSL of the input that it multiplies.
    """

    finish: FinishParameters
    lanes: Lanes
    functions: str
    weight: str
    factor: str


class ConvTransposeShader(Kernel[ConvTranspose]):
    """Computes four channels of a pixel at a time if groups allow it, else one output."""

    op = ConvTranspose
    floats = NARROW_FLOATS

    @override
    def offer(self, node: Node[ConvTranspose], request: Request) -> KernelCall | Refusal:
        if len(node.input(0).type.shape) > _RANK:
            return Refusal(f"{node.op.name} is served on the GPU only in one and two dimensions.")
        if refusal := refuse(node):
            return refusal
        y, (quads, depthwise) = node.output.type, _in_quads(node)
        dtype = y.dtype
        finish, lanes = _finish(node), Lanes.of(dtype, quads=quads)
        rows = finish.rows if quads else np.ascontiguousarray(finish.rows.transpose(0, 2, 1))
        weight = lanes.load(dtype, "WEIGHTS", "weight")
        factor = (lanes.load if depthwise else element)(dtype, "INPUT", "at")
        items = lanes.items(y.size)
        return ShaderCall(
            template="backends/vulkan/transposed.comp.j2",
            stem=f"transposed_{dtype.value}",
            parameters=TransposedShaderParameters(
                finish=finish.parameters,
                lanes=lanes,
                functions=lanes.functions(weight, factor),
                weight=weight,
                factor=f"({factor} - INPUT_ZERO)" if lanes.bytes else factor,
            ),
            operands=(
                Input(0, "input"),
                operand_of(node, 1, "weights"),
                Packed("channels", rows),
                Output(0, "output"),
            ),
            views={
                "input": view(dtype, quads and depthwise),
                "weights": view(dtype, quads),
                "channels": lanes.type,
                "output": view(dtype, quads),
            },
            constants={
                "ITEMS": items,
                "COUNT": y.size,
                **_channels(node, lanes, depthwise=depthwise),
                "INPUT_ZERO": node.input(0).type.zero_point if lanes.bytes else 0,
                **_geometry(node),
                **finish.constants,
            },
            invocations=spread(items),
            summary=f"{-(-y.size // items)} outputs per invocation, gathered",
            form="vulkan_transposed",
            work={"calls": 1, "products": node.macs},
            variants=variants_of(dtype) if quads else ("",),
        )


def _in_quads(node: Node[ConvTranspose]) -> tuple[bool, bool]:
    """Return whether four channels are computed at a time, and whether it is depthwise.

    It is depthwise if each output channel depends on one input channel of its own.
    """
    depth, outputs = node.input(1).type.shape[-2:]
    each = outputs // node.op.groups
    depthwise = depth == each == 1 and node.op.groups % 4 == 0
    return depthwise or each % 4 == 0, depthwise


def _channels(node: Node[ConvTranspose], lanes: Lanes, *, depthwise: bool) -> dict[str, int]:
    """Return the counts of channels, in the units in which they are loaded: one or four."""
    (depth, outputs), inputs = node.input(1).type.shape[-2:], node.input(0).type.shape[-1]
    each = outputs // node.op.groups
    return {
        "OUTPUTS": outputs // lanes.width,
        "GROUP_OUTPUTS": each if depthwise else each // lanes.width,
        "DEPTH": depth,
        "IN_DEPTH": inputs // lanes.width if depthwise else inputs,
    }


def _finish(node: Node[ConvTranspose]) -> ShaderFinish:
    """Return how sums of inputs without zero point become outputs."""
    x, weights, y = node.input(0).type, node.input(1).type, node.output.type
    outputs, bias = y.shape[-1], constant_bias(node)
    if not y.is_quantized:
        return ShaderFinish.of(node, node.op.activation, bias, outputs)
    scales = convolution_scales(x, weights, y, node.rounding)
    range_ = sums(node, channel_axis(node))
    return ShaderFinish.of(node, node.op.activation, bias, outputs, scales, range_)


def _geometry(node: Node[ConvTranspose]) -> dict[str, int]:
    """Return the specialization constants of the taps and of both images."""
    op, found = node.op, dict[str, int]()
    x, kernel, y = (v.type.shape for v in (node.input(0), node.input(1), node.output))
    sizes = zip(
        (1, *x[1:-1])[-2:],
        (1, *kernel[:-2])[-2:],
        (1, *y[1:-1])[-2:],
        (1, *op.stride)[-2:],
        (1, *op.dilation)[-2:],
        (0, *(pair[0] for pair in op.padding))[-2:],
        strict=True,
    )
    for name, (inputs, taps, outputs, stride, dilation, before) in zip("YX", sizes, strict=True):
        found |= {
            f"IN_{name}": inputs,
            f"KERNEL_{name}": taps,
            f"OUT_{name}": outputs,
            f"STRIDE_{name}": stride,
            f"DILATION_{name}": dilation,
            f"CUT_{name}": before,
            # Without dilation, only every STRIDE-th tap coincides with an input.
            f"NEXT_{name}": stride if dilation == 1 else 1,
        }
    return found


KERNELS = (ConvTransposeShader(),)
