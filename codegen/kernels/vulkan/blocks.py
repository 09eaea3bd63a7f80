"""How much one invocation of a product computes: pixels times quads of channels, and who is beside.

An invocation loads inputs that are its own and weights that its whole workgroup shares, or, where a
layer has few pixels and many channels, the other way about. What each costs differs between
devices: a `Profile` says it, and the cheapest block is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from smelt.codegen.kernels.c.window import Window

LARGEST_SUMS = 64
"""Vectors of four sums that an invocation keeps at most."""

MOST_PIXELS = 16
MOST_ROWS = 6
MOST_QUADS = 16


@dataclass(frozen=True)
class Profile:
    """What a device's work costs, in the time of one multiply-add of a vector of four.

    Attributes:
        lanes: invocations that run in step; those that are not needed cost as much.
        parallel: invocations that keep the device busy.
        load: a 32-bit word that invocations side by side read from different addresses.
        shared: a 32-bit word that they read from one address.
        unpack: taking a word of bytes apart.
        start: an invocation before its first product.
    """

    lanes: int
    parallel: int
    load: float
    shared: float
    unpack: float
    start: float


SOFTWARE = Profile(8, 16, load=1.5, shared=1.0, unpack=0.6, start=30.0)
"""Mesa's driver for the CPU, with vectors of eight."""

DEFAULT = SOFTWARE
"""For devices that nobody has measured."""


@dataclass(frozen=True)
class Shape:
    """What a product's block depends on.

    Attributes:
        width: pixels of a row.
        rows: rows, of all images.
        quads: of output channels.
        steps: tap columns times taps of a column times depth, in what is loaded at once.
        columns: taps of a row that share inputs, and how far apart pixels are from one another.
        stride: between two pixels, in input columns.
        input_words: words of a load of inputs, for one step.
        weight_words: words of weights for one step and quad.
        packed: whether words hold four bytes each.
        products: vector multiply-adds for one pixel, step and quad.
    """

    width: int
    rows: int
    quads: int
    steps: int
    columns: int
    stride: int
    input_words: int
    weight_words: int
    packed: bool
    products: int


@dataclass(frozen=True)
class Block:
    """Pixels and quads of an invocation; `across`: a workgroup's invocations differ in quads."""

    pixels: int
    quads: int
    across: bool
    local: int = 32


def best_block(shape: Shape, profile: Profile = DEFAULT) -> Block:
    """The block that costs least."""
    blocks = [
        Block(pixels, quads, across, max(profile.lanes, 8))
        for pixels, quads, across in product(
            range(1, min(MOST_PIXELS, shape.width) + 1),
            (q for q in range(1, MOST_QUADS + 1) if shape.quads % q == 0),
            (False, True),
        )
        if pixels * quads <= LARGEST_SUMS or (pixels == 1 and quads == 1)
    ]
    return min(blocks, key=lambda block: _cost(shape, block, profile))


def _cost(shape: Shape, block: Block, profile: Profile) -> float:
    """The time of the whole product."""
    tiles = -(-shape.width // block.pixels) * shape.rows
    share = shape.quads // block.quads
    inner, outer = (share, tiles) if block.across else (tiles, share)
    vectors = -(-inner // profile.lanes) * outer
    inputs = (block.pixels - 1) * min(shape.stride, shape.columns) + shape.columns
    weights = shape.columns * block.quads
    own, shared = profile.load, profile.shared
    input_load, weight_load = (shared, own) if block.across else (own, shared)
    unpacks = (inputs + 4 * weights) * profile.unpack if shape.packed else 0.0
    loads = inputs * shape.input_words * input_load + weights * shape.weight_words * weight_load
    step = loads + unpacks + block.pixels * weights * shape.products
    return vectors * (profile.start + shape.steps * step)


@dataclass(frozen=True)
class Tile:
    """Rows and pixels of an invocation of a depthwise convolution; `across` as of a `Block`."""

    rows: int
    pixels: int
    across: bool
    local: int


def best_tile(
    window: Window, size: tuple[int, int], batch: int, quads: int, real: bool
) -> Tile:
    """The tile that costs least for an output of `size`."""
    tiles = [
        Tile(rows, pixels, across, DEFAULT.lanes)
        for rows, pixels, across in product(
            range(1, min(MOST_ROWS, size[0]) + 1),
            range(1, min(MOST_PIXELS, size[1]) + 1),
            (False, True),
        )
        if rows * pixels <= LARGEST_SUMS
    ]
    return min(tiles, key=lambda tile: _tile_cost(window, size, batch, quads, real, tile, DEFAULT))


def _tile_cost(
    window: Window,
    size: tuple[int, int],
    batch: int,
    quads: int,
    real: bool,
    tile: Tile,
    profile: Profile,
) -> float:
    count = -(-size[0] // tile.rows) * -(-size[1] // tile.pixels) * batch
    inner, outer = (quads, count) if tile.across else (count, quads)
    vectors = -(-inner // profile.lanes) * outer
    inputs = 1
    for outputs, stride, kernel, dilation in zip(
        (tile.rows, tile.pixels), window.stride, window.kernel, window.dilation, strict=True
    ):
        inputs *= len({o * stride + k * dilation for o in range(outputs) for k in range(kernel)})
    words = 4 if real else 1
    own, shared = profile.load * words, profile.shared * words
    unpacks = 0.0 if real else profile.unpack * (inputs + window.taps)
    weights = window.taps * (own if tile.across else shared)
    products = tile.rows * tile.pixels * window.taps
    return vectors * (profile.start + inputs * own + weights + unpacks + products)
