"""MLPerf Tiny's benchmarks: what each sends and expects, and projects that claim to be one.

The figures are those of the benchmark's data sets and of its reference submissions' firmware.
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
    from smelt.api.artefact import Artefact

DEVICES = "devices.yaml"
"""The file of a project that tells the benchmark's runner about the board."""


@dataclass(frozen=True)
class Benchmark:
    """A network of MLPerf Tiny, as its runner knows it.

    Attributes:
        id: what the firmware answers to `profile`.
        names: what a file with such a network has in its name.
        shapes: of one input, without dimensions of size 1: the order of the data set's bytes.
        dtypes: of inputs that the firmware can make of what is sent.
        outputs: number of elements of the output, of which labels speak.
        sent: what the runner sends for one input.
        quantization: scale and zero point of the data set, where it comes quantized.
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
"""By id."""


@dataclass(frozen=True)
class DevicesParameters(Parameters):
    """Variables of `emit/project/devices.yaml.j2`: `usb` are vendors, each with its products."""

    net: EmittedNetwork
    platform: Platform
    usb: tuple[tuple[str, tuple[str, ...]], ...]


def benchmark_of(graph: Graph, name: str, asked: str | None = None) -> Benchmark:
    """The benchmark that a network is for.

    Args:
        graph: the network, compiled.
        name: the stem of its file, which must not contradict its input.
        asked: an id; found from the input's shape and the name where None.

    Raises:
        ConfigError: there is no such id, none fits, the name says another than the input's shape,
            or the network cannot take what the benchmark sends.
    """
    if asked is not None and asked not in BENCHMARKS:
        raise ConfigError(f"--id '{asked}': MLPerf Tiny has {', '.join(BENCHMARKS)}")
    if len(graph.inputs) != 1 or len(graph.outputs) != 1 or graph.lengths:
        raise ConfigError(
            "MLPerf Tiny's networks have one input and one output of fixed sizes; this one has "
            f"{len(graph.inputs)} and {len(graph.outputs)}, and {len(graph.lengths)} sizes that "
            "are known at run time only (--dim fixes them)"
        )
    benchmark = _found(graph, name) if asked is None else BENCHMARKS[asked]
    _require_fit(benchmark, graph.inputs[0].type, graph.outputs[0].type)
    return benchmark


def claim(artefact: Artefact, benchmark: Benchmark) -> Artefact:
    """The same network in a project whose firmware answers for the benchmark, with `DEVICES`."""
    firmware = Firmware(artefact.platform, protocol(benchmark, artefact.graph.inputs[0].type))
    around = render_around(artefact.network, firmware, artefact.options.optimize)
    board = board_of(artefact)
    parameters = DevicesParameters(artefact.network, artefact.platform, _usb(board))
    devices = render("emit/project/devices.yaml.j2", parameters)
    files = {**artefact.project.files, **around, DEVICES: devices}
    return replace(artefact, project=replace(artefact.project, files=files))


def protocol(benchmark: Benchmark, input_: TensorType) -> MlperfProtocol:
    """What firmware must know to take the benchmark's inputs for a network's input."""
    int8 = input_.dtype is DType.INT8
    if benchmark.dtypes == _REAL:
        return MlperfProtocol(benchmark.id, "float", quantizes=int8)
    unsigned = int8 and benchmark.dtypes == _IMAGE
    return MlperfProtocol(benchmark.id, "unsigned" if unsigned else "raw", quantizes=False)


def meaning(benchmark: Benchmark, graph: Graph) -> str:
    """What the network makes of what the runner sends, in one line."""
    type_ = graph.inputs[0].type
    if type_.quant is None:
        return f"{benchmark.sent}, as they are"
    if benchmark.id == "ad01":
        return f"{benchmark.sent}, quantized by the firmware"
    zero_point = type_.zero_point
    if type_.dtype is DType.INT8 and DType.UINT8 in benchmark.dtypes:
        zero_point += 128
    line = f"{benchmark.sent}: x stands for {_affine(type_.scale, zero_point)}"
    if benchmark.quantization is not None:
        scale, zero = benchmark.quantization
        if abs(type_.scale / scale - 1) > 1e-4 or zero_point != zero:
            line += f", but the benchmark's data set was quantized as {_affine(scale, zero)}"
    return line


def _affine(scale: float, zero_point: int) -> str:
    difference = f"(x {'-' if zero_point > 0 else '+'} {abs(zero_point)})" if zero_point else "x"
    return f"{scale:.6g} * {difference}"


def _found(graph: Graph, name: str) -> Benchmark:
    shape = _squeezed(graph.inputs[0].type)
    words = set(re.split(r"[^a-z]+", name.lower()))
    named = [b for b in BENCHMARKS.values() if words & set(b.names)]
    fitting = [b for b in BENCHMARKS.values() if shape in b.shapes]
    if not fitting:
        known = "; ".join(f"{b.id} {_text(b.shapes[0])}" for b in BENCHMARKS.values())
        raise ConfigError(
            f"an input of {_text(shape)} is none of MLPerf Tiny's ({known}){_hint(shape)}"
        )
    (benchmark,) = fitting
    if named and benchmark not in named:
        raise ConfigError(
            f"the file's name speaks of {' and '.join(b.id for b in named)}, and its input of "
            f"{_text(shape)} is that of {benchmark.id}: say which with --id"
        )
    return benchmark


def _require_fit(benchmark: Benchmark, input_: TensorType, output: TensorType) -> None:
    shape = _squeezed(input_)
    if shape not in benchmark.shapes:
        raise ConfigError(
            f"{benchmark.id} sends {benchmark.sent} ({_text(benchmark.shapes[0])}), and the "
            f"network's input is {_text(shape)}{_hint(shape)}"
        )
    if output.size != benchmark.outputs:
        raise ConfigError(
            f"{benchmark.id} needs {benchmark.outputs} outputs, the network has {output.size}"
        )
    if input_.dtype in benchmark.dtypes:
        return
    remedy = "choose a network quantized to int8"
    if input_.dtype is DType.FLOAT32:
        remedy = "quantize it: --quantize int8 --calibration ..."
    raise ConfigError(
        f"{benchmark.id} sends {benchmark.sent}, and the firmware cannot turn that into the "
        f"network's {input_.dtype.name.lower()}; {remedy}"
    )


def _squeezed(type_: TensorType) -> tuple[int, ...]:
    return tuple(size for size in type_.shape if size != 1)


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "1"


def _hint(shape: tuple[int, ...]) -> str:
    """For images whose channels come first."""
    turned = (*shape[1:], *shape[:1])
    if len(shape) == 3 and any(turned in b.shapes for b in BENCHMARKS.values()):
        return "; its channels come first: --input-layout nhwc puts them last"
    return ""


def _usb(board: Board) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """USB identities of a board: products by vendor, four hexadecimal digits each."""
    table: dict[str, list[str]] = {}
    for identity in board.usb:
        vendor, _, product = identity.partition(":")
        table.setdefault(vendor, []).append(f"0x{product}")
    return tuple((vendor, tuple(products)) for vendor, products in table.items())
