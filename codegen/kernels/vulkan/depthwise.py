"""Depthwise convolutions on a GPU: small rectangles of pixels of four channels."""

from __future__ import annotations

import numpy as np

from smelt.codegen.kernels.base import (
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Request,
    ShaderCall,
)
from smelt.codegen.kernels.vulkan.blocks import costs_of, tiles_of
from smelt.codegen.kernels.vulkan.direct import direct
from smelt.codegen.kernels.vulkan.product import Product, refuse, shape_of, word_of
from smelt.ir import Node
from smelt.ops.convolution import DepthwiseConv2D
from smelt.targets import Target

MOST_TAPS = 49
"""Taps of a window that are written out."""


class DepthwiseConv2DKernel(Kernel):
    """Rectangles of four channels where these fill words; one output an invocation elsewhere."""

    op = DepthwiseConv2D

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        return refuse(node)

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        product = Product.of(node, floats=costs_of(request.target).reals)
        window = product.window
        if window.outputs != product.depth or product.depth % 4 or window.taps > MOST_TAPS:
            return direct(product)
        return tiles(product, request)


def tiles(product: Product, request: Request) -> ShaderCall:
    """The call that computes rectangles of four channels."""
    node, window, finish, kind = product.node, product.window, product.finish, product.kind
    real, quads = kind == "real", product.depth // 4
    size = (product.batch, *product.size)
    choice = tiles_of(node, request, size, quads, window)
    tile = choice.taken
    bands, across = -(-product.size[0] // tile.rows), -(-product.size[1] // tile.pixels)
    weights = np.ascontiguousarray(product.weights[..., 0].transpose(1, 2, 0))
    y = node.output.type
    output = "words" if y.is_quantized else "quads"
    shape = {
        "TILES": across,
        "BANDS": bands,
        "ROWS": bands * product.batch,
        "QUADS": quads,
        "OUTSIDE": word_of(product.outside),
        **product.geometry(),
        **finish.constants,
    }
    element, vector = ("vec4", "vec4") if real else ("int", "ivec4")
    inner, outer = across * bands * product.batch, quads
    if tile.across:
        inner, outer = outer, inner
    return ShaderCall(
        template="vulkan/depthwise.comp.j2",
        stem=f"depthwise_{'f32' if real else 'i8'}",
        parameters={
            "kind": kind,
            "finish": finish,
            "output": output,
            "shape": list(shape),
        },
        operands=(
            Input(0, "input"),
            Packed("weights", weights if real else weights.view(np.int32)),
            Packed("channels", finish.rows),
            *product.initial(),
            shape_of(shape),
            Output(0, "output"),
        ),
        views={
            "input": element,
            "weights": element,
            "channels": vector,
            "initial": "ivec4",
            "shape": "ivec4",
            "output": vector if output == "quads" else element,
        },
        constants={
            "LINES": tile.rows,
            "PIXELS": tile.pixels,
            "ACROSS": int(tile.across),
            "PADDED": int(window.padded),
            "KERNEL_Y": window.kernel[0],
            "KERNEL_X": window.kernel[1],
            "STRIDE_Y": window.stride[0],
            "STRIDE_X": window.stride[1],
            "DILATION_Y": window.dilation[0],
            "DILATION_X": window.dilation[1],
        },
        invocations=(inner, outer, 1),
        local=(tile.local, 1, 1),
        summary=tile.text,
        form="vulkan_tiles",
        work={"calls": 1, "products": node.macs},
        block=tile,
        candidates=choice.possible,
    )


KERNELS = (DepthwiseConv2DKernel(),)
