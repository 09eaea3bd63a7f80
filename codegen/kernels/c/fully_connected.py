"""FullyConnected: the 1x1 convolution of an image of one row."""

from __future__ import annotations

from smelt.codegen.kernels.base import Kernel, KernelCall, Layout, Request
from smelt.codegen.kernels.c.direct import direct
from smelt.codegen.kernels.c.finish import Finish
from smelt.codegen.kernels.c.images import Frame
from smelt.codegen.kernels.c.products import constant_bias, refuse_products, sums
from smelt.codegen.kernels.c.window import Window
from smelt.ir import Node
from smelt.ops.fully_connected import FullyConnected, fully_connected_scales
from smelt.targets import Target


class FullyConnectedKernel(Kernel):
    """Rows of inputs times weights."""

    op = FullyConnected

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        return refuse_products(node, channel_axis=0)

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        op = node.op
        if not isinstance(op, FullyConnected):
            raise TypeError(f"{op.name} is no FullyConnected")
        x, weights, y = node.input(0).type, node.input(1).type, node.output.type
        outputs, depth = weights.shape
        rows = x.size // depth
        window = Window.dense(rows, depth, outputs)
        place = Frame(
            Layout(x.size, depth),
            Layout(y.size, outputs),
            ("0", "1"),
            ("0", str(rows)),
            1,
            x.size,
            y.size,
            False,
        )
        bias = constant_bias(node)
        if y.quant is None:
            finish = Finish.of(node, op.activation, bias)
        else:
            scales = fully_connected_scales(x, weights, y)
            finish = Finish.of(node, op.activation, bias, scales, sums(node, 0))
        return direct(node, window, place, finish, stem="fully_connected")


KERNELS = (FullyConnectedKernel(),)
