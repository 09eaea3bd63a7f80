"""The choice of the block of outputs that each invocation of a convolution computes.

A block is a number of pixels of a row times a number of quads (groups of four channels; one quad in
a depthwise convolution). Large blocks need fewer loads per product. Small blocks give work to more
invocations and fit into registers. `BlockCosts` estimates both effects for each device. The
cheapest block is chosen, or one that costs little more and that other layers also use, unless
`smelt tune` measured that another block is faster.
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
"""Possible numbers of pixels and of quads: few, because drivers take long to compile a pipeline."""


def costs_of(target: Target) -> BlockCosts:
    """Return the block costs of the target's GPU."""
    return gpu_of(target).blocks


@dataclass(frozen=True)
class BlockChoice:
    """The block of a layer and its alternatives.

    Attributes:
        taken: The block that the layer uses.
        possible: All blocks that the layer can use, best first by the device's profile.
    """

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
        """Choose the measured block, or else the cheapest with the usual workgroup size.

        Args:
            node: The layer.
            request: Contains the target and the measured blocks.
            possible: Blocks with the usual workgroup size. At least one must need no more than
                `MAX_GROUPS` workgroups.
            cost: Returns the estimated cost of a block.
            groups: Returns the number of workgroups along x that a block needs.

        Raises:
            ConfigError: The layer does not support the measured block.
        """
        costs = costs_of(request.target)
        ranked, sizes = sorted(possible, key=cost), costs.local
        near = [b for b in ranked if cost(b) <= costs.reuse_margin * cost(ranked[0])]
        common = min(near, key=_distance_from_usual)
        ranked = [common, *(b for b in ranked if b != common)]
        sized = (replace(block, local=local) for local in sizes for block in ranked)
        blocks = tuple(block for block in sized if groups(block) <= MAX_GROUPS)
        found = request.tilings.get(layer_key(node), blocks[0])
        if found not in blocks:
            raise ConfigError(
                f"the tuning gives {node.origin} blocks of {found.text}, which this layer does "
                "not support: write it again with `smelt tune`"
            )
        return BlockChoice(blocks[blocks.index(found)], blocks)


def _distance_from_usual(block: Block) -> tuple[float, int]:
    """Return a sort key that is smallest for the shape of most layers' blocks.

    Most have two to four pixels per quad; of two equal shapes, the larger block comes first.
    """
    return abs(log2(block.pixels / block.quads) - 1.5), -block.pixels * block.quads


@dataclass(frozen=True)
class Work:
    """The work of one step of a convolution: several columns (taps of a kernel row) at one depth.

    Attributes:
        steps: Number of steps.
        columns: Columns per step.
        stride: Inputs between two neighboring pixels of a block.
        input_words: 32-bit words per load of inputs.
        weight_words: 32-bit words of the weights of a quad and a column.
        weight_loads: Loads of the weights of a quad and a column.
        packed: Whether a word contains four int8 values.
        products: Multiplications per pixel, column and quad.
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
    """Choose the block of a convolution.

    Args:
        node: The layer.
        request: Contains the target and the measured blocks.
        size: Rows (of all images) and columns of the output.
        quads: Largest number of quads per invocation, and number of quads of the output.
        work: The work of a step.

    Raises:
        ConfigError: The layer does not support the measured block.
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
        # Below `busy` invocations, fewer vectors do not take less time.
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
