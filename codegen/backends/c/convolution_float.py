"""Float convolutions in blocks of pixels times output channels, with the sums in registers.

Each loaded weight is used for all pixels of a block, and each loaded input for all its channels.
With a scalar FPU, each sum is its own variable. With SIMD floats, the sums of a pixel are an array,
and compilers turn the loops over it into vector instructions.

The inputs under a window are contiguous runs: the channels of a pixel, or whole rows of the window.
Pointers to the runs are collected once per block. If runs would be short, each window is first
gathered (copied) into one run in scratch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from smelt.codegen.backends.c.float_channels import ChannelsCall, FloatLayer, FloatProduct
from smelt.codegen.backends.c.float_sums import Channels, FloatSums
from smelt.codegen.backends.c.vector_loops import padded_vectors
from smelt.codegen.lower.c_expressions import Store, stored
from smelt.codegen.lower.image_loops import Frame, ImageLoop
from smelt.codegen.lower.input_pixel import input_pixel
from smelt.codegen.lower.kernel import (
    InnerFunction,
    Input,
    KernelCall,
    Operand,
    Output,
    Packed,
    Parameters,
    Request,
    Scratch,
    missed_for_ram,
)
from smelt.codegen.lower.quantized_products import constant_bias
from smelt.codegen.lower.shared_functions import SharedFunctions
from smelt.codegen.lower.window import Window
from smelt.codegen.text.expressions import advance
from smelt.codegen.text.helpers import when
from smelt.ir import Array, DType, Node, TensorType
from smelt.ir.weights import weights_rule
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.targets import Target

PATCH_BYTES = 2048
"""Upper limit of the scratch for the gathered windows of a block, in bytes."""

_POINTERS = 256
"""Upper limit of a block's run pointers; a block of one pixel may exceed it."""

_LONG_RUN = 8
"""Runs of at least this many elements are read in place, not gathered."""

_VECTOR_SUMS = 96
"""Upper limit of a block's sums with SIMD floats."""

_SCALAR_PIXELS = 4
"""Upper limit of a scalar block's pixels: each also needs a register for its pointer."""

_UNROLLED_PRODUCTS = 96
"""Upper limit of the unrolled multiply-accumulates in the innermost loop's body."""

_LOADED_FLOATS = 240
"""Weights within reach of a load's immediate offset; limits unrolling."""


@dataclass(frozen=True, kw_only=True)
class GatheredWindow:
    """The variables for gathering a window into one run; texts are C.

    Attributes:
        down, across: lines that open the loops over the window's rows and columns.
        whole_row: condition under which a row is copied at once; empty if rows are not contiguous.
        row_start: offset of the row's first input.
        row: elements of a row.
        row_bytes: size of a row in bytes.
        pixel: elements of a pixel.
        pixel_bytes: size of a pixel in bytes.
    """

    down: str
    across: str
    whole_row: str
    row_start: str
    row: int
    row_bytes: int
    pixel: int
    pixel_bytes: int

    @staticmethod
    def of(window: Window, frame: Frame, *, row_is_run: bool) -> GatheredWindow:
        """Return the variables of a convolution; `row_is_run`: a row's inputs are contiguous."""
        (down, down_step), (across, across_step) = zip(window.end, window.dilation, strict=True)
        (height, width), (_, columns) = window.size, window.kernel
        inside = f"y >= 0 && y < {height} && side >= 0 && side + {columns} <= {width}"
        row = columns * window.depth if row_is_run else 0
        return GatheredWindow(
            down=f"for (int32_t y = top; y < top + {down}; {advance('y', down_step)}) {{",
            across=f"for (int32_t x = side; x < side + {across}; {advance('x', across_step)}) {{",
            whole_row=inside if row_is_run else "",
            row_start=frame.source.offset("y", "side") if row_is_run else "",
            row=row,
            row_bytes=row * 4,
            pixel=window.depth,
            pixel_bytes=window.depth * 4,
        )


