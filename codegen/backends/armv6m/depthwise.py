"""int8 depthwise convolutions on Armv6-M, two products in one multiplication."""

from __future__ import annotations

from smelt.codegen.backends.armv6m.instructions import CONDITION
from smelt.codegen.backends.armv6m.pairs import pairs
from smelt.codegen.lower.halves_depthwise import DepthwiseCore, HalvesDepthwise

CORE = DepthwiseCore(CONDITION, pairs, "thumb_halves_depthwise", by_line=True, saturates=False)
KERNELS = (HalvesDepthwise(CORE),)
