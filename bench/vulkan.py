"""Networks on a GPU compared with ncnn's Vulkan path: both alternate on the same device.

On a computer without a GPU, the device is Mesa's driver for CPUs, lavapipe. Its times say nothing
about GPUs, but the ratio of two programs compares their implementations. ncnn (PyPI `ncnn`) runs in
a separate process, so that it may be installed for another Python (`--peer-python`).

The int8 networks are the same files, quantized with random calibration data. The float16 networks
are compiled with `--float16`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import typer
from rich.console import Console

from bench import ncnn_peer, records
from bench.library import MeasuredLibrary
from bench.ncnn_net import NcnnWriter
from bench.shared_folder import SHARED, absent
from bench.vulkan_figures import LATENCY, GpuLatency, GpuStart, print_tables
from bench.vulkan_net import CACHE_FILE, DRIVER_CACHE, build_library, build_program, first_seconds
from bench.vulkan_tuned import COLUMNS, tuned_row
from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.api.quantize import Settings, quantize_network
from smelt.cli.show.tables import TextTable
from smelt.frontend import Imported, load
from smelt.ir import Array
from smelt.proof.run import run
from smelt.samples import random_samples

ROUNDS = 15
ROUND_SECONDS = 0.05
STARTS = 5

NO_CACHE = {"MESA_SHADER_CACHE_DISABLE": "true", "MESA_GLSL_CACHE_DISABLE": "true"}


class NcnnPeer:
    """ncnn with a loaded network, in another process."""

    def __init__(self, python: str, folder: Path, model: onnx.ModelProto, sample: Array) -> None:
        converter = NcnnWriter(model)
        converter.write(folder)
        np.save(folder / "input.npy", sample)
        self._command = [python, ncnn_peer.__file__, str(folder), converter.input, converter.output]
        self._process: subprocess.Popen[str] | None = None

    def start(self, environment: Mapping[str, str]) -> tuple[float, Array]:
        """Start a new process; return the seconds until its first result, and this result.

        Raises:
            RuntimeError: ncnn is not installed, or finds no device.
        """
        self.stop()
        self._process = subprocess.Popen(
            self._command,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        line = self._answer()
        if not line:
            raise RuntimeError("ncnn does not run: `pip install ncnn`, or use --peer-python")
        said = json.loads(line)
        return float(said["first"]), np.array(said["result"])

    def seconds(self, repeats: int) -> float:
        """Return the seconds of `repeats` inferences."""
        if self._process is None or self._process.stdin is None:
            raise RuntimeError("the peer has not been started")
        self._process.stdin.write(f"{repeats}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _answer(self) -> str:
        if self._process is None or self._process.stdout is None:
            raise RuntimeError("the peer has not been started")
        return self._process.stdout.readline()


@dataclass(frozen=True)
class Ours:
    """A network compiled by Smelt, as a loaded library and as a program."""

    artifact: Artifact
    library: MeasuredLibrary
    program: Path

    @staticmethod
    def of(
        imported: Imported, name: str, folder: Path, compiler: str, *, float16: bool = False
    ) -> Ours:
        """Compile a network and load it.

        Raises:
            RuntimeError: No layer runs on the GPU.
        """
        artifact = compile_model(imported, Options(target="vulkan", name=name, float16=float16))
        if artifact.network.device is None:
            raise RuntimeError(f"{imported.graph.name}: {'; '.join(artifact.notes)}")
        (sample,) = random_samples(artifact.graph, 1, 0)
        library = build_library(artifact, sample, folder, compiler)
        return Ours(artifact, library, build_program(artifact, folder, compiler))

    @property
    def weights_bytes(self) -> int:
        """Bytes of the constants that the GPU reads."""
        device = self.artifact.network.device
        return 0 if device is None else device.weights_bytes

    @property
    def program_bytes(self) -> int:
        """Bytes of the program without weights."""
        return self.program.stat().st_size - self.weights_bytes

    def ways_to_start(self, cache: Path) -> list[Callable[[], float]]:
        """Return functions that start a process and return the seconds of its first inference.

        The first uses no cache, the second only the program's cache file, the third that file and
        the driver's cache.
        """
        file = {CACHE_FILE: str(cache)}
        kept = {**file, DRIVER_CACHE: f"{cache}.mesa"}
        alone = {**NO_CACHE, CACHE_FILE: f"{cache}.alone"}
        return [partial(first_seconds, self.program, e) for e in (NO_CACHE, alone, kept)]


def main(
    networks: Annotated[
        list[str] | None, typer.Argument(help="Stems of files [default: all].")
    ] = None,
    compiler: Annotated[str, typer.Option("--cc", help="The host's compiler.")] = "gcc",
    peer_python: Annotated[str, typer.Option(help="A Python that has ncnn.")] = sys.executable,
    threads: Annotated[int, typer.Option(help="Threads of Mesa's driver for CPUs.")] = 1,
    tuned: Annotated[
        bool, typer.Option(help="Compare with the tuned network instead of ncnn.")
    ] = False,
    gpu: Annotated[str | None, typer.Option(help="With --tuned: the initial profile.")] = None,
    write: records.WriteOption = False,
    note: records.NoteOption = "",
) -> None:
    """Compare networks on a GPU (or on lavapipe) with ncnn's Vulkan path."""
    console = Console(width=150)
    os.environ["LP_NUM_THREADS"] = str(threads)
    for variable in (*NO_CACHE, "MESA_SHADER_CACHE_DIR"):
        os.environ.pop(variable, None)
    if tuned:
        rows = [row for name in networks or LATENCY for row in _tuned(name, gpu, compiler)]
        TextTable(COLUMNS, tuple(rows), f"Blocks that were measured, {threads} thread(s)").print(
            console
        )
        return
    if write and networks:
        raise typer.BadParameter("a record contains all networks: name none with --write")
    latencies: list[GpuLatency] = []
    starts: list[GpuStart] = []
    devices: set[str] = set()
    for name in networks or LATENCY:
        path = SHARED / "models" / "float" / f"{name}.onnx"
        if not path.exists():
            console.print(absent(path.name))
            continue
        with tempfile.TemporaryDirectory() as folder:
            latency, start, device = _measured(path, Path(folder), compiler, peer_python)
        latencies.append(latency)
        starts += start
        devices.add(device)
    print_tables(console, latencies, starts, threads, ROUNDS)
    if write:
        compiled_by = records.version(compiler)
        device = f"{records.processor()}, {', '.join(devices)}, {threads} threads"
        command = f"vulkan --cc {compiler} --threads {threads} --peer-python PYTHON --write"
        measured = records.this_run(command, compiled_by, device, note)
        records.write("vulkan_latency", measured, latencies)
        records.write("vulkan_start", measured, starts)


