"""`smelt verify` and `smelt deploy`: the proof that a device computes what the model says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from smelt import show_verify
from smelt.boards.meter import Meter
from smelt.cli_flash import FlashGroup
from smelt.cli_options import (
    BuildGroup,
    JsonFileOption,
    LimitGroup,
    Model,
    OnOption,
    QuietOption,
)
from smelt.cli_output import bar, dumper, notes, progress_console, say, write_json
from smelt.deploy import VirtualRig, flashing_rig, time_layers
from smelt.errors import ConfigError, SmeltError, VerifyError
from smelt.farm import Job, Outcome, junit, verify_jobs
from smelt.files import write_files
from smelt.pipeline import Artefact, Options, compile_model
from smelt.run import Rig
from smelt.samples import Sample, bind_expected, bind_samples, load_arrays, random_samples
from smelt.verify import failed, verified, verify_model


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


def verify(
    model: Model,
    *,
    on: OnOption = None,
    boards: Annotated[
        str | None,
        typer.Option(
            "--boards",
            help="Verify on several side by side, as `mps2-an386,host,nucleo-f446re=/dev/ttyACM0`.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", min=1, help="How many at a time [default: one a core]."),
    ] = None,
    given: SampleGroup,
    to: VerdictGroup,
    network: BuildGroup,
    limits: LimitGroup,
    json_: JsonFileOption = None,
    quiet: QuietOption = False,
) -> None:
    """Prove that the device computes what the model says, bit for bit.

    `smelt verify model.tflite --board mps2-an386 --samples 4`

    `smelt verify model.tflite --inputs in.npz --expect out.npz`

    `smelt verify model.tflite --boards mps2-an386,mps3-an547,host --jobs 2 --junit verify.xml`
    """
    given.check()
    if boards is not None:
        farm = _Farm(model, _places(boards), network, given, on)
        _verify_all(farm, jobs, to, json_, limits, quiet=quiet)
        return
    if jobs is not None:
        raise ConfigError("--jobs needs --boards, which says what is done side by side")
    options = network.build_options()
    console = progress_console(quiet)
    artefact = _compiled(model, options, network.dump_after, to, json_)
    notes(console, artefact.imported)
    report = _judge(artefact, given, Rig(on), to, json_, console, {})
    limits.gates().check(report)
    Console().print(report["verification"]["message"], highlight=False, markup=False)


def deploy(
    model: Model,
    *,
    way: FlashGroup,
    on: Annotated[
        str | None,
        typer.Option("--on", help="Port where the firmware answers [default: --port, or found]."),
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="QEMU stands in for the board; GDB flashes it.")
    ] = False,
    pty: Annotated[
        bool, typer.Option("--pty", help="With --simulate, over a pseudo-terminal.")
    ] = False,
    layers: Annotated[
        bool,
        typer.Option(
            "--layers", help="First flash firmware that times every layer, and show what it says."
        ),
    ] = False,
    given: SampleGroup,
    to: VerdictGroup,
    network: BuildGroup,
    limits: LimitGroup,
    json_: JsonFileOption = None,
    quiet: QuietOption = False,
) -> None:
    """Build, flash, verify and measure on the device, in one go.

    `smelt deploy model.tflite --board nucleo-f446re`

    `smelt deploy model.tflite --board mps2-an386 --simulate --layers`
    """
    given.check()
    options = network.build_options()
    console = progress_console(quiet)
    artefact = _compiled(model, options, network.dump_after, to, json_)
    notes(console, artefact.imported)
    rig = _deploying(artefact, way, on, console, simulate=simulate, pty=pty)
    timed: Mapping[str, Any] = {}
    if layers:
        (sample,) = random_samples(artefact.graph, 1, given.seed)
        timed = time_layers(artefact, sample, rig)
    report = _judge(artefact, given, rig, to, json_, console, timed)
    limits.gates().check(report)
    if layers:
        show_verify.layers(report).print(Console())
    Console().print(show_verify.headline(report), highlight=False, markup=False, soft_wrap=True)


def _compiled(
    model: Path, options: Options, dump_after: str | None, to: VerdictGroup, json_: Path | None
) -> Artefact:
    """The compiled network; that there is none is reported too, as far as a report can say it."""
    try:
        return compile_model(model, options, dumper(dump_after))
    except SmeltError as error:
        names = {"network": {"name": model.stem}, "board": options.board}
        report = failed(names, error)
        _write(report, replace(to, html=None), json_, error.kind)
        raise


def _deploying(
    artefact: Artefact,
    way: FlashGroup,
    on: str | None,
    console: Console,
    *,
    simulate: bool,
    pty: bool,
) -> Rig:
    def tell(line: str) -> None:
        say(console, line)

    if not simulate:
        if pty:
            raise ConfigError("--pty is of --simulate")
        return flashing_rig(artefact, way.way(), on, tell)
    if way != FlashGroup(timeout=way.timeout) or on is not None:
        raise ConfigError(
            "--simulate brings its own board, port and GDB server: leave --on, --port, --gdb, "
            "--runner and --drive out"
        )
    return VirtualRig(say=tell, pty=pty, timeout_s=way.timeout)


def _judge(
    artefact: Artefact,
    given: SampleGroup,
    rig: Rig,
    to: VerdictGroup,
    json_: Path | None,
    console: Console,
    timed: Mapping[str, Any],
) -> Mapping[str, Any]:
    """Verify, and write what is asked for; that it failed, too, before the error goes on."""
    samples, expected = given.of(artefact)
    with ExitStack() as stack:
        if to.meter is not None:
            rig = replace(rig, meter=stack.enter_context(Meter(to.meter)))
        try:
            with bar(console, "verifying", len(samples)) as advance:
                verdict = verify_model(artefact, samples, rig, expected, advance)
        except SmeltError as error:
            report = {**failed(artefact.report, error), **timed}
            _write(report, to, json_, error.kind)
            raise
    report = {**verified(verdict), **timed}
    _write(report, to, json_, None)
    return report


def _write(
    report: Mapping[str, Any], to: VerdictGroup, json_: Path | None, error: str | None
) -> None:
    verification = report["verification"]
    if json_ is not None:
        write_json(json_, report)
    if to.html is not None:
        show_verify.write_html(to.html, report)
    if to.junit is not None:
        board = report["board"] or "host"
        outcome = Outcome(
            board, None, error is None, verification["message"], verification["seconds"], error
        )
        write_files({to.junit: junit(report["network"]["name"], [outcome])})


@dataclass(frozen=True)
class _Farm:
    """What is verified on many boards."""

    model: Path
    places: Sequence[tuple[str, str | None]]
    network: BuildGroup
    given: SampleGroup
    on: str | None

    def jobs(self) -> list[Job]:
        """One a board."""
        if self.network.board is not None or self.on is not None:
            raise ConfigError(
                "--boards says where: leave --board and --on out; a board's port is given as "
                "BOARD=PORT"
            )
        options = replace(self.network.build_options(), kernels={})
        job = Job(
            str(self.model.resolve()),
            "host",
            options=options,
            plugins=tuple(path.resolve() for path in self.network.plugin or ()),
            inputs=None if self.given.inputs is None else load_arrays(self.given.inputs),
            expect=None if self.given.expect is None else load_arrays(self.given.expect),
            samples=self.given.samples,
            seed=self.given.seed,
        )
        return [replace(job, board=board, on=on) for board, on in self.places]


def _verify_all(
    farm: _Farm,
    jobs: int | None,
    to: VerdictGroup,
    json_: Path | None,
    limits: LimitGroup,
    *,
    quiet: bool,
) -> None:
    if to.html is not None or to.meter is not None or limits != LimitGroup():
        raise ConfigError("--boards: --html, --meter and limits are for one board at a time")
    work = farm.jobs()
    places = [(job.board, job.on) for job in work]
    found: list[Outcome] = []
    workers = min(jobs or os.cpu_count() or 1, len(work))
    # Workers start afresh: what was forked would inherit the threads of the progress bar.
    with (
        ProcessPoolExecutor(workers, get_context("spawn")) as executor,
        bar(progress_console(quiet), "verifying", len(work)) as advance,
    ):
        try:
            for outcome in verify_jobs(work, executor):
                found.append(outcome)
                advance(len(found))
        except BaseException:  # Ctrl-C, or a signal to end: what has not begun never will
            executor.shutdown(wait=False, cancel_futures=True)
            raise
    found.sort(key=lambda outcome: places.index((outcome.board, outcome.on)))
    if json_ is not None:
        write_json(json_, {"boards": [_record(outcome) for outcome in found]})
    if to.junit is not None:
        write_files({to.junit: junit(farm.model.stem, found)})
    show_verify.farm(found).print(Console())
    wrong = [outcome for outcome in found if not outcome.passed]
    if wrong:
        raise VerifyError(
            f"{len(wrong)} of {len(found)} boards: "
            + "; ".join(f"{outcome.board}: {outcome.message}" for outcome in wrong)
        )


def _record(outcome: Outcome) -> Mapping[str, Any]:
    return {
        "board": outcome.board,
        "on": outcome.on,
        "passed": outcome.passed,
        "message": outcome.message,
        "error": outcome.error,
        "seconds": outcome.seconds,
        "report": outcome.report,
    }


def _places(text: str) -> list[tuple[str, str | None]]:
    places: list[tuple[str, str | None]] = []
    for word in text.split(","):
        board, equals, port = word.strip().partition("=")
        if not board or (equals and not port):
            raise ConfigError(
                f"--boards '{text}': give boards with commas between them, each with its port, if "
                "it has one, as BOARD=PORT"
            )
        places.append((board, port or None))
    if len(set(places)) < len(places):
        raise ConfigError(f"--boards '{text}': it names a place twice")
    return places
