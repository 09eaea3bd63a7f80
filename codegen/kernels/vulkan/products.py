"""Convolutions and dense layers on a GPU: blocks of pixels times four channels at a time."""

from __future__ import annotations

import numpy as np

from smelt.codegen.kernels.base import (
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Request,
    ShaderCall,
)
from smelt.codegen.kernels.c.products import (
    bias_with_zero_point,
    constant_bias,
    folds,
    refuse_products,
    sums,
)
from smelt.codegen.kernels.c.window import Window
from smelt.codegen.kernels.vulkan.finish import Finish
from smelt.ir import Array, DType, Node
from smelt.ops.convolution import Conv2D
from smelt.ops.fixed_point import Activation, convolution_scales
from smelt.ops.fully_connected import FullyConnected, fully_connected_scales
from smelt.targets import Target

BLOCK_PIXELS = 4
BLOCK_QUADS = 2


class Conv2DKernel(Kernel):
    """Each invocation sums several pixels of several quads of channels."""

    op = Conv2D

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        op = node.op
        if not isinstance(op, Conv2D):
            raise TypeError(f"{op.name} is no Conv2D")
        reason = refuse_products(node, channel_axis=0) or _refuse(node)
        if reason is None and op.groups > 1:
            return f"{op.name} is served on the GPU without groups only."
        return reason

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        op = node.op
        if not isinstance(op, Conv2D):
            raise TypeError(f"{op.name} is no Conv2D")
        x, y = node.input(0).type, node.output.type
        window = Window.of(node)
        scales = (
            convolution_scales(x, node.input(1).type, y, node.rounding)
            if y.quant is not None
            else ()
        )
        return _blocks(node, window, node.input(1).array, op.activation, scales)


class FullyConnectedKernel(Kernel):
    """The 1x1 convolution of an image of one row."""

    op = FullyConnected

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        return refuse_products(node, channel_axis=0) or _refuse(node)

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        op = node.op
        if not isinstance(op, FullyConnected):
            raise TypeError(f"{op.name} is no FullyConnected")
        x, weights, y = node.input(0).type, node.input(1).type, node.output.type
        outputs, depth = weights.shape
        window = Window.dense(x.size // depth, depth, outputs)
        scales = fully_connected_scales(x, weights, y, node.rounding) if y.quant is not None else ()
        array = node.input(1).array.reshape(outputs, 1, 1, depth)
        return _blocks(node, window, array, op.activation, scales)


def _refuse(node: Node) -> str | None:
    """Why blocks of four channels cannot compute the node; None where they can."""
    name, x, y = node.op.name, node.input(0).type, node.output.type
    if x.dtype not in (DType.FLOAT32, DType.INT8) or not folds(node):
        return f"{name} is served on the GPU for f32 and i8, with constant weights, only."
    if x.shape[-1] % 4 or y.shape[-1] % 4:
        return f"{name} is served on the GPU for multiples of four channels only."
    return None


def _blocks(
    node: Node, window: Window, weights: Array, activation: Activation, scales: tuple[float, ...]
) -> ShaderCall:
    """The call for a window over an image `[n, h, w, c]`; weights `[o, kh, kw, c]`."""
    x, y = node.input(0).type, node.output.type
    real = x.dtype is DType.FLOAT32
    bias = constant_bias(node) if real else bias_with_zero_point(node, 0)
    range_ = None if real else sums(node, 0)
    finish = Finish.of(node, activation, bias, window.outputs, scales, range_)
    depth, outputs = window.depth, window.outputs
    quads = BLOCK_QUADS if outputs // 4 % BLOCK_QUADS == 0 else 1
    rows = y.size // outputs if window.size[0] == 1 else 1
    height, width = (y.shape[1], y.shape[2]) if len(y.shape) == 4 else (1, rows)
    batch = y.size // (height * width * outputs)
    pixels = min(BLOCK_PIXELS, width)
    shape = (outputs // (4 * quads), quads, 4, *window.kernel, depth // 4, 4)
    array = weights.reshape(shape)
    # [block, ky, kx, depth / 4, quad, ...]: for floats four inputs of four outputs each, for bytes
    # a word of four inputs for each of four outputs.
    order = (0, 3, 4, 5, 1, 6, 2) if real else (0, 3, 4, 5, 1, 2, 6)
    packed = np.ascontiguousarray(array.transpose(order))
    packed = packed if real else packed.view(np.int32)
    tiles = -(-width // pixels)
    zero_point = 0 if real else x.zero_point & 0xFF
    return ShaderCall(
        template="vulkan/convolution.comp.j2",
        stem=f"conv_{'f32' if real else 'i8'}",
        parameters={
            "real": real,
            "finish": finish,
            "pixels": pixels,
            "quads": quads,
            "padded": window.padded,
            "output": "real" if real else "bytes" if y.is_quantized else "sums",
        },
        operands=(
            Input(0, "input"),
            Packed("weights", packed),
            Packed("channels", finish.rows),
            Output(0, "output"),
        ),
        views={
            "input": "vec4" if real else "int",
            "weights": "vec4" if real else "ivec4",
            "channels": "vec4" if real else "ivec4",
            "output": "vec4" if real else "int" if y.is_quantized else "ivec4",
        },
        constants={
            "TILES": tiles,
            "ROWS": batch * height,
            "OUT_HEIGHT": height,
            "OUT_WIDTH": width,
            "OUT_QUADS": outputs // 4,
            "IN_HEIGHT": window.size[0],
            "IN_WIDTH": window.size[1],
            "IN_QUADS": depth // 4,
            "KERNEL_Y": window.kernel[0],
            "KERNEL_X": window.kernel[1],
            "STRIDE_Y": window.stride[0],
            "STRIDE_X": window.stride[1],
            "DILATION_Y": window.dilation[0],
            "DILATION_X": window.dilation[1],
            "TOP": window.padding[0][0],
            "LEFT": window.padding[1][0],
            "OUTSIDE": int(np.int32(np.uint32(zero_point * 0x01010101).view(np.int32))),
            **finish.constants,
        },
        invocations=(tiles * batch * height, outputs // (4 * quads), 1),
        local=(32, 1, 1),
        helpers=frozenset(),
        summary=f"{pixels} pixels x {4 * quads} channels an invocation",
        form="vulkan_blocks",
        work={"calls": 1, "products": node.macs},
    )


KERNELS = (Conv2DKernel(), FullyConnectedKernel())
