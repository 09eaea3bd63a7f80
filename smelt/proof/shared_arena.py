"""Builds and verifies networks that share an arena: each alone, then one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from smelt.api.compile import Compiled
from smelt.api.report import BuildLimits, Measured, Report, complete
from smelt.api.shared_arena import SharedArena
from smelt.boards import Device
from smelt.errors import VerifyError
from smelt.formatting import counted
from smelt.ir import Array
from smelt.proof.rig import Rig
from smelt.proof.run import compiled, infer
from smelt.proof.verify import Verdict, verified, verify_model
from smelt.samples import Sample


def write_shared(
    shared: SharedArena,
    directory: Path,
    *,
    force: bool = False,
    compile_: bool = False,
    limits: BuildLimits | None = None,
) -> Report:
    """Write the C project; see `write_project`.

    Limits of arena and flash are for all networks together, the others for each inference.

    Raises:
        ConfigError, ToolError, DoesNotFit: see `write_project`.
    """
    limits = limits or BuildLimits()

    def finish(folder: Path) -> Report:
        report: Report = dict(shared.report)
        if compile_ or limits.needs_build:
            report = _completed(shared, folder, limits)
        limits.check(report)
        return report

    return shared.project.write(directory, force=force, finish=finish)


def _completed(shared: SharedArena, folder: Path, limits: BuildLimits) -> Report:
    """Compile a written project; return the report with the figures of each network and of all."""
    total = compiled(shared.networks[0], folder, replace(limits, stack=None, instructions=None))
    each = [compiled(one, folder, limits, one.network.sources) for one in shared.networks]
    return _with_figures(shared, total, each)


def _with_figures(shared: SharedArena, total: Measured, each: Sequence[Measured]) -> Report:
    """Return the report with its figures; stack and instructions are the most of any network."""
    stacks = [one.stack for one in each if one.stack is not None]
    counts = [one.instructions for one in each if one.instructions is not None]
    most = Measured(
        flash_network=total.flash_network,
        flash_elf=total.flash_elf,
        ram=total.ram,
        stack=max(stacks, default=None),
        instructions=max(counts, default=None),
    )
    own = [replace(one, flash_elf=None, ram=None) for one in each]
    networks = map(complete, shared.report["networks"], own)
    return {**complete(shared.report, most), "networks": list(networks)}


def profile_shared(shared: SharedArena, profile: Callable[[Compiled, Report], Report]) -> Report:
    """Profile each network of a project; return the project's report with those of the networks.

    Args:
        shared: the networks.
        profile: runs one inference of a network, and returns its report with the measurements.
    """
    planned = shared.report["networks"]
    reports = [profile(one, own) for one, own in zip(shared.networks, planned, strict=True)]
    figures = [report["inference"] for report in reports]

    def most(name: str) -> int | None:
        known = [figure[name] for figure in figures if figure[name] is not None]
        return max(known, default=None)

    total = Measured(
        flash_network=reports[0]["flash"]["network"],
        flash_elf=reports[0]["flash"]["elf"],
        stack=most("stack"),
        instructions=most("instructions"),
    )
    return {**complete(shared.report, total), "networks": reports}


@dataclass(frozen=True)
class SharedVerdict:
    """Result of a successful verification of networks that share an arena.

    Attributes:
        verdicts: the verdict of each network.
        report: the completed report, with the verification of each network.
        interleaved: number of inferences in the run in which the networks take turns.
    """

    verdicts: tuple[Verdict, ...]
    report: Report
    interleaved: int

    def __str__(self) -> str:
        names = (report["network"]["name"] for report in self.report["networks"])
        alone = "; ".join(f"{n}: {v}" for n, v in zip(names, self.verdicts, strict=True))
        return (
            f"{alone}; taking turns: the same outputs in {counted(self.interleaved, 'inference')}"
        )


def verify_shared(
    shared: SharedArena, samples: Sequence[Sequence[Sample]], rig: Rig | None = None
) -> SharedVerdict:
    """Verify each network alone, then let them take turns: the outputs must be the same.

    Args:
        shared: the networks.
        samples: for each network, its samples.
        rig: the device to run on; None selects the default.

    Raises:
        ConfigError, VerifyError: see `verify_model`.
    """
    rig = rig or Rig()
    pairs = list(zip(shared.networks, samples, strict=True))
    verdicts = tuple(verify_model(one, own, rig) for one, own in pairs)
    count = _take_turns(shared, samples, [v.result.outputs for v in verdicts], rig)
    measured = [verdict.result.measured for verdict in verdicts]
    of_all = [replace(one, flash_network=None) for one in measured]
    report = _with_figures(shared, measured[0], of_all)
    judged = [
        {**own, "verification": verified(verdict)["verification"]}
        for own, verdict in zip(report["networks"], verdicts, strict=True)
    ]
    verdict = SharedVerdict(verdicts, {**report, "networks": judged}, count)
    passed = {"passed": True, "message": str(verdict), "interleaved": count}
    return replace(verdict, report={**verdict.report, "verification": passed})


def _take_turns(
    shared: SharedArena,
    samples: Sequence[Sequence[Sample]],
    expected: Sequence[Sequence[Sequence[Array]]],
    rig: Rig,
) -> int:
    """Run the first sample of each network, then the second ones; return the number of runs."""
    count = 0
    with rig.open(shared.networks[0]) as (_, device):
        for one in shared.networks:
            device.check_hash(one.network.hash)
            device.reset()
        for index, each in enumerate(zip_longest(*samples)):
            for number, sample in enumerate(each):
                if sample is not None:
                    _take_turn(shared, number, index, sample, expected[number][index], device)
                    count += 1
    return count


def _take_turn(
    shared: SharedArena,
    number: int,
    index: int,
    sample: Sample,
    expected: Sequence[Array],
    device: Device,
) -> None:
    """Run a sample of one network.

    Raises:
        VerifyError: an output differs from that of the network alone.
    """
    network = shared.networks[number]
    device.check_hash(network.network.hash)
    found, _ = infer(device, network.graph, sample)
    for value, alone, beside in zip(network.graph.outputs, expected, found, strict=True):
        if alone.tobytes() != beside.tobytes():
            raise VerifyError(
                f"network '{network.network.title}', sample {index}: output '{value.name}' changes "
                "if other networks run between its inferences. This is a bug in Smelt; please "
                "report it."
            )
