"""The common form of Conv2D, DepthwiseConv2D and FullyConnected on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from smelt.codegen.backends.vulkan.output_stage import ShaderFinish
from smelt.codegen.lower.kernel import NARROW_FLOATS, Refusal
from smelt.codegen.lower.quantized_products import (
    bias_with_zero_point,
    constant_bias,
    refuse_products,
    sums,
)
from smelt.codegen.lower.window import Window
from smelt.ir import Array, DType, Node
from smelt.ops.arithmetic.fixed_point import convolution_scales
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.convolution_nd import ConvTranspose
from smelt.ops.core.fully_connected import FullyConnected, fully_connected_scales

Weighted = Conv2D | DepthwiseConv2D | FullyConnected
"""Operators with constant weights for each output channel."""

Accumulation = Literal["real", "exact", "whole"]
"""How products are summed.

`real`: floats; `exact`: int8 values as floats, whose sums stay exact; `whole`: int8 as integers.
"""

_EXACT = 1 << 24
"""All integers up to this one are exact in float32."""


@dataclass(frozen=True, kw_only=True)
class ShaderProduct:
    """A convolution as sums of products over a window.

    Attributes:
        node: The Conv2D, DepthwiseConv2D or FullyConnected.
        window: Its window. For dense layers and 1x1 convolutions, the image has one long row.
        weights: `[o, kh, kw, depth]`.
        bias: `[o]`, including the zero points' share; None if there is none.
        size: Height and width of the output.
        batch: Number of images.
        depth: Channels of the input.
        floats: Whether int8 values are multiplied as floats if the sums stay exact.
    """

    node: Node[Weighted]
    window: Window
    weights: Array
    bias: Array | None
    size: tuple[int, int]
    batch: int
    depth: int
    floats: bool

    @staticmethod
    def of(node: Node[Weighted], *, floats: bool) -> ShaderProduct | Refusal:
        """Return the node as a product, or the reason why no shader computes it."""
        refusal = refuse(node)
        if refusal is not None:
            return refusal
        op, weights, y = node.op, node.input(1), node.output.type
        axis = channel_axis(node)
        array, window, x = weights.array, _window(node), node.input(0).type
        if isinstance(op, DepthwiseConv2D):
            array = np.moveaxis(array, 3, 0)
        array = array.reshape(window.outputs, *window.kernel, window.depth)
        bias = constant_bias(node) if y.dtype.is_float else bias_with_zero_point(node, axis)
        dense = window.size == (1, y.size // window.outputs) and window.taps == 1
        height, width = (1, window.size[1]) if dense else (y.shape[1], y.shape[2])
        batch = y.size // (height * width * window.outputs)
        size = height, width
        depth = window.depth if isinstance(op, FullyConnected) else x.shape[-1]
        return ShaderProduct(
            node=node,
            window=window,
            weights=array,
            bias=bias,
            size=size,
            batch=batch,
            depth=depth,
            floats=floats,
        )

    @property
    def kind(self) -> Accumulation:
        """How the products are summed."""
        if self.node.input(0).type.dtype.is_float:
            return "real"
        largest = np.abs(self.weights.astype(np.int64)).sum(axis=(1, 2, 3)).max(initial=0) * 128
        return "exact" if self.floats and largest < _EXACT else "whole"

    @property
    def sum_increase(self) -> Array:
        """What the sums grow by if 128 is added to all inputs: int64 `[o]`."""
        return 128 * self.weights.astype(np.int64).sum(axis=(1, 2, 3))

    def finish(self, *, raised: bool = False) -> ShaderFinish:
        """Return how sums become outputs.

        Args:
            raised: Whether the shader adds 128 to its inputs, as `words.j2` does.
        """
        node, op, y = self.node, self.node.op, self.node.output.type
        bias, outputs = self.bias, self.window.outputs
        if raised:
            bias = (0 if bias is None else bias.ravel().astype(np.int64)) - self.sum_increase
        if not y.is_quantized:
            return ShaderFinish.of(node, op.activation, bias, outputs)
        find = fully_connected_scales if isinstance(op, FullyConnected) else convolution_scales
        scales = find(node.input(0).type, node.input(1).type, y, node.rounding)
        range_ = sums(node, channel_axis(node))
        return ShaderFinish.of(node, op.activation, bias, outputs, scales, range_)

    @property
    def pixels(self) -> int:
        """Pixels of the whole output."""
        return self.batch * self.size[0] * self.size[1]

    @property
    def outside(self) -> int:
        """The value of padding: the input's zero point, or 0 for floats."""
        type_ = self.node.input(0).type
        return type_.zero_point if type_.is_quantized else 0

    def geometry(self) -> Mapping[str, int]:
        """Return the sizes of both images and the padding before the first row and column."""
        window = self.window
        return {
            "OUT_HEIGHT": self.size[0],
            "OUT_WIDTH": self.size[1],
            "IN_HEIGHT": window.size[0],
            "IN_WIDTH": window.size[1],
            "TOP": window.padding[0][0],
            "LEFT": window.padding[1][0],
        }


def variants_of(dtype: DType) -> tuple[str, ...]:
    """Return the variants of a module that has one for devices with fast float16 products."""
    return ("", "half") if dtype is DType.FLOAT16 else ("",)


def word_of(byte: int) -> int:
    """Return four copies of a byte as a signed 32-bit word."""
    return int(np.full(4, byte, np.int8).view(np.int32)[0])


def channel_axis(node: Node[Weighted | ConvTranspose]) -> int:
    """Return the axis of the weights that enumerates output channels."""
    last = isinstance(node.op, DepthwiseConv2D | ConvTranspose)
    return len(node.input(1).type.shape) - 1 if last else 0


def refuse(node: Node[Weighted | ConvTranspose]) -> Refusal | None:
    """Return why no shader computes the node; None if one does."""
    if refusal := refuse_products(node, channel_axis(node)):
        return refusal
    x, weights = node.input(0).type, node.input(1)
    quant = weights.type.quant
    symmetric = quant is None or not any(quant.zero_point)
    if x.dtype not in (*NARROW_FLOATS, DType.INT8) or not weights.is_constant or not symmetric:
        return Refusal(
            f"{node.op.name} is served on the GPU only for floats and i8, and only with constant "
            "weights without zero point."
        )
    return None


def _window(node: Node[Weighted]) -> Window:
    """Return the node's window; for a 1x1 convolution of stride 1, the image is one long row."""
    x, window = node.input(0).type, Window.of(node)
    if isinstance(node.op, Conv2D) and window.groups == 1 and window.pointwise:
        return Window.dense(x.size // window.depth, window.depth, window.outputs)
    return window
