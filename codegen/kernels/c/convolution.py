"""Conv2D."""

from __future__ import annotations

from smelt.codegen.kernels.base import Kernel, KernelCall, Request
from smelt.codegen.kernels.c.direct import direct
from smelt.codegen.kernels.c.finish import Finish
from smelt.codegen.kernels.c.images import frame
from smelt.codegen.kernels.c.products import centred_weights, constant_bias, folds, refuse_products, sums
from smelt.codegen.kernels.c.pairs import fits_pairs, pairs
from smelt.codegen.kernels.c.requantization import folded_bias
from smelt.codegen.kernels.c.window import Window
from smelt.ir import Node
from smelt.ops.convolution import Conv2D
from smelt.ops.fixed_point import convolution_scales
from smelt.targets import Target


class Conv2DKernel(Kernel):
    """Sums of products over windows."""

    op = Conv2D
    spatial = True

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        return refuse_products(node, channel_axis=0)

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        op = node.op
        if not isinstance(op, Conv2D):
            raise TypeError(f"{op.name} is no Conv2D")
        window, place = Window.of(node), frame(node, request)
        x, weights, y = node.input(0).type, node.input(1).type, node.output.type
        stem = f"conv_{window.kernel[0]}x{window.kernel[1]}"
        bias = constant_bias(node)
        if y.quant is None:
            finish = Finish.of(node, op.activation, bias)
            return direct(node, window, place, finish, stem=stem)
        scales = convolution_scales(x, weights, y)
        if folds(node) and "long_multiply" in request.target.features and op.groups == 1:
            centred = centred_weights(node, 0)
            if fits_pairs(centred):
                bias = folded_bias(bias, centred, x.zero_point)
                finish = Finish.of(node, op.activation, bias, scales, sums(node, 0))
                return pairs(node, window, place, finish, node.input(1).array, stem=stem)
        finish = Finish.of(node, op.activation, bias, scales, sums(node, 0))
        return direct(node, window, place, finish, stem=stem)


KERNELS = (Conv2DKernel(),)
