"""Depthwise convolutions on a GPU: small rectangles of pixels of four channels."""

from __future__ import annotations

from dataclasses import dataclass

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
from smelt.codegen.kernels.vulkan.blocks import Tile, best_tile
from smelt.codegen.kernels.vulkan.direct import direct
from smelt.codegen.kernels.vulkan.product import Product, refuse, word_of
from smelt.ir import Node
from smelt.ops.convolution import DepthwiseConv2D
from smelt.targets import Target

MOST_TAPS = 49
"""Taps of a window that are written out."""


@dataclass(frozen=True)
class Use:
    """One multiply-add: of the output at `row`, `pixel`, with a loaded input and a tap's weights."""

    row: int
    pixel: int
    slot: int
    tap: int


@dataclass(frozen=True)
class Line:
    """A row of inputs, so many below the tile's first one, and what it is used for."""

    offset: int
    uses: tuple[Use, ...]


class DepthwiseConv2DKernel(Kernel):
    """Rectangles of four channels where these fill words; one output an invocation elsewhere."""

    op = DepthwiseConv2D

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        return refuse(node)

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        product = Product.of(node)
        window = product.window
        if window.outputs != product.depth or product.depth % 4 or window.taps > MOST_TAPS:
            return direct(product)
        return tiles(product)


def tiles(product: Product) -> ShaderCall:
    """The call that computes rectangles of four channels."""
    node, window, finish, kind = product.node, product.window, product.finish, product.kind
    real, quads = kind == "real", product.depth // 4
    tile = best_tile(window, product.size, product.batch, quads, real)
    bands, across = -(-product.size[0] // tile.rows), -(-product.size[1] // tile.pixels)
    offsets, lines = _lines(product, tile)
    weights = np.ascontiguousarray(product.weights[..., 0].transpose(1, 2, 0))
    y = node.output.type
    output = "words" if y.is_quantized else "quads"
    element, vector = ("vec4", "vec4") if real else ("int", "ivec4")
    counts = (quads, across * bands * product.batch)
    return ShaderCall(
        template="vulkan/depthwise.comp.j2",
        stem=f"depthwise_{'f32' if real else 'i8'}",
        parameters={
            "kind": kind,
            "finish": finish,
            "rows": tile.rows,
            "pixels": tile.pixels,
            "across": tile.across,
            "kernel": window.taps,
            "offsets": offsets,
            "lines": lines,
            "padded": window.padded,
            "output": output,
        },
        operands=(
            Input(0, "input"),
            Packed("weights", weights if real else weights.view(np.int32)),
            Packed("channels", finish.rows),
            *product.initial(),
            Output(0, "output"),
        ),
        views={
            "input": element,
            "weights": element,
            "channels": vector,
            "initial": "ivec4",
            "output": vector if output == "quads" else element,
        },
        constants={
            "TILES": across,
            "BANDS": bands,
            "ROWS": bands * product.batch,
            "QUADS": quads,
            "OUTSIDE": word_of(product.outside),
            **product.geometry(),
            **finish.constants,
        },
        invocations=(*(counts if tile.across else counts[::-1]), 1),
        local=(tile.local, 1, 1),
        summary=f"{tile.rows} x {tile.pixels} pixels x 4 channels an invocation",
        form="vulkan_tiles",
        work={"calls": 1, "products": node.macs},
    )


def _lines(product: Product, tile: Tile) -> tuple[list[int], list[Line]]:
    """Column offsets of the inputs that are loaded, and for each row of them their uses."""
    window = product.window
    columns = [
        [p * window.stride[1] + kx * window.dilation[1] for kx in range(window.kernel[1])]
        for p in range(tile.pixels)
    ]
    offsets = sorted({offset for pixel in columns for offset in pixel})
    found: dict[int, list[Use]] = {}
    for row in range(tile.rows):
        for ky in range(window.kernel[0]):
            uses = found.setdefault(row * window.stride[0] + ky * window.dilation[0], [])
            uses += [
                Use(row, p, offsets.index(offset), ky * window.kernel[1] + kx)
                for p, pixel in enumerate(columns)
                for kx, offset in enumerate(pixel)
            ]
    return offsets, [Line(offset, tuple(found[offset])) for offset in sorted(found)]


KERNELS = (DepthwiseConv2DKernel(),)
