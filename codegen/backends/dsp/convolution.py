"""int8 convolutions and dense layers of several rows, on cores with the DSP extension.

The inputs of up to three output pixels are widened to 16 bits into a patch in scratch. One function
in assembly then computes all output channels of these pixels, two at a time (see `tile`). `groups`
divides the pixels of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.dsp.any_height import any_height
from smelt.codegen.backends.dsp.convolution_parameters import DspDotParameters, dot_parameters
from smelt.codegen.backends.dsp.groups import PixelGroups, pixel_groups
from smelt.codegen.backends.dsp.pointwise import shared_pointwise
from smelt.codegen.backends.dsp.scaling import DspScaling, dsp_scaling
from smelt.codegen.backends.dsp.tile import PATCH_BYTES, UNPAIRED, DspTile, pairs_exact, with_addend
from smelt.codegen.backends.dsp.tile_assembly import tile_function, widening
from smelt.codegen.backends.dsp.windows import window_sizes, windows_loop
from smelt.codegen.lower.kernel import (
    InnerFunction,
    Input,
    Kernel,
    KernelCall,
    Operand,
    Output,
    Packed,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.lower.quantized_products import (
    bias_with_zero_point,
    can_fold_zero_point,
    refuse_products,
    sums,
)
from smelt.codegen.lower.requantization import Requantization
from smelt.codegen.lower.window import Window
from smelt.codegen.text.helpers import when
from smelt.ir import Array, DType, Node
from smelt.ops.arithmetic.fixed_point import convolution_scales
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.fully_connected import FullyConnected, fully_connected_scales


@dataclass(frozen=True)
class DspProducts:
    """The products that a node sums: window, weights and scaling.

    Attributes:
        window: the window of inputs.
        weights: int8 `[o, rows, run]`: the weights of a row of the window are one run.
        scaling: the requantization of the sums.
    """

    window: Window
    weights: Array
    scaling: DspScaling


@lru_cache(maxsize=128)
def products(node: Node[Conv2D | DepthwiseConv2D | FullyConnected]) -> DspProducts | Refusal:
    """Return the products of a convolution or dense layer, or why the kernels cannot sum them."""
    op, name = node.op, node.op.name
    axis = 3 if isinstance(op, DepthwiseConv2D) else 0
    if refusal := refuse_products(node, axis):
        return refusal
    x, w, y = node.input(0).type, node.input(1).type, node.output.type
    if y.dtype is not DType.INT8 or y.quant is None or not can_fold_zero_point(node):
        return Refusal(
            f"{name} in assembly supports only quantized i8 and constant, symmetric weights."
        )
    window = Window.of(node)
    if isinstance(op, FullyConnected):
        weights = node.input(1).array.reshape(window.outputs, 1, -1)
        scales = fully_connected_scales(x, w, y, node.rounding)
    else:
        weights = np.moveaxis(node.input(1).array, axis, 0).reshape(
            window.outputs, window.kernel[0], -1
        )
        scales = convolution_scales(x, w, y, node.rounding)
    bias = bias_with_zero_point(node, axis)
    if bias is None:
        return Refusal(f"{name} has no quantized input.")
    scaling = dsp_scaling(Requantization.of(node, scales, op.activation, sums(node, axis)), bias)
    if scaling is None:
        return Refusal(f"{name} has scales or sums for which one multiplication is never exact.")
    return DspProducts(window, weights, scaling)


class DspDot(Kernel[Conv2D | FullyConnected | DepthwiseConv2D]):
    """Convolutions of one group and dense layers of several rows, up to three pixels at a time.

    A depthwise convolution with one input channel is also served: its only channel is an input of
    all outputs, as in a convolution of one group.
    """

    op = Conv2D | FullyConnected | DepthwiseConv2D
    uses_scratch_limit = True
    uses_little_ram = True

    @override
    def offer(
        self, node: Node[Conv2D | FullyConnected | DepthwiseConv2D], request: Request
    ) -> KernelCall | Refusal:
        op, name = node.op, node.op.name
        if isinstance(op, Conv2D) and op.groups > 1:
            return Refusal(f"{name} in assembly supports only one group.")
        if isinstance(op, DepthwiseConv2D) and node.input(0).type.shape[3] > 1:
            return Refusal(f"{name} equals a convolution only if it has one input channel.")
        found = products(node)
        if isinstance(found, Refusal):
            return found
        w = found.window
        if w.outputs < 2:
            return Refusal(f"{name} in pairs of output channels needs at least two channels.")
        if w.kernel[1] > 1 and w.dilation[1] > 1:
            return Refusal(f"{name} in assembly does not support dilation of columns.")
        if not pairs_exact(found.weights):
            return Refusal(f"{name} {UNPAIRED}")
        pixels = _pixels(found, node, request)
        if pixels == 0:
            return Refusal(f"{name} has windows too large to widen into {PATCH_BYTES} bytes.")
        run = w.kernel[1] * w.depth
        tile = DspTile(pixels, w.outputs, w.kernel[0], run, found.scaling, request.optimize)
        return _call(node, found, tile, little_ram=request.little_ram)


def _call(
    node: Node[Conv2D | FullyConnected | DepthwiseConv2D],
    found: DspProducts,
    tile: DspTile,
    *,
    little_ram: bool,
) -> KernelCall:
    """Return the call of the layer's own body, with the body that it can share."""
    w, y = found.window, node.output.type
    pixels = y.size // w.outputs // (1 if w.pointwise else y.shape[0])
    groups = pixel_groups(tile, pixels, little_ram=little_ram)
    packed = with_addend(tile.packed(found.weights), found.scaling)
    parameters = dot_parameters(node, w, groups, packed.size)
    call = _own(node, found, tile, groups, packed, parameters)
    if w.pointwise:
        return replace(call, shared=shared_pointwise(tile, call.stem, groups, found.weights))
    return replace(call, shared=any_height(node, call, parameters, groups))


