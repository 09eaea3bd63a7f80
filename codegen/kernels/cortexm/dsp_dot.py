"""int8 convolutions and dense layers of several rows, on cores with the DSP extension.

The inputs of up to three output pixels are widened into a patch in working memory; one assembly
function then makes all their output channels, two at a time (see `dsp_tile`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from typing_extensions import override

from smelt.codegen.kernels.base import (
    Input,
    KernelCall,
    Operand,
    Output,
    Packed,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.kernels.c.images import Frame
from smelt.codegen.kernels.c.products import (
    bias_with_zero_point,
    folds,
    refuse_products,
    sums,
)
from smelt.codegen.kernels.c.requantization import Requantization
from smelt.codegen.kernels.c.window import Window
from smelt.codegen.kernels.cortexm.cores import DspKernel
from smelt.codegen.kernels.cortexm.dsp_scaling import DspScaling, dsp_scaling
from smelt.codegen.kernels.cortexm.dsp_tile import PATCH_BYTES, DspTile, pairs_exact
from smelt.ir import Array, DType, Node
from smelt.ops.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.fixed_point import convolution_scales
from smelt.ops.fully_connected import FullyConnected, fully_connected_scales


@dataclass(frozen=True)
class DspProducts:
    """What a node sums: its geometry, its weights `[o, rows, run]`, how sums become outputs."""

    window: Window
    weights: Array
    scaling: DspScaling


@lru_cache(maxsize=128)
def products(node: Node[Conv2D | DepthwiseConv2D | FullyConnected]) -> DspProducts | Refusal:
    """The sums of a convolution of one group or a dense layer, or why they are not served."""
    op, name = node.op, node.op.name
    axis = 3 if isinstance(op, DepthwiseConv2D) else 0
    reason = refuse_products(node, axis)
    if reason is not None:
        return Refusal(reason)
    x, w, y = node.input(0).type, node.input(1).type, node.output.type
    if y.dtype is not DType.INT8 or y.quant is None or not folds(node):
        return Refusal(f"{name} is served for int8 with constant, symmetric weights.")
    if isinstance(op, FullyConnected):
        window = Window.dense(x.size // w.shape[1], w.shape[1], w.shape[0])
        weights = node.input(1).array.reshape(window.outputs, 1, -1)
        scales = fully_connected_scales(x, w, y, node.rounding)
    else:
        window = Window.of(node)
        weights = np.moveaxis(node.input(1).array, axis, 0).reshape(
            window.outputs, window.kernel[0], -1
        )
        scales = convolution_scales(x, w, y, node.rounding)
    bias = bias_with_zero_point(node, axis)
    if bias is None:
        return Refusal(f"{name} has no quantized input.")
    scaling = dsp_scaling(Requantization.of(node, scales, op.activation, sums(node, axis)), bias)
    if scaling is None:
        return Refusal(f"{name} has a requantization that one multiplication cannot replace.")
    return DspProducts(window, weights, scaling)


class DspDot(DspKernel[Conv2D | FullyConnected | DepthwiseConv2D]):
    """Sums of products over the inputs of several pixels, of one group.

    A depthwise convolution is one where all outputs see its only input channel.
    """

    op = Conv2D | FullyConnected | DepthwiseConv2D

    @override
    def offer(
        self, node: Node[Conv2D | FullyConnected | DepthwiseConv2D], request: Request
    ) -> KernelCall | Refusal:
        op, name = node.op, node.op.name
        if isinstance(op, Conv2D) and op.groups > 1:
            return Refusal(f"{name} is served for one group.")
        if isinstance(op, DepthwiseConv2D) and node.input(0).type.shape[3] > 1:
            return Refusal(f"{name} of several channels is not a convolution of one group.")
        found = products(node)
        if isinstance(found, Refusal):
            return found
        w = found.window
        if w.outputs < 2:
            return Refusal(f"{name} of one output channel has none to pair it with.")
        if w.kernel[1] > 1 and w.dilation[1] > 1:
            return Refusal(f"{name} is not served for windows with gaps between columns.")
        if not pairs_exact(found.weights):
            return Refusal(f"{name} has weights too large to be paired.")
        pixels = _pixels(found, node)
        if pixels == 0:
            return Refusal(f"{name} has windows of more than {PATCH_BYTES} bytes when widened.")
        run = w.kernel[1] * w.depth
        tile = DspTile(pixels, w.outputs, w.kernel[0], run, found.scaling, request.optimize)
        return _call(node, found, tile)


def _call(
    node: Node[Conv2D | FullyConnected | DepthwiseConv2D], found: DspProducts, tile: DspTile
) -> KernelCall:
    w, scaling = found.window, found.scaling
    x, y = node.input(0).type, node.output.type
    run = tile.run
    flat = w.taps == 1 and w.stride == (1, 1) and not w.padded
    count = y.size // w.outputs
    parameters: dict[str, object] = {
        "title": f"{node.op.name}: {x} -> {y}, {w.text}",
        "notes": [scaling.note],
        "w": w,
        "t": tile,
        "flat": flat,
        "fast": tile.optimize == "speed" and _fits(w),
    }
    operands: list[Operand] = [Input(0, "input")]
    if not flat:
        place = Frame.of(node)
        count //= place.batch
        parameters |= {
            "frame": place,
            "width": y.shape[2],
            "top": w.origin(0, "y"),
            "side": w.origin(1, "x"),
            "reach": (w.kernel[0] - 1) * w.dilation[0] + 1,
        }
    parameters |= {"pixels": count, "last": count - tile.pixels}
    if w.padded:
        operands.append(Packed("padding", np.full(run, x.zero_point, np.int8)))
    operands += [
        Packed("weights", tile.packed(found.weights)),
        Scratch("patch", DType.INT32, tile.words * tile.pixels),
    ]
    if w.padded:
        operands.append(Scratch("rows", DType.INT8, run * tile.pixels))
    groups = -(-count // tile.pixels) * (y.size // w.outputs // count)
    return KernelCall(
        template="cortexm/dsp_dot.j2",
        stem=_stem(node),
        parameters=parameters,
        operands=(*operands, Output(0, "output")),
        summary=f"{tile.pixels} pixels x 2 channels",
        form=f"dsp_dot_{tile.pixels}x2" + ("_signed" if scaling.signed else ""),
        work={
            "products": groups * tile.pixels * tile.words * 2 * (w.outputs + tile.odd),
            "outputs": groups * tile.pixels * (w.outputs + tile.odd),
            "inputs": groups * tile.pixels * tile.words * 2,
            "rows": groups * tile.rows,
            "groups": groups,
            "calls": 1,
        },
    )


def _fits(window: Window) -> bool:
    """Whether a window can lie within the image."""
    return all(
        (kernel - 1) * dilation < size
        for kernel, dilation, size in zip(window.kernel, window.dilation, window.size, strict=True)
    )


def _stem(node: Node) -> str:
    if isinstance(node.op, FullyConnected):
        return "fully_connected"
    return f"conv_{'x'.join(map(str, Window.of(node).kernel))}"


def _pixels(found: DspProducts, node: Node) -> int:
    """The most pixels, up to three, whose patch is small enough; 0 if not even one's is."""
    w, y = found.window, node.output.type
    run = w.kernel[1] * w.depth
    size = w.kernel[0] * (4 * (2 * (run // 4) + (run % 4 + 1) // 2) + w.padded * run)
    batch = 1 if w.taps == 1 and not w.padded and w.stride == (1, 1) else y.shape[0]
    return min(3, PATCH_BYTES // size, y.size // w.outputs // batch)


KERNELS = (DspDot(),)
