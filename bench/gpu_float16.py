"""Sizes and rounding errors of networks on a GPU in float16, compared with float32.

The GPU may be Mesa's driver for CPUs, lavapipe: sizes are the same on every device.
"""

from __future__ import annotations

import numpy as np
from rich.console import Console

from bench import records
from bench.shared_folder import SHARED, absent
from bench.vulkan_figures import GpuFloat16
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.cli.show.tables import TextTable
from smelt.ir import evaluate
from smelt.proof.run import run
from smelt.samples import random_samples

SAMPLES = 4
NETWORKS = (
    "models/float/resnet8.onnx",
    "models/float/mobilenet_v1_025_96.onnx",
    "models/face/ultraface_slim_320.onnx",
)


def main(*, write: records.WriteOption = False, note: records.NoteOption = "") -> None:
    """Print sizes and rounding errors of networks on a GPU in float16."""
    console = Console()
    missing = [name for name in NETWORKS if not (SHARED / name).is_file()]
    if missing:
        console.print("\n".join(map(absent, missing)))
        return
    rows, devices = zip(*map(measure, NETWORKS), strict=True)
    columns = ("network", "weights f32", "f16", "arena f32", "f16", "largest difference")
    lines = tuple(
        (
            row.network,
            *(f"{row.weights_float32:,}", f"{row.weights_float16:,}"),
            *(f"{row.arena_float32:,}", f"{row.arena_float16:,}", f"{row.error:.4f}"),
        )
        for row in rows
    )
    TextTable(columns, lines, "bytes, and fraction of the outputs' range").print(console)
    if write:
        device = ", ".join(dict.fromkeys(devices))
        measured = records.this_run("gpu-float16 --write", records.version("gcc"), device, note)
        records.write("vulkan_float16", measured, rows)


def measure(name: str) -> tuple[GpuFloat16, str]:
    """Measure a network of the shared folder; return its row, and the name of the device."""
    path = SHARED / name
    backends = ("vulkan", "c")
    wide = compile_model(path, Options(target="vulkan", backends=backends))
    halves = compile_model(path, Options(target="vulkan", backends=backends, float16=True))
    samples = random_samples(halves.graph, SAMPLES, 0)
    ran = run(halves, samples)
    errors = [
        float(np.abs(ours - exact).max() / np.ptp(exact))
        for outputs, sample in zip(ran.outputs, samples, strict=True)
        for ours, exact in zip(outputs, evaluate(wide.graph, sample).outputs, strict=True)
    ]
    row = GpuFloat16(
        path.stem,
        wide.network.weights_bytes,
        halves.network.weights_bytes,
        wide.network.arena_bytes,
        halves.network.arena_bytes,
        max(errors),
    )
    return row, str(ran.report["inference"]["gpu"])