def _measured(
    path: Path, folder: Path, compiler: str, peer_python: str
) -> tuple[GpuLatency, list[GpuStart], str]:
    """Return the rows of both tables, and the name of the device."""
    imported = load(path)
    real = Ours.of(imported, "real", folder, compiler)
    (sample,) = random_samples(real.artifact.graph, 1, 0)
    device = str(run(real.artifact, [sample]).report["inference"]["gpu"])
    small = Ours.of(_quantized(imported, folder), "bytes", folder, compiler)
    half = Ours.of(imported, "halves", folder, compiler, float16=True)
    peer = NcnnPeer(peer_python, folder, onnx.load(path), sample[0][0])
    ours = {"f32": real, "int8": small, "f16": half}
    firsts = _first_inferences(peer, ours, folder)
    _, result = peer.start({})
    difference = float(np.abs(real.library.outputs()[0].ravel() - result).max())
    if difference > 1e-4:
        raise RuntimeError(f"{path.stem}: ncnn's result differs by {difference:.1e}")
    engines = (peer, real.library, small.library, half.library)
    counts = [max(1, round(ROUND_SECONDS / (e.seconds(3) / 3))) for e in engines]
    rounds = [
        [e.seconds(count) / count for e, count in zip(engines, counts, strict=True)]
        for _ in range(ROUNDS)
    ]
    peer.stop()
    build_s = _build_seconds(path, folder)
    starts = [
        _start(path.stem, kind, one, firsts[kind], build_s if one is real else None)
        for kind, one in ours.items()
    ]
    return _latency(path.stem, rounds), starts, device


