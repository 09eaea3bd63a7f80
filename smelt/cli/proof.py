"""What `smelt verify` and `smelt deploy` share: samples, the verdict, and where it goes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer
from rich.console import Console

from smelt.api.artefact import Artefact
from smelt.api.compile import compile_model
from smelt.boards.energy_meter import Meter
from smelt.cli.options import BuildGroup, JsonFileOption, LimitGroup, QuietOption
from smelt.cli.output import bars, dumper, notes, write_json
from smelt.cli.show import verify as show_verify
from smelt.errors import ConfigError, SmeltError
from smelt.files import distinct, write_files
from smelt.proof.farm import Outcome, junit
from smelt.proof.rig import Rig
from smelt.proof.verify import failed, verified, verify_model
from smelt.samples import Sample, bind_expected, bind_samples, load_arrays, random_samples


@dataclass(frozen=True)
class SampleGroup:
    """What is run, and what is expected."""

    inputs: Annotated[
        Path | None, typer.Option("--inputs", help=".npz with inputs [default: random].")
    ] = None
    expect: Annotated[
        Path | None, typer.Option("--expect", help=".npz with the outputs that you expect.")
    ] = None
    samples: Annotated[int, typer.Option("--samples", min=1, help="Random samples.")] = 8
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random samples.")] = 0

    def check(self) -> None:
        """Make sure that the options make sense together."""
        if self.expect is not None and self.inputs is None:
            raise ConfigError(
                "--expect needs --inputs: expected outputs of random inputs are unknown"
            )

    def of(self, artefact: Artefact) -> tuple[list[Sample], list[Sample] | None]:
        """The samples for a network, and the outputs that are expected."""
        graph = artefact.graph
        if self.inputs is None:
            return random_samples(graph, self.samples, self.seed), None
        samples = bind_samples(graph, load_arrays(self.inputs))[0]
        if self.expect is None:
            return samples, None
        return samples, bind_expected(graph, load_arrays(self.expect))


@dataclass(frozen=True)
class VerdictGroup:
    """Where the verdict goes."""

    html: Annotated[
        Path | None, typer.Option("--html", help="Write what was measured to a page of HTML.")
    ] = None
    junit: Annotated[
        Path | None, typer.Option("--junit", help="Write JUnit's XML, for CI, here.")
    ] = None
    meter: Annotated[
        str | None,
        typer.Option(
            "--meter",
            help="Program that measures energy: it gets `start` and `stop` by the line, and "
            "answers `stop` with joules.",
        ),
    ] = None


@dataclass(frozen=True)
class ProofGroup(LimitGroup, BuildGroup, VerdictGroup, SampleGroup):
    """All that verifying a network takes, wherever it runs."""

    json_: JsonFileOption = None
    quiet: QuietOption = False


def compiled(model: Path, proof: ProofGroup, console: Console) -> Artefact:
    """The compiled network; that there is none is reported too, as far as a report can say it."""
    proof.check()
    distinct({"--json": proof.json_, "--html": proof.html, "--junit": proof.junit})
    options = proof.build_options()
    start = time.monotonic()
    try:
        artefact = compile_model(model, options, dumper(proof.dump_after))
    except SmeltError as error:
        names = {"network": {"name": model.stem}, "board": options.board}
        report = failed(names, error, time.monotonic() - start)
        _write(report, replace(proof, html=None), error.kind)
        raise
    notes(console, artefact.notes)
    return artefact


def judge(
    artefact: Artefact,
    proof: ProofGroup,
    rig: Rig,
    console: Console,
    timed: Mapping[str, Any] = MappingProxyType({}),
    *,
    any_build: bool = False,
) -> Mapping[str, Any]:
    """Verify, and write what is asked for; that it failed, too, before the error goes on.

    Args:
        artefact: the compiled network.
        proof: samples, limits, and where the verdict goes.
        rig: where it runs.
        console: for progress.
        timed: what the report says besides.
        any_build: whether firmware that is there already may be another build of the network.
    """
    start = time.monotonic()
    samples, expected = proof.of(artefact)
    with ExitStack() as stack:
        if proof.meter is not None:
            rig = replace(rig, meter=stack.enter_context(Meter(proof.meter)))
        try:
            with bars(console) as advance:
                verdict = verify_model(
                    artefact,
                    samples,
                    rig,
                    expected,
                    lambda done: advance("samples", done, len(samples)),
                    partial(advance, "bytes of memory"),
                    any_build=any_build,
                )
        except SmeltError as error:
            report = {**failed(artefact.report, error, time.monotonic() - start), **timed}
            _write(report, proof, error.kind)
            raise
    report = {**verified(verdict), **timed}
    _write(report, proof, None)
    proof.gates().check(report)
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
