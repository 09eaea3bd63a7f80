"""Float networks, compared with onnx2c on a Cortex-M4F and with onnxruntime or LiteRT on the host.

onnx2c's instructions were counted for its C of the same files. They cannot be measured again,
because the revision of onnx2c is unknown: see `bench/peers.py`.

Times on the host are ratios to an engine that runs alternately with Smelt's code. For a file with
8-bit weights and float activations (kws_float32), outputs differ from LiteRT's, which quantizes
these activations too.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime
import typer
from ai_edge_litert.interpreter import Interpreter
from rich.console import Console

from bench import records
from bench.library import MeasuredLibrary, build_library
from bench.peers import ONNX2C
from bench.shared_folder import SHARED, absent
from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.cli.show.tables import TextTable
from smelt.errors import SmeltError
from smelt.frontend import InputOptions, load
from smelt.ir import Array
from smelt.proof.run import run
from smelt.samples import Sample, random_samples

FILES = (
    "models/float/*.onnx",
    "quant/*.onnx",
    "models/face/*.onnx",
    "models/mlperf_tiny/*_float32.tflite",
)

M4_BOARD = "mps2-an386"

ENGINES = ", ".join(f"{name} {version(name)}" for name in ("onnxruntime", "ai-edge-litert"))

ROUNDS = 31
ROUND_SECONDS = 0.02


@dataclass(frozen=True)
class CountedFloatInference:
    """One inference of a float network on a simulated Cortex-M4F.

    Attributes:
        network: Name of the network.
        macs: Multiply-accumulates.
        instructions: Instructions of one inference.
        error: Largest difference from onnxruntime, as a fraction of the output's range.
    """

    network: str
    macs: int
    instructions: int
    error: float


@dataclass(frozen=True)
class TimedFloatInference:
    """One inference of a float network on the host, compared with another engine.

    Attributes:
        network: Name of the network.
        macs: Multiply-accumulates.
        microseconds: Median of the rounds.
        peer: Name of the other engine.
        peer_microseconds: Median of its rounds.
        ratio: Median over rounds of Smelt's time divided by the peer's.
        error: Largest difference from the peer, as a fraction of the output's range.
    """

    network: str
    macs: int
    microseconds: float
    peer: str
    peer_microseconds: float
    ratio: float
    error: float


@dataclass(frozen=True)
class FloatPeer:
    """Another engine with a loaded network.

    Attributes:
        name: Name of the engine.
        outputs: Runs an inference and returns its outputs.
        infer: Runs an inference.
    """

    name: str
    outputs: Callable[[], list[Array]]
    infer: Callable[[], object]

    def seconds(self, repeats: int) -> float:
        """Return the seconds of `repeats` inferences."""
        start = time.perf_counter()
        for _ in range(repeats):
            self.infer()
        return time.perf_counter() - start


def main(
    networks: Annotated[
        list[str] | None, typer.Argument(help="Stems of files [default: all].")
    ] = None,
    compiler: Annotated[str, typer.Option("--cc", help="The host's compiler.")] = "gcc",
    m4: Annotated[bool, typer.Option(help="Count instructions on a Cortex-M4F.")] = True,
    host: Annotated[bool, typer.Option(help="Time on the host.")] = True,
    write: records.WriteOption = False,
    note: records.NoteOption = "",
) -> None:
    """Compare float networks with onnx2c (Cortex-M4F), onnxruntime and LiteRT (host, 1 thread)."""
    if write and networks:
        raise typer.BadParameter("a record contains all networks: name none with --write")
    console = Console(width=140)
    files = [
        path
        for pattern in FILES
        for path in sorted(SHARED.glob(pattern))
        if not networks or path.stem in networks
    ]
    if not files:
        console.print(absent("such network"))
    if m4:
        _count([path for path in files if path.stem in ONNX2C], console, write=write, note=note)
    if host:
        _time(files, compiler, console, write=write, note=note)


def _count(files: Sequence[Path], console: Console, *, write: bool, note: str) -> None:
    """Count instructions on a Cortex-M4F, print them, and store them if asked to."""
    rows: list[CountedFloatInference] = []
    for path in files:
        artifact = _compiled(path, Options(board=M4_BOARD, name="network"))
        if isinstance(artifact, str):
            console.print(f"{path.stem}: {artifact}", markup=False)
        else:
            rows.append(_instructions(path, artifact))
    columns = ("network", "MACs", "instructions", "per MAC", "onnx2c", "ratio", "error")
    lines = tuple(
        (
            row.network,
            row.macs,
            row.instructions,
            f"{row.instructions / row.macs:.2f}",
            ONNX2C[row.network],
            f"{row.instructions / ONNX2C[row.network]:.3f}",
            f"{row.error:.0e}",
        )
        for row in rows
    )
    TextTable(columns, lines, "One inference on a Cortex-M4F").print(console)
    if write:
        compiler = records.version("arm-none-eabi-gcc")
        device = f"{records.version('qemu-system-arm')}, board {M4_BOARD}"
        measured = records.this_run("float --no-host --write", compiler, device, note)
        records.write("float_m4", measured, rows)


def _time(
    files: Sequence[Path], compiler: str, console: Console, *, write: bool, note: str
) -> None:
    """Time networks and their peers on the host, print the times, and store them if asked to."""
    rows: list[TimedFloatInference] = []
    for path in files:
        artifact = _compiled(path, Options(name="network"))
        if isinstance(artifact, str):
            console.print(f"{path.stem}: {artifact}", markup=False)
        else:
            rows.append(_times(path, artifact, compiler))
    columns = ("network", "MACs", "µs", "peer", "its µs", "ratio", "error")
    lines = tuple(
        (
            row.network,
            row.macs,
            f"{row.microseconds:.1f}",
            row.peer,
            f"{row.peer_microseconds:.1f}",
            f"{row.ratio:.2f}",
            f"{row.error:.0e}",
        )
        for row in rows
    )
    title = f"One inference on the host, one thread, {compiler}"
    TextTable(columns, lines, title).print(console)
    if write:
        measured = records.this_run(
            f"float --no-m4 --cc {compiler} --write",
            records.version(compiler),
            f"{records.processor()}, one thread",
            " ".join((f"{ENGINES}.", note)).strip(),
        )
        records.write(f"float_host_{compiler}", measured, rows)


def _instructions(path: Path, artifact: Artifact) -> CountedFloatInference:
    samples = random_samples(artifact.graph, 1, 0)
    result = run(artifact, samples)
    report: dict[str, Any] = result.report
    return CountedFloatInference(
        path.stem,
        artifact.graph.macs,
        report["inference"]["instructions"],
        _error(result.outputs[0], _peer(path, samples[0]).outputs()),
    )


def _times(path: Path, artifact: Artifact, compiler: str) -> TimedFloatInference:
    (sample,) = random_samples(artifact.graph, 1, 0)
    peer = _peer(path, sample)
    with tempfile.TemporaryDirectory() as folder:
        ours = build_library(artifact, sample, Path(folder), compiler)
        error = _error(ours.outputs(), peer.outputs())
        mine, theirs = _interleaved(ours, peer)
    return TimedFloatInference(
        network=path.stem,
        macs=artifact.graph.macs,
        microseconds=statistics.median(mine) * 1e6,
        peer=peer.name,
        peer_microseconds=statistics.median(theirs) * 1e6,
        ratio=statistics.median(a / b for a, b in zip(mine, theirs, strict=True)),
        error=error,
    )


def _interleaved(ours: MeasuredLibrary, peer: FloatPeer) -> tuple[list[float], list[float]]:
    """Return seconds per inference of both engines by round.

    The engines alternate, so that other work on the computer affects both.
    """
    pairs: list[tuple[float, float]] = []
    counts: list[int] = []
    for engine in (ours, peer):
        engine.seconds(1)
        counts.append(max(1, round(ROUND_SECONDS / max(engine.seconds(3) / 3, 1e-7))))
    for _ in range(ROUNDS):
        pairs.append((ours.seconds(counts[0]) / counts[0], peer.seconds(counts[1]) / counts[1]))
    return [a for a, _ in pairs], [b for _, b in pairs]


def _compiled(path: Path, options: Options) -> Artifact | str:
    """Return the compiled network with every open dimension 1, or why it cannot be compiled."""
    inputs = InputOptions(dims=dict.fromkeys(_open_dimensions(path), 1))
    try:
        return compile_model(load(path, "network", inputs), options)
    except SmeltError as error:
        return str(error).removeprefix(f"{path}: ")


def _open_dimensions(path: Path) -> Iterator[str]:
    if path.suffix != ".onnx":
        return
    for value in onnx.load(path, load_external_data=False).graph.input:
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param:
                yield dimension.dim_param


def _peer(path: Path, sample: Sample) -> FloatPeer:
    return _litert(path, sample) if path.suffix == ".tflite" else _onnxruntime(path, sample)


def _with_constant_weights(path: Path) -> onnx.ModelProto:
    """Return the model without weights among its inputs, so that onnxruntime can fold them."""
    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return model


def _onnxruntime(path: Path, sample: Sample) -> FloatPeer:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    model = _with_constant_weights(path).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feed = {value.name: x for value, x in zip(session.get_inputs(), sample, strict=True)}

    def infer() -> list[Array]:
        return [np.asarray(output) for output in session.run(None, feed)]

    return FloatPeer("onnxruntime", infer, infer)


def _litert(path: Path, sample: Sample) -> FloatPeer:
    interpreter = Interpreter(str(path), num_threads=1)
    interpreter.allocate_tensors()
    for details, x in zip(interpreter.get_input_details(), sample, strict=True):
        interpreter.set_tensor(details["index"], x)

    def outputs() -> list[Array]:
        interpreter.invoke()
        return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]

    return FloatPeer("LiteRT", outputs, interpreter.invoke)


def _error(found: Any, expected: list[Array]) -> float:
    """Return the largest difference of an output, as a fraction of the output's range."""
    return max(map(_difference, found, expected))


def _difference(found: Array, expected: Array) -> float:
    spread = float(np.ptp(expected)) or 1.0
    return float(np.abs(found.reshape(expected.shape) - expected).max()) / spread
