"""Functions on Helium that copy and set bytes."""

from __future__ import annotations

from smelt.codegen.lower.kernel import InnerFunction
from smelt.codegen.text.parameters import NoParameters

_USES = frozenset({"SMELT_NAKED", "string.h"})

COPY = InnerFunction("backends/helium/copy.j2", "copy", NoParameters(), _USES)
"""The function that copies bytes."""
FILL = InnerFunction("backends/helium/fill.j2", "fill", NoParameters(), _USES)
"""The function that sets bytes."""
COPY_PIXELS = InnerFunction("backends/helium/copy_pixels.j2", "copy_pixels", NoParameters(), _USES)
"""The function that copies some channels of neighboring pixels."""
