"""MLPerf Tiny benchmarks: their inputs and outputs, and firmware for their runner.

The numbers are from the benchmark's data sets and from the firmware of its reference submissions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smelt.boards import Board
from smelt.codegen.emit.firmware import Firmware, MlperfProtocol
from smelt.codegen.emit.network import EmittedNetwork
from smelt.codegen.emit.project import render_around
from smelt.codegen.text.parameters import Parameters
from smelt.codegen.text.render import render
from smelt.errors import ConfigError
from smelt.ir import DType, Graph, TensorType
from smelt.proof.deploy import board_of
from smelt.targets import Platform

if TYPE_CHECKING:
    from smelt.api.artifact import Artifact

DEVICES = "devices.yaml"
"""Name of a project's file that describes the board to the benchmark's runner."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of MLPerf Tiny.

    Attributes:
        id: the firmware's reply to the runner's command `profile`.
        names: words in a model's file name that indicate this benchmark.
        shapes: accepted shapes of the input, without dimensions of size 1. The order of elements is
            that of the data set.
        dtypes: input types that the firmware can convert the runner's data to.
        outputs: number of elements of the output.
        sent: description of what the runner sends for one input.
        quantization: scale and zero point of the data set if it is quantized, else None.
    """

    id: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[DType, ...]
    outputs: int
    sent: str
    quantization: tuple[float, int] | None = None


_IMAGE = (DType.INT8, DType.UINT8)
_REAL = (DType.INT8, DType.FLOAT32)

BENCHMARKS: Mapping[str, Benchmark] = {
    benchmark.id: benchmark
    for benchmark in (
        Benchmark(
            "kws01",
            ("kws",),
            ((49, 10), (490,)),
            (DType.INT8,),
            12,
            "490 int8 features",
            (0.58470292, 83),
        ),
        Benchmark("vww01", ("vww",), ((96, 96, 3),), _IMAGE, 2, "27,648 bytes of an image"),
        Benchmark("ic01", ("ic",), ((32, 32, 3),), _IMAGE, 10, "3,072 bytes of an image"),
        Benchmark(
            "ad01",
            ("ad", "toycar"),
            ((640,), (5, 128)),
            _REAL,
            640,
            "640 float32",
        ),
        Benchmark(
            "strww01",
            ("strww", "sww"),
            ((30, 40), (1200,)),
            (DType.INT8,),
            3,
            "1,200 int8 features",
        ),
    )
}
"""All benchmarks, by id."""


@dataclass(frozen=True)
class DevicesParameters(Parameters):
    """Variables of `emit/project/devices.yaml.j2`; `usb` lists vendors with their products."""

    net: EmittedNetwork
    platform: Platform
    usb: tuple[tuple[str, tuple[str, ...]], ...]


def benchmark_of(graph: Graph, name: str, benchmark_id: str | None = None) -> Benchmark:
    """Return the benchmark that a network is for.

    Args:
        graph: the compiled network.
        name: stem of the model's file, which must not contradict the input's shape.
        benchmark_id: id of the benchmark; None selects it by the input's shape and the name.

    Raises:
        ConfigError: the id is unknown, no benchmark fits, the name contradicts the input's shape,
            or the network cannot take the benchmark's inputs.
    """
    if benchmark_id is not None and benchmark_id not in BENCHMARKS:
        raise ConfigError(f"--id '{benchmark_id}': MLPerf Tiny has {', '.join(BENCHMARKS)}")
    if len(graph.inputs) != 1 or len(graph.outputs) != 1 or graph.lengths:
        raise ConfigError(
            f"MLPerf Tiny needs one input and one output of fixed sizes; this network has "
            f"{len(graph.inputs)} and {len(graph.outputs)}, and {len(graph.lengths)} sizes that "
            "are known only at run time (--dim fixes them)"
        )
    benchmark = (
        _matching_benchmark(graph, name) if benchmark_id is None else BENCHMARKS[benchmark_id]
    )
    _require_fit(benchmark, graph.inputs[0].type, graph.outputs[0].type)
    return benchmark


def with_benchmark_firmware(artifact: Artifact, benchmark: Benchmark) -> Artifact:
    """Return the network in a project with firmware for the benchmark's runner, and `DEVICES`."""
    firmware = Firmware(artifact.platform, protocol(benchmark, artifact.graph.inputs[0].type))
    around = render_around(artifact.project.group, firmware, artifact.options.optimize)
    board = board_of(artifact)
    parameters = DevicesParameters(artifact.network, artifact.platform, _usb(board))
    devices = render("emit/project/devices.yaml.j2", parameters)
    files = {**artifact.project.files, **around, DEVICES: devices}
    return replace(artifact, project=replace(artifact.project, files=files))


