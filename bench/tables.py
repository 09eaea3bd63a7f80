"""Tables of docs/benchmarks.md, made from the records in `bench/results/`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench import random_weights, records
from bench.build_time import BuildTime
from bench.cortexm import GOALS, NETWORKS, IntegerInference, peer, record_name
from bench.float import CountedFloatInference, TimedFloatInference
from bench.peers import CYCLES_AN_INSTRUCTION, ONNX2C
from bench.planning import PlannedTensors
from bench.planning import cells as planning_cells
from bench.published import ARCHITECTURES, FIGURES
from bench.quantization import QuantizedAccuracy
from bench.quantized import DifferingOutputs, share
from bench.ram import InferenceInRam
from bench.records import BenchmarkRun
from bench.vulkan_figures import GpuFloat16, GpuLatency, GpuStart
from smelt.cli.show.tables import TextTable

CORES = tuple(GOALS)

TITLES = {random_weights.NAME: "vww, random weights"}
"""Titles of networks in documents, if they differ from the names."""


@dataclass(frozen=True)
class PageTable:
    """A table in Markdown, and the run that measured it."""

    run: BenchmarkRun
    markdown: str


def title(network: str) -> str:
    """Return a network's title in documents."""
    return TITLES.get(network, network)


def inferences(
    core: str, optimize: str = "speed", kernels: tuple[str, ...] = (), *, expand: bool = False
) -> records.MeasuredRecord[IntegerInference]:
    """Read the record of `python -m bench cortexm` for a core and these options."""
    name = record_name(core, optimize, kernels, expand=expand)
    return records.read(name, IntegerInference)


def every() -> dict[str, PageTable]:
    """Read every record, and return the page's tables by the names that its template uses."""
    return {
        **{core: _cortexm(inferences(core)) for core in CORES},
        "size": _cortexm(inferences("m4", "size")),
        "ram": _ram(),
        "expanded": _cortexm(inferences("m4", expand=True)),
        "cmsis_nn_m4": _cortexm(inferences("m4", kernels=("cmsis_nn,c",))),
        "cmsis_nn_m55": _cortexm(inferences("m55", kernels=("cmsis_nn,c",))),
        "float_m4": _float_m4(),
        "float_gcc": _float_host("gcc"),
        "float_clang": _float_host("clang"),
        "vulkan_latency": _vulkan_latency(),
        "vulkan_start": _vulkan_start(),
        "vulkan_float16": _vulkan_float16(),
        "quantized": _quantized(),
        "quantization": _quantization(),
        "build_time": _build_time(),
        "planning": _planning(),
        "published": _published(),
    }


def summary() -> str:
    """Return the table of ratios to TFLite Micro with CMSIS-NN in Markdown: a line per core."""
    lines: list[tuple[object, ...]] = []
    for core in CORES:
        record = inferences(core)
        rows = {row.network: row for row in record.rows}
        cells = (f"{speed(rows[n]):.2f} ({_cycle_ratio(rows[n]):.2f})" for n in NETWORKS)
        lines.append((core.upper(), *cells, record.run.date, f"`{record.run.commit}`"))
    columns = ("core", *map(title, NETWORKS), "date", "commit")
    return TextTable(columns, tuple(lines)).markdown()


def speed(row: IntegerInference) -> float:
    """Return the ratio of instructions to TFLite Micro's."""
    return row.instructions / peer(row.network, row.core).instructions


def flash(row: IntegerInference) -> float:
    """Return the ratio of flash to TFLite Micro's."""
    return row.flash / peer(row.network, row.core).flash


def arena(row: IntegerInference) -> float:
    """Return the ratio of the arena to TFLite Micro's."""
    return row.arena / peer(row.network, row.core).arena


def _cycle_ratio(row: IntegerInference) -> float:
    theirs = peer(row.network, row.core).instructions * CYCLES_AN_INSTRUCTION
    return row.cycles / theirs


