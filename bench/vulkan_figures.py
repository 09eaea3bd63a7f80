"""What `python -m bench vulkan` measures, as rows and as tables, and how good it must be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from smelt.cli.show.tables import TextTable

LATENCY = {"mobilenet_v1_025_96": 0.40, "resnet8": 0.65}
"""Networks, and the most that float32 may take of ncnn's time."""

INT8, FIRST, CACHED, BUILD_S, PROGRAM_BYTES = 0.75, 0.8, 0.3, 2.0, 120_000
"""The most that int8 may take of our float32, a first inference of ncnn's, one with a cache of that
without it and without the driver's; seconds of a build, and bytes of a program without its
weights."""


@dataclass(frozen=True)
class GpuLatency:
    """Inferences of a network on a GPU, in milliseconds, beside ncnn's.

    Attributes:
        network: name of the network.
        ncnn: milliseconds of ncnn, in float32.
        float32, int8, float16: milliseconds of ours.
        of_ncnn: our float32 as a part of ncnn's time.
        int8_of_float32, float16_of_float32: parts of our float32's time.
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
    """What a network on a GPU takes to build, to store and to start.

    Attributes:
        network: name of the network.
        kind: f32, int8 or f16.
        build_s: seconds of `smelt build`; None where it was not measured.
        program: bytes of the program without weights.
        weights: bytes of the weights on the GPU.
        arena: bytes of activations and scratch.
        first_ms: milliseconds of a process's first inference, with nothing cached.
        first_of_ncnn: these as a part of ncnn's.
        file_of_first: with our cache file alone, as a part of `first_ms`.
        cached_ms: milliseconds of the first inference with both caches.
        cached_of_first: these as a part of `first_ms`.
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
    """What a network on a GPU takes in float32 and in float16.

    Attributes:
        network: name of the network.
        weights_float32, weights_float16: bytes of the weights.
        arena_float32, arena_float16: bytes of activations and scratch.
        error: the largest difference to the float32 reference, as a part of the output's range.
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
    """Print both tables, with the most that each figure may be."""
    columns = (
        *("network", "ncnn f32 ms", "f32 ms", "ratio", "bar"),
        *("int8 ms", "of f32", "bar", "f16 ms", "of f32"),
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
        *("network", "build s", "KB", "weights KB", "arena KB"),
        *("first ms", "of ncnn's", "file alone, of first", "cached ms", "of first"),
    )
    bars = f"{BUILD_S}", f"{PROGRAM_BYTES // 1000}", "", "", "", f"{FIRST}", "", "", f"{CACHED}"
    title = (
        "Build, program without weights, first inference of a process without the driver's cache"
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
    TextTable(columns, (*lines, ("bar", *bars)), title).print(console)
