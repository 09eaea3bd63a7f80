"""The rows and tables that `python -m bench vulkan` prints, and the limits of its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from smelt.cli.show.tables import TextTable

LATENCY = {"mobilenet_v1_025_96": 0.40, "resnet8": 0.65}
"""The networks, each with the largest allowed ratio of Smelt's float32 time to ncnn's."""

INT8, FIRST, CACHED, BUILD_S, PROGRAM_BYTES = 0.75, 0.8, 0.3, 2.0, 120_000
"""Upper limits of figures.

`INT8`: ratio of the int8 time to Smelt's float32 time; `FIRST`: ratio of the first inference's time
to ncnn's; `CACHED`: ratio of the first inference's time with both caches (the program's file and
the driver's) to that without caches; `BUILD_S`: seconds of a build; `PROGRAM_BYTES`: bytes of the
program without weights.
"""


@dataclass(frozen=True)
class GpuLatency:
    """Times of a network's inference on a GPU, compared with ncnn's.

    Attributes:
        network: Name of the network.
        ncnn: Milliseconds of ncnn's inference in float32.
        float32, int8, float16: Milliseconds of Smelt's inference with that element type.
        of_ncnn: Ratio of `float32` to `ncnn`.
        int8_of_float32, float16_of_float32: Ratios of `int8` and `float16` to `float32`.
    """

    network: str
    ncnn: float
    float32: float
    of_ncnn: float
    int8: float
    int8_of_float32: float
    float16: float
    float16_of_float32: float


@dataclass(frozen=True)
class GpuStart:
    """Build time, sizes and start times of a network on a GPU.

    Attributes:
        network: Name of the network.
        kind: Element type: f32, int8 or f16.
        build_s: Seconds of `smelt build`; None if not measured.
        program: Bytes of the program without weights.
        weights: Bytes of the weights on the GPU.
        arena: Bytes of activations and scratch.
        first_ms: Milliseconds of a process's first inference without caches.
        first_of_ncnn: Ratio of `first_ms` to ncnn's.
        file_of_first: Ratio of the first inference's time with only the program's cache file to
            `first_ms`.
        cached_ms: Milliseconds of the first inference with the program's and the driver's caches.
        cached_of_first: Ratio of `cached_ms` to `first_ms`.
    """

    network: str
    kind: str
    build_s: float | None
    program: int
    weights: int
    arena: int
    first_ms: float
    first_of_ncnn: float
    file_of_first: float
    cached_ms: float
    cached_of_first: float


@dataclass(frozen=True)
class GpuFloat16:
    """Sizes of a network on a GPU in float32 and in float16.

    Attributes:
        network: Name of the network.
        weights_float32, weights_float16: Bytes of the weights.
        arena_float32, arena_float16: Bytes of activations and scratch.
        error: Largest difference of float16 from the float32 reference, as a fraction of the
            output's range.
    """

    network: str
    weights_float32: int
    weights_float16: int
    arena_float32: int
    arena_float16: int
    error: float


def print_tables(
    console: Console,
    latencies: Sequence[GpuLatency],
    starts: Sequence[GpuStart],
    threads: int,
    rounds: int,
) -> None:
    """Print the tables of latencies and of starts, with the limits of the figures."""
    columns = (
        *("network", "ncnn f32 ms", "f32 ms", "ratio", "limit"),
        *("int8 ms", "to f32", "limit", "f16 ms", "to f32"),
    )
    title = f"One inference, {threads} thread(s), medians of {rounds} interleaved rounds"
    lines = tuple(
        (
            row.network,
            *(f"{row.ncnn:.2f}", f"{row.float32:.2f}", f"{row.of_ncnn:.2f}"),
            *(f"{LATENCY.get(row.network, 1.0):.2f}", f"{row.int8:.2f}"),
            *(f"{row.int8_of_float32:.2f}", f"{INT8:.2f}"),
            *(f"{row.float16:.2f}", f"{row.float16_of_float32:.2f}"),
        )
        for row in latencies
    )
    TextTable(columns, lines, title).print(console)
    columns = (
        *("network", "build s", "program KB", "weights KB", "arena KB"),
        *("first ms", "to ncnn", "with file, to first", "cached ms", "to first"),
    )
    limits = f"{BUILD_S}", f"{PROGRAM_BYTES // 1000}", "", "", "", f"{FIRST}", "", "", f"{CACHED}"
    title = (
        "Build, program without weights, and first inference of a process: without caches, with "
        "the program's cache file, with that and the driver's cache"
    )
    lines = tuple(
        (
            f"{row.network} {row.kind}",
            "" if row.build_s is None else f"{row.build_s:.2f}",
            *(f"{size / 1000:.0f}" for size in (row.program, row.weights, row.arena)),
            *(f"{row.first_ms:.0f}", f"{row.first_of_ncnn:.2f}", f"{row.file_of_first:.2f}"),
            *(f"{row.cached_ms:.0f}", f"{row.cached_of_first:.2f}"),
        )
        for row in starts
    )
    TextTable(columns, (*lines, ("limit", *limits)), title).print(console)
