"""A static function that plain C definitions of assembly call; a network contains it once."""

from __future__ import annotations

from smelt.codegen.backends.armv7m.instructions import CONDITION
from smelt.codegen.lower.kernel import InnerFunction
from smelt.codegen.text.parameters import NoParameters

UPPER_HALF = InnerFunction(
    template="backends/armv7m/upper_half.j2",
    stem="upper_half",
    parameters=NoParameters(),
    condition=f"!({CONDITION})",
)
"""Returns the upper half of a product."""