@dataclass(frozen=True)
class FloatBlocksParameters(Parameters):
    """Variables of `convolution_float.j2`; texts are C.

    Attributes:
        title: text of the function's comment.
        images: the loop over images.
        width: width of the output.
        outside: condition that an input pixel lies outside of the image; empty without padding.
        pixels: pixels of a block.
        all_pixels: pixels of the output.
        channels: calls for a group's channels: those in whole blocks, then the remainder.
        groups: number of channel groups.
        gathered: how windows are gathered; None if inputs are read in place.
        window: inputs of a gathered window; 0 if windows are not gathered.
        pointers: run pointers of a block.
        down, across: open the loops over a window's rows and columns; empty without such a loop.
        top, side: the first row and column under a window.
        input_pixel: offset of input pixel (y, x); empty if unused.
        first_pixel: offset of the pixel (top, side) of a 1x1 window; empty if unused.
        output_pixel: offset of output pixel (y, x).
    """

    title: str
    images: ImageLoop
    width: int
    outside: str
    pixels: int
    all_pixels: int
    channels: tuple[ChannelsCall, ...]
    groups: int
    gathered: GatheredWindow | None
    window: int
    pointers: int
    down: str
    across: str
    top: str
    side: str
    input_pixel: str
    first_pixel: str
    output_pixel: str


def float_store(activation: Activation, y: TensorType, target: Target) -> Store:
    """Return how a sum is stored as an output.

    Without vector instructions, ReLU uses `rectified`, because a comparison costs more than testing
    the sign. With vectors, 0.0f is added to a sum that has no activation: gcc would turn a plain
    store of an array of several vectors into a memory copy, and keep the sums in memory.
    """
    vectors = "simd_float" in target.features
    if activation is Activation.RELU and not vectors:
        return Store("rectified(%s)")
    if activation is Activation.NONE and vectors:
        return Store("%s + 0.0f")
    return stored(activation, y)


def packed_channels(node: FloatProduct, groups: int, blocks: tuple[Channels, ...]) -> Array:
    """Return float32 biases and weights, flat, in the order in which the blocks read them.

    Each block has `count` biases, then `count` weights for each input. Missing biases are 0, and so
    are the weights of channels that only fill up vectors.
    """
    axis = weights_rule(node.op).output_axis(node.input(1).type)
    flat = np.moveaxis(node.input(1).array, axis, 0)
    flat, bias = flat.reshape(len(flat), -1), constant_bias(node)
    start = np.zeros(len(flat), np.float32) if bias is None else bias
    rows = np.concatenate([start.reshape(-1, 1), flat], axis=1).astype(np.float32)
    parts: list[Array] = []
    for group in rows.reshape(groups, -1, rows.shape[1]):
        for block in blocks:
            chosen = group[block.begin : block.end]
            chosen = np.pad(chosen, ((0, block.computed - len(chosen)), (0, 0)))
            chosen = chosen.reshape(-1, block.count, rows.shape[1])
            parts.append(chosen.transpose(0, 2, 1).ravel())
    return np.concatenate(parts)


