"""Functions on Helium that copy and set bytes."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.kernel import InnerFunction, Parameters


@dataclass(frozen=True)
class NoParameters(Parameters):
    """No variables."""


_USES = frozenset({"SMELT_NAKED", "string.h"})

COPY = InnerFunction("backends/helium/copy.j2", "copy", NoParameters(), _USES)
"""The function that copies bytes."""
FILL = InnerFunction("backends/helium/fill.j2", "fill", NoParameters(), _USES)
"""The function that sets bytes."""
