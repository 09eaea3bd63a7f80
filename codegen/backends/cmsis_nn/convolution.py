"""Conv2D and DepthwiseConv2D."""

from __future__ import annotations

from math import prod

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.cmsis_nn import buffers
from smelt.codegen.backends.cmsis_nn.buffers import Variant, variant_of
from smelt.codegen.backends.cmsis_nn.calls import (
    LARGEST,
    LibraryScaling,
    Record,
    call,
    clamp,
    context,
    dims,
    image_dims,
    pair,
    refuse_data,
    refuse_sizes,
    refuse_sums,
    scratch,
)
from smelt.codegen.backends.cmsis_nn.single_row import gathers_rows
from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Operand,
    Output,
    Packed,
    Refusal,
    Request,
)
from smelt.codegen.lower.quantized_products import constant_bias, sums
from smelt.codegen.lower.window import Window
from smelt.ir import Array, DType, Node
from smelt.ops.arithmetic.fixed_point import convolution_scales
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D

_READ_AHEAD = 16
"""Bytes after the weights that the MVE variant loads but does not use."""

_LARGEST_INDEX = 32767

_ConvolutionNode = Node[Conv2D | DepthwiseConv2D]


class CmsisConv2DKernel(Kernel[Conv2D]):
    """`arm_convolve_s8`, and the functions for windows of one pixel and images of one row."""

    op = Conv2D

    @override
    def offer(self, node: Node[Conv2D], request: Request) -> KernelCall | Refusal:
        scaling = _scaling_of(node, "arm_convolve_s8", 0)
        if isinstance(scaling, Refusal):
            return scaling
        return _convolution(node, node.input(1).array, scaling, variant_of(request.target))


class CmsisDepthwiseConv2DKernel(Kernel[DepthwiseConv2D]):
    """Depthwise convolutions; with one input channel, a plain convolution computes them."""

    op = DepthwiseConv2D

    @override
    def offer(self, node: Node[DepthwiseConv2D], request: Request) -> KernelCall | Refusal:
        x, variant = node.input(0).type, variant_of(request.target)
        scaling = _scaling_of(node, "arm_depthwise_conv_s8", 3)
        if isinstance(scaling, Refusal):
            return scaling
        if max(x.shape[1:3]) > _LARGEST_INDEX:
            return Refusal(
                f"arm_depthwise_conv_s8 indexes pixels in signed 16 bits, too few for {x}."
            )
        weights = node.input(1).array
        if x.shape[3] == 1:
            return _convolution(node, weights.transpose(3, 1, 2, 0), scaling, variant)
        return _depthwise(node, weights, scaling, variant)


def _scaling_of(node: _ConvolutionNode, what: str, channel_axis: int) -> LibraryScaling | Refusal:
    """Return how the node's sums are requantized, or why the library cannot compute it."""
    weights, bias = node.input(1), node.optional(2)
    if not weights.is_constant or (bias is not None and not bias.is_constant):
        return Refusal(f"{what} is called only with constant weights and bias.")
    if refusal := refuse_data(node, what, inputs=1):
        return refusal
    quant = weights.type.quant
    if weights.type.dtype is not DType.INT8 or quant is None or any(quant.zero_point):
        return Refusal(f"{what} takes symmetric i8 weights, not {weights.type}.")
    x, y = node.input(0).type, node.output.type
    products = weights.type.size // y.shape[3]
    if products > LARGEST:
        return Refusal(f"{what} counts the products of a sum in 16 bits, too few for {products}.")
    if refusal := refuse_sizes(what, x, y):
        return refusal
    scales = convolution_scales(x, weights.type, y, node.rounding)
    scaling = LibraryScaling.of(scales, y.shape[3])
    return refuse_sums(what, scaling, sums(node, channel_axis)) or scaling


def _convolution(
    node: _ConvolutionNode, weights: Array, scaling: LibraryScaling, variant: Variant
) -> KernelCall:
    """Return the call of a convolution; `weights` are `[o, h, w, i]`."""
    window, x, y = Window.of(node), node.input(0).type, node.output.type
    outputs, height, width, depth = weights.shape
    function, size, form = _function_for(window, depth, variant)
    bias_operand, bias = _bias(node, outputs)
    records = (
        context("scratch" if size else "", size),
        _parameters(node, window, "cmsis_nn_conv_params"),
        LibraryScaling.record,
        image_dims("input_dims", x),
        dims("filter_dims", outputs, height, width, depth),
        bias,
        image_dims("output_dims", y),
    )
    ahead = _READ_AHEAD if variant == "mve" else 0
    operands: tuple[Operand, ...] = (
        Input(0, "input"),
        Packed("weights", np.pad(weights.ravel(), (0, ahead))),
        bias_operand,
        *scaling.operands(),
        *scratch(size),
        Output(0, "output"),
    )
    upscaling = ("NULL",) if function == "arm_convolve_s8" else ()
    data = ("&input_dims", "input", "&filter_dims", "weights", "&bias_dims", "bias", *upscaling)
    gathered = 0 if form.endswith("1x1") else y.size // outputs * height * width * depth
    return call(
        function,
        f"Convolution {window.text}",
        arguments=("&context", "&parameters", "&scaling", *data, "&output_dims", "output"),
        operands=operands,
        records=records,
        form=form,
        stem=f"conv_{height}x{width}",
        work={
            "products": y.size * height * width * depth,
            "outputs": y.size,
            "gathered": gathered,
            "summed": prod(weights.shape),
        },
    )


