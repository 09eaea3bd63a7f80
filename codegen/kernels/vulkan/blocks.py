"""How much one invocation of a product computes, and what invocations beside it share.

An invocation of a convolution sums so many pixels of a row times so many quads of channels, one of
a depthwise convolution a rectangle of pixels of one quad. Large blocks load little for each
product, small ones keep more invocations busy and fit into registers. What that is worth differs
between devices: a `Profile` says it, and the block is taken that costs least.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from smelt.codegen.kernels.c.window import Window
from smelt.targets import Target


@dataclass(frozen=True)
class Profile:
    """What work costs on a kind of device, in cycles of its vectors.

    Attributes:
        lanes: invocations that run in step; those that a workgroup does not need cost as much.
        local: invocations of a workgroup.
        busy: invocations that it takes to keep the device busy.
        sums: most vectors of four sums that an invocation keeps; twice as many where taps share
            inputs. A driver's compiler takes longer for more than in proportion.
        load: cycles of a load that each invocation makes for itself.
        shared: cycles of a load that is the same for a workgroup.
        word: cycles of each 32-bit word of a load.
        multiply: cycles of a multiply-add of single numbers.
        unpack: cycles of taking a word of four bytes apart.
        start: cycles of an invocation beside its products.
        reals: whether bytes are multiplied as floats where the sums stay exact.
    """

    lanes: int
    local: int
    busy: int
    sums: int
    load: float
    shared: float
    word: float
    multiply: float
    unpack: float
    start: float
    reals: bool


SOFTWARE = Profile(
    lanes=8,
    local=8,
    busy=16,
    sums=8,
    load=20.0,
    shared=20.0,
    word=12.5,
    multiply=1.65,
    unpack=6.0,
    start=600.0,
    reals=False,
)
"""Mesa's driver for CPUs: every load goes lane by lane, and there is cache in place of registers.

Measured with vectors of eight (AVX2, AVX-512VL and VNNI, which products of halfwords become).
"""

GPU = Profile(
    lanes=32,
    local=64,
    busy=4096,
    sums=8,
    load=8.0,
    shared=2.0,
    word=2.0,
    multiply=1.0,
    unpack=4.0,
    start=40.0,
    reals=True,
)
"""What GPUs have in common: loads of one address for all are nearly free, registers are few."""


def profile_of(target: Target) -> Profile:
    """The profile of the device that a target's code runs on.

    Where it could be any, that of Mesa's driver for CPUs, the one that everybody has.
    """
    del target
    return SOFTWARE


_SIZES = (1, 2, 4, 8, 16)
"""Pixels, rows and quads of blocks: a few sizes, for drivers take long to compile a pipeline."""

_TILE = 4
"""Most pixels of a rectangle: all of it is written out."""


@dataclass(frozen=True)
class Block:
    """Pixels of a row, rows, and quads of channels of an invocation.

    `across`: the invocations of a workgroup differ in channels, and not in pixels.
    """

    pixels: int
    quads: int
    across: bool
    local: int
    rows: int = 1


@dataclass(frozen=True)
class Work:
    """What a step of a convolution takes: a tap row's columns of one load of inputs.

    Attributes:
        steps: how many there are.
        columns: taps of a row that share inputs.
        stride: between two pixels, in inputs.
        input_words: 32-bit words of a load of inputs.
        weight_words: the same for a quad's weights of one column, and how many loads they are.
        weight_loads: see `weight_words`.
        packed: whether words hold four bytes.
        products: numbers that are multiplied for one pixel, column and quad.
    """

    steps: int
    columns: int
    stride: int
    input_words: int
    weight_words: int
    weight_loads: int
    packed: bool
    products: int


def best_block(size: tuple[int, int], quads: int, work: Work, profile: Profile) -> Block:
    """The block of a convolution with so many rows (of all images) and columns of outputs."""
    rows, width = size

    def cost(block: Block) -> float:
        loads = (block.pixels - 1) * min(work.stride, work.columns) + work.columns
        weights = work.columns * block.quads
        own, shared = profile.load, profile.shared
        of_input, of_weight = (shared, own) if block.across else (own, shared)
        step = loads * (of_input + profile.word * work.input_words)
        step += weights * (of_weight * work.weight_loads + profile.word * work.weight_words)
        step += profile.multiply * work.products * weights * block.pixels
        if work.packed:
            step += profile.unpack * (loads + 0.5 * weights * work.products / 4)
        tiles = rows * -(-width // block.pixels)
        return _all(tiles, quads // block.quads, block, work.steps * step, profile)

    return min(
        (
            Block(pixels, share, across, profile.local)
            for pixels, share, across in product(
                _SIZES,
                (q for q in _SIZES if quads % q == 0),
                (False, True),
            )
            if pixels * share <= profile.sums * min(work.columns, 2)
        ),
        key=cost,
    )


def best_tile(
    size: tuple[int, int, int], quads: int, window: Window, *, packed: bool, profile: Profile
) -> Block:
    """The rectangle of a depthwise convolution of so many images, rows and columns of outputs."""
    images, height, width = size
    words = 1 if packed else 4

    def cost(block: Block) -> float:
        loads = prod(
            len({o * stride + tap * dilation for o in range(outputs) for tap in range(kernel)})
            for outputs, stride, kernel, dilation in zip(
                (block.rows, block.pixels),
                window.stride,
                window.kernel,
                window.dilation,
                strict=True,
            )
        )
        of_weight = profile.load if block.across else profile.shared
        total = loads * (profile.load + profile.word * words)
        total += window.taps * (of_weight + profile.word * words)
        total += profile.multiply * 4 * window.taps * block.rows * block.pixels
        total += profile.unpack * (loads + window.taps) if packed else 0.0
        tiles = images * -(-height // block.rows) * -(-width // block.pixels)
        return _all(tiles, quads, block, total, profile)

    return min(
        (
            Block(pixels, 1, across, profile.local, rows)
            for rows, pixels, across in product(_SIZES, _SIZES, (False, True))
            if rows * pixels <= min(_TILE, profile.sums)
        ),
        key=cost,
    )


def _all(tiles: int, shares: int, block: Block, cycles: float, profile: Profile) -> float:
    """Cycles of all invocations: too few of them wait for one another."""
    inner, outer = (shares, tiles) if block.across else (tiles, shares)
    vectors = -(-inner // profile.lanes) * outer
    return max(vectors, profile.busy // profile.lanes) * (profile.start + cycles)
