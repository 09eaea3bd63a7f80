"""How long `smelt build` takes, without the C compiler: the goal is 3 s for `vww`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from bench.shared_folder import SHARED, absent
from smelt.cli.show.tables import TextTable

ROUNDS = 3


def main() -> None:
    """Wall-clock seconds of whole `smelt build` processes; the fastest of a few."""
    console = Console()
    rows: list[tuple[object, ...]] = []
    for network in ("vww", "ic", "kws", "sww", "ad"):
        model = SHARED / f"models/mlperf_tiny/{network}_int8.tflite"
        if not model.exists():
            console.print(f"{absent(model.name)}, left out")
            continue
        seconds = sorted(_build(model) for _ in range(ROUNDS))
        rows.append((network, f"{seconds[0]:.2f}", f"{seconds[-1]:.2f}"))
    TextTable(("network", "fastest, s", "slowest, s"), tuple(rows), "smelt build").print(console)


def _build(model: Path) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "smelt.cli.app",
            "build",
            str(model),
            "-o",
            f"{folder}/out",
        ]
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - start
