"""The contents of `report.json`, first from the build, then completed from an ELF and a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import Any

from smelt.api.artifact import Stages
from smelt.codegen.emit.network import Tensor
from smelt.codegen.lower.device import DeviceCall, LayerCosts
from smelt.codegen.lower.kernel import KernelCall
from smelt.codegen.partition.candidates import Candidate
from smelt.codegen.passes import PASSES
from smelt.codegen.passes.channels.removal_report import RemovedOperator
from smelt.codegen.passes.context import Removal
from smelt.codegen.schedule.schedule import ARENA, STATE
from smelt.codegen.schedule.steps import BandedWork, Branch, Call, Repeat, SetLength, Step
from smelt.errors import ConfigError, DoesNotFit
from smelt.ir import Graph, Node
from smelt.version import __version__

Report = dict[str, Any]
"""JSON: nested dictionaries with string keys."""

HERE = "this computer"
"""`measured_on` for code that runs neither on a board nor in a board's simulator."""


@dataclass(frozen=True)
class Latency:
    """Durations of inferences, measured with the device's timer.

    Attributes:
        seconds: duration of each inference.
        cycles: cycles of each inference, or None if the device's timer does not count cycles.
    """

    seconds: tuple[float, ...]
    cycles: tuple[int, ...] | None

    def to_dict(self) -> Report:
        """Return the minimum, mean and maximum duration, and the inferences per second."""
        mean = fmean(self.seconds)
        return {
            "seconds": {"least": min(self.seconds), "mean": mean, "greatest": max(self.seconds)},
            "cycles": None if self.cycles is None else round(fmean(self.cycles)),
            "inferences": len(self.seconds),
            "per_second": 1 / mean if mean else None,
        }


@dataclass(frozen=True)
class Measured:
    """Figures that need a compiled network or a run; None if not measured.

    Attributes:
        flash_network, flash_elf: bytes; see `ElfInfo`. For a library, `flash_network` counts only
            its own objects, and `flash_elf` is None.
        instructions: instructions of the last inference, from a simulator that counts them.
        stack: largest stack use of an inference, in bytes.
        ram: bytes of variables, including arena and state.
        latency: durations of inferences; None also if time is simulated.
        energy_j: mean energy of an inference in joules; None without a meter.
        device: name of the accelerator that was used; empty if the CPU computed all layers.
    """

    flash_network: int | None = None
    flash_elf: int | None = None
    instructions: int | None = None
    stack: int | None = None
    ram: int | None = None
    latency: Latency | None = None
    energy_j: float | None = None
    device: str | None = None


@dataclass(frozen=True)
class BuildLimits:
    """Limits for continuous integration that a build must not exceed; None means no limit.

    Attributes:
        arena: bytes of `arena.bytes`.
        flash: bytes of `flash.network`.
        stack: bytes of `inference.stack`.
        instructions: `inference.instructions`, of one inference.
    """

    arena: int | None = None
    flash: int | None = None
    stack: int | None = None
    instructions: int | None = None

    @property
    def needs_run(self) -> bool:
        """Return whether checking the limits needs a run."""
        return self.stack is not None or self.instructions is not None

    @property
    def needs_build(self) -> bool:
        """Return whether checking the limits needs a compiled network."""
        return self.flash is not None or self.needs_run

    def check(self, report: Mapping[str, Any]) -> None:
        """Compare a completed report with the limits.

        Raises:
            DoesNotFit: at least one limit is exceeded; the message lists all of them.
            ConfigError: a limit is on a figure that cannot be measured on this device.
        """
        figures = (
            ("arena", "bytes", self.arena, report["arena"]["bytes"]),
            ("flash", "bytes", self.flash, report["flash"]["network"]),
            ("stack", "bytes", self.stack, report["inference"]["stack"]),
            ("inference", "instructions", self.instructions, report["inference"]["instructions"]),
        )
        exceeded = [f for f in figures if f[2] is not None and f[3] is not None and f[3] > f[2]]
        for name, unit, limit, found in figures:
            if limit is not None and found is None:
                raise ConfigError(
                    f"{unit} of {name} cannot be measured on the host; for this limit, choose a "
                    "--board with a simulator (`smelt boards`)"
                )
        if exceeded:
            name, _, limit, found = exceeded[0]
            goal = _GOALS.get(name, "")
            remedy = f". Try --optimize {goal}" if goal not in ("", report["optimize"]) else ""
            raise DoesNotFit(
                "; ".join(f"{n}: {x:,} {u}, the limit is {m:,}" for n, u, m, x in exceeded)
                + (remedy or ". Use a smaller network, or raise the limit"),
                needed=found,
                available=limit or 0,
            )


_GOALS = {"arena": "ram", "flash": "size", "inference": "speed"}
"""The goal of `--optimize` that makes a figure smaller."""


