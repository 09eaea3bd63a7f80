"""Convolutions of any shape: each invocation computes one output, or one word of four bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.backends.vulkan.convolution_parameters import ShaderProduct
from smelt.codegen.backends.vulkan.elementwise import by_axis, view
from smelt.codegen.backends.vulkan.output_stage import FinishParameters
from smelt.codegen.lower.kernel import Input, Output, Packed, Parameters

SPAN = 1 << 20
"""Largest number of invocations in x; further ones are in y."""


@dataclass(frozen=True)
class DirectShaderParameters(Parameters):
    """Parameters of the direct shader.

    Attributes:
        real: Whether the data is float.
        finish: How sums become outputs.
        output: What an invocation writes: `words` of four bytes, or `single`.
    """

    real: bool
    finish: FinishParameters
    output: str


def direct(product: ShaderProduct) -> ShaderCall:
    """Return the call for any number of channels, groups and channel multiplier."""
    node, window, finish = product.node, product.window, product.finish()
    real, x, y = product.kind == "real", node.input(0).type, node.output.type
    words = y.is_quantized
    invocations = -(-y.size // 4) if words else y.size
    weights = np.ascontiguousarray(product.weights)
    if not real:
        flat = np.zeros(-(-weights.size // 4) * 4, np.int8)
        flat[: weights.size] = weights.ravel()
        weights = flat.view(np.int32)
    rows = np.ascontiguousarray(finish.rows.transpose(0, 2, 1))
    groups = product.depth // window.depth
    return ShaderCall(
        template="backends/vulkan/direct.comp.j2",
        stem=f"direct_{x.dtype.value}",
        parameters=DirectShaderParameters(
            real=real,
            finish=finish.parameters,
            output="words" if words else "single",
        ),
        operands=(
            Input(0, "input"),
            Packed("weights", weights),
            Packed("channels", rows),
            Output(0, "output"),
        ),
        views={
            "input": view(x.dtype),
            "weights": view(x.dtype),
            "channels": "float" if real else "int",
            "output": view(y.dtype),
        },
        constants={
            "COUNT": y.size,
            "SPAN": SPAN,
            "OUTPUTS": window.outputs,
            "GROUP_OUTPUTS": window.outputs // groups,
            "DEPTH": window.depth,
            "IN_DEPTH": product.depth,
            **by_axis(STRIDE=window.stride, KERNEL=window.kernel, DILATION=window.dilation),
            "OUTSIDE": product.outside,
            **product.geometry(),
            **finish.constants,
        },
        invocations=(min(invocations, SPAN), -(-invocations // SPAN), 1),
        summary="one output per invocation" if not words else "four outputs per invocation",
        form="vulkan_direct",
        work={"calls": 1, "products": node.macs},
    )
