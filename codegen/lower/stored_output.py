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
    drop = f"_drop{scaling.drop}" if scaling.parts > 1 else ""
    return InnerFunction(
        template="lower/stored_output.j2",
        stem=f"stored_output{drop}_shift{scaling.last_shift}",
        details={
            "form": "plain" if scaling.nudge is None else "signed",
            "parts": f"parts{scaling.parts}",
            "bias": "biased" if scaling.biased else "unbiased",
            "limits": scaling.limits,
        },
        parameters=StoredOutputParameters(condition, scaling),
    )
