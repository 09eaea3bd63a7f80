"""The function on Helium that requantizes one sum in plain C."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.helium.assembly import PLAIN
from smelt.codegen.backends.helium.scaling import HeliumScaling
from smelt.codegen.lower.kernel import InnerFunction, Parameters


@dataclass(frozen=True)
class RescaleParameters(Parameters):
    """Variables of `backends/helium/rescale.j2`.

    Attributes:
        single: whether a sum is multiplied by a float32.
        away: whether ties of integers are rounded away from zero.
    """

    single: bool
    away: bool


def rescale(scaling: HeliumScaling) -> InnerFunction:
    """Return the function that requantizes one sum."""
    parameters = RescaleParameters(scaling.single, scaling.away)
    stem = "rescale_" + ("float" if scaling.single else "away" if scaling.away else "upwards")
    template = "backends/helium/rescale.j2"
    return InnerFunction(template, stem, parameters, scaling.uses, condition=PLAIN)
