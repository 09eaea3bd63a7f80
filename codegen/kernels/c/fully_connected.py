"""FullyConnected: the 1x1 convolution of an image of one row."""

from __future__ import annotations

from smelt.codegen.kernels.base import Kernel, KernelCall, Request
from smelt.codegen.kernels.c.blocks import blocks
from smelt.codegen.kernels.c.blocks_float import float_blocks
from smelt.codegen.kernels.c.dense_words import dense_words, serves_words
from smelt.codegen.kernels.c.direct import direct
from smelt.codegen.kernels.c.finish import Finish
from smelt.codegen.kernels.c.images import Frame
from smelt.codegen.kernels.c.products import (
    bias_with_zero_point,
    constant_bias,
    folds,
    refuse_products,
    sums,
)
from smelt.codegen.kernels.c.window import Window
from smelt.ir import DType, Node
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
        place = Frame.of_rows(node)
        stem = "fully_connected"
        if x.dtype is DType.FLOAT32 and folds(node):
            return float_blocks(
                node,
                window,
                place,
                op.activation,
                node.input(1).array,
                constant_bias(node),
                request,
                stem=stem,
            )
        scales = fully_connected_scales(x, weights, y, node.rounding) if y.quant is not None else ()
        range_ = sums(node, 0)
        if not folds(node) or x.dtype is DType.INT16:
            finish = Finish.of(node, op.activation, constant_bias(node), scales, range_)
            return direct(node, window, place, finish, stem=stem)
        array = node.input(1).array
        finish = Finish.of(node, op.activation, bias_with_zero_point(node, 0), scales, range_)
        if rows == 1 and serves_words(node, request.target):
            return dense_words(node, finish, array, stem=stem)
        return blocks(node, window, place, finish, array, request, stem=stem)


KERNELS = (FullyConnectedKernel(),)
