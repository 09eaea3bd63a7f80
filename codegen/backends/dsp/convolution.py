"""int8 convolutions and dense layers of several rows, on cores with the DSP extension.

The inputs of up to three output pixels are widened to 16 bits into a patch in scratch. One function
in assembly then computes all output channels of these pixels, two at a time (see `tile`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.dsp.pointwise import shared_pointwise
from smelt.codegen.backends.dsp.scaling import DspScaling, dsp_scaling
from smelt.codegen.backends.dsp.tile import PATCH_BYTES, UNPAIRED, DspTile, pairs_exact, with_addend
from smelt.codegen.backends.dsp.tile_assembly import tile_function, widening
from smelt.codegen.backends.dsp.windows import WindowSizes, window_sizes, windows_loop
from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Operand,
    Output,
    Packed,
    Parameters,
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
from smelt.codegen.text.expressions import offset
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
        return _call(node, found, tile)


@dataclass(frozen=True)
class DspDotParameters(Parameters):
    """Variables of `backends/dsp/convolution.j2`.

    Attributes:
        title, note: texts of the function's comment.
        iterations: the last argument of the function that widens inputs.
        packed: words of packed weights.
        words: words of the patch.
        pixels: output pixels of an image; of all images if `windows` is None.
        group: pixels that are computed at once.
        whole: pixels in whole groups.
        depth, outputs: input and output channels.
        inputs, targets: C expressions of the addresses of a group's inputs and outputs, per pixel.
        last_inputs, last_targets: the same if fewer pixels than a group are left. The last of them
            then occurs several times, so that a group never reads inputs that the outputs of an
            earlier group may have overwritten. Empty if no pixels are left.
        windows: sizes for the loop over windows; None if every input pixel is a window.
    """

    title: str
    note: str
    iterations: int
    packed: int
    words: int
    pixels: int
    group: int
    whole: int
    depth: int
    outputs: int
    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    last_inputs: tuple[str, ...]
    last_targets: tuple[str, ...]
    windows: WindowSizes | None


def _parameters(
    node: Node[Conv2D | FullyConnected | DepthwiseConv2D],
    found: DspProducts,
    tile: DspTile,
    packed: int,
    pixels: int,
) -> DspDotParameters:
    """Return the variables of the template.

    Args:
        node: the layer.
        found: its products.
        tile: the sizes of a group of pixels.
        packed: words of packed weights.
        pixels: output pixels of an image, or of all images of a layer without windows.
    """
    w, x, y = found.window, node.input(0).type, node.output.type
    groups, left = divmod(pixels, tile.pixels)
    source, target = ("in", "to") if groups > 1 else ("input", "output")
    steps = range(tile.pixels)
    last = [min(groups * tile.pixels + i, pixels - 1) for i in steps] if left else []
    return DspDotParameters(
        title=f"{node.op.name}: {x} -> {y}, {w.text}",
        note=found.scaling.note,
        iterations=tile.widen_iterations,
        packed=packed,
        words=tile.words * tile.pixels,
        pixels=pixels,
        group=tile.pixels,
        whole=groups * tile.pixels,
        depth=w.depth,
        outputs=w.outputs,
        inputs=_steps(source, w.depth, steps),
        targets=_steps(target, w.outputs, steps),
        last_inputs=_steps("input", w.depth, last),
        last_targets=_steps("output", w.outputs, last),
        windows=None if w.pointwise else WindowSizes.of(node, w),
    )


def _call(
    node: Node[Conv2D | FullyConnected | DepthwiseConv2D], found: DspProducts, tile: DspTile
) -> KernelCall:
    w, scaling = found.window, found.scaling
    x, y = node.input(0).type, node.output.type
    flat = w.pointwise
    images = 1 if flat else y.shape[0]
    count = y.size // w.outputs // images
    packed = with_addend(tile.packed(found.weights), scaling)
    parameters = _parameters(node, found, tile, packed.size, count)
    operands: list[Operand] = [Input(0, "input")]
    if w.padded:
        operands.append(Packed("padding", np.full(tile.run, x.zero_point, np.int8)))
    operands += [
        Packed("weights", packed),
        Scratch("patch", DType.INT32, tile.words * tile.pixels),
    ]
    if w.padded:
        operands.append(Scratch("rows", DType.INT8, tile.run * tile.pixels))
    groups, stem = -(-count // tile.pixels) * images, _stem(node)
    return KernelCall(
        template="backends/dsp/convolution.j2",
        stem=stem,
        details=scaling.details,
        parameters=parameters,
        operands=(*operands, Output(0, "output")),
        in_place=((0, 0),) if flat and tile.in_place else (),
        uses=when(flat, "SMELT_ARRAY"),
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
        inner=(
            widening(tile),
            tile_function(tile),
            *(() if flat else (windows_loop(tile, padded=w.padded), window_sizes(tile))),
        ),
        shared=shared_pointwise(tile, stem, count, found.weights) if flat else None,
    )


def _steps(name: str, step: int, indices: Iterable[int]) -> tuple[str, ...]:
    """Return C expressions of the addresses of these elements, which have a size of `step`."""
    return tuple(offset(name, i * step) for i in indices)


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
