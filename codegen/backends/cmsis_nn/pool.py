"""Pool2D: maximum and average."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.backends.cmsis_nn import buffers
from smelt.codegen.backends.cmsis_nn.buffers import variant_of
from smelt.codegen.backends.cmsis_nn.calls import (
    Record,
    call,
    clamp,
    context,
    dims,
    image_dims,
    pair,
    scratch,
)
from smelt.codegen.lower.kernel import Input, Kernel, KernelCall, Output, Refusal, Request
from smelt.ir import DType, Node
from smelt.ops.core.pool import Pool2D

_FUNCTIONS = {"max": "arm_max_pool_s8", "average": "arm_avgpool_s8"}


class CmsisPoolKernel(Kernel[Pool2D]):
    """Maximum and average pools without dilation that do not count padding."""

    op = Pool2D

    @override
    def offer(self, node: Node[Pool2D], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        if op.kind not in _FUNCTIONS:
            return Refusal(f"CMSIS-NN has no {op.name}.")
        what = _FUNCTIONS[op.kind]
        if x.dtype is not DType.INT8 or x.quant is None:
            return Refusal(f"{what} takes quantized i8 data, not {x}.")
        if op.scales(node):
            return Refusal(f"{what} averages like TensorFlow Lite Micro, not like ONNX.")
        if op.dilation != (1, 1):
            return Refusal(f"{what} does not support dilation.")
        if op.counts_padding and any(map(any, op.padding)):
            return Refusal(f"{what} does not include padding in averages.")
        variant = variant_of(request.target)
        size = buffers.average_pool(variant, x.shape[3]) if op.kind == "average" else 0
        parameters = Record(
            "cmsis_nn_pool_params",
            "parameters",
            (
                (pair(op.stride), "stride: columns, rows"),
                (pair((op.padding[0][0], op.padding[1][0])), "padding before the image"),
                clamp(node, op.activation),
            ),
        )
        height, width = op.window
        data = ("&input_dims", "input", "&filter_dims", "&output_dims", "output")
        return call(
            what,
            f"{'Maximum' if op.kind == 'max' else 'Average'} of {height}x{width} windows",
            arguments=("&context", "&parameters", *data),
            operands=(Input(0, "input"), *scratch(size), Output(0, "output")),
            records=(
                context("scratch" if size else "", size),
                parameters,
                image_dims("input_dims", x),
                dims("filter_dims", 1, height, width, 1),
                image_dims("output_dims", y),
            ),
            form=f"{op.kind}_pool",
            stem=f"{op.kind}_pool_{height}x{width}",
            work={"inputs": y.size * height * width, "outputs": y.size},
        )


KERNELS = (CmsisPoolKernel(),)