def _page_table(
    run: BenchmarkRun, columns: tuple[str, ...], lines: Iterable[tuple[object, ...]]
) -> PageTable:
    return PageTable(run, TextTable(columns, tuple(lines)).markdown())


def _cortexm(record: records.MeasuredRecord[IntegerInference]) -> PageTable:
    lines: list[tuple[object, ...]] = []
    for row in record.rows:
        theirs = peer(row.network, row.core)
        lines.append(
            (
                title(row.network),
                *(row.macs, row.instructions, theirs.instructions, f"{speed(row):.2f}"),
                *(row.cycles, f"{_cycle_ratio(row):.2f}"),
                *(row.arena, theirs.arena, row.flash, theirs.flash, row.stack),
            )
        )
    columns = (
        *("network", "MACs", "instructions", "TFLM's", "ratio", "cycles", "cycle ratio"),
        *("arena", "TFLM's arena", "flash", "TFLM's flash", "stack"),
    )
    return _page_table(record.run, columns, lines)


def _float_m4() -> PageTable:
    record = records.read("float_m4", CountedFloatInference)
    lines = (
        (
            row.network,
            row.macs,
            row.instructions,
            f"{row.instructions / row.macs:.2f}",
            ONNX2C[row.network],
            f"{row.instructions / ONNX2C[row.network]:.2f}",
        )
        for row in record.rows
    )
    columns = ("network", "MACs", "instructions", "per MAC", "onnx2c", "ratio")
    return _page_table(record.run, columns, lines)


def _float_host(compiler: str) -> PageTable:
    record = records.read(f"float_host_{compiler}", TimedFloatInference)
    lines = (
        (
            row.network,
            row.macs,
            f"{row.microseconds:.1f}",
            row.peer,
            f"{row.peer_microseconds:.1f}",
            f"{row.ratio:.2f}",
            f"{row.error:.0e}",
        )
        for row in record.rows
    )
    columns = ("network", "MACs", "µs", "peer", "its µs", "ratio", "largest difference")
    return _page_table(record.run, columns, lines)


def _vulkan_latency() -> PageTable:
    record = records.read("vulkan_latency", GpuLatency)
    lines = (
        (
            row.network,
            *(f"{row.ncnn:.2f}", f"{row.float32:.2f}", f"{row.of_ncnn:.2f}"),
            *(f"{row.int8:.2f}", f"{row.int8_of_float32:.2f}"),
            *(f"{row.float16:.2f}", f"{row.float16_of_float32:.2f}"),
        )
        for row in record.rows
    )
    columns = (
        *("network", "ncnn float32, ms", "float32, ms", "ratio to ncnn"),
        *("int8, ms", "ratio to float32", "float16, ms", "ratio to float32"),
    )
    return _page_table(record.run, columns, lines)


def _vulkan_start() -> PageTable:
    record = records.read("vulkan_start", GpuStart)
    lines = (
        (
            f"{row.network}, {row.kind}",
            "" if row.build_s is None else f"{row.build_s:.2f}",
            *(f"{size / 1000:.0f}" for size in (row.program, row.weights, row.arena)),
            *(f"{row.first_ms:.0f}", f"{row.first_of_ncnn:.2f}"),
            *(f"{row.cached_ms:.0f}", f"{row.cached_of_first:.2f}"),
        )
        for row in record.rows
    )
    columns = (
        *("network", "build, s", "program, KB", "weights, KB", "arena, KB"),
        *("first inference, ms", "ratio to ncnn", "with caches, ms", "ratio to first"),
    )
    return _page_table(record.run, columns, lines)


