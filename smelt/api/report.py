"""The contents of `report.json`, first from the build, then completed from an ELF and a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import Any

from smelt.api.artifact import Stages
from smelt.boards.stack_bound import StackBound
from smelt.codegen.arena import MemoryUse
from smelt.codegen.arena.assign import wait_cycles
from smelt.codegen.emit.network import EmittedNetwork, Tensor
from smelt.codegen.lower.device import DeviceCall, LayerCosts
from smelt.codegen.lower.kernel import KernelCall
from smelt.codegen.partition.candidates import Candidate
from smelt.codegen.passes import PASSES
from smelt.codegen.passes.channels.removal_report import RemovedOperator
from smelt.codegen.passes.context import Removal
from smelt.codegen.schedule.memories import Distribution
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
    """Figures measured in the output of the C compiler, or in a run; None if not measured.

    Attributes:
        flash_network, flash_elf: bytes; see `ElfInfo`. For a library, `flash_network` counts only
            its own objects, and `flash_elf` is None.
        instructions: instructions of the last inference, from a simulator that counts them.
        stack: largest stack use that was measured in an inference, in bytes.
        stack_bound: the most stack that an inference can use, or None for this computer's code.
        ram: bytes of variables, including arena and state.
        latency: durations of inferences; None also if time is simulated.
        energy_j: mean energy of an inference in joules; None without a meter.
        device: name of the accelerator that was used; empty if the CPU computed all layers.
    """

    flash_network: int | None = None
    flash_elf: int | None = None
    instructions: int | None = None
    stack: int | None = None
    stack_bound: StackBound | None = None
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
        stack: bytes of stack of an inference: the bound, or else what was measured.
        instructions: `inference.instructions`, of one inference.
    """

    arena: int | None = None
    flash: int | None = None
    stack: int | None = None
    instructions: int | None = None

    @property
    def needs_run(self) -> bool:
        """Whether the limits can be checked only after an inference is run."""
        return self.stack is not None or self.instructions is not None

    @property
    def needs_build(self) -> bool:
        """Whether the limits can be checked only after the C project is compiled."""
        return self.flash is not None or self.needs_run

    def check(self, report: Mapping[str, Any]) -> None:
        """Compare a completed report with the limits.

        Raises:
            DoesNotFit: at least one limit is exceeded; the message lists all of them.
            ConfigError: a limit is on a figure that cannot be measured on this device.
        """
        figures = (
            ("arena", "bytes", self.arena, arena_bytes(report)),
            ("flash", "bytes", self.flash, report["flash"]["network"]),
            ("stack", "bytes", self.stack, _stack(report["inference"])),
            ("inference", "instructions", self.instructions, report["inference"]["instructions"]),
        )
        exceeded = [f for f in figures if f[2] is not None and f[3] is not None and f[3] > f[2]]
        for name, unit, limit, found in figures:
            if limit is not None and found is None:
                raise ConfigError(
                    f"the limit on {name} in {unit} cannot be checked, because the host does not "
                    "measure it; choose a --board with a simulator (`smelt boards`)"
                )
        if exceeded:
            name, _, limit, found = exceeded[0]
            goal = _GOALS.get(name, "")
            remedy = f". Try --optimize {goal}" if goal not in ("", report["optimize"]) else ""
            raise DoesNotFit(
                "; ".join(f"{n}: {x:,} {u}, the limit is {m:,}" for n, u, m, x in exceeded)
                + (remedy or ". Use a smaller network, or raise the limit"),
                needed=found or 0,
                available=limit or 0,
            )


def _stack(inference: Mapping[str, Any]) -> int | None:
    """Return the most bytes of stack that an inference can use, or was seen to use."""
    bound = inference["stack_bound"]
    found = (inference["stack"], None if bound is None else bound["bytes"])
    return max((count for count in found if count is not None), default=None)


def arena_bytes(report: Mapping[str, Any]) -> int:
    """Return the bytes of all arenas together."""
    others = report["arena"].get("others", ())
    return report["arena"]["bytes"] + sum(other["bytes"] for other in others)


def arena_certificate(report: Mapping[str, Any]) -> str:
    """Return which bounds the arenas meet, with their memories if there are several."""
    main = report["arena"]
    if not main.get("others"):
        return main["certificate"]
    return "; ".join(
        f"{arena['bytes']:,} in {arena['memory']}, {arena['certificate']}"
        for arena in (main, *main["others"])
    )