def build_report(stages: Stages) -> Report:
    """Return the report of a build before it is compiled or run."""
    schedule, plan, network = stages.schedule, stages.plan, stages.network
    imported, removals, costs, machine = (
        stages.imported,
        stages.removals,
        stages.costs,
        stages.machine,
    )
    memories = {use.name: use for use in plan.memories}
    return {
        "smelt": __version__,
        "network": {
            "name": network.title,
            "hash": network.hash,
            "macs": schedule.graph.macs,
            "inputs": [_tensor(t) for t in network.inputs],
            "outputs": [_tensor(t) for t in network.outputs],
            "lengths": lengths(schedule.graph),
        },
        "target": stages.platform.target.name,
        "board": None if machine is None else machine.name,
        "measured_on": HERE if stages.board is None else stages.board.name,
        "optimize": stages.options.optimize,
        "arena": {
            "bytes": network.arena_bytes,
            "lower_bound": memories[ARENA].lower_bound,
            "optimal": memories[ARENA].optimal,
            "map": [p.to_dict() for p in plan.placements if p.memory == ARENA],
        },
        "state": {"bytes": memories[STATE].bytes if STATE in memories else 0},
        "weights": {"bytes": sum(a.nbytes for a in schedule.constants.values())},
        "shader_compiler": None if network.device is None else network.device.compiler,
        **_measured(Measured()),
        "layers": [_layer(i, step, costs) for i, step in enumerate(schedule.steps)],
        "removed": {
            "macs": imported.graph.macs - schedule.graph.macs,
            "channels": [_removal(removal) for removal in removals.channels],
            "operators": [_removed_operator(gone) for gone in removals.operators],
        },
        "legalized": [{**vars(one), "origin": str(one.origin)} for one in stages.legalized],
        "notes": list(stages.notes),
    }


def _layer(index: int, step: Step, costs: LayerCosts | None) -> Report:
    """Return the record of a step: its layer, its kernel, and its costs on GPU and CPU."""
    return {
        "step": index,
        "inside": step.inside,
        "name": step.node.name,
        "op": step.node.op.name,
        "origin": str(step.node.origin),
        "output": str(step.node.outputs[0].type),
        "macs": step.node.macs,
        **_work(step),
        "beside": None if costs is None else _device_times(costs, step.node),
    }


def _work(step: Step) -> Report:
    """Return the kernel of a step and how it was chosen, or its statement if it has no kernel."""
    match step:
        case Call():
            call = step.call
            return {
                "backend": step.backend,
                "kernel": step.function,
                "form": call.form,
                "summary": call.summary,
                "block": _block(call),
                "why": step.reason,
                "estimate": step.cycles,
                "scratch": step.scratch_bytes,
                "bands": None if step.bands is None else _bands(step.bands),
                "candidates": [_candidate(lost) for lost in step.choice.lost],
            }
        case SetLength():
            word, summary = "length", "a length that the caller has set"
        case Branch():
            word, summary = "if", "control flow"
        case Repeat():
            word, summary = step.word, "control flow"
    written: Report = {"backend": "c", "kernel": word, "form": "", "summary": summary}
    unknown: Report = {"block": None, "why": "", "estimate": None, "scratch": 0, "bands": None}
    unknown["candidates"] = []
    return written | unknown


def _bands(work: BandedWork) -> Report:
    """Return how a layer of a segment is computed."""
    return {"rows": work.rows, "turns": work.turns, "last_rows_first": work.reverse}


def _candidate(candidate: Candidate) -> Report:
    """Return the record of a rejected kernel; sizes in bytes, the estimate in cycles."""
    return {
        "backend": candidate.backend,
        "form": candidate.call.form,
        "estimate": candidate.cycles,
        "constants": candidate.call.constant_bytes,
        "scratch": candidate.call.scratch_bytes,
    }


def _block(call: KernelCall) -> str | None:
    """Return an accelerator's block sizes, or None if there was no choice."""
    return call.block.text if isinstance(call, DeviceCall) and call.block is not None else None


def _device_times(costs: LayerCosts, node: Node) -> Report:
    """Return a layer's microseconds on the accelerator and the CPU, and whether measured."""
    there, here = costs.of(node)
    cpu = here / 1e3 if isfinite(here) else None
    return {"gpu": there / 1e3, "cpu": cpu, "measured": costs.knows(node)}


def _removal(removal: Removal) -> Report:
    """Return a layer's removed channels, by reason: `constant` or `unread`."""
    return {
        "origin": str(removal.origin),
        "channels": removal.channels,
        "constant": removal.constant,
        "unread": removal.unread,
    }


def _removed_operator(gone: RemovedOperator) -> Report:
    """Return a removed operator, and the pass that removed it."""
    return {
        "origin": str(gone.origin),
        "operator": gone.operator,
        "pass": gone.by,
        "why": _PURPOSES.get(gone.by, ""),
    }


_PURPOSES = {t.__name__: (t.__doc__ or "").partition("\n")[0] for t in PASSES}
"""Summary line of each pass's docstring."""


def lengths(graph: Graph) -> list[Report]:
    """Return the dimensions with run-time sizes; `axes` lists the inputs that have them."""
    return [
        {
            "name": length.name,
            "minimum": length.minimum,
            "maximum": length.maximum,
            "axes": [{"input": graph.inputs[i].name, "axis": axis} for i, axis in length.axes],
        }
        for length in graph.lengths
    ]


def measured_elsewhere(report: Mapping[str, Any]) -> str:
    """Return where figures come from if not from the network's own board, else an empty text."""
    return "" if report["board"] in (None, report["measured_on"]) else report["measured_on"]


def complete(report: Mapping[str, Any], measured: Measured) -> Report:
    """Return the report with measured figures filled in."""
    return {**report, **_measured(measured)}


def _measured(measured: Measured) -> Report:
    return {
        "flash": {"network": measured.flash_network, "elf": measured.flash_elf},
        "ram": {"variables": measured.ram},
        "inference": {
            "instructions": measured.instructions,
            "stack": measured.stack,
            "latency": None if measured.latency is None else measured.latency.to_dict(),
            "energy_j": measured.energy_j,
            "gpu": measured.device,
        },
    }


def _tensor(tensor: Tensor) -> Report:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "scale": tensor.scale,
        "zero_point": tensor.zero_point,
    }
