"""Quantized ONNX: how many outputs of generated C differ from onnxruntime's, and by how much.

onnxruntime runs without graph optimizations. Its own tools quantize the float networks to every
format and type: QDQ and QOperator, int8 and uint8, one scale per tensor and one per channel.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from rich.console import Console
from rich.progress import track

from bench import records
from bench.quantized_networks import (
    SCHEMES,
    Departures,
    Feeds,
    Scheme,
    dense_network,
    departures,
    image_network,
    quantize,
    samples,
)
from bench.shared_folder import SHARED
from smelt.api.compile import compile_model
from smelt.cli.show.tables import TextTable
from smelt.proof.run import run

CALIBRATION = 40
TESTS = 50


@dataclass(frozen=True)
class CalibratedNetwork:
    """A float network, with inputs for calibration and for the comparison."""

    name: str
    proto: onnx.ModelProto
    calibration: Sequence[Feeds]
    tests: Sequence[Feeds]


@dataclass(frozen=True)
class DifferingOutputs:
    """How the outputs of a network's quantized forms differ from onnxruntime's.

    Attributes:
        network: Name of the float network.
        format: QDQ or QOperator.
        outputs: Number of output elements that were compared.
        differ: Number of elements that differ.
        largest: Largest difference, in steps of the output's scale.
    """

    network: str
    format: str
    outputs: int
    differ: int
    largest: int


def main(write: records.WriteOption = False, note: records.NoteOption = "") -> None:
    """Count outputs that differ from onnxruntime's, and steps of the scale by which they differ."""
    warnings.simplefilter("ignore")
    console = Console(stderr=True)
    found: dict[tuple[str, str], Departures] = defaultdict(Departures)
    work = [(candidate, scheme) for candidate in candidates() for scheme in SCHEMES]
    for candidate, scheme in track(work, console=console):
        kind = "QDQ" if scheme.is_qdq else "QOperator"
        found[candidate.name, kind] += measure(candidate, scheme)
    rows = [
        DifferingOutputs(name, kind, d.elements, d.differ, d.largest)
        for (name, kind), d in found.items()
    ]
    lines = tuple(
        (row.network, row.format, row.outputs, row.differ, share(row), row.largest) for row in rows
    )
    header = ("network", "format", "outputs", "differ", "share", "largest difference (steps)")
    TextTable(header, lines).print(Console())
    if write:
        device = f"{records.processor()}, onnxruntime {onnxruntime.__version__}"
        measured = records.this_run("quantized --write", records.version("gcc"), device, note)
        records.write("quantized", measured, rows)


def share(row: DifferingOutputs) -> str:
    """Return the share of outputs that differ, in per cent."""
    return f"{row.differ / row.outputs:.3%}"


def measure(candidate: CalibratedNetwork, scheme: Scheme) -> Departures:
    """Quantize a network by a scheme, and compare generated C on the host with onnxruntime."""
    with tempfile.TemporaryDirectory() as folder:
        proto = quantize(candidate.proto, scheme, candidate.calibration, Path(folder))
    artifact = compile_model(proto.SerializeToString())
    outputs = run(artifact, [tuple(feeds.values()) for feeds in candidate.tests]).outputs
    return departures(proto, candidate.tests, outputs)


def candidates() -> Iterator[CalibratedNetwork]:
    """Yield two synthetic networks, and the trained ones of the shared folder."""
    networks: tuple[tuple[Callable[[], onnx.ModelProto], tuple[int, ...]], ...] = (
        (image_network, (1, 3, 16, 16)),
        (dense_network, (4, 20)),
    )
    for network, shape in networks:
        yield CalibratedNetwork(
            network.__name__, network(), samples(shape, CALIBRATION, 1), samples(shape, TESTS, 2)
        )
    paths = sorted(SHARED.glob("quant/*.onnx"))
    digits = np.load(SHARED / "quant/digits_split.npz") if paths else {}
    for path in paths:
        proto = onnx.load(path)
        for value in (*proto.graph.input, *proto.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = 1
        (given,) = proto.graph.input
        shape = [d.dim_value for d in given.type.tensor_type.shape.dim]
        images = digits["X"].reshape(-1, *shape).astype(np.float32)
        feeds = [
            [{given.name: images[i]} for i in digits[part][:count]]
            for part, count in (("calib", CALIBRATION), ("test", TESTS))
        ]
        yield CalibratedNetwork(path.stem, proto, *feeds)
