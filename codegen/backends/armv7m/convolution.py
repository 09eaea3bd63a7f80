"""int8 convolutions for Armv7-M without the DSP extension: two products in one multiplication.

A Cortex-M3 takes one cycle for a product of 32 x 32 -> 32 bits (MUL), two with an addition (MLA),
but four to seven for a 64-bit product. A word holds inputs of either two taps
(`convolution_pairs`) or two pixels (`halfword_convolution`). The latter also serves windows that do
not fit into scratch as a whole.
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
    """Convolutions with one group, two taps in one multiplication."""

    op = Conv2D

    @override
    def offer(self, node: Node[Conv2D], request: Request) -> KernelCall | Refusal:
        if node.op.groups > 1:
            return Refusal(f"{node.op.name} with pairs of taps supports only one group.")
        return convolution(node, request)


KERNELS = (PairsOfTapsConv2D(), HalfwordConvolution(CORE))
