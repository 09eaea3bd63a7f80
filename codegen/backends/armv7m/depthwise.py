"""int8 depthwise convolutions for Armv7-M without the DSP extension; see `halves_depthwise`."""

from __future__ import annotations

from smelt.codegen.backends.armv7m.instructions import CONDITION
from smelt.codegen.backends.armv7m.pairs import pairs
from smelt.codegen.lower.halves_depthwise import DepthwiseCore, HalvesDepthwise

CORE = DepthwiseCore(CONDITION, pairs, "wide_halves_depthwise", by_line=False, saturates=True)
KERNELS = (HalvesDepthwise(CORE),)
