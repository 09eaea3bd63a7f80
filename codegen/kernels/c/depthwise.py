"""DepthwiseConv2D."""

from __future__ import annotations

import numpy as np

from smelt.codegen.kernels.base import Kernel, KernelCall, Request
from smelt.codegen.kernels.c.direct import direct
from smelt.codegen.kernels.c.finish import Finish
from smelt.codegen.kernels.c.images import frame
from smelt.codegen.kernels.c.products import centred_weights, constant_bias, folds, refuse_products, sums
from smelt.codegen.kernels.c.depthwise_pairs import depthwise_pairs
from smelt.codegen.kernels.c.pairs import fits_pairs
from smelt.codegen.kernels.c.requantization import folded_bias
from smelt.codegen.kernels.c.window import Window
from smelt.ir import Node
from smelt.ops.convolution import DepthwiseConv2D
from smelt.ops.fixed_point import convolution_scales
from smelt.targets import Target


class DepthwiseConv2DKernel(Kernel):
    """Sums of products over windows, each channel by itself."""

    op = DepthwiseConv2D
    spatial = True

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        return refuse_products(node, channel_axis=3)

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        op = node.op
        if not isinstance(op, DepthwiseConv2D):
            raise TypeError(f"{op.name} is no DepthwiseConv2D")
        window, place = Window.of(node), frame(node, request)
        x, weights, y = node.input(0).type, node.input(1).type, node.output.type
        stem = f"depthwise_{window.kernel[0]}x{window.kernel[1]}"
        bias = constant_bias(node)
        if y.quant is None:
            finish = Finish.of(node, op.activation, bias)
            return direct(node, window, place, finish, stem=stem, depthwise=True)
        scales, range_ = convolution_scales(x, weights, y), sums(node, 3)
        if folds(node) and "long_multiply" in request.target.features:
            centred = centred_weights(node, 3)
            if fits_pairs(centred):
                bias = folded_bias(bias, centred, x.zero_point)
                finish = Finish.of(node, op.activation, bias, scales, range_)
                array = np.moveaxis(node.input(1).array[0], 2, 0)
                return depthwise_pairs(node, window, place, finish, array, stem=stem)
        finish = Finish.of(node, op.activation, bias, scales, range_)
        return direct(node, window, place, finish, stem=stem, depthwise=True)


KERNELS = (DepthwiseConv2DKernel(),)
