"""The time of `smelt build`, without the C compiler. The goal is 3 s for `vww`."""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench import records
from bench.shared_folder import SHARED, absent
from smelt.cli.show.tables import TextTable

ROUNDS = 3


@dataclass(frozen=True)
class BuildTime:
    """Seconds of `smelt build` for a network, in the fastest and the slowest round."""

    network: str
    fastest: float
    slowest: float


def main(write: records.WriteOption = False, note: records.NoteOption = "") -> None:
    """Measure wall-clock seconds of whole `smelt build` processes."""
    console = Console()
    rows: list[BuildTime] = []
    for network in ("vww", "ic", "kws", "sww", "ad"):
        model = SHARED / f"models/mlperf_tiny/{network}_int8.tflite"
        if not model.exists():
            console.print(f"{absent(model.name)}, skipped")
            continue
        seconds = sorted(_build(model) for _ in range(ROUNDS))
        rows.append(BuildTime(network, seconds[0], seconds[-1]))
    lines = tuple((row.network, f"{row.fastest:.2f}", f"{row.slowest:.2f}") for row in rows)
    TextTable(("network", "fastest, s", "slowest, s"), lines, "smelt build").print(console)
    if write:
        python = f"Python {platform.python_version()}"
        records.write(
            "build_time",
            records.this_run(
                "build-time --write", "no C compiler", f"{records.processor()}, {python}", note
            ),
            rows,
        )


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
