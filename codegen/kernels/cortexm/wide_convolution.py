"""int8 convolutions for Armv7-M without the DSP extension: two products in one multiply-add.

The form is that of `thumb_convolution`: pairs of inputs in a word, sums in halves. A Cortex-M3
multiplies and adds 32 by 32 into 32 bits in two cycles, but takes four to seven for 64 bits.
"""

from __future__ import annotations

from smelt.codegen.kernels.base import Kernel, KernelCall, Request
from smelt.codegen.kernels.c.images import frame
from smelt.codegen.kernels.c.window import Window
from smelt.codegen.kernels.cortexm.thumb_convolution import (
    Core,
    halves,
    refuse_halves,
)
from smelt.ir import Node
from smelt.ops.convolution import Conv2D
from smelt.targets import Target

WIDE = Core("cortexm/wide_block.j2", "wide_halves", interleaves=False, saturates=True)


class WideConv2D(Kernel):
    """Convolutions of one group."""

    op = Conv2D
    spatial = True

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        return refuse_wide(node, target) or refuse_halves(node)

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        window, place = Window.of(node), frame(node, request)
        weights = node.input(1).array.reshape(window.outputs, -1)
        stem = f"conv_{window.kernel[0]}x{window.kernel[1]}"
        return halves(node, window, place, weights, request, stem=stem, core=WIDE)


def refuse_wide(node: Node, target: Target) -> str | None:
    """None for a target with long multiplications and no DSP extension, else why not."""
    if "long_multiply" not in target.features or "dsp" in target.features:
        return f"{node.op.name} is served by halves of words for Armv7-M without DSP only."
    return None


KERNELS = (WideConv2D(),)
