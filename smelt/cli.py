"""The command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from smelt import __version__, show, show_profile
from smelt.cli_flash import flash
from smelt.cli_options import (
    BuildGroup,
    InputGroup,
    JsonFileOption,
    JsonOption,
    LimitGroup,
    Model,
    OnOption,
    QuietOption,
    grouped,
)
from smelt.cli_quantize import quantize
from smelt.codegen.passes import PASSES
from smelt.errors import ConfigError, SmeltError
from smelt.frontend import load as load_model
from smelt.ir import Graph
from smelt.ir.text import print_graph
from smelt.pipeline import Artefact, compile_model
from smelt.plugins import load_plugins
from smelt.profile import profile_model, profiled
from smelt.run import run as run_model
from smelt.run import write_project
from smelt.samples import (
    Sample,
    bind_expected,
    bind_samples,
    load_arrays,
    named_outputs,
    random_samples,
    save_arrays,
)
from smelt.verify import verify_model

app = typer.Typer(
    name="smelt",
    help="From trained model to bare metal: TFLite and ONNX networks become C projects.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


@app.command()
@grouped
def build(
    model: Model,
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the C project.")],
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier build.")] = False,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Also run `make` and fill in the measured sizes.")
    ] = False,
    network: BuildGroup,
    limits: LimitGroup,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write a C project for a network.

    `smelt build model.tflite -o out`

    `smelt build model.tflite -o out --board mps2-an386 --optimize size --compile`

    `smelt build model.tflite -o out --board mps2-an386 --max-arena 16384 --max-flash 65536`
    """
    options = network.build_options()
    console = _console(quiet or json_)
    with _spinner(console, f"compiling {model.name}"):
        artefact = compile_model(model, options, _dumper(network.dump_after))
        report = write_project(
            artefact, output, force=force, compile_=compile_, gates=limits.gates()
        )
    _notes(console, artefact)
    if json_:
        _print_json(report)
    else:
        show.build(_results(quiet), output, report)


app.command()(grouped(quantize))
app.command()(grouped(flash))


@app.command()
@grouped
def run(
    model: Model,
    *,
    inputs: Annotated[Path, typer.Option("--inputs", help=".npz with the inputs.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help=".npz for the outputs.")
    ] = None,
    on: OnOption = None,
    dequantize: Annotated[
        bool, typer.Option("--dequantize", help="Outputs as real numbers.")
    ] = False,
    network: BuildGroup,
    limits: LimitGroup,
    json_: JsonFileOption = None,
    quiet: QuietOption = False,
) -> None:
    """Build in a temporary folder, run on every sample, return the outputs.

    `smelt run model.tflite --inputs in.npz -o out.npz --board mps2-an386`
    """
    options = network.build_options()
    console = _console(quiet)
    artefact = compile_model(model, options, _dumper(network.dump_after))
    samples, batched = bind_samples(artefact.graph, load_arrays(inputs))
    with _bar(console, "running", len(samples)) as advance:
        result = run_model(artefact, samples, on, advance)
    outputs = named_outputs(artefact.graph, result.outputs, batched=batched, real=dequantize)
    if output is not None:
        save_arrays(output, outputs)
    if json_ is not None:
        _write_json(json_, result.report)
    _notes(console, artefact)
    limits.gates().check(result.report)
    show.run(_results(quiet), outputs, result.report, batched=batched)


@app.command()
@grouped
def verify(
    model: Model,
    *,
    inputs: Annotated[
        Path | None, typer.Option("--inputs", help=".npz with inputs [default: random].")
    ] = None,
    expect: Annotated[
        Path | None, typer.Option("--expect", help=".npz with the outputs that you expect.")
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Random samples.")] = 8,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random samples.")] = 0,
    on: OnOption = None,
    network: BuildGroup,
    limits: LimitGroup,
    json_: JsonFileOption = None,
    quiet: QuietOption = False,
) -> None:
    """Prove that the device computes what the model says, bit for bit.

    `smelt verify model.tflite --board mps2-an386 --samples 4`

    `smelt verify model.tflite --inputs in.npz --expect out.npz`
    """
    options = network.build_options()
    console = _console(quiet)
    if expect is not None and inputs is None:
        raise ConfigError("--expect needs --inputs: expected outputs of random inputs are unknown")
    artefact = compile_model(model, options, _dumper(network.dump_after))
    chosen = _samples(artefact.graph, inputs, samples, seed)
    expected = None if expect is None else _expected(artefact.graph, expect, len(chosen))
    with _bar(console, "verifying", len(chosen)) as advance:
        verdict = verify_model(artefact, chosen, on, expected, advance)
    if json_ is not None:
        _write_json(json_, {**verdict.result.report, "verified": str(verdict)})
    _notes(console, artefact)
    limits.gates().check(verdict.result.report)
    Console().print(str(verdict), highlight=False)


