"""FullyConnected: the 1x1 convolution of an image of one row."""

from __future__ import annotations

from smelt.codegen.kernels.base import Kernel, KernelCall, Layout, Request
from smelt.codegen.kernels.c.dense_words import dense_words, fits_words
from smelt.codegen.kernels.c.direct import direct
from smelt.codegen.kernels.c.finish import Finish
from smelt.codegen.kernels.c.images import Frame
from smelt.codegen.kernels.c.pairs import fits_pairs, pairs
from smelt.codegen.kernels.c.products import constant_bias, folds, refuse_products, sums
from smelt.codegen.kernels.c.requantization import folded_bias
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
        bias, stem = constant_bias(node), "fully_connected"
        if y.quant is None:
            finish = Finish.of(node, op.activation, bias)
            return direct(node, window, place, finish, stem=stem)
        scales, range_ = fully_connected_scales(x, weights, y), sums(node, 0)
        if folds(node) and "long_multiply" in request.target.features:
            array = node.input(1).array
            folded = folded_bias(bias, array, x.zero_point)
            finish = Finish.of(node, op.activation, folded, scales, range_)
            if rows == 1 and fits_words(array):
                return dense_words(node, finish, array, stem=stem)
            if fits_pairs(array):
                return pairs(node, window, place, finish, array, stem=stem)
        finish = Finish.of(node, op.activation, bias, scales, range_)
        return direct(node, window, place, finish, stem=stem)


KERNELS = (FullyConnectedKernel(),)