def _function_for(window: Window, depth: int, variant: Variant) -> tuple[str, int, str]:
    """Return the library's function for a window, the bytes of its scratch, and the form."""
    pixel = window.kernel == (1, 1) and not window.padded and window.groups == 1
    if pixel and window.stride == (1, 1):
        return "arm_convolve_1x1_s8_fast", 0, "convolve_1x1"
    if pixel:
        return "arm_convolve_1x1_s8", 0, "convolve_strided_1x1"
    channels = depth * window.groups
    if variant == "mve" and window.groups == 1 and gathers_rows(window, channels):
        before, after = window.padding[1]
        size = buffers.convolve_row(
            window.kernel[1], window.stride[1], before, channels, before + after
        )
        return "arm_convolve_1_x_n_s8", size, "convolve_row"
    size = buffers.convolve(variant, window.kernel[0] * window.kernel[1], channels)
    return "arm_convolve_s8", size, "convolve" if window.groups == 1 else "convolve_groups"


def _depthwise(
    node: _ConvolutionNode, weights: Array, scaling: LibraryScaling, variant: Variant
) -> KernelCall:
    window, x, y = Window.of(node), node.input(0).type, node.output.type
    channels, outputs = x.shape[3], y.shape[3]
    function, size, form = _depthwise_function_for(window, x.shape, outputs, variant)
    # The MVE variant loads the constants of four channels at a time, also beyond the last one.
    absent = -outputs % 4 if variant == "mve" else 0
    bias_operand, bias = _bias(node, outputs, absent)
    records = (
        context("scratch" if size else "", size),
        _parameters(node, window, "cmsis_nn_dw_conv_params", outputs // channels),
        LibraryScaling.record,
        image_dims("input_dims", x),
        dims("filter_dims", *weights.shape),
        bias,
        image_dims("output_dims", y),
    )
    operands: tuple[Operand, ...] = (
        Input(0, "input"),
        Packed("weights", np.pad(weights.ravel(), (0, absent))),
        bias_operand,
        *scaling.operands(absent),
        *scratch(size),
        Output(0, "output"),
    )
    data = ("&input_dims", "input", "&filter_dims", "weights", "&bias_dims", "bias")
    products = y.size * weights.shape[1] * weights.shape[2]
    return call(
        function,
        f"Depthwise convolution {window.text}",
        arguments=("&context", "&parameters", "&scaling", *data, "&output_dims", "output"),
        operands=operands,
        records=records,
        form=form,
        stem=f"depthwise_{weights.shape[1]}x{weights.shape[2]}",
        work={"products": products, "outputs": y.size, "pixels": y.size // outputs},
    )


def _depthwise_function_for(
    window: Window, x: tuple[int, ...], outputs: int, variant: Variant
) -> tuple[str, int, str]:
    """Return the library's function for a window, the bytes of its scratch, and the form."""
    if outputs != x[3] or x[0] != 1 or window.dilation != (1, 1):
        return "arm_depthwise_conv_s8", 0, "depthwise"
    if variant != "mve" and _suits_3x3(window):
        return "arm_depthwise_conv_3x3_s8", 0, "depthwise_3x3"
    size = buffers.depthwise(variant, window.taps, x[3])
    return "arm_depthwise_conv_s8_opt", size, "depthwise_opt"


def _suits_3x3(window: Window) -> bool:
    """Return whether `arm_depthwise_conv_3x3_s8` reads no middle column outside of the image."""
    (before, after), width = window.padding[1], window.size[1]
    last = (width + before + after - 3) // window.stride[1] * window.stride[1] - before
    small = window.padding[0][0] <= 1 and before <= 1
    return window.kernel == (3, 3) and small and last + 1 < width


def _parameters(
    node: _ConvolutionNode, window: Window, kind: str, multiplier: int | None = None
) -> Record:
    before = window.padding[0][0], window.padding[1][0]
    channels = () if multiplier is None else ((str(multiplier), "outputs per input channel"),)
    return Record(
        kind,
        "parameters",
        (
            (str(-node.input(0).type.zero_point), "added to every input"),
            (str(node.output.type.zero_point), "added to every output"),
            *channels,
            (pair(window.stride), "stride: columns, rows"),
            (pair(before), "padding before the image"),
            (pair(window.dilation), "dilation"),
            clamp(node, node.op.activation),
        ),
    )


def _bias(node: Node, outputs: int, padding: int = 0) -> tuple[Packed, Record]:
    """Return the parameter `bias` (zeros if there is none) and its sizes."""
    bias = constant_bias(node)
    bias = np.zeros(outputs, np.int32) if bias is None else bias.astype(np.int32)
    return Packed("bias", np.pad(bias, (0, padding))), dims("bias_dims", 1, 1, 1, outputs)


KERNELS = (CmsisConv2DKernel(), CmsisDepthwiseConv2DKernel())
