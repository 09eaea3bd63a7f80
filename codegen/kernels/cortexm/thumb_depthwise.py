"""int8 depthwise convolutions on Armv6-M, two products in one multiplication."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.kernels.base import (
    KernelCall,
    Refusal,
    Request,
)
from smelt.codegen.kernels.cortexm.armv6m import CONDITION
from smelt.codegen.kernels.cortexm.cores import ThumbKernel
from smelt.codegen.kernels.cortexm.halves_depthwise import DepthwiseCore, depthwise
from smelt.codegen.kernels.cortexm.thumb_pairs import pairs
from smelt.ir import Node
from smelt.ops.convolution import DepthwiseConv2D

THUMB = DepthwiseCore(CONDITION, pairs, "thumb_halves_depthwise", by_line=True, saturates=False)


class ThumbDepthwiseConv2D(ThumbKernel[DepthwiseConv2D]):
    """Depthwise convolutions whose lines fit into scratch."""

    op = DepthwiseConv2D

    @override
    def offer(self, node: Node[DepthwiseConv2D], request: Request) -> KernelCall | Refusal:
        return depthwise(node, request, THUMB)


KERNELS = (ThumbDepthwiseConv2D(),)
