"""int8 depthwise convolutions on Armv6-M, two products in one multiplication."""

from __future__ import annotations

from smelt.codegen.backends.armv6m.depthwise_assembly import pairs
from smelt.codegen.backends.armv6m.instructions import CONDITION
from smelt.codegen.lower.halfword_depthwise import HalfwordDepthwise
from smelt.codegen.lower.halfword_pairs import DepthwiseCore, PackingCost

CORE = DepthwiseCore(
    CONDITION,
    pairs,
    PackingCost(word=7, strided=11, any_word=10, any_line=58),
    "armv6m_halves_depthwise",
    by_line=True,
    saturates=False,
)
KERNELS = (HalfwordDepthwise(CORE),)