@app.command()
@grouped
def profile(
    model: Model,
    *,
    on: OnOption = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random input.")] = 0,
    cycles: Annotated[
        bool,
        typer.Option("--cycles", help="Estimate cycles, and milliseconds at the board's clock."),
    ] = False,
    wait_states: Annotated[
        int, typer.Option("--wait-states", min=0, help="Of the board's flash; with --cycles.")
    ] = 0,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write the layers to a page of HTML.")
    ] = None,
    network: BuildGroup,
    limits: LimitGroup,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure one inference: instructions by layer in the simulator, stack, arena and flash.

    `smelt profile model.tflite --board mps2-an386`

    `smelt profile model.tflite --board mps2-an386 --cycles --html profile.html`
    """
    options = network.build_options()
    console = _console(quiet or json_)
    if wait_states and not cycles:
        raise ConfigError("--wait-states changes cycles only: give --cycles too")
    artefact = compile_model(model, options, _dumper(network.dump_after))
    by_layer = (on or artefact.on) == "qemu"
    if not by_layer and (cycles or html is not None):
        raise ConfigError(
            "layers and cycles are counted in the simulator only: --cycles and --html need a "
            "--board that QEMU simulates (`smelt boards`), and --on qemu"
        )
    (sample,) = random_samples(artefact.graph, 1, seed)
    with _spinner(console, "running"):
        if by_layer:
            counted = profile_model(artefact, sample)
            report = profiled(artefact.report, counted, cycles=cycles, wait_states=wait_states)
        else:
            report = run_model(artefact, [sample], on).report
    _notes(console, artefact)
    limits.gates().check(report)
    if html is not None:
        show_profile.write_html(html, report)
    if json_:
        _print_json(report)
        return
    if by_layer:
        show_profile.show(Console(), report)
    else:
        console.print(
            "note: layers are counted in the simulator only; choose a --board that has one"
        )
    show.measured(Console(), report)


@app.command()
@grouped
def partition(
    model: Model,
    *,
    network: BuildGroup,
    json_: JsonOption = False,
) -> None:
    """Show which backend serves each layer, why not another, and the kernels that were not taken.

    `smelt partition model.tflite --target cortex-m4`

    `smelt partition model.tflite --target cortex-m4 --backends cmsis_nn,cortexm --place conv1=c`
    """
    options = network.build_options()
    console = _console(json_)
    artefact = compile_model(model, options, _dumper(network.dump_after))
    _notes(console, artefact)
    if json_:
        _print_json(artefact.report["layers"])
    else:
        show.partition(Console(), artefact.report, candidates=True)


@app.command()
@grouped
def inspect(
    model: Model,
    *,
    ir: Annotated[bool, typer.Option("--ir", help="Print the text form of the IR.")] = False,
    network: InputGroup,
    json_: JsonOption = False,
) -> None:
    """Show inputs, outputs and layers of a network.

    `smelt inspect model.tflite`

    `smelt inspect model.tflite --ir`
    """
    load_plugins(network.plugin or ())
    imported = load_model(model, inputs=network.options())
    if ir:
        typer.echo(print_graph(imported.graph, {}), nl=False)
    elif json_:
        _print_json(show.describe(imported))
    else:
        show.inspect(Console(), imported)


@app.command()
def ops(
    markdown: Annotated[bool, typer.Option("--markdown", help="As Markdown, for docs.")] = False,
    json_: JsonOption = False,
) -> None:
    """List the operators that are imported, and the backends that serve each."""
    imported, served = show.operators(), show.kernels()
    if json_:
        _print_json({"imported": imported.records(), "served": served.records()})
    elif markdown:
        typer.echo(show.support_page(imported, served), nl=False)
    else:
        imported.print(Console())
        typer.echo()
        served.print(Console())


@app.command()
def boards(json_: JsonOption = False) -> None:
    """List the boards."""
    _table(show.boards, json_)


@app.command()
def targets(json_: JsonOption = False) -> None:
    """List the targets that code can be generated for."""
    _table(show.targets, json_)


def main() -> None:
    """Run the command line; errors of Smelt's own become a message and exit code 1."""
    try:
        app(standalone_mode=True)
    except SmeltError as error:
        Console(stderr=True).print(
            f"[bold red]{type(error).__name__}[/]: ", end="", highlight=False
        )
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"smelt {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """From trained model to bare metal: TFLite and ONNX networks become C projects."""
    del version


def _table(table: Callable[[], show.Table], json_: bool) -> None:
    if json_:
        _print_json(table().records())
    else:
        table().print(Console())


def _samples(graph: Graph, inputs: Path | None, count: int, seed: int) -> list[Sample]:
    if inputs is None:
        return random_samples(graph, count, seed)
    return bind_samples(graph, load_arrays(inputs))[0]


def _expected(graph: Graph, path: Path, count: int) -> list[Sample]:
    """Expected outputs per sample, in the outputs' own types."""
    samples = bind_expected(graph, load_arrays(path))
    if len(samples) != count:
        raise ConfigError(f"'{path}' holds {len(samples)} samples, the inputs hold {count}")
    return samples


def _dumper(name: str | None) -> Callable[[str, Graph], None] | None:
    if name is None:
        return None
    known = [transform.__name__ for transform in PASSES]
    if name not in known:
        raise ConfigError(f"--dump-after '{name}' is not a pass; the passes are {', '.join(known)}")

    def dump(done: str, graph: Graph) -> None:
        if done == name:
            typer.echo(print_graph(graph, {}), nl=False)

    return dump


def _console(quiet: bool) -> Console:
    """For progress and notes; results go to standard output."""
    return Console(stderr=True, quiet=quiet)


def _results(quiet: bool) -> Console:
    return Console(quiet=quiet)


def _notes(console: Console, artefact: Artefact) -> None:
    for note in artefact.imported.notes:
        console.print(f"note: {note}", highlight=False, markup=False)


@contextmanager
def _spinner(console: Console, text: str) -> Generator[None]:
    with console.status(text):
        yield


@contextmanager
def _bar(console: Console, text: str, total: int) -> Generator[Callable[[int], None]]:
    columns = SpinnerColumn(), TextColumn(text), BarColumn(), MofNCompleteColumn()
    shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        task = progress.add_task(text, total=total)
        yield lambda done: progress.update(task, completed=done)


def _print_json(data: object) -> None:
    typer.echo(json.dumps(data, indent=2))


def _write_json(path: Path, report: Mapping[str, Any]) -> None:
    try:
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write '{path}': {error.strerror}") from error


if __name__ == "__main__":
    main()
