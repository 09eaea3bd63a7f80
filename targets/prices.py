"""Prices of kernels: measured cycles per unit of work, for each target.

`python -m bench prices` writes `prices/TARGET.json`. It runs kernels of many shapes on the target's
simulator, applies the core's timings, and fits non-negative prices. `KernelCall.work` defines the
units. The estimated cycles of a call are the sum of its units, each multiplied by its price. So a
form that computes parts of a layer in different ways has units for each way. Some targets use the
prices of another (`priced_as`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files


@cache
def prices_of(target: str) -> Mapping[str, Mapping[str, float]]:
    """Return a target's prices as `{form: {unit: cycles}}`; empty if nothing was measured."""
    path = files("smelt.targets") / "prices" / f"{target}.json"
    return json.loads(path.read_text()) if path.is_file() else {}