def _latency(network: str, rounds: Sequence[Sequence[float]]) -> GpuLatency:
    """Return the row of latencies.

    Each round has the seconds of ncnn, then of Smelt's float32, int8 and float16 networks.
    """
    ncnn, *own = (1e3 * statistics.median(column) for column in zip(*rounds, strict=True))
    return GpuLatency(
        network=network,
        ncnn=ncnn,
        float32=own[0],
        of_ncnn=statistics.median(b / a for a, b, _, _ in rounds),
        int8=own[1],
        int8_of_float32=statistics.median(c / b for _, b, c, _ in rounds),
        float16=own[2],
        float16_of_float32=statistics.median(d / b for _, b, _, d in rounds),
    )


def _start(
    network: str,
    kind: str,
    one: Ours,
    seconds: Sequence[Sequence[float]],
    build_s: float | None,
) -> GpuStart:
    """Return the row of first inferences: seconds of ncnn, and of each of `Ours.ways_to_start`."""
    peers, first, alone, cached = seconds
    return GpuStart(
        network=network,
        kind=kind,
        build_s=build_s,
        program=one.program_bytes,
        weights=one.weights_bytes,
        arena=one.artifact.network.arena_bytes,
        first_ms=statistics.median(first) * 1e3,
        first_of_ncnn=_ratio(first, peers),
        file_of_first=_ratio(alone, first),
        cached_ms=statistics.median(cached) * 1e3,
        cached_of_first=_ratio(cached, first),
    )


def _first_inferences(
    peer: NcnnPeer, ours: Mapping[str, Ours], folder: Path
) -> dict[str, list[tuple[float, ...]]]:
    """Return, by kind of network, the seconds of ncnn and of each of `Ours.ways_to_start` by round.

    A round before these fills the caches.
    """
    ways = [lambda: peer.start(NO_CACHE)[0]]
    for kind, one in ours.items():
        ways += one.ways_to_start(folder / f"{kind}.cache")
    rounds = [[way() for way in ways] for _ in range(1 + STARTS)][1:]
    peers, *columns = zip(*rounds, strict=True)
    return {kind: [peers, *columns[3 * index : 3 * index + 3]] for index, kind in enumerate(ours)}


def _ratio(ours: Sequence[float], others: Sequence[float]) -> float:
    """Return the median over rounds of the ratio."""
    return statistics.median(a / b for a, b in zip(ours, others, strict=True))


def _quantized(imported: Imported, folder: Path) -> Imported:
    """Return the network quantized to int8 with random calibration data."""
    calibration = folder / "calibration.npy"
    np.save(calibration, np.concatenate([s[0] for s in random_samples(imported.graph, 8, 1)]))
    return quantize_network(imported, Settings(calibration)).imported


def _tuned(name: str, gpu: str | None, compiler: str) -> list[tuple[object, ...]]:
    """Return rows for a network in float32 and in int8, before and after `smelt tune`."""
    imported = load(SHARED / "models" / "float" / f"{name}.onnx")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        return [
            tuned_row(imported, f"{name}_f32", gpu, folder, compiler),
            tuned_row(_quantized(imported, folder), f"{name}_int8", gpu, folder, compiler),
        ]


def _build_seconds(path: Path, folder: Path) -> float:
    """Return the median time of `smelt build` in a new process, including the process's start.

    A run before the measured ones compiles Python's modules and the templates, which are compiled
    in an installed Smelt too.
    """
    command = [sys.executable, "-m", "smelt", "build", str(path), "--target", "vulkan"]
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "pycache")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    found: list[float] = []
    for number in range(1 + STARTS):
        output = str(folder / f"built_{number}")
        start = time.perf_counter()
        subprocess.run([*command, "-o", output], check=True, capture_output=True, env=environment)
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])
