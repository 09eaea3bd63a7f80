"""2-D convolutions (Conv2D)."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.backends.c.convolution_blocks import blocks
from smelt.codegen.backends.c.convolution_direct import direct
from smelt.codegen.backends.c.convolution_float import float_blocks
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
from smelt.ops.core.convolution import Conv2D


class Conv2DKernel(Kernel[Conv2D]):
    """Convolutions in float or int8 blocks, or else one output at a time."""

    op = Conv2D
    uses_scratch_limit = True

    @override
    def offer(self, node: Node[Conv2D], request: Request) -> KernelCall | Refusal:
        range_ = served_sums(node, 0)
        if isinstance(range_, Refusal):
            return range_
        op = node.op
        window, frame = Window.of(node), Frame.of(node)
        x, weights, y = node.input(0).type, node.input(1).type, node.output.type
        stem = f"conv_{window.kernel[0]}x{window.kernel[1]}"
        if x.dtype is DType.FLOAT32 and can_fold_zero_point(node):
            return float_blocks(node, window, frame, request, stem=stem)
        scales = convolution_scales(x, weights, y, node.rounding) if y.quant is not None else ()
        if op.groups > 1 or not can_fold_zero_point(node) or x.dtype is DType.INT16:
            finish = OutputStage.of(node, op.activation, constant_bias(node), scales, range_)
            return direct(node, window, frame, finish, stem=stem)
        finish = OutputStage.of(node, op.activation, bias_with_zero_point(node, 0), scales, range_)
        return blocks(node, window, frame, finish, node.input(1).array, request, stem=stem)


KERNELS = (Conv2DKernel(),)
