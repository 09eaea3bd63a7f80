"""The folder of networks and golden outputs that lies beside the repository, not in it.

The one place that reads the environment variable SMELT_SHARED: a folder with `models/` and
`golden/`, by default `../shared` as seen from the repository.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED = (ROOT / os.environ.get("SMELT_SHARED", "../shared")).resolve()


def absent(what: str) -> str:
    """The one sentence that says what cannot be had, for all who leave something out."""
    return f"no {what} in the shared folder (SMELT_SHARED, default ../shared)"
