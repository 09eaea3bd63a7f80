"""Dense layers (FullyConnected), computed as 1x1 convolutions of an image with one row."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.backends.c.convolution_blocks import blocks
from smelt.codegen.backends.c.convolution_direct import direct
from smelt.codegen.backends.c.convolution_float import float_blocks
from smelt.codegen.backends.c.dense_words import dense_words, serves_words
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
from smelt.ops.core.fully_connected import FullyConnected, fully_connected_scales


class FullyConnectedKernel(Kernel[FullyConnected]):
    """Products of rows of inputs and weights."""

    op = FullyConnected
    uses_scratch_limit = True

    @override
    def offer(self, node: Node[FullyConnected], request: Request) -> KernelCall | Refusal:
        range_ = served_sums(node, 0)
        if isinstance(range_, Refusal):
            return range_
        op = node.op
        x, weights, y = node.input(0).type, node.input(1).type, node.output.type
        outputs, depth = weights.shape
        rows = x.size // depth
        window = Window.dense(rows, depth, outputs)
        frame = Frame.of_rows(node)
        stem = "fully_connected"
        if x.dtype is DType.FLOAT32 and can_fold_zero_point(node):
            return float_blocks(node, window, frame, request, stem=stem)
        scales = fully_connected_scales(x, weights, y, node.rounding) if y.quant is not None else ()
        if not can_fold_zero_point(node) or x.dtype is DType.INT16:
            finish = OutputStage.of(node, op.activation, constant_bias(node), scales, range_)
            return direct(node, window, frame, finish, stem=stem)
        array = node.input(1).array
        finish = OutputStage.of(node, op.activation, bias_with_zero_point(node, 0), scales, range_)
        if rows == 1 and serves_words(node, request.target):
            return dense_words(node, finish, array, request, stem=stem)
        return blocks(node, window, frame, finish, array, request, stem=stem)


KERNELS = (FullyConnectedKernel(),)
