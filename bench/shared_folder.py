"""The shared folder of networks and golden outputs, which is not part of the repository.

The environment variable SMELT_SHARED names it; the default is `../shared`, relative to the
repository. It contains `models/` and `golden/`. No other module reads this variable.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED = (ROOT / os.environ.get("SMELT_SHARED", "../shared")).resolve()


def absent(what: str) -> str:
    """Return the message about a missing file, for benchmarks and tests that need it."""
    return f"no {what} in the shared folder (SMELT_SHARED, default ../shared)"
