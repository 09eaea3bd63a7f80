"""The cost of the functions of a depthwise convolution (`halfword_depthwise`)."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.codegen.lower.depthwise_walk import ANY_PLANE, EQUAL_PLANES, OWN, PlaneWalk
from smelt.codegen.lower.halfword_pairs import DepthwiseCore, PackingCost
from smelt.codegen.lower.kernel import BodyCost
from smelt.codegen.lower.requantization_32bit import ShortScaling

_BYTES = {OWN: 200, EQUAL_PLANES: 270, ANY_PLANE: 350}
"""Bytes of the C around the assembly."""


def plane_cost(
    core: DepthwiseCore,
    walk: PlaneWalk,
    scaling: ShortScaling,
    channels: Mapping[int, int],
    images: int,
) -> BodyCost:
    """Return the cost of a layer's function and of the functions that it calls.

    Args:
        core: The core.
        walk: The walk over a channel's plane.
        scaling: The requantization.
        channels: The channels of each called function, by its largest number of taps in a group.
        images: The number of images.
    """
    pairs = -(-walk.plane.outputs[0] // 2)
    slabs = -(-pairs // walk.plane.pairs)
    instructions, size = 0, _BYTES[walk.read]
    for largest, count in channels.items():
        code = core.pairs(walk, scaling, core.groups(walk.plane, largest))
        called = code.executed(-(-pairs // slabs))
        instructions += count * slabs * (called + _packed(core.packing, walk))
        size += code.assembly.size
    return BodyCost(instructions * images, size)


def _packed(cost: PackingCost, walk: PlaneWalk) -> int:
    """Return the instructions that pack a slab of a channel."""
    p = walk.plane
    if walk.read == ANY_PLANE:
        return p.filled * (cost.any_word * p.rows + cost.any_line * p.stride[0])
    return p.filled * p.rows * (cost.word if p.stride[0] == 1 else cost.strided)
