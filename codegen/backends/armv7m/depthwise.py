"""int8 depthwise convolutions for Armv7-M without the DSP extension; see `halves_depthwise`."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.backends.armv7m.instructions import CONDITION
from smelt.codegen.backends.armv7m.pairs import pairs
from smelt.codegen.lower.halves_depthwise import DepthwiseCore, depthwise
from smelt.codegen.lower.offer import Kernel, KernelCall, Refusal, Request
from smelt.ir import Node
from smelt.ops.core.convolution import DepthwiseConv2D

WIDE = DepthwiseCore(CONDITION, pairs, "wide_halves_depthwise", by_line=False, saturates=True)


class WideDepthwiseConv2D(Kernel[DepthwiseConv2D]):
    """Depthwise convolutions whose lines fit into scratch."""

    op = DepthwiseConv2D

    @override
    def offer(self, node: Node[DepthwiseConv2D], request: Request) -> KernelCall | Refusal:
        return depthwise(node, request, WIDE)


KERNELS = (WideDepthwiseConv2D(),)
