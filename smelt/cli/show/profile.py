"""Output of `smelt profile`: a terminal table and an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from smelt.api.report import arena_bytes, arena_certificate, stack_text
from smelt.cli.output import say
from smelt.cli.show.html import page
from smelt.cli.show.memory import MemoryPicture, memories, pictures
from smelt.cli.show.tables import TextTable
from smelt.codegen.text.parameters import Parameters
from smelt.files import write_files

_COLUMNS = ("step", "layer", "operator", "backend", "kernel")
_FIGURES = ("instructions", "share", "per MAC", "planned cycles")
_CYCLES = ("cycles", "ms")
OUTSIDE = "between the kernels"
"""Row for instructions outside kernels: passing operands, copies, loops and interrupts."""


def layers(report: Mapping[str, Any]) -> TextTable:
    """Return a table with one row per layer, one for the code between kernels, and the total."""
    profile = report["profile"]
    timed = "cycles" in profile
    rows: list[tuple[object, ...]] = [
        (
            layer["step"],
            layer["name"],
            layer["op"],
            layer["backend"],
            layer["kernel"],
            *_figures(layer, timed),
        )
        for layer in report["layers"]
    ]
    empty = ("",) * (len(_COLUMNS) - 2)
    rows.append(("", OUTSIDE, *empty, *_figures(profile["outside"], timed)))
    total = {"instructions": profile["instructions"], "share": 1.0}
    total["instructions_per_mac"] = profile["instructions"] / max(report["network"]["macs"], 1)
    total["estimate"] = _estimate(report)
    total |= {key: profile.get(key) for key in ("cycles", "milliseconds")}
    rows.append(("", "all", *empty, *_figures(total, timed)))
    return TextTable((*_COLUMNS, *_FIGURES, *(_CYCLES if timed else ())), tuple(rows))


def _estimate(report: Mapping[str, Any]) -> int | None:
    """Return the plan's cycles summed over all layers, or None if a layer has no estimate."""
    known = [layer.get("estimate") for layer in report["layers"]]
    return None if None in known or not known else round(sum(known))


def _figures(figures: Mapping[str, Any], timed: bool) -> Iterator[object]:
    yield _or_dash(figures["instructions"], "{:,}")
    yield _or_dash(figures["share"], "{:.1%}")
    yield _or_dash(figures["instructions_per_mac"], "{:.3f}")
    yield _or_dash(figures.get("estimate"), "{:,.0f}")
    if timed:
        yield _or_dash(figures["cycles"], "{:,}")
        yield _or_dash(figures["milliseconds"], "{:.3f}")


def _or_dash(value: object, form: str) -> str:
    return "-" if value is None else form.format(value)


def show(console: Console, report: Mapping[str, Any]) -> None:
    """Print the table, and remarks on the origin of the cycles."""
    table = layers(report)
    figures = range(len(_COLUMNS), len(table.columns))
    widths = {i: max(len(str(row[i])) for row in (table.columns, *table.rows)) for i in figures}
    TextTable(
        _right(table.columns, widths), tuple(_right(row, widths) for row in table.rows)
    ).print(console)
    for remark in remarks(report):
        say(console, remark)
    console.print()


def _right(cells: Sequence[object], widths: Mapping[int, int]) -> tuple[str, ...]:
    """Return the cells as text, with figures aligned right."""
    return tuple(str(cell).rjust(widths.get(index, 0)) for index, cell in enumerate(cells))


def remarks(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield remarks that explain the figures."""
    profile = report["profile"]
    if any(layer["instructions"] is None for layer in report["layers"]):
        yield (
            "instructions -: the compiler removed the layer's call as unreachable, or merged it "
            "into another layer's call, where it is counted"
        )
    if "cycles" not in profile:
        return
    kind = "estimated" if profile["estimated_timings"] else "Arm's published"
    memory = "memory without wait states"
    if profile["wait_states"]:
        memory = f"{profile['wait_states']} wait states of flash: {profile['wait_states_assumed']}"
    yield (
        f"{profile['cycles']:,} cycles, {profile['milliseconds']:.3f} ms at "
        f"{profile['clock_hz'] / 1e6:g} MHz: {kind} timings of {profile['core']}; {memory}"
    )
    if profile["unknown_mnemonics"]:
        yield (
            "warning: no timings are known for "
            f"{', '.join(profile['unknown_mnemonics'])}; each is counted as one cycle"
        )


@dataclass(frozen=True, kw_only=True)
class ProfileParameters(Parameters):
    """Variables of `report/profile.html.j2`.

    Attributes:
        network, hash, target, board, optimize, smelt: the profiled network and Smelt's version.
        instructions: instructions of one inference.
        macs: multiply-accumulates of one inference.
        arena_bytes: size of the arena in bytes.
        arena_certificate: which bounds that size meets.
        stack: bound and measurement of the stack; empty if there is neither.
        remarks: one paragraph each.
        columns: headings; the first `texts` of them are columns of text, not figures.
        rows: cells of each layer, and the width of its bar in percent.
        total: cells of the last row.
        memories: what each memory stores, or None if there is no choice of memories.
        pictures: the drawings of the arenas; `memory` is the main one.
    """

    network: str
    hash: str
    target: str
    board: str
    optimize: str
    instructions: int
    macs: int
    arena_bytes: int
    arena_certificate: str
    stack: str
    smelt: str
    remarks: tuple[str, ...]
    columns: tuple[str, ...]
    texts: int
    rows: tuple[tuple[tuple[object, ...], str], ...]
    total: tuple[object, ...]
    memories: TextTable | None
    pictures: tuple[MemoryPicture, ...]
    memory: MemoryPicture


def html(report: Mapping[str, Any]) -> str:
    """Return a self-contained HTML page of the profile."""
    rows = layers(report).rows
    shares = [layer["share"] or 0.0 for layer in report["layers"]]
    shares.append(report["profile"]["outside"]["share"])
    widest = max(shares) or 1.0
    network = report["network"]
    parameters = ProfileParameters(
        network=network["name"],
        hash=network["hash"],
        target=report["target"],
        board=report["board"],
        optimize=report["optimize"],
        instructions=report["profile"]["instructions"],
        macs=network["macs"],
        arena_bytes=arena_bytes(report),
        arena_certificate=arena_certificate(report),
        stack=stack_text(report),
        smelt=report["smelt"],
        remarks=tuple(remarks(report)),
        columns=layers(report).columns,
        texts=len(_COLUMNS),
        rows=tuple(zip(rows[:-1], (f"{100 * s / widest:.2f}" for s in shares), strict=True)),
        total=rows[-1],
        memories=memories(report),
        pictures=pictures(report),
        memory=pictures(report)[0],
    )
    return page("profile.html.j2", parameters)


def write_html(path: Path, report: Mapping[str, Any]) -> None:
    """Write the HTML page atomically.

    Raises:
        ConfigError: the file cannot be written.
    """
    write_files({path: html(report).encode()})
