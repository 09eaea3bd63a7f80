"""`smelt quantize`: quantize a float network to int8 and report the loss of accuracy."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from smelt.api.plugins import load_plugins
from smelt.api.quantize import (
    Comparison,
    Quantization,
    Settings,
    compare,
    quantize_network,
    read_labels,
    read_samples,
)
from smelt.cli.options import InputGroup, JsonOption, Model, QuietOption
from smelt.cli.output import say
from smelt.cli.quant_options import QuantGroup
from smelt.cli.show import quantize as show_quantize
from smelt.errors import ConfigError
from smelt.files import temporary_folder, write_files
from smelt.frontend import load as load_model
from smelt.ir import Array, Graph
from smelt.ir.archive import save
from smelt.quant.data.folders import holds_images


@dataclass(frozen=True)
class WrittenGroup:
    """Options for the output files."""

    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the int8 network: a .smelt file.")
    ] = None
    qdq: Annotated[
        Path | None,
        typer.Option(
            "--qdq", help="Write it as ONNX with QuantizeLinear and DequantizeLinear nodes."
        ),
    ] = None
    report: Annotated[
        Path | None, typer.Option("--report", help="Write an HTML page of ranges and noise.")
    ] = None

    def check_suffixes(self) -> None:
        """Raise a `ConfigError` if a file has the wrong suffix."""
        _require_suffix("-o", self.output, ".smelt")
        _require_suffix("--qdq", self.qdq, ".onnx")

    def contents(
        self, done: Quantization, found: dict[str, Any], model: Path, calibration: Path
    ) -> dict[Path, bytes]:
        """Return the contents of each output file.

        Args:
            done: the quantized network.
            found: the report that the HTML page shows.
            model: file of the float network.
            calibration: file or folder of the calibration samples.

        Raises:
            ConfigError: two output files have the same name, or one is also an input file.
        """
        contents: dict[Path, bytes] = {}
        if self.output is not None:
            contents[self.output] = _archive(done.imported.graph)
        if self.qdq is not None:
            contents[self.qdq] = _qdq(done, model)
        if self.report is not None:
            contents[self.report] = show_quantize.html(found).encode()
        if len(contents) < sum(path is not None for path in (self.output, self.qdq, self.report)):
            raise ConfigError("-o, --qdq and --report name the same file")
        for path in contents:
            if path.resolve() in (model.resolve(), calibration.resolve()):
                raise ConfigError(f"'{path}' is an input file: choose another output file")
        return contents


def quantize(
    model: Model,
    *,
    written: WrittenGroup,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples", min=1, help="Number of calibration samples, evenly spaced [default: all]."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random choices.")] = 0,
    test: Annotated[
        Path | None,
        typer.Option(
            "--test", help="Samples to measure the accuracy on [default: the calibration samples]."
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            help="Class of each measured sample, to report accuracy: an .npy file, or .npz:NAME.",
        ),
    ] = None,
    options: QuantGroup,
    network: InputGroup,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Quantize a float network to int8.

    `smelt quantize net.onnx --calibration samples.npz -o net.smelt`

    `smelt quantize net.onnx --calibration photos/ --mean 127.5 --std 127.5 -o net.smelt
    --report net.html`

    `smelt quantize net.tflite --calibration train.npz --test test.npz --labels test.npz:y
    --recipe best -o net.smelt --qdq net_int8.onnx`
    """
    given = options.settings(samples, seed)
    settings = _for_source(given, given.calibration, test)
    written.check_suffixes()
    console = Console(stderr=True, quiet=quiet or json_)
    load_plugins(network.plugin_files())
    imported = load_model(model, inputs=replace(network.options(), batch=1))
    with console.status(f"quantizing {model.name}"):
        done = quantize_network(imported, settings, measure=True)
        comparison, measured_on = _compare(done, given, test, labels)
        found = show_quantize.report(done, comparison, str(measured_on))
        contents = written.contents(done, found, model, settings.calibration)
    write_files(contents)
    for note in done.imported.notes:
        say(console, f"note: {note}")
    if json_:
        typer.echo(json.dumps(found, indent=2))
    else:
        _show(Console(quiet=quiet), found, list(contents))


def _compare(
    done: Quantization, settings: Settings, test: Path | None, labels: str | None
) -> tuple[Comparison, Path]:
    """Compare both networks on the test or calibration samples; with labels, use every sample."""
    classes: Array | None = None if labels is None else read_labels(labels)
    source = settings.calibration if test is None else test
    samples = done.samples
    if test is not None or (classes is not None and settings.samples is not None):
        own = _for_source(settings, source, settings.calibration)
        samples = read_samples(source, done.original, own.preprocessing, test=test is not None)
    elif classes is None:
        # Skip ignored samples: the float network may be unable to compute them.
        ignored = done.quantized.ignored
        samples = [sample for index, sample in enumerate(samples) if index not in ignored]
    what = "calibration sample" if test is None else "test sample"
    return compare(done, samples, classes, what), source


def _for_source(settings: Settings, source: Path, other: Path | None) -> Settings:
    """Drop the image options if `source` has no images, but `other` does."""
    if other is not None and holds_images(other) and not holds_images(source):
        return replace(settings, preprocessing=None)
    return settings


def _archive(graph: Graph) -> bytes:
    with temporary_folder() as folder:
        path = Path(folder) / "network.smelt"
        save(graph, path)
        return path.read_bytes()


def _qdq(done: Quantization, model: Path) -> bytes:
    # Import onnx here: the import is slow, and other commands do not need it.
    import onnx

    from smelt.quant.qdq import export

    names: list[str] | None = None
    if model.suffix.lower() == ".onnx":
        # Use the file's output names, which other tools expect; the graph's names may differ.
        names = [value.name for value in onnx.load(model, load_external_data=False).graph.output]
    return export(done.quantized.graph, done.original, names)


def _require_suffix(option: str, path: Path | None, suffix: str) -> None:
    if path is not None and path.suffix.lower() != suffix:
        raise ConfigError(f"{option} {path}: the name must end in {suffix}")


def _show(console: Console, found: dict[str, Any], written: list[Path]) -> None:
    show_quantize.show(console, found)
    for path in written:
        say(console, f"wrote {path}")
