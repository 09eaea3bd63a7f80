"""int8 convolutions on Armv6-M, two products in one multiplication."""

from __future__ import annotations

from smelt.codegen.backends.armv6m.block import block
from smelt.codegen.backends.armv6m.instructions import CONDITION
from smelt.codegen.lower.halves_convolution import HalvesConvolution, HalvesCore

CORE = HalvesCore(CONDITION, block, "thumb_halves", interleaves=True, saturates=False)
KERNELS = (HalvesConvolution(CORE),)
