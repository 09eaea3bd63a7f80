"""int8 depthwise convolutions on Armv6-M, two products in one multiplication."""

from __future__ import annotations

from smelt.codegen.backends.armv6m.depthwise_assembly import pairs
from smelt.codegen.backends.armv6m.instructions import CONDITION
from smelt.codegen.lower.halfword_depthwise import DepthwiseCore, HalfwordDepthwise

CORE = DepthwiseCore(CONDITION, pairs, "armv6m_halves_depthwise", by_line=True, saturates=False)
KERNELS = (HalfwordDepthwise(CORE),)
