"""int8 convolutions on Armv6-M, two products in one multiplication."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.backends.armv6m.block import block
from smelt.codegen.backends.armv6m.instructions import CONDITION
from smelt.codegen.lower.halves_convolution import HalvesCore, convolution_by_halves
from smelt.codegen.lower.offer import Kernel, KernelCall, Refusal, Request
from smelt.ir import Node
from smelt.ops.core.convolution import Conv2D

THUMB = HalvesCore(CONDITION, block, "thumb_halves", interleaves=True, saturates=False)


class ThumbConv2D(Kernel[Conv2D]):
    """Convolutions of one group."""

    op = Conv2D

    @override
    def offer(self, node: Node[Conv2D], request: Request) -> KernelCall | Refusal:
        return convolution_by_halves(node, request, THUMB)


KERNELS = (ThumbConv2D(),)