def protocol(benchmark: Benchmark, input_: TensorType) -> MlperfProtocol:
    """Return how the firmware converts the benchmark's inputs to the network's input."""
    int8 = input_.dtype is DType.INT8
    if benchmark.dtypes == _REAL:
        return MlperfProtocol(benchmark.id, "float", quantizes=int8)
    unsigned = int8 and benchmark.dtypes == _IMAGE
    return MlperfProtocol(benchmark.id, "unsigned" if unsigned else "raw", quantizes=False)


def describe_input(benchmark: Benchmark, graph: Graph) -> str:
    """Return one line that says how the network interprets the data that the runner sends."""
    type_ = graph.inputs[0].type
    if type_.quant is None:
        return f"{benchmark.sent}, unchanged"
    if benchmark.id == "ad01":
        return f"{benchmark.sent}, quantized by the firmware"
    zero_point = type_.zero_point
    if type_.dtype is DType.INT8 and DType.UINT8 in benchmark.dtypes:
        zero_point += 128
    line = f"{benchmark.sent}: x means {_affine(type_.scale, zero_point)}"
    if benchmark.quantization is not None:
        scale, zero = benchmark.quantization
        if abs(type_.scale / scale - 1) > 1e-4 or zero_point != zero:
            line += f", but the benchmark's data set was quantized as {_affine(scale, zero)}"
    return line


def _affine(scale: float, zero_point: int) -> str:
    difference = f"(x {'-' if zero_point > 0 else '+'} {abs(zero_point)})" if zero_point else "x"
    return f"{scale:.6g} * {difference}"


def _matching_benchmark(graph: Graph, name: str) -> Benchmark:
    shape = _squeezed(graph.inputs[0].type)
    words = set(re.split(r"[^a-z]+", name.lower()))
    named = [b for b in BENCHMARKS.values() if words & set(b.names)]
    fitting = [b for b in BENCHMARKS.values() if shape in b.shapes]
    if not fitting:
        known = "; ".join(f"{b.id} {_text(b.shapes[0])}" for b in BENCHMARKS.values())
        raise ConfigError(
            f"no MLPerf Tiny benchmark has an input of {_text(shape)} ({known}){_hint(shape)}"
        )
    (benchmark,) = fitting
    if named and benchmark not in named:
        raise ConfigError(
            f"the file's name suggests {' or '.join(b.id for b in named)}, but its input of "
            f"{_text(shape)} suggests {benchmark.id}: choose with --id"
        )
    return benchmark


def _require_fit(benchmark: Benchmark, input_: TensorType, output: TensorType) -> None:
    shape = _squeezed(input_)
    if shape not in benchmark.shapes:
        raise ConfigError(
            f"{benchmark.id} sends {benchmark.sent} ({_text(benchmark.shapes[0])}), but the "
            f"network's input is {_text(shape)}{_hint(shape)}"
        )
    if output.size != benchmark.outputs:
        raise ConfigError(
            f"{benchmark.id} needs {benchmark.outputs} outputs, but the network has {output.size}"
        )
    if input_.dtype in benchmark.dtypes:
        return
    remedy = "choose a network quantized to int8"
    if input_.dtype is DType.FLOAT32:
        remedy = "quantize it: --quantize int8 --calibration ..."
    raise ConfigError(
        f"{benchmark.id} sends {benchmark.sent}, which the firmware cannot convert to the "
        f"network's {input_.dtype.name.lower()}; {remedy}"
    )


def _squeezed(type_: TensorType) -> tuple[int, ...]:
    return tuple(size for size in type_.shape if size != 1)


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "1"


def _hint(shape: tuple[int, ...]) -> str:
    """Return a hint if the shape is that of a benchmark's image with the channels first."""
    channels_last = (*shape[1:], *shape[:1])
    if len(shape) == 3 and any(channels_last in b.shapes for b in BENCHMARKS.values()):
        return "; its channels come first: use --input-layout nhwc to move them last"
    return ""


def _usb(board: Board) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return a board's USB product ids by vendor id, with four hexadecimal digits each."""
    table: dict[str, list[str]] = {}
    for identity in board.usb:
        vendor, _, product = identity.partition(":")
        table.setdefault(vendor, []).append(f"0x{product}")
    return tuple((vendor, tuple(products)) for vendor, products in table.items())
