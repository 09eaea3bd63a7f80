"""int8 convolutions on Armv6-M, two products in one multiplication."""

from __future__ import annotations

from smelt.codegen.backends.armv6m.convolution_assembly import block
from smelt.codegen.backends.armv6m.instructions import CONDITION
from smelt.codegen.backends.armv6m.pointwise_assembly import pointwise
from smelt.codegen.lower.halfword_convolution import HalfwordConvolution, HalfwordCore

CORE = HalfwordCore(
    CONDITION,
    block,
    "armv6m_halves",
    interleaves=True,
    saturates=False,
    pointwise=pointwise,
    layered=True,
)
KERNELS = (HalfwordConvolution(CORE),)