def _own(
    node: Node[Conv2D | FullyConnected | DepthwiseConv2D],
    found: DspProducts,
    tile: DspTile,
    groups: Sequence[PixelGroups],
    packed: Array,
    parameters: DspDotParameters,
) -> KernelCall:
    """Return the call of a body that only layers with equal numbers can use.

    Args:
        node: the layer.
        found: its products.
        tile: the sizes of the largest groups.
        groups: the pixels of an image, or of all images of a layer without windows.
        packed: the packed weights.
        parameters: the variables of the body's template.
    """
    w, scaling, x = found.window, found.scaling, node.input(0).type
    # The scratch of a 1x1 convolution must suffice for the shared body too.
    most = tile if w.pointwise else groups[0].tile
    operands: list[Operand] = [Input(0, "input")]
    if w.padded:
        operands.append(Packed("padding", np.full(tile.run, x.zero_point, np.int8)))
    operands += [
        Packed("weights", packed),
        Scratch("patch", DType.INT32, most.words * most.pixels),
    ]
    if w.padded:
        operands.append(Scratch("rows", DType.INT8, most.run * most.pixels))
    return KernelCall(
        template="backends/dsp/convolution.j2",
        stem=_stem(node),
        details=scaling.details,
        parameters=parameters,
        operands=(*operands, Output(0, "output")),
        in_place=((0, 0),) if w.pointwise and tile.in_place else (),
        uses=when(w.pointwise, "SMELT_ARRAY"),
        summary=f"{' and '.join(str(g.tile.pixels) for g in groups)} pixels x 2 channels",
        form=f"dsp_dot_{groups[0].tile.pixels}x2" + ("_signed" if scaling.signed else ""),
        work=_work(groups, 1 if w.pointwise else node.output.type.shape[0]),
        inner=_functions(groups, w),
    )


def _work(groups: Sequence[PixelGroups], images: int) -> dict[str, int]:
    """Return the amounts of work of these groups for each image; see `KernelCall.work`.

    A product costs more in groups of two that follow groups of three: these have their own kinds.
    """
    count = sum(some.count for some in groups)
    parts = [some.work("pair_" if i else "") for i, some in enumerate(groups)]
    found = {kind: amount for part in parts for kind, amount in part.items()}
    found |= {"rows": count * groups[0].tile.rows, "groups": count}
    return {kind: amount * images for kind, amount in found.items()} | {"calls": 1}


def _functions(groups: Sequence[PixelGroups], window: Window) -> tuple[InnerFunction, ...]:
    """Return the inner functions: those of each of the groups, then the sizes of windows."""
    found: list[InnerFunction] = []
    for number, some in enumerate(groups):
        found += [widening(some.tile), tile_function(some.tile)]
        if not window.pointwise:
            found.append(windows_loop(some.tile, padded=window.padded, last=number > 0))
    return (*found, *(() if window.pointwise else (window_sizes(groups[0].tile),)))


def _stem(node: Node[Conv2D | FullyConnected | DepthwiseConv2D]) -> str:
    if isinstance(node.op, FullyConnected):
        return "fully_connected"
    return f"conv_{'x'.join(map(str, Window.of(node).kernel))}"


def _pixels(found: DspProducts, node: Node, request: Request) -> int:
    """Return how many pixels, up to three, a tile can have within `PATCH_BYTES`; 0 if not one.

    If scratch is limited, they also fit into the limit, unless one does not.
    """
    w, y = found.window, node.output.type
    run = w.kernel[1] * w.depth
    size = w.kernel[0] * 4 * (2 * (run // 4) + (run % 4 + 1) // 2) + w.padded * run
    batch = 1 if w.pointwise else y.shape[0]
    most = min(3, PATCH_BYTES // size, y.size // w.outputs // batch)
    return min(most, max(request.scratch_limit // size, 1)) if request.limited else most


KERNELS = (DspDot(),)
