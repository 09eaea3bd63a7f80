"""The command line."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from smelt.api.compile import compile_model
from smelt.cli.board import board
from smelt.cli.export import export
from smelt.cli.flash import flash
from smelt.cli.mlperf import mlperf_tiny
from smelt.cli.options import (
    BuildGroup,
    DeviceOption,
    ForceOption,
    InputGroup,
    JsonFileOption,
    JsonOption,
    LimitGroup,
    Model,
    OnOption,
    QuietOption,
    grouped,
)
from smelt.cli.output import (
    bar,
    dumper,
    notes,
    print_json,
    progress_console,
    results_console,
    spinner,
    write_json,
)
from smelt.cli.quantize import quantize
from smelt.cli.show import profile as show_profile
from smelt.cli.show import tables as show
from smelt.cli.show import verify as show_verify
from smelt.cli.simulate import simulate
from smelt.cli.tune import tune
from smelt.cli.verify import deploy, verify
from smelt.codegen.emit.destination import check_destination
from smelt.errors import ConfigError, DeviceError, SmeltError, ToolError
from smelt.frontend import load as load_model
from smelt.ir.text import print_graph
from smelt.plugins import load_plugins
from smelt.proof.deploy import time_layers
from smelt.proof.profile import profile_model, profiled
from smelt.proof.run import Rig, write_project
from smelt.proof.run import run as run_model
from smelt.samples import bind_samples, load_arrays, named_outputs, random_samples, save_arrays
from smelt.terminal import one_line, plain
from smelt.version import __version__

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
    force: ForceOption = False,
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
    check_destination(output, force=force, remedy="--force")
    console = progress_console(quiet or json_)
    with spinner(console, f"compiling {model.name}"):
        artefact = compile_model(model, options, dumper(network.dump_after))
        report = write_project(
            artefact, output, force=force, compile_=compile_, gates=limits.gates()
        )
    notes(console, artefact.notes)
    if json_:
        print_json(report)
    else:
        show.build(results_console(quiet), output, report)


app.command()(grouped(quantize))
app.command()(grouped(flash))
app.command()(grouped(verify))
app.command()(grouped(deploy))
app.command()(grouped(simulate))
app.command()(grouped(tune))
app.add_typer(board, name="board")
app.command()(grouped(export))
app.command("mlperf-tiny")(grouped(mlperf_tiny))


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
    device: DeviceOption = None,
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
    console = progress_console(quiet)
    artefact = compile_model(model, options, dumper(network.dump_after))
    samples, batched = bind_samples(artefact.graph, load_arrays(inputs))
    with bar(console, "running", len(samples)) as advance:
        result = run_model(artefact, samples, Rig(on, device_number=device), advance)
    outputs = named_outputs(artefact.graph, result.outputs, batched=batched, real=dequantize)
    if output is not None:
        save_arrays(output, outputs)
    if json_ is not None:
        write_json(json_, result.report)
    notes(console, artefact.notes)
    limits.gates().check(result.report)
    show.run(results_console(quiet), outputs, result.report, batched=batched)


@app.command()
@grouped
def profile(
    model: Model,
    *,
    on: OnOption = None,
    device: DeviceOption = None,
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
    """Measure one inference: every layer's instructions, or its time; stack, arena and flash.

    `smelt profile model.tflite --board mps2-an386`

    `smelt profile model.tflite --board mps2-an386 --cycles --html profile.html`
    """
    options = network.build_options()
    console = progress_console(quiet or json_)
    if wait_states and not cycles:
        raise ConfigError("--wait-states changes cycles only: give --cycles too")
    artefact = compile_model(model, options, dumper(network.dump_after))
    rig = Rig(on, device_number=device)
    rig.check(artefact)
    where = artefact.on if on is None else on
    counts = where == "qemu" and artefact.platform.firmware == "cortexm"
    if not counts and (cycles or html is not None):
        raise ConfigError(
            "--cycles and --html need every instruction of every layer: a --board with a Cortex-M "
            "that QEMU simulates (`smelt boards`), and --on qemu"
        )
    (sample,) = random_samples(artefact.graph, 1, seed)
    with spinner(console, "running"):
        if counts:
            counted = profile_model(artefact, sample)
            report = profiled(artefact.report, counted, cycles=cycles, wait_states=wait_states)
        else:
            ran = run_model(artefact, [sample], rig)
            ours = where in ("host", "qemu")  # firmware that is built for this
            timed = time_layers(artefact, sample, rig) if ours or ran.taps else {}
            report = {**ran.report, **timed}
    notes(console, artefact.notes)
    limits.gates().check(report)
    if html is not None:
        show_profile.write_html(html, report)
    if json_:
        print_json(report)
        return
    if counts:
        show_profile.show(Console(), report)
    elif "timer" in report:
        show_verify.layers(report).print(Console())
    else:
        console.print(
            "note: this firmware cannot tell of single layers; `smelt deploy --layers` flashes one "
            "that can"
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

    `smelt partition model.tflite --target cortex-m4 --backends cmsis_nn,dsp --place conv1=c`
    """
    options = network.build_options()
    console = progress_console(json_)
    artefact = compile_model(model, options, dumper(network.dump_after))
    notes(console, artefact.imported.notes)
    if json_:
        print_json(artefact.report["layers"])
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
    load_plugins(network.plugin_files())
    imported = load_model(model, inputs=network.options())
    if ir:
        typer.echo(print_graph(imported.graph, {}), nl=False)
    elif json_:
        print_json(show.describe(imported))
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
        print_json({"imported": imported.records(), "served": served.records()})
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
    signal.signal(signal.SIGTERM, _end)
    try:
        app(standalone_mode=True)
    except SmeltError as error:
        Console(stderr=True).print(f"[bold red]{error.kind}[/]: ", end="", highlight=False)
        # What a program or a device said may have lines; a name in any other message may not.
        shown = plain if isinstance(error, ToolError | DeviceError) else one_line
        sys.stderr.write(f"{shown(str(error))}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _end(number: int, _: object) -> None:
    """End as after an error, so that what was started ends too."""
    sys.exit(128 + number)


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


def _table(table: Callable[[], show.TextTable], json_: bool) -> None:
    if json_:
        print_json(table().records())
    else:
        table().print(Console())


if __name__ == "__main__":
    main()
