"""A static function that plain C definitions of assembly call; a network contains it once."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.armv7m.instructions import CONDITION
from smelt.codegen.lower.kernel import InnerFunction, Parameters


@dataclass(frozen=True)
class UpperHalfParameters(Parameters):
    """Variables of `backends/armv7m/upper_half.j2`.

    Attributes:
        condition: preprocessor condition for the assembly.
    """

    condition: str


UPPER_HALF = InnerFunction(
    "backends/armv7m/upper_half.j2", "upper_half", UpperHalfParameters(CONDITION)
)
"""Returns the upper half of a product."""
