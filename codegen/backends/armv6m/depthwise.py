"""int8 depthwise convolutions on Armv6-M, two products in one multiplication."""

from __future__ import annotations

from smelt.codegen.backends.armv6m.depthwise_assembly import executed, pairs, pairs_with_arguments
from smelt.codegen.backends.armv6m.instructions import CONDITION
from smelt.codegen.lower.halfword_depthwise import HalfwordDepthwise
from smelt.codegen.lower.halfword_pairs import DepthwiseCore, PairsWithDistances

CORE = DepthwiseCore(
    CONDITION,
    pairs,
    "armv6m_halves_depthwise",
    by_line=True,
    saturates=False,
    shared=PairsWithDistances(pairs_with_arguments, executed),
)
KERNELS = (HalfwordDepthwise(CORE),)