def float_blocks(
    node: FloatProduct, window: Window, frame: Frame, request: Request, *, stem: str
) -> KernelCall:
    """Return the call that computes a float convolution, grouped or not, with constant weights.

    Args:
        node: the convolution.
        window: its geometry.
        frame: the output pixels to compute.
        request: target and `--optimize` preference.
        stem: stem of the function's name.
    """
    runs = InputRuns.of(node, window, frame, request)
    pixels = frame.pixels if runs.gathers else min(frame.pixels, max(_POINTERS // runs.taps, 1))
    per_group = window.outputs // window.groups
    count, outputs = _block(pixels, per_group, request.target)
    blocks = _channels(per_group, outputs, count, runs.length, request)
    layer = FloatLayer(
        node=node,
        stem=stem,
        sums=float_sums(node, count, request),
        window=runs.window,
        length=runs.length,
        taps=1 if runs.gathers else runs.taps,
        count=-(-frame.pixels // count) * frame.batch,
    )
    functions, calls = zip(*map(layer.channels, blocks), strict=True)
    operands: list[Operand] = [Input(0, "input")]
    if window.padded and not runs.gathers:
        inputs = max(node.input(0).type.shape[-1], runs.window.depth)
        operands.append(Packed("padding", np.zeros(inputs, np.float32)))
    operands.append(Packed("weights", packed_channels(node, window.groups, blocks)))
    if runs.gathers:
        operands.append(Scratch("patch", DType.FLOAT32, count * runs.length))
    pixel = _input_pixel(window, frame, runs)
    call = KernelCall(
        template="backends/c/convolution_float.j2",
        stem=stem,
        parameters=_parameters(node, window, frame, runs, layer, calls),
        operands=(*operands, Output(0, "output")),
        inner=(*functions, *pixel),
        uses=when(runs.gathers, "string.h") | {"SMELT_ARRAY"},
        summary=f"{count} pixels x {outputs} channels" + (", gathered" if runs.gathers else ""),
        missed=runs.missed,
    )
    if layer.sums.vectors or window.groups > 1:
        return call
    found = (layer.channels(block, shared=True) for block in blocks)
    functions, calls = zip(*found, strict=True)
    shared = replace(
        call,
        parameters=_parameters(node, window, frame, runs, layer, calls),
        inner=(*functions, *pixel),
    )
    cost = layer.cost(blocks, shared=True)
    return replace(call, shared=SharedFunctions.of(call, shared, cost, layer.cost(blocks)))


def _input_pixel(window: Window, frame: Frame, runs: InputRuns) -> tuple[InnerFunction, ...]:
    """Return the function that finds an input pixel, if one is needed."""
    if runs.gathers or (runs.taps == 1 and not window.padded):
        return ()
    size, padded = runs.window.size, window.padded
    return (input_pixel(size, frame.source, padded=padded, dtype=DType.FLOAT32),)


def float_sums(node: FloatProduct, pixels: int, request: Request) -> FloatSums:
    """Return the sums of a block of `pixels` pixels."""
    features = request.target.features
    store = float_store(node.op.activation, node.output.type, request.target)
    return FloatSums(pixels, "simd_float" in features, "fma" in features, store)


@dataclass(frozen=True)
class InputRuns:
    """The contiguous runs of inputs under a window, in place or gathered.

    Attributes:
        window: a window in which each tap is one run.
        gathers: whether windows are gathered into one run before they are used.
        row_is_run: whether the inputs of a row of the window are contiguous.
        missed: message if gathering was not chosen only to save RAM; else empty.
    """

    window: Window
    gathers: bool
    row_is_run: bool
    missed: str

    @staticmethod
    def of(node: Node, window: Window, frame: Frame, request: Request) -> InputRuns:
        """Return the runs of a convolution."""
        dense = frame.source.pixel == node.input(0).type.shape[-1] == window.depth
        runs = _rows_as_runs(window) if dense else window
        row_is_run = dense and runs.kernel[1] > 1 and runs.dilation[1] == 1
        gathers = _gathers(runs, request)
        fastest = _gathers(runs, replace(request, limited=False))
        missed = missed_for_ram("Gathering windows") if fastest and not gathers else ""
        return InputRuns(runs, gathers, row_is_run, missed)

    @property
    def taps(self) -> int:
        """The number of runs under a window, before gathering."""
        return self.window.taps

    @property
    def length(self) -> int:
        """The number of inputs of a run."""
        return self.window.depth * (self.taps if self.gathers else 1)


def _parameters(
    node: Node,
    window: Window,
    frame: Frame,
    runs: InputRuns,
    layer: FloatLayer,
    channels: tuple[ChannelsCall, ...],
) -> FloatBlocksParameters:
    taps, gathers, tap_runs, pixels = layer.taps, runs.gathers, runs.window, layer.sums.pixels
    alone = taps == 1 and not gathers and not window.padded
    gathered = GatheredWindow.of(tap_runs, frame, row_is_run=runs.row_is_run)
    return FloatBlocksParameters(
        title=window.title(node),
        images=frame.images,
        width=frame.width,
        outside=tap_runs.outside if window.padded else "",
        pixels=pixels,
        all_pixels=frame.pixels,
        channels=channels,
        groups=window.groups,
        gathered=gathered if gathers else None,
        window=runs.length if gathers else 0,
        pointers=pixels * taps,
        down=tap_runs.loop(0, "dy") if taps > 1 else "",
        across=tap_runs.loop(1, "dx") if taps > 1 and tap_runs.kernel[1] > 1 else "",
        top=tap_runs.origin(0, "y"),
        side=tap_runs.origin(1, "x"),
        input_pixel="" if alone else frame.source.offset("y", "x"),
        first_pixel=frame.source.offset("top", "side") if alone else "",
        output_pixel=frame.target.offset("y", "x"),
    )


def _rows_as_runs(window: Window) -> Window:
    """Merge each row of the window into one tap, if no padding or dilation splits rows."""
    if any(window.padding[1]) or window.dilation[1] > 1:
        return window
    depth = window.kernel[1] * window.depth
    return replace(window, kernel=(window.kernel[0], 1), depth=depth)


def _gathers(window: Window, request: Request) -> bool:
    """Return whether windows are gathered before they are used."""
    if window.taps == 1 or window.groups > 1 or window.depth >= _LONG_RUN:
        return False
    scratch = window.taps * window.depth * 16
    return scratch <= PATCH_BYTES and request.allows(scratch)


def _block(pixels: int, outputs: int, target: Target) -> tuple[int, int]:
    """Return the pixels and channels of a block."""
    if "simd_float" in target.features:
        return _vector_block(pixels, outputs)
    return _scalar_block(pixels, outputs, 31 if "fpu" in target.features else 8)


def _vector_block(pixels: int, outputs: int) -> tuple[int, int]:
    """Return the pixels and channels of a block whose channels share vector registers."""
    channels = min(padded_vectors(outputs), 16)

    def cost(count: int) -> tuple[int, int]:
        return -(-pixels // count) * (count + 2), -count

    most = min(6 if channels >= 8 else 8, pixels)
    count = min(range(1, most + 1), key=cost)
    while count * channels * 2 <= min(_VECTOR_SUMS, count * outputs):
        channels *= 2
    return count, channels


def _scalar_block(pixels: int, outputs: int, registers: int) -> tuple[int, int]:
    """Return the pixels and channels of the block with the fewest loads and multiplications."""

    def cost(block: tuple[int, int]) -> tuple[int, int]:
        count, channels = block
        whole, rest = divmod(outputs, channels)
        iteration = whole * (count + channels + count * channels)
        iteration += (count + rest + count * rest) if rest else 0
        return -(-pixels // count) * iteration, count * channels

    candidates = [
        (count, channels)
        for count in range(1, min(pixels, _SCALAR_PIXELS) + 1)
        for channels in range(1, min(outputs, registers) + 1)
        if count * channels + min(count, channels) + 1 <= registers
    ]
    return min(candidates, key=cost)


def _channels(
    outputs: int, block: int, pixels: int, length: int, request: Request
) -> tuple[Channels, ...]:
    """Split a group's channels into those in whole blocks and the remainder."""
    whole = outputs - outputs % block

    def channels(begin: int, end: int, count: int) -> Channels:
        most = min(_UNROLLED_PRODUCTS // (count * pixels), _LOADED_FLOATS // count)
        unrolled = 1 if request.optimize == "size" else max(min(most, length), 1)
        if length > unrolled:
            unrolled = next(
                (u for u in range(unrolled, unrolled // 2, -1) if length % u == 0), unrolled
            )
        return Channels(begin, end, count, length, unrolled)

    rest = max(outputs - whole, 1)
    if "simd_float" in request.target.features:
        rest = padded_vectors(rest)
    parts = (channels(0, whole, block), channels(whole, outputs, rest))
    return tuple(part for part in parts if part.end > part.begin)
