"""Convolutions and dense layers on a GPU: blocks of pixels times four channels at a time.

Where the weights prove that no partial sum leaves 24 bits, int8 products are summed as floats, to
the bit: multiply-adds of floats are the fastest instruction that every device has. Where the device
multiplies four bytes at a time, another module is taken, with the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from smelt.codegen.kernels.vulkan.blocks import Block, Work, blocks_of, costs_of
from smelt.codegen.kernels.vulkan.direct import direct
from smelt.codegen.kernels.vulkan.product import Product, refuse, shape_of, word_of
from smelt.ir import Array, Node
from smelt.ops.convolution import Conv2D
from smelt.ops.fully_connected import FullyConnected
from smelt.targets import Target

MOST_COLUMNS = 5
"""Taps of a row that are written out, so that neighbouring pixels share inputs."""


class ProductKernel(Kernel):
    """Blocks where outputs fill words, one output an invocation elsewhere."""

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        return refuse(node)

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        product = Product.of(node, floats=costs_of(request.target).reals)
        straddle = node.output.type.is_quantized and product.window.outputs % 4
        if product.window.groups > 1 or (straddle and product.pixels > 1):
            return direct(product)
        return blocks(product, request)


class Conv2DKernel(ProductKernel):
    """Convolutions."""

    op = Conv2D


class FullyConnectedKernel(ProductKernel):
    """Dense layers: the 1x1 convolution of an image of one row."""

    op = FullyConnected


def blocks(product: Product, request: Request) -> ShaderCall:
    """The call that computes blocks of pixels times quads of channels."""
    node, window, finish, kind = product.node, product.window, product.finish, product.kind
    single, real = window.depth % 4 != 0, kind == "real"
    columns = max(c for c in range(1, MOST_COLUMNS + 1) if window.kernel[1] % c == 0)
    parts = window.kernel[1] // columns
    quads = -(-window.outputs // 4)
    depth = window.depth if single else window.depth // 4
    # Inputs between the taps of neighbouring pixels are taps too.
    share = window.stride[1] <= columns and (window.dilation[1] == 1 or columns == 1)
    rows = product.batch * product.size[0]
    work = Work(
        steps=window.kernel[0] * parts * depth,
        columns=columns,
        stride=window.stride[1] if share else columns,
        input_words=4 if real and not single else 1,
        weight_words=(4 if single else 16) if real else (1 if single else 4),
        weight_loads=4 if real and not single else 1,
        packed=not real,
        products=4 if single else 16,
    )
    choice = blocks_of(node, request, (rows, product.size[1]), quads, work)
    block = choice.taken
    tiles = -(-product.size[1] // block.pixels)
    output = _output(product)
    inner, outer = tiles * rows, quads // block.quads
    if block.across:
        inner, outer = outer, inner
    shape = {
        "TILES": tiles,
        "ROWS": rows,
        "BLOCKS": quads // block.quads,
        "STEPS": work.steps * columns,
        "OUTPUTS": window.outputs,
        "OUT_QUADS": quads,
        "DEPTH": depth,
        "PARTS": parts,
        "KERNEL_Y": window.kernel[0],
        "STRIDE_Y": window.stride[0],
        "DILATION_Y": window.dilation[0],
        "OUTSIDE": word_of(product.outside),
        **product.geometry(),
        **finish.constants,
    }
    element, vector = ("float", "vec4") if real else ("int", "ivec4")
    return ShaderCall(
        template="vulkan/convolution.comp.j2",
        stem=f"conv_{'f32' if real else 'i8'}",
        parameters={
            "kind": kind,
            "single": single,
            "finish": finish,
            "output": output,
            "shape": list(shape),
        },
        operands=(
            Input(0, "input"),
            Packed("weights", _packed(product.weights, columns, block, kind == "real")),
            Packed("channels", finish.rows),
            *product.initial(),
            shape_of(shape),
            Output(0, "output"),
        ),
        views={
            "input": vector if real and not single else element,
            "weights": element if single and not real else vector,
            "channels": vector,
            "initial": "ivec4",
            "shape": "ivec4",
            "output": vector if output == "quads" else element,
        },
        constants={
            "PIXELS": block.pixels,
            "QUADS": block.quads,
            "ACROSS": int(block.across),
            "COLUMNS": columns,
            "SHARE": int(share),
            "PADDED": int(window.padded),
            "STRIDE_X": window.stride[1],
            "DILATION_X": window.dilation[1],
        },
        invocations=(inner, outer, 1),
        local=(block.local, 1, 1),
        summary=block.text,
        form="vulkan_blocks",
        work={"calls": 1, "products": node.macs},
        variants=("",) if real or single else ("", "dot"),
        block=block,
        candidates=choice.possible,
    )


def _packed(weights: Array, columns: int, block: Block, real: bool) -> Array:
    """`[o, kh, kw, depth]` as `[steps, quads of the block, ...]` for each block, or beside it.

    A step's weights of a quad are four inputs of four outputs each, for bytes four outputs of four
    inputs each; where inputs are loaded one by one, one input of four outputs.
    """
    outputs, height, width, depth = weights.shape
    padded = np.zeros((-(-outputs // 4) * 4, height, width, depth), weights.dtype)
    padded[:outputs] = weights
    inner = 4 if depth % 4 == 0 else 1
    parts = (-1, block.quads, 4, height, width // columns, columns, depth // inner, inner)
    # [block, quad, output, ky, part, column, i, input] -> [ky, part, i, column, ...]
    order: Sequence[int] = (3, 4, 6, 5, 1, 7, 2) if real or inner == 1 else (3, 4, 6, 5, 1, 2, 7)
    order = (*order[:4], 0, *order[4:]) if block.across else (0, *order)
    packed = np.ascontiguousarray(padded.reshape(parts).transpose(order))
    return packed if real else packed.view(np.int32)


def _output(product: Product) -> str:
    """What the shader writes: whole words, quads, or one number after the other."""
    if product.node.output.type.is_quantized:
        return "words"
    return "single" if product.window.outputs % 4 else "quads"


KERNELS = (Conv2DKernel(), FullyConnectedKernel())
