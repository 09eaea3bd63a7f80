"""int8 depthwise convolutions for Armv7-M without the DSP extension; see `halfword_depthwise`."""

from __future__ import annotations

from smelt.codegen.backends.armv7m.depthwise_assembly import pairs
from smelt.codegen.backends.armv7m.instructions import CONDITION
from smelt.codegen.lower.halfword_depthwise import HalfwordDepthwise
from smelt.codegen.lower.halfword_pairs import DepthwiseCore, PackingCost

CORE = DepthwiseCore(
    CONDITION,
    pairs,
    PackingCost(word=7, strided=6, any_word=8, any_line=52),
    "armv7m_halves_depthwise",
    by_line=False,
    saturates=True,
)
KERNELS = (HalfwordDepthwise(CORE),)
