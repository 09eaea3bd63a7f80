"""int8 convolutions for Armv7-M without the DSP extension: two products in one multiplication.

A Cortex-M3 multiplies 32 by 32 into 32 bits in one cycle and adds to that in two, but takes four to
seven for 64 bits. Either two taps share a word (`convolution_pairs`) or two pixels do, as in
`halfword_convolution`; the latter needs no window to fit into scratch whole.
"""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.backends.armv7m.convolution_assembly import block
from smelt.codegen.backends.armv7m.convolution_pairs import convolution
from smelt.codegen.backends.armv7m.instructions import CONDITION
from smelt.codegen.lower.halfword_convolution import HalfwordConvolution, HalfwordCore
from smelt.codegen.lower.kernel import Kernel, KernelCall, Refusal, Request
from smelt.ir import Node
from smelt.ops.core.convolution import Conv2D

CORE = HalfwordCore(CONDITION, block, "armv7m_halves", interleaves=False, saturates=True)


class PairsOfTapsConv2D(Kernel[Conv2D]):
    """Convolutions of one group, two taps in one multiplication."""

    op = Conv2D

    @override
    def offer(self, node: Node[Conv2D], request: Request) -> KernelCall | Refusal:
        if node.op.groups > 1:
            return Refusal(f"{node.op.name} is served by pairs of taps for one group only.")
        return convolution(node, request)


KERNELS = (PairsOfTapsConv2D(), HalfwordConvolution(CORE))
