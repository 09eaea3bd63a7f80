"""DepthwiseConv2D."""

from __future__ import annotations

from smelt.codegen.kernels.base import Kernel, KernelCall, Request
from smelt.codegen.kernels.c.direct import direct
from smelt.codegen.kernels.c.finish import Finish
from smelt.codegen.kernels.c.images import frame
from smelt.codegen.kernels.c.products import constant_bias, refuse_products, sums
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
        bias = constant_bias(node)
        if y.quant is None:
            finish = Finish.of(node, op.activation, bias)
        else:
            scales = convolution_scales(x, weights, y)
            finish = Finish.of(node, op.activation, bias, scales, sums(node, 3))
        stem = f"depthwise_{window.kernel[0]}x{window.kernel[1]}"
        return direct(node, window, place, finish, stem=stem, depthwise=True)


KERNELS = (DepthwiseConv2DKernel(),)
