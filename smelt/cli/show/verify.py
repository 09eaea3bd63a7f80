"""Output of `smelt verify` and `smelt deploy`: a summary line, tables and an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smelt.api.report import HERE, measured_elsewhere, stack_text
from smelt.boards.simulate import INSTRUCTIONS_PER_SECOND
from smelt.cli.show.html import page
from smelt.cli.show.memory import MemoryPicture, memories, pictures
from smelt.cli.show.tables import TextTable
from smelt.codegen.text.parameters import Parameters
from smelt.files import write_files
from smelt.proof.farm import Outcome

if TYPE_CHECKING:
    from smelt.api.artifact import Artifact


def headline(report: Mapping[str, Any]) -> str:
    """Return one line with the verdict and the main figures."""
    where = _with_gpu(report["measured_on"], report)
    figures = ", ".join(f"{value} {name}".strip() for name, value in _headlines(report))
    verdict = report["verification"]["message"]
    if not report["verification"]["passed"]:
        return f"{where}: FAILED: {verdict}"
    return f"{where}: {verdict}" + (f"; {figures}" if figures else "")


def place(artifact: Artifact, on: str | None, report: Mapping[str, Any]) -> str:
    """Return where a network ran; `on` is that of a `Rig`."""
    where = artifact.on if on is None else on
    if where == "host":
        return _with_gpu(HERE, report)
    name, board = artifact.platform.name, artifact.board
    if where == "qemu" and board is not None and board.qemu is not None:
        machine = board.qemu.machine
        return f"{name} in QEMU" if machine == name else f"{name} in QEMU ({machine})"
    return f"{name} at {'its serial port' if where == 'board' else where}"


def _with_gpu(where: str, report: Mapping[str, Any]) -> str:
    gpu = report["inference"]["gpu"]
    return where if gpu is None else f"{where} ({gpu or 'no GPU: the CPU computed all layers'})"


def _headlines(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    inference = report["inference"]
    if inference["latency"] is not None:
        yield "", _duration(inference["latency"]["seconds"]["mean"])
    elif inference["instructions"] is not None:
        yield "instructions", f"{inference['instructions']:,}"
    if report["ram"]["variables"] is not None:
        yield "RAM", _kilobytes(report["ram"]["variables"] + (inference["stack"] or 0))
    if report["flash"]["elf"] is not None:
        yield "flash", _kilobytes(report["flash"]["elf"])
    if inference["energy_j"] is not None:
        yield "an inference", f"{1e3 * inference['energy_j']:.3g} mJ"


def _kilobytes(count: int) -> str:
    return f"{count / 1024:.1f} KB"


def _duration(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} us"


def figures(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names and formatted values of all measurements."""
    inference, latency = report["inference"], report["inference"]["latency"]
    if latency is not None:
        seconds = latency["seconds"]
        spread = f"{_duration(seconds['least'])} to {_duration(seconds['greatest'])}"
        yield (
            "latency",
            f"{_duration(seconds['mean'])} ({spread}, {latency['inferences']} inferences)",
        )
        if latency["per_second"] is not None:
            yield "throughput", f"{latency['per_second']:.4g} inferences per second"
        if latency["cycles"] is not None:
            yield "cycles", f"{latency['cycles']:,}"
    if inference["instructions"] is not None:
        yield "instructions", f"{inference['instructions']:,}"
    if inference["energy_j"] is not None:
        yield "energy", f"{1e3 * inference['energy_j']:.4g} mJ per inference"
    if stack := stack_text(report):
        yield "stack", stack
    if report["ram"]["variables"] is not None:
        yield "RAM", f"{report['ram']['variables']:,} bytes of variables, including the arena"
    yield "arena", f"{report['arena']['bytes']:,} bytes ({report['arena']['certificate']})"
    if report["flash"]["elf"] is not None:
        flash = report["flash"]
        yield "flash", f"{flash['elf']:,} bytes, of which {flash['network']:,} are the network"


def layers(report: Mapping[str, Any]) -> TextTable:
    """Return a table of each layer's cost on the device; the report must be from `time_layers`."""
    timer = report["timer"]
    total = sum(layer["ticks"] or 0 for layer in report["layers"]) or 1
    rows: list[tuple[object, ...]] = []
    for layer in report["layers"]:
        figures: tuple[str, ...] = ("-", "-")
        if layer["ticks"] is not None:
            taken = (
                f"{layer['instructions']:,}" if timer["simulated"] else _duration(layer["seconds"])
            )
            figures = (taken, f"{layer['ticks'] / total:.1%}")
        rows.append((layer["step"], layer["name"], layer["op"], layer["backend"], *figures))
    tick = max(1, INSTRUCTIONS_PER_SECOND // timer["hz"])
    taken = f"instructions (±{tick})" if timer["simulated"] else "time"
    return TextTable(("step", "layer", "operator", "backend", taken, "share"), tuple(rows))


def farm(outcomes: Sequence[Outcome]) -> TextTable:
    """Return a table with one row per board."""
    rows: list[tuple[object, ...]] = []
    for outcome in outcomes:
        report = outcome.report if outcome.passed else None
        found = dict(_headlines(report)) if report is not None else {}
        elsewhere = "" if report is None else measured_elsewhere(report)
        rows.append(
            (
                outcome.board,
                outcome.on or elsewhere or "-",
                "passed" if outcome.passed else "FAILED",
                found.get("instructions", "-"),
                found.get("", "-"),
                found.get("RAM", "-"),
                found.get("flash", "-"),
                outcome.message.partition("\n")[0],
            )
        )
    columns = ("board", "on", "verdict", "instructions", "latency", "RAM", "flash", "")
    return TextTable(columns, tuple(rows))


@dataclass(frozen=True, kw_only=True)
class VerifyParameters(Parameters):
    """Variables of `report/verify.html.j2`.

    Attributes:
        network, hash, target, measured_on, optimize, smelt: the network, the device, the version.
        macs: multiply-accumulates of one inference.
        passed, message: the verdict.
        figures: names and values of the measurements.
        layers: cost of each layer, or None if it was not measured.
        memories: what each memory stores, or None if there is no choice of memories.
        pictures: the drawings of the arenas; `memory` is the main one.
    """

    network: str
    hash: str
    target: str
    measured_on: str
    optimize: str
    macs: int
    smelt: str
    passed: bool
    message: str
    figures: tuple[tuple[str, str], ...]
    layers: TextTable | None
    memories: TextTable | None
    pictures: tuple[MemoryPicture, ...]
    memory: MemoryPicture


def html(report: Mapping[str, Any]) -> str:
    """Return a self-contained HTML page of the verdict."""
    network, verification = report["network"], report["verification"]
    parameters = VerifyParameters(
        network=network["name"],
        hash=network["hash"],
        target=report["target"],
        measured_on=report["measured_on"],
        optimize=report["optimize"],
        macs=network["macs"],
        smelt=report["smelt"],
        passed=verification["passed"],
        message=verification["message"],
        figures=tuple(figures(report)),
        layers=layers(report) if "timer" in report else None,
        memories=memories(report),
        pictures=pictures(report),
        memory=pictures(report)[0],
    )
    return page("verify.html.j2", parameters)


def write_html(path: Path, report: Mapping[str, Any]) -> None:
    """Write the HTML page atomically. Raise a `ConfigError` if it cannot be written."""
    write_files({path: html(report).encode()})