def stack_text(report: Mapping[str, Any]) -> str:
    """Return the bound of the stack and the measurement; empty if there is neither."""
    bound, measured = report["inference"]["stack_bound"], report["inference"]["stack"]
    texts: list[str] = []
    if bound is not None and bound["bytes"] is not None:
        names = [frame["function"] for frame in bound["path"]]
        prefix = names[0].removesuffix("invoke")
        calls = " → ".join(name.removeprefix(prefix) for name in names)
        more = f", and {bound['interrupts']:,} in interrupts" if bound["interrupts"] else ""
        texts.append(f"worst case {bound['bytes']:,} bytes ({calls}){more}")
    elif bound is not None:
        texts.append(f"not bounded, because {bound['reason']}")
    if measured is not None:
        texts.append(f"{measured:,} bytes measured" if texts else f"{measured:,} bytes")
    return "; ".join(texts)


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
    searched = stages.searched or (memories[ARENA].bytes,)
    return {
        "smelt": __version__,
        "network": {
            "name": network.title,
            "hash": network.hash,
            "macs": schedule.graph.macs,
            "inputs": [_tensor(t) for t in network.inputs],
            "streamed": _streamed(network),
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
            "proved_smallest": memories[ARENA].optimal,
            "schedules": {"searched": len(searched), "smallest": min(searched)},
            "certificate": _certificate(memories[ARENA], searched),
            **_layout(stages.stored, ARENA),
            "others": [
                {
                    "bytes": memories[name].bytes,
                    "lower_bound": memories[name].lower_bound,
                    "proved_smallest": memories[name].optimal,
                    "certificate": memories[name].certificate,
                    **_layout(stages.stored, name),
                }
                for name in stages.stored.arenas
                if name != ARENA
            ],
        },
        "state": {"bytes": memories[STATE].bytes if STATE in memories else 0},
        "weights": {"bytes": sum(a.nbytes for a in schedule.constants.values())},
        "memories": _memories(stages.stored),
        "shader_compiler": None if network.device is None else network.device.compiler,
        **without_measurements(),
        "layers": [_layer(i, step, costs) for i, step in enumerate(schedule.steps)],
        "removed": {
            "macs": imported.graph.macs - schedule.graph.macs,
            "channels": [_removal(removal) for removal in removals.channels],
            "operators": [_removed_operator(removed) for removed in removals.operators],
        },
        "legalized": [{**vars(one), "origin": str(one.origin)} for one in stages.legalized],
        "notes": list(stages.notes),
    }


def _streamed(network: EmittedNetwork) -> Report | None:
    """Return how the caller delivers the first input; None if inputs are in the arena."""
    streamed = network.streamed
    if streamed is None:
        return None
    return {
        "rows": streamed.rows,
        "row_bytes": streamed.row_bytes,
        "rows_at_once": streamed.turn_rows,
    }


def _layout(stored: Distribution, name: str) -> Report:
    """Return where the buffers of an arena are, in which slots, and whether they are scratch.

    Also the name of the arena, its memory, the most bytes it may have, and the slot of time in
    which the most bytes are live, with what runs in it.
    """
    schedule, plan = stored.schedule, stored.plan
    scratch = frozenset[str]().union(*(call.scratch_buffers for call in schedule.calls))
    slot = plan.use(name).peak_step
    return {
        "name": name,
        "memory": stored.arenas.get(name),
        "limit": schedule.problem.memory(name).size,
        "peak": {"slot": slot, "call": plan.step_name(slot)},
        "map": [
            {**placed.to_dict(), "scratch": placed.name in scratch}
            for placed in plan.placements
            if placed.memory == name
        ],
    }


def _memories(stored: Distribution) -> list[Report]:
    """Return what each memory of the board stores, and the bytes that an inference moves there."""
    return [
        {
            "name": memory.name,
            "wait_states": memory.wait_states,
            "holds": list(memory.holds),
            **stored.sizes(memory.name),
            "moved": sum(array.moved for array in arrays),
            "wait_cycles": sum(wait_cycles(a.moved, memory.wait_states) for a in arrays),
            "contents": [vars(array) for array in arrays],
        }
        for memory in stored.platform.memories
        if "arena" in memory.holds or "weights" in memory.holds
        for arrays in [stored.contents(memory.name)]
    ]


def _certificate(use: MemoryUse, searched: Sequence[int]) -> str:
    """Return how an arena compares with the bound of its schedule and with other schedules."""
    if len(searched) == 1:
        return f"{use.certificate}; no other was searched"
    if use.bytes == min(searched):
        return f"{use.certificate}, the smallest of {len(searched)} searched"
    smallest = f"the smallest of {len(searched)} searched needs {min(searched):,} bytes"
    return f"{use.certificate}; {smallest}"


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


def _removed_operator(removed: RemovedOperator) -> Report:
    """Return a removed operator, and the pass that removed it."""
    return {
        "origin": str(removed.origin),
        "operator": removed.operator,
        "pass": removed.by,
        "why": _PURPOSES.get(removed.by, ""),
    }


_PURPOSES = {t.__name__: (t.__doc__ or "").partition("\n")[0] for t in PASSES}
"""The first line of each pass's docstring, by the pass's name."""


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
    """Return where figures were measured, if not on the network's board; empty otherwise."""
    return "" if report["board"] in (None, report["measured_on"]) else report["measured_on"]


def complete(report: Mapping[str, Any], measured: Measured) -> Report:
    """Return the report with measured figures filled in."""
    return {**report, **_measured(measured)}


def without_measurements() -> Report:
    """Return the entries of measured figures, which are None until they are measured."""
    return _measured(Measured())


def _measured(measured: Measured) -> Report:
    bound = measured.stack_bound
    return {
        "flash": {"network": measured.flash_network, "elf": measured.flash_elf},
        "ram": {"variables": measured.ram},
        "inference": {
            "instructions": measured.instructions,
            "stack": measured.stack,
            "stack_bound": None if bound is None else _bound(bound),
            "latency": None if measured.latency is None else measured.latency.to_dict(),
            "energy_j": measured.energy_j,
            "gpu": measured.device,
        },
    }


def _bound(bound: StackBound) -> Report:
    path = [{"function": function, "bytes": count} for function, count in bound.path]
    return {**vars(bound), "path": path}


def _tensor(tensor: Tensor) -> Report:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "scale": tensor.scale,
        "zero_point": tensor.zero_point,
    }
