"""The C function that requantizes a sum, for the plain C definitions of assembly functions."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.kernel import InnerFunction, Parameters
from smelt.codegen.lower.requantization_32bit import ScalingSteps


@dataclass(frozen=True)
class StoredOutputParameters(Parameters):
    """Variables of `lower/stored_output.j2`.

    Attributes:
        scaling: The requantization.
    """

    scaling: ScalingSteps


def stored_output(scaling: ScalingSteps, condition: str, layer: str = "") -> InnerFunction:
    """Return the function that requantizes a sum.

    Args:
        scaling: The requantization.
        condition: The preprocessor condition for the assembly.
        layer: The kind of the `LayerStruct` that `scaling.lift` reads; empty if it reads none.
    """
    drop = f"_drop{scaling.drop}" if scaling.parts > 1 else ""
    return InnerFunction(
        template="lower/stored_output.j2",
        stem=f"stored_output{drop}_shift{scaling.last_shift}",
        details={
            "form": "plain" if scaling.nudge is None else "signed",
            "bias": "biased" if scaling.biased else "unbiased",
            "parts": f"parts{scaling.parts}",
            "limits": scaling.limits,
            "lift": "any_lift" if layer else _lift(scaling),
        },
        parameters=StoredOutputParameters(scaling),
        layer=layer,
        condition=f"!({condition})",
    )


def _lift(scaling: ScalingSteps) -> str:
    """Return what is added to a result as a word of a function's name."""
    return scaling.lift.replace(" + ", "plus").replace(" - ", "minus") or "plus0"