def _ram() -> PageTable:
    record = records.read("ram_m4", InferenceInRam)
    fastest = {row.network: row for row in record.rows if row.limit == "fastest"}
    lines = (
        (
            row.network,
            row.input,
            row.limit if not row.limit.isdigit() else int(row.limit),
            row.layers,
            *(row.arena, f"{row.arena / fastest[row.network].arena:.2f}"),
            *(row.instructions, f"{row.instructions / fastest[row.network].instructions:.3f}"),
            *(row.flash, f"{row.flash / fastest[row.network].flash:.2f}", row.stack),
        )
        for row in record.rows
    )
    columns = (
        *(
            "network",
            "input",
            "limit",
            "layers in bands",
            "arena",
            "ratio",
            "instructions",
            "ratio ",
        ),
        *("flash", "ratio  ", "stack"),
    )
    return _page_table(record.run, columns, lines)


def _vulkan_float16() -> PageTable:
    record = records.read("vulkan_float16", GpuFloat16)
    lines = (
        (
            row.network,
            *(f"{row.weights_float32 / 1000:.0f}", f"{row.weights_float16 / 1000:.0f}"),
            *(f"{row.arena_float32 / 1000:.0f}", f"{row.arena_float16 / 1000:.0f}"),
            f"{row.error:.4f}",
        )
        for row in record.rows
    )
    columns = (
        *("network", "weights, float32, KB", "float16, KB", "arena, float32, KB", "float16, KB"),
        "largest difference",
    )
    return _page_table(record.run, columns, lines)


def _quantized() -> PageTable:
    record = records.read("quantized", DifferingOutputs)
    lines = (
        (row.network, row.format, row.outputs, row.differ, share(row), row.largest)
        for row in record.rows
    )
    columns = ("network", "format", "outputs", "differ", "share", "largest difference, steps")
    return _page_table(record.run, columns, lines)


def _quantization() -> PageTable:
    """Return a table with a line per network and a column per method, without the float network."""
    record = records.read("quantization", QuantizedAccuracy)
    cells = {(row.network, row.method): _accuracy(row) for row in record.rows}
    methods = [m for m in dict.fromkeys(row.method for row in record.rows) if m != "float"]
    lines = (
        (network, *(cells.get((network, method), "") for method in methods))
        for network in dict.fromkeys(row.network for row in record.rows)
    )
    return _page_table(record.run, ("network", *methods), lines)


def _accuracy(row: QuantizedAccuracy) -> str:
    if row.failure:
        return row.failure.split(":")[0]
    return row.decibels if row.change is None else f"{row.decibels}, {row.change:+.2f}"


def _build_time() -> PageTable:
    record = records.read("build_time", BuildTime)
    lines = ((row.network, f"{row.fastest:.2f}", f"{row.slowest:.2f}") for row in record.rows)
    return _page_table(record.run, ("network", "fastest, s", "slowest, s"), lines)


def _planning() -> PageTable:
    record = records.read("planning", PlannedTensors)
    columns = ("problems", "tensors", "pairs", "gap", "CPU time, s")
    return _page_table(record.run, columns, planning_cells(record.rows))


def _published() -> PageTable:
    record = records.read("published_m4", InferenceInRam)
    lines: list[tuple[object, ...]] = []
    for name, architecture in ARCHITECTURES.items():
        own = [row for row in record.rows if row.network == name]
        fastest = own[0]
        lines += (
            (
                architecture.title,
                f"{figure.engine} ({figure.source})",
                *(figure.ram, f"{figure.macs:.2f}", ""),
            )
            for figure in FIGURES
            if figure.network == name
        )
        lines += (
            (
                architecture.title,
                f"Smelt, {row.input} input, {_GOALS[row.limit]}",
                *(row.arena, f"{row.macs / fastest.macs:.2f}"),
                f"{row.instructions / fastest.instructions:.3f}",
            )
            for row in own
        )
    columns = ("network", "engine", "RAM", "MACs", "instructions")
    return _page_table(record.run, columns, lines)


_GOALS = {
    "fastest": "large `--max-ram`",
    "none": "`--optimize speed`",
    "smallest": "`--optimize ram`",
}
"""Options by the limit of an arena."""
