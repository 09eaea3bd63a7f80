"""The function that requantizes a sum in plain C definitions of assembly."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.kernel import InnerFunction, Parameters
from smelt.codegen.lower.requantization_32bit import ScalingSteps


@dataclass(frozen=True)
class StoredOutputParameters(Parameters):
    """Variables of `lower/stored_output.j2`.

    Attributes:
        condition: The preprocessor condition for the assembly.
        scaling: The requantization.
    """

    condition: str
    scaling: ScalingSteps


def stored_output(scaling: ScalingSteps, condition: str) -> InnerFunction:
    """Return the function; `condition` is the preprocessor condition for the assembly."""
    parameters = StoredOutputParameters(condition, scaling)
    return InnerFunction("lower/stored_output.j2", "stored_output", parameters)
