"""What kernels cost on each target: cycles for a unit of work, as measured.

`prices/TARGET.json` is written by `python -m bench prices`, which runs kernels of many shapes on
the target's simulator, applies the timings of its core, and fits prices that are not negative. The
units are those of the kernels (`KernelCall.work`). Some targets take another's (`priced_as`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files


@cache
def prices_of(target: str) -> Mapping[str, Mapping[str, float]]:
    """`{form: {unit: cycles}}` of a target; empty where nothing has been measured."""
    path = files("smelt.targets") / "prices" / f"{target}.json"
    return json.loads(path.read_text()) if path.is_file() else {}
