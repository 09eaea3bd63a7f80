"""How much one invocation of a product computes, and what invocations beside it share.

An invocation sums so many pixels of a row times so many quads of channels (one quad in a depthwise
convolution). Large blocks load little for each product, small ones keep more invocations busy and
fit into registers. What that is worth differs between devices: their `BlockCosts` say it. The block
is taken that costs least, or one that costs little more and that other layers have too, unless
another one was measured to be faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from math import log2

from smelt.codegen.backends.vulkan.calls import MAX_GROUPS, Block, gpu_of
from smelt.codegen.backends.vulkan.gpus import BlockCosts
from smelt.codegen.lower.device import layer_key
from smelt.codegen.lower.kernel import Request
from smelt.errors import ConfigError
from smelt.ir import DType, Node
from smelt.targets import Target

_SIZES = (1, 2, 4, 8, 16)
"""Pixels and quads of blocks: a few sizes, for drivers take long to compile a pipeline."""


def costs_of(target: Target) -> BlockCosts:
    """What blocks cost on the device that a target's code runs on."""
    return gpu_of(target).blocks


@dataclass(frozen=True)
class BlockChoice:
    """Those that a layer can have, the best by the profile first, and the one that it takes."""

    taken: Block
    possible: tuple[Block, ...]

    @staticmethod
    def of(
        node: Node,
        request: Request,
        possible: Iterable[Block],
        cost: Callable[[Block], float],
        groups: Callable[[Block], int],
    ) -> BlockChoice:
        """Choose among blocks of the usual workgroup, the cheapest unless one was measured.

        Args:
            node: the layer.
            request: tells the device, and what was measured on it.
            possible: blocks, one of which needs few workgroups.
            cost: of a block.
            groups: workgroups of a block in one direction.

        Raises:
            ConfigError: the block that was measured is none that the layer can have.
        """
        costs = costs_of(request.target)
        ranked, sizes = sorted(possible, key=cost), costs.local
        near = [b for b in ranked if cost(b) <= costs.alike * cost(ranked[0])]
        common = min(near, key=_unlikeness)
        ranked = [common, *(b for b in ranked if b != common)]
        sized = (replace(block, local=local) for local in sizes for block in ranked)
        blocks = tuple(block for block in sized if groups(block) <= MAX_GROUPS)
        found = request.tilings.get(layer_key(node), blocks[0])
        if found not in blocks:
            raise ConfigError(
                f"the tuning gives {node.origin} blocks of {found.text}, which it cannot have "
                "here: write it again with `smelt tune`"
            )
        return BlockChoice(blocks[blocks.index(found)], blocks)


def _unlikeness(block: Block) -> tuple[float, int]:
    """How far from most layers' block: two to four pixels for each quad; larger ones come first."""
    return abs(log2(block.pixels / block.quads) - 1.5), -block.pixels * block.quads


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
    node: Node, request: Request, size: tuple[int, int], quads: tuple[int, int], work: Work
) -> BlockChoice:
    """The blocks of a product with so many rows (of all images) and columns of outputs.

    Args:
        node: the layer.
        request: tells the device, and what was measured on it.
        size: rows and columns.
        quads: of channels: most of an invocation, and how many there are.
        work: of a step.

    Raises:
        ConfigError: see `BlockChoice.of`.
    """
    rows, width = size
    costs = costs_of(request.target)
    half = node.output.type.dtype is DType.FLOAT16

    def cost(block: Block) -> float:
        loads = (block.pixels - 1) * min(work.stride, work.columns) + work.columns
        weights = work.columns * block.quads
        of_weight = costs.load if block.across else costs.shared
        step = loads * (costs.load + costs.word * work.input_words)
        step += weights * (of_weight * work.weight_loads + costs.word * work.weight_words)
        step += costs.multiply * work.products * weights * block.pixels
        if work.packed:
            step += costs.unpack * (loads + 0.5 * weights * work.products / 4)
        tiles, shares = rows * -(-width // block.pixels), -(-quads[1] // block.quads)
        inner, outer = (tiles * shares, 1) if block.across else (tiles, shares)
        # Too few invocations wait for one another.
        vectors = max(-(-inner // costs.lanes) * outer, costs.busy // costs.lanes)
        return vectors * (costs.start + work.steps * step)

    def groups(block: Block) -> int:
        return 1 if block.across else -(-rows * -(-width // block.pixels) // block.local)

    possible = (
        Block(pixels, share, across, costs.local[0])
        for pixels, share, across in product(_SIZES, _SIZES, (True, False))
        if pixels < 2 * width
        and share <= quads[0]
        and pixels * share <= costs.sums * min(work.columns, 2)
        and pixels * share * work.columns <= costs.written
        and (not half or pixels * share <= costs.halves)
    )
    return BlockChoice.of(node, request, possible, cost, groups)
