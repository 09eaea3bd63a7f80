"""Float depthwise convolutions: neighbouring pixels of a row times a few channels at a time.

Windows of neighbouring pixels overlap, so that an input is loaded once for all of a block's pixels
that see it, and a weight once for all pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.kernels.base import Input, KernelCall, Output, Packed, Request
from smelt.codegen.kernels.c.blocks_float import float_store, packed_channels
from smelt.codegen.kernels.c.float_sums import Channels
from smelt.codegen.kernels.c.images import Frame
from smelt.codegen.kernels.c.vectors import vector_width
from smelt.codegen.kernels.c.window import Window
from smelt.ir import Array, Node
from smelt.ops.fixed_point import Activation

WIDEST = 16
"""Columns of a window that are written out, at most."""

_UNROLLED = 16
"""Taps up to this many are written out; rows of larger windows are looped over."""

_PIXELS = 6
_REGISTERS = 31


@dataclass(frozen=True)
class Column:
    """A column of inputs under a block's windows, `offset` pixels from the first one.

    `products` lists the pixels that see it, each with the column of the window.
    """

    offset: int
    products: tuple[tuple[int, int], ...]


def depthwise_float(
    node: Node,
    window: Window,
    frame: Frame,
    activation: Activation,
    weights: Array,
    bias: Array | None,
    request: Request,
    *,
    stem: str,
) -> KernelCall:
    """The call that computes a float depthwise convolution without channel multiplier.

    Args:
        node: what is computed.
        window: its geometry, at most `WIDEST` columns.
        frame: the output pixels to compute.
        activation: fused into the node.
        weights: `[o, kh, kw]`.
        bias: `[o]`, None where there is none.
        request: target and preference.
        stem: of the function's name.
    """
    x, y = node.input(0).type, node.output.type
    channels, width = window.outputs, y.shape[2]
    vectors = "simd_float" in request.target.features
    pixels, lanes = min(4, width), vector_width(channels)
    if not vectors:
        pixels, lanes = _scalar_block(window, width, channels)
    columns = _columns(window, pixels)
    whole = channels - channels % lanes
    parts = (Channels(0, whole, lanes), Channels(whole, channels, channels - whole))
    blocks = tuple(part for part in parts if part.end > part.begin)
    store = float_store(activation, y, request.target)
    guarded = window.padded or width % pixels > 0
    parameters: dict[str, object] = {
        "frame": frame,
        "title": f"{node.op.name}: {x} -> {y}, {window.text}",
        "w": window,
        "pixels": pixels,
        "lanes": lanes,
        "blocks": blocks,
        "columns": columns,
        "even_columns": _evenly_spaced(columns),
        "vectors": vectors,
        "fused": "fma" in request.target.features,
        "looped": window.taps > _UNROLLED and window.kernel[0] > 1,
        "weights_each": 1 + window.taps,
        "guarded": guarded,
        "whole_blocks": width % pixels == 0,
        "store": store,
        "top": window.origin(0, "y"),
        "side": window.origin(1, "x"),
        "pixel": frame.source.offset("y", "x"),
        "outputs": [frame.target.offset("y", f"(x + {i})") for i in range(pixels)],
        "first_output": frame.target.offset("y", "x"),
    }
    padding = Packed("padding", np.zeros(channels, np.float32))
    return KernelCall(
        template="c/depthwise_float.j2",
        stem=stem,
        parameters=parameters,
        operands=(
            Input(0, "input"),
            *((padding,) if guarded else ()),
            Packed("weights", packed_channels(weights, bias, 1, blocks)),
            Output(0, "output"),
        ),
        helpers=store.helpers,
        summary=f"{pixels} pixels x {lanes} channels",
    )


def _columns(window: Window, pixels: int) -> tuple[Column, ...]:
    """The columns of inputs that a block of pixels sees, from left to right."""
    seen: dict[int, list[tuple[int, int]]] = {}
    for pixel in range(pixels):
        for tap in range(window.kernel[1]):
            offset = pixel * window.stride[1] + tap * window.dilation[1]
            seen.setdefault(offset, []).append((pixel, tap))
    return tuple(Column(offset, tuple(seen[offset])) for offset in sorted(seen))


def _evenly_spaced(columns: tuple[Column, ...]) -> tuple[int, int] | None:
    """`(end, step)` of a loop over the columns' offsets, if one reaches them all."""
    offsets = [column.offset for column in columns]
    step = offsets[1] - offsets[0] if len(offsets) > 1 else 1
    regular = offsets == list(range(0, offsets[-1] + 1, step))
    return (offsets[-1] + 1, step) if regular else None


def _scalar_block(window: Window, width: int, channels: int) -> tuple[int, int]:
    """Pixels and channels of a block that costs the fewest instructions, roughly."""
    rows, taps = window.kernel[0], window.taps

    def cost(block: tuple[int, int]) -> int:
        pixels, lanes = block
        loads = rows * len(_columns(window, pixels))
        turns = -(-channels // lanes)
        sums = channels * (loads + taps + pixels * (taps + 4))
        return -(-width // pixels) * (turns * 2 * loads + sums)

    candidates = [
        (pixels, lanes)
        for pixels in range(1, min(width, _PIXELS) + 1)
        for lanes in range(1, min(channels, 8) + 1)
        if lanes * (pixels + window.kernel[1]) + 1 <= _REGISTERS
    ]
    return min(candidates, key=cost, default=(1, 1))
