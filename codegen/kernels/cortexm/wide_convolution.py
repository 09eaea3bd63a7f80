"""int8 convolutions for Armv7-M without the DSP extension: two products in one multiplication.

A Cortex-M3 multiplies 32 by 32 into 32 bits in one cycle and adds to that in two, but takes four to
seven for 64 bits. Either two taps share a word (`wide_products`) or two pixels do, as in
`thumb_convolution`; the latter needs no window to fit into scratch whole.
"""

from __future__ import annotations

from smelt.codegen.kernels.base import KernelCall, Request
from smelt.codegen.kernels.c.images import Frame
from smelt.codegen.kernels.c.window import Window
from smelt.codegen.kernels.cortexm.cores import WideKernel
from smelt.codegen.kernels.cortexm.thumb_convolution import (
    Core,
    halves,
    refuse_halves,
)
from smelt.codegen.kernels.cortexm.wide_products import convolution, refuse_pairs
from smelt.ir import Node
from smelt.ops.convolution import Conv2D
from smelt.targets import Target

WIDE = Core("cortexm/wide_block.j2", "wide_halves", interleaves=False, saturates=True)


class WidePairsConv2D(WideKernel):
    """Convolutions of one group, two taps in one multiplication."""

    op = Conv2D

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        return refuse_pairs(node)

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        window, place = Window.of(node), Frame.of(node)
        weights = node.input(1).array.reshape(window.outputs, -1)
        stem = f"conv_{window.kernel[0]}x{window.kernel[1]}"
        return convolution(node, window, place, weights, request, stem=stem)


class WideConv2D(WideKernel):
    """Convolutions of one group, two pixels in one multiplication."""

    op = Conv2D

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        return refuse_halves(node)

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        window, place = Window.of(node), Frame.of(node)
        weights = node.input(1).array.reshape(window.outputs, -1)
        stem = f"conv_{window.kernel[0]}x{window.kernel[1]}"
        return halves(node, window, place, weights, request, stem=stem, core=WIDE)


KERNELS = (WidePairsConv2D(), WideConv2D())
