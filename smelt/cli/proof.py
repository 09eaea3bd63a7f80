"""Options and verdicts that `smelt verify` and `smelt deploy` share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer
from rich.console import Console

from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.boards.energy_meter import Meter
from smelt.cli.options import BuildGroup, JsonFileOption, LimitGroup, QuietOption
from smelt.cli.output import bars, dumper, notes, say, spinner, write_json
from smelt.cli.shared_arena import compile_shared, refuse_for_several
from smelt.cli.show import verify as show_verify
from smelt.errors import ConfigError, SmeltError
from smelt.files import distinct, write_files
from smelt.proof.farm import Outcome, junit
from smelt.proof.rig import Rig
from smelt.proof.shared_arena import verify_shared
from smelt.proof.verify import failed, verified, verify_model
from smelt.samples import Sample, bind_expected, bind_samples, load_arrays, random_samples


@dataclass(frozen=True)
class SampleGroup:
    """Options for the samples to run and the expected outputs."""

    inputs: Annotated[
        Path | None, typer.Option("--inputs", help=".npz file of inputs [default: random].")
    ] = None
    expect: Annotated[
        Path | None, typer.Option("--expect", help=".npz file of expected outputs; needs --inputs.")
    ] = None
    samples: Annotated[int, typer.Option("--samples", min=1, help="Number of random samples.")] = 8
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random samples.")] = 0

    def check(self) -> None:
        """Raise a `ConfigError` if the options contradict each other."""
        if self.expect is not None and self.inputs is None:
            raise ConfigError(
                "--expect needs --inputs: the expected outputs of random inputs are unknown"
            )

    def of(self, artifact: Artifact) -> tuple[list[Sample], list[Sample] | None]:
        """Return the samples for a network, and the expected outputs or None."""
        graph = artifact.graph
        if self.inputs is None:
            return random_samples(graph, self.samples, self.seed), None
        samples = bind_samples(graph, load_arrays(self.inputs))[0]
        if self.expect is None:
            return samples, None
        return samples, bind_expected(graph, load_arrays(self.expect))


@dataclass(frozen=True)
class VerdictGroup:
    """Options for the files that the verdict is written to, and the energy meter."""

    html: Annotated[
        Path | None, typer.Option("--html", help="Write the measurements to this HTML file.")
    ] = None
    junit: Annotated[
        Path | None, typer.Option("--junit", help="Write the verdict to this JUnit XML file.")
    ] = None
    meter: Annotated[
        str | None,
        typer.Option(
            "--meter",
            help="Program that measures energy: Smelt writes the lines `start` and `stop` to it, "
            "and it replies to `stop` with the energy in joules.",
        ),
    ] = None


@dataclass(frozen=True)
class ProofGroup(LimitGroup, BuildGroup, VerdictGroup, SampleGroup):
    """All options for verifying a network, on any device."""

    json_: JsonFileOption = None
    quiet: QuietOption = False


def compiled(model: Path, proof: ProofGroup, console: Console) -> Artifact:
    """Compile the network. If that fails, write the verdict files before raising the error."""
    proof.check()
    distinct({"--json": proof.json_, "--html": proof.html, "--junit": proof.junit})
    options = proof.build_options()
    start = time.monotonic()
    try:
        artifact = compile_model(model, options, dumper(proof.dump_after))
    except SmeltError as error:
        names = {"network": {"name": model.stem}, "board": options.board}
        report = failed(names, error, time.monotonic() - start)
        _write(report, replace(proof, html=None), error.kind)
        raise
    notes(console, artifact.notes)
    return artifact


def judge_shared(
    models: Sequence[Path], proof: ProofGroup, console: Console, rig_of: Callable[[Artifact], Rig]
) -> None:
    """Compile networks that share an arena, verify them on random samples, and print the verdict.

    Args:
        models: the files of the networks.
        proof: samples, limits, and the file for the report.
        console: console for progress.
        rig_of: returns the device to run on; its argument is the first network.
    """
    refuse_for_several(
        inputs=proof.inputs,
        expect=proof.expect,
        html=proof.html,
        junit=proof.junit,
        meter=proof.meter,
    )
    shared = compile_shared(models, proof)
    notes(console, shared.report["notes"])
    rig = rig_of(shared.networks[0])
    samples = [random_samples(one.graph, proof.samples, proof.seed) for one in shared.networks]
    with spinner(console, "verifying"):
        verdict = verify_shared(shared, samples, rig)
    if proof.json_ is not None:
        write_json(proof.json_, verdict.report)
    proof.build_limits().check(verdict.report)
    say(Console(), f"{show_verify.place(shared.networks[0], rig.on, verdict.report)}: {verdict}")


def judge(
    artifact: Artifact,
    proof: ProofGroup,
    rig: Rig,
    console: Console,
    timed: Mapping[str, Any] = MappingProxyType({}),
    *,
    any_build: bool = False,
) -> Mapping[str, Any]:
    """Verify the network and write the verdict files, also if verification fails.

    Args:
        artifact: the compiled network.
        proof: samples, limits, and files for the verdict.
        rig: the device to run on.
        console: console for progress.
        timed: entries to add to the report.
        any_build: whether the device may run another build of the network.

    Returns:
        The report.
    """
    start = time.monotonic()
    samples, expected = proof.of(artifact)
    with ExitStack() as stack:
        if proof.meter is not None:
            rig = replace(rig, meter=stack.enter_context(Meter(proof.meter)))
        try:
            with bars(console) as advance:
                verdict = verify_model(
                    artifact,
                    samples,
                    rig,
                    expected,
                    lambda done: advance("samples", done, len(samples)),
                    partial(advance, "bytes of memory"),
                    any_build=any_build,
                )
        except SmeltError as error:
            report = {**failed(artifact.report, error, time.monotonic() - start), **timed}
            _write(report, proof, error.kind)
            raise
    report = {**verified(verdict), **timed}
    _write(report, proof, None)
    proof.build_limits().check(report)
    return report


def _write(report: Mapping[str, Any], proof: ProofGroup, error: str | None) -> None:
    verification = report["verification"]
    if proof.json_ is not None:
        write_json(proof.json_, report)
    if proof.html is not None:
        show_verify.write_html(proof.html, report)
    if proof.junit is not None:
        board = report["board"] or "host"
        outcome = Outcome(
            board, None, error is None, verification["message"], verification["seconds"], error
        )
        write_files({proof.junit: junit(report["network"]["name"], [outcome])})
