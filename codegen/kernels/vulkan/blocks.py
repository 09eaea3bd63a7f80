"""How much one invocation of a product computes, and what invocations beside it share.

An invocation of a convolution sums so many pixels of a row times so many quads of channels, one of
a depthwise convolution a rectangle of pixels of one quad. Large blocks load little for each
product, small ones keep more invocations busy and fit into registers. What that is worth differs
between devices: their `BlockCosts` say it, and the block is taken that costs least, unless another
one was measured to be faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from smelt.codegen.kernels.base import Block, Request, layer_key
from smelt.codegen.kernels.c.window import Window
from smelt.errors import ConfigError
from smelt.ir import Node
from smelt.targets import Target
from smelt.targets.gpus import DEFAULT, BlockCosts

_SIZES = (1, 2, 4, 8, 16)
"""Pixels, rows and quads of blocks: a few sizes, for drivers take long to compile a pipeline."""

_TILE = 4
"""Most pixels of a rectangle: all of it is written out."""


def costs_of(target: Target) -> BlockCosts:
    """What blocks cost on the device that a target's code runs on."""
    return (target.gpu or DEFAULT).blocks


@dataclass(frozen=True)
class Blocks:
    """Those that a layer can have, the best by the profile first, and the one that it takes."""

    taken: Block
    possible: tuple[Block, ...]

    @staticmethod
    def of(
        node: Node, request: Request, possible: Iterable[Block], cost: Callable[[Block], float]
    ) -> Blocks:
        """Choose among blocks of the usual workgroup, the cheapest unless one was measured.

        Raises:
            ConfigError: the block that was measured is none that the layer can have.
        """
        ranked, sizes = sorted(possible, key=cost), costs_of(request.target).local
        blocks = tuple(replace(block, local=local) for local in sizes for block in ranked)
        found = request.blocks.get(layer_key(node), blocks[0])
        if found not in blocks:
            raise ConfigError(
                f"the tuning gives {node.origin} blocks of {found.text}, which it cannot have "
                "here: write it anew with `smelt tune`"
            )
        return Blocks(found, blocks)


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


def blocks_of(
    node: Node, request: Request, size: tuple[int, int], quads: int, work: Work
) -> Blocks:
    """The blocks of a convolution with so many rows (of all images) and columns of outputs.

    Raises:
        ConfigError: see `Blocks.of`.
    """
    rows, width = size
    costs = costs_of(request.target)

    def cost(block: Block) -> float:
        loads = (block.pixels - 1) * min(work.stride, work.columns) + work.columns
        weights = work.columns * block.quads
        own, shared = costs.load, costs.shared
        of_input, of_weight = (shared, own) if block.across else (own, shared)
        step = loads * (of_input + costs.word * work.input_words)
        step += weights * (of_weight * work.weight_loads + costs.word * work.weight_words)
        step += costs.multiply * work.products * weights * block.pixels
        if work.packed:
            step += costs.unpack * (loads + 0.5 * weights * work.products / 4)
        tiles = rows * -(-width // block.pixels)
        return _all(tiles, quads // block.quads, block, work.steps * step, costs)

    shares = (q for q in _SIZES if quads % q == 0)
    possible = (
        Block(pixels, share, across, costs.local[0])
        for pixels, share, across in product(_SIZES, shares, (False, True))
        if pixels * share <= costs.sums * min(work.columns, 2)
    )
    return Blocks.of(node, request, possible, cost)


def tiles_of(
    node: Node, request: Request, size: tuple[int, int, int], quads: int, window: Window
) -> Blocks:
    """The rectangles of a depthwise convolution of so many images, rows and columns of outputs.

    Raises:
        ConfigError: see `Blocks.of`.
    """
    images, height, width = size
    costs = costs_of(request.target)
    packed = not node.input(0).type.dtype.is_float
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
        of_weight = costs.load if block.across else costs.shared
        total = loads * (costs.load + costs.word * words)
        total += window.taps * (of_weight + costs.word * words)
        total += costs.multiply * 4 * window.taps * block.rows * block.pixels
        total += costs.unpack * (loads + window.taps) if packed else 0.0
        tiles = images * -(-height // block.rows) * -(-width // block.pixels)
        return _all(tiles, quads, block, total, costs)

    possible = (
        Block(pixels, 1, across, costs.local[0], rows)
        for rows, pixels, across in product(_SIZES, _SIZES, (False, True))
        if rows * pixels <= min(_TILE, costs.sums)
    )
    return Blocks.of(node, request, possible, cost)


def _all(tiles: int, shares: int, block: Block, cycles: float, costs: BlockCosts) -> float:
    """Cycles of all invocations: too few of them wait for one another."""
    inner, outer = (shares, tiles) if block.across else (tiles, shares)
    vectors = -(-inner // costs.lanes) * outer
    return max(vectors, costs.busy // costs.lanes) * (costs.start + cycles)
