"""int8 depthwise convolutions on Armv6-M, two products in one multiplication."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.backends.armv6m.instructions import CONDITION
from smelt.codegen.backends.armv6m.pairs import pairs
from smelt.codegen.lower.halves_depthwise import DepthwiseCore, depthwise
from smelt.codegen.lower.offer import Kernel, KernelCall, Refusal, Request
from smelt.ir import Node
from smelt.ops.core.convolution import DepthwiseConv2D

THUMB = DepthwiseCore(CONDITION, pairs, "thumb_halves_depthwise", by_line=True, saturates=False)


class ThumbDepthwiseConv2D(Kernel[DepthwiseConv2D]):
    """Depthwise convolutions whose lines fit into scratch."""

    op = DepthwiseConv2D

    @override
    def offer(self, node: Node[DepthwiseConv2D], request: Request) -> KernelCall | Refusal:
        return depthwise(node, request, THUMB)


KERNELS = (ThumbDepthwiseConv2D(),)
