"""Printed parts of a report: kernels of the layers, memory, flash, time and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from smelt.api.report import arena_bytes, arena_certificate, measured_elsewhere, stack_text
from smelt.cli.output import say
from smelt.cli.show.memory import memories
from smelt.cli.show.tables import TextTable
from smelt.formatting import counted
from smelt.ir import Array, DType

_SAMPLES_SHOWN = 8


def build(console: Console, directory: Path, report: Mapping[str, Any]) -> None:
    """Print the result of `smelt build`, of one network or of several that share an arena."""
    if "networks" in report:
        for network in report["networks"]:
            say(console, f"{network['network']['name']}:")
            partition(console, network)
            console.print()
        shared(console, report)
    else:
        partition(console, report)
        console.print()
        measured(console, report)
    say(console, f"wrote {directory}")


def shared(console: Console, report: Mapping[str, Any]) -> None:
    """Print what networks that share an arena take, each and together."""
    both = {**report, "network": {**report["network"], "name": "together"}}
    rows = tuple(
        (
            one["network"]["name"],
            one["arena"]["bytes"],
            one["state"]["bytes"],
            one["weights"]["bytes"],
            *((one["flash"]["network"],) if report["flash"]["network"] is not None else ()),
        )
        for one in (*report["networks"], both)
    )
    flash = ("flash",) if report["flash"]["network"] is not None else ()
    TextTable(("bytes", "arena", "state", "weights", *flash), rows).print(console)
    if report["flash"]["elf"] is not None:
        say(console, f"firmware: {report['flash']['elf']:,} bytes")
    if report["ram"]["variables"] is not None:
        say(console, f"RAM: {report['ram']['variables']:,} bytes of variables and arena")
    inference = report["inference"]
    if inference["instructions"] is not None:
        say(console, f"longest inference: {inference['instructions']:,} instructions")
    if inference["stack"] is not None:
        say(console, f"deepest stack: {inference['stack']:,} bytes")


def run(
    console: Console, outputs: Mapping[str, Array], report: Mapping[str, Any], *, batched: bool
) -> None:
    """Print the result of `smelt run`: the figures and the outputs of the first samples."""
    measured(console, report)
    rows: list[tuple[object, ...]] = []
    for name, array in outputs.items():
        for index, sample in enumerate(array if batched else array[None]):
            if index < _SAMPLES_SHOWN:
                text = np.array2string(sample.reshape(-1), threshold=16, edgeitems=6, precision=4)
                rows.append((index, name, " ".join(text.split())))
    TextTable(("sample", "output", "values"), tuple(rows)).print(console)


def partition(console: Console, report: Mapping[str, Any], *, candidates: bool = False) -> None:
    """Print which backend runs each layer; with `candidates`, also the rejected kernels.

    Notes below the table say why a preferred backend does not run a layer. If the target has a
    GPU, the table shows each layer's time on the GPU and on the CPU instead of cycles. Layers
    stored as float16 are marked `f16`.
    """
    notes: dict[str, int] = {}
    rows: list[tuple[object, ...]] = []
    beside = any(layer["beside"] for layer in report["layers"])
    for layer in report["layers"]:
        note = notes.setdefault(layer["why"], len(notes) + 1) if layer["why"] else "-"
        estimate = "-" if layer["estimate"] is None else layer["estimate"]
        costs = _microseconds(layer["beside"]) if beside else (estimate,)
        form = layer["form"] or layer["summary"]
        form = f"{form}: {layer['block']}" if layer["block"] else form
        form += ", f16" if layer["output"].startswith(f"{DType.FLOAT16.value}[") else ""
        rows.append((layer["step"], layer["name"], layer["backend"], form, *costs, note))
        if candidates:
            rows += [
                ("", "", f"not {c['backend']}", *_lost(c, beside), "") for c in layer["candidates"]
            ]
    costs = ("us on GPU", "us on CPU") if beside else ("cycles (estimate)",)
    columns = ("", "layer", "backend", "form", *costs, "note")
    TextTable(columns, tuple(rows)).print(console)
    for sentence, number in notes.items():
        say(console, f"{number}: {sentence}")
    if candidates:
        _legalized(console, report)


def _legalized(console: Console, report: Mapping[str, Any]) -> None:
    """Print the operators that were rewritten for a backend, or why none were."""
    for one in report["legalized"]:
        text = f"{one['operator']} of {one['origin']}: {one['rewrite']}. {one['why']}"
        say(console, f"rewritten: {text}")
    lengths = ", ".join(f"--dim {length['name']}" for length in report["network"]["lengths"])
    if lengths:
        why = f"sizes are known at run time only ({lengths})"
        say(console, f"note: no layer is rewritten for a backend, because {why}")


def _microseconds(beside: Mapping[str, Any]) -> tuple[str, str]:
    """Return a layer's microseconds on the GPU and on the CPU; `~` marks estimates."""
    about = "" if beside["measured"] else "~"
    here = "-" if beside["cpu"] is None else f"{about}{beside['cpu']:.1f}"
    return f"{about}{beside['gpu']:.1f}", here


