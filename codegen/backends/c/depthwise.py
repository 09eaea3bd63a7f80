"""Depthwise 2-D convolutions (DepthwiseConv2D)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.c.convolution_blocks import blocks
from smelt.codegen.backends.c.convolution_direct import direct
from smelt.codegen.backends.c.convolution_float import float_blocks
from smelt.codegen.backends.c.depthwise_float import WIDEST, depthwise_float
from smelt.codegen.backends.c.depthwise_lanes import depthwise_lanes
from smelt.codegen.backends.c.depthwise_pairs import depthwise_pairs, serves_pairs
from smelt.codegen.lower.image_loops import Frame
from smelt.codegen.lower.kernel import Kernel, KernelCall, Refusal, Request
from smelt.codegen.lower.output_stage import OutputStage
from smelt.codegen.lower.quantized_products import (
    bias_with_zero_point,
    can_fold_zero_point,
    constant_bias,
    served_sums,
)
from smelt.codegen.lower.window import Window
from smelt.ir import DType, Node
from smelt.ops.arithmetic.fixed_point import convolution_scales
from smelt.ops.core.convolution import DepthwiseConv2D


class DepthwiseConv2DKernel(Kernel[DepthwiseConv2D]):
    """Convolutions in which each output channel has a single input channel."""

    op = DepthwiseConv2D
    uses_scratch_limit = True

    @override
    def offer(self, node: Node[DepthwiseConv2D], request: Request) -> KernelCall | Refusal:
        range_ = served_sums(node, 3)
        if isinstance(range_, Refusal):
            return range_
        op = node.op
        window, frame = Window.of(node), Frame.of(node)
        x, weights, y = node.input(0).type, node.input(1).type, node.output.type
        stem = f"depthwise_{window.kernel[0]}x{window.kernel[1]}"
        if x.dtype is DType.FLOAT32 and can_fold_zero_point(node):
            return _float(node, window, frame, request, stem)
        scales = convolution_scales(x, weights, y, node.rounding) if y.quant is not None else ()
        plain = not can_fold_zero_point(node) or x.dtype is DType.INT16
        pairs = not plain and x.shape[3] > 1 and serves_pairs(node, request.target)
        if plain or (1 < x.shape[3] < window.outputs and not pairs):
            finish = OutputStage.of(node, op.activation, constant_bias(node), scales, range_)
            return direct(node, window, frame, finish, stem=stem, depthwise=True)
        finish = OutputStage.of(node, op.activation, bias_with_zero_point(node, 3), scales, range_)
        array = np.moveaxis(node.input(1).array[0], 2, 0)
        if x.shape[3] == 1:  # all outputs read the single channel, as in a Conv2D
            return blocks(node, window, frame, finish, array, request, stem=stem)
        if pairs:
            return depthwise_pairs(node, window, frame, finish, array, request, stem=stem)
        return depthwise_lanes(node, window, frame, finish, array, request, stem=stem)


def _float(
    node: Node[DepthwiseConv2D], window: Window, frame: Frame, request: Request, stem: str
) -> KernelCall:
    """Return the call that computes a float node.

    If an input channel has several outputs, they are a group of a convolution with groups.
    """
    inputs = node.input(0).type.shape[3]
    if inputs == window.outputs and window.kernel[1] <= WIDEST:
        return depthwise_float(node, window, frame, request, stem=stem)
    return float_blocks(node, replace(window, groups=inputs), frame, request, stem=stem)


KERNELS = (DepthwiseConv2DKernel(),)