def _lost(candidate: Mapping[str, Any], beside: bool) -> tuple[object, ...]:
    """Return cells of a rejected kernel. Beside a GPU, the layer's own row has the costs."""
    form, estimate = candidate["form"] or "general", candidate["estimate"]
    return (form, "", "") if beside else (form, "-" if estimate is None else estimate)


def measured(console: Console, report: Mapping[str, Any]) -> None:
    """Print the figures of a report: memory, flash, instructions and time."""
    flash, inference = report["flash"], report["inference"]
    rows: list[tuple[object, ...]] = [
        ("network", f"{report['network']['name']}, {report['network']['macs']:,} MACs"),
        ("target", f"{report['target']}" + (f" on {report['board']}" if report["board"] else "")),
        ("arena", f"{arena_bytes(report):,} bytes ({arena_certificate(report)})"),
        ("weights", f"{report['weights']['bytes']:,} bytes"),
    ]
    removed = report["removed"]
    if removed["channels"]:
        count = sum(r["constant"] + r["unread"] for r in removed["channels"])
        layers = counted(len(removed["channels"]), "layer")
        why = f"{counted(count, 'channel')} of {layers}, constant or unused"
        rows.append(("removed", f"{removed['macs']:,} MACs: {why}"))
    if report["state"]["bytes"]:
        rows.append(("state", f"{report['state']['bytes']:,} bytes"))
    elsewhere = measured_elsewhere(report)
    if elsewhere and flash["network"] is not None:
        rows.append(("measured on", f"{elsewhere}, not on {report['board']}"))
    if flash["network"] is not None:
        firmware = "" if flash["elf"] is None else f", {flash['elf']:,} firmware"
        rows.append(("flash", f"{flash['network']:,} bytes network{firmware}"))
    if report["ram"]["variables"] is not None:
        rows.append(("RAM", f"{report['ram']['variables']:,} bytes of variables and arena"))
    if inference["instructions"] is not None:
        rows.append(("inference", f"{inference['instructions']:,} instructions"))
    if inference["gpu"] is not None:
        rows.append(("GPU", inference["gpu"] or "none: the CPU computed all layers"))
    if inference["latency"] is not None:
        rows.append(("latency", f"{1e3 * inference['latency']['seconds']['mean']:.4g} ms"))
    if stack := stack_text(report):
        rows.append(("stack", stack))
    TextTable(("", ""), tuple(rows)).print(console)
    if stored := memories(report):
        console.print()
        stored.print(console)
    for length in report["network"]["lengths"]:
        say(console, length_range(length))


def length_range(length: Mapping[str, Any]) -> str:
    """Return a line about a dimension with a size that is known only at run time."""
    return (
        f"dimension {length['name']}: from {length['minimum']} to {length['maximum']}, known at "
        "run time; the types show the maximum"
    )
