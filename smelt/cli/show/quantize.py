"""Output of `smelt quantize`: terminal tables, an HTML page and JSON records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import isfinite
from typing import Any

from rich.console import Console

from smelt.api.quantization_cost import non_int8_costs
from smelt.api.quantize import Comparison, Quantization
from smelt.cli.output import say
from smelt.cli.show.html import page
from smelt.cli.show.tables import TextTable
from smelt.codegen.text.parameters import Parameters
from smelt.formatting import counted
from smelt.ir import TensorType
from smelt.quant.result import Layer, noisiest_layers
from smelt.version import __version__

_COLUMNS = ("layer", "operator", "type", "SQNR", "adds", "range", "seen", "")
_LOSS = 0.1
"""Explain a step that lowers the outputs' SQNR by at least this many dB."""

_WIDTH, _HEIGHT = 220.0, 70.0
"""Width and height of a histogram in SVG units."""


def report(quantization: Quantization, comparison: Comparison, measured_on: str) -> dict[str, Any]:
    """Return the full report as JSON-compatible data; infinite numbers become None.

    Args:
        quantization: the float and the quantized network.
        comparison: results of running both networks.
        measured_on: name of the samples that were compared.
    """
    quantized = quantization.quantized
    graph = quantized.graph
    return {
        "smelt": __version__,
        "network": graph.name,
        "recipe": asdict(quantized.recipe),
        "calibration_samples": quantized.samples,
        "ignored_samples": list(quantized.ignored),
        "notes": list(quantization.imported.notes),
        "sqnr_db": _finite(quantized.sqnr),
        "inputs": [_interface(v.name, v.type) for v in graph.inputs],
        "outputs": [_interface(v.name, v.type) for v in graph.outputs],
        "steps": [
            {
                "name": step.name,
                "sqnr_db": _finite(step.sqnr),
                "outputs_db": [_finite(x) for x in step.outputs],
            }
            for step in quantized.steps
        ],
        "measured": {
            "on": measured_on,
            "samples": comparison.samples,
            "sqnr_db": _finite(comparison.sqnr),
            "outputs_db": [_finite(x) for x in comparison.outputs],
            "accuracy": comparison.accuracy,
            "accuracy_float": comparison.original_accuracy,
        },
        "exceptions": [asdict(layer) for layer in quantized.exceptions],
        "costs": [asdict(cost) | {"text": str(cost)} for cost in non_int8_costs(quantized)],
        "hurting": noisiest_layers(quantized.layers),
        "layers": [_layer(layer) for layer in quantized.layers],
    }


def _layer(layer: Layer) -> dict[str, Any]:
    scale, zero_point = (None, None) if layer.quant is None else layer.quant.scalar
    return {
        "name": layer.name,
        "operator": layer.op,
        "origin": layer.origin,
        "type": layer.dtype,
        "scale": scale,
        "zero_point": zero_point,
        "sqnr_db": _finite(layer.sqnr),
        "added_db": _finite(layer.added),
        "low": _finite(layer.low),
        "high": _finite(layer.high),
        "least": _finite(layer.least),
        "greatest": _finite(layer.greatest),
        "histogram": [int(count) for count in layer.counts],
        "equalized": layer.equalized,
    }


def _interface(name: str, type_: TensorType) -> dict[str, Any]:
    scale, zero_point = (None, None) if type_.quant is None else type_.quant.scalar
    return {
        "name": name,
        "shape": list(type_.shape),
        "type": type_.dtype.numpy.name,
        "scale": scale,
        "zero_point": zero_point,
    }


def _finite(number: float) -> float | None:
    return float(number) if isfinite(number) else None


def show(console: Console, found: Mapping[str, Any]) -> None:
    """Print the tables of a report."""
    steps(found).print(console)
    for line in losses(found):
        say(console, line)
    console.print()
    layers(found).print(console)
    console.print()
    for line in summary(found):
        say(console, line)


def steps(found: Mapping[str, Any]) -> TextTable:
    """Return a table of the quantization steps and their gains in dB."""
    rows: list[tuple[object, ...]] = []
    before: float | None = None
    for step in found["steps"]:
        now = step["sqnr_db"]
        gain = "" if before is None or now is None else f"{now - before:+.1f} dB"
        rows.append((step["name"], decibels(now), gain))
        before = now
    return TextTable(("step", "SQNR", "gain"), tuple(rows))


def losses(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences that explain why a step may have made the outputs worse."""
    pairs = [(step["name"], step["sqnr_db"]) for step in found["steps"]]
    lost = [
        f"'{name}' costs {before - now:.1f} dB"
        for (_, before), (name, now) in pairwise(pairs)
        if before is not None and now is not None and before - now >= _LOSS
    ]
    if lost:
        yield (
            f"{' and '.join(lost)} on the calibration samples. Until the weight rounding step, "
            "each step is measured with weights rounded to nearest. Ranges are chosen to suit "
            "unseen samples; use --test to measure on these"
        )


def layers(found: Mapping[str, Any]) -> TextTable:
    """Return a table with one row per stored tensor."""
    worst = found["hurting"]
    return TextTable(
        _COLUMNS,
        tuple(
            (
                layer["name"],
                layer["operator"],
                layer["type"],
                decibels(layer["sqnr_db"]),
                decibels(layer["added_db"]),
                _range(layer["low"], layer["high"]),
                _range(layer["least"], layer["greatest"]),
                ", ".join(_remarks(layer, worst)),
            )
            for layer in found["layers"]
        ),
    )


def _remarks(layer: Mapping[str, Any], worst: Sequence[str]) -> Iterator[str]:
    if layer["name"] in worst:
        yield f"noise #{worst.index(layer['name']) + 1}"
    if layer["equalized"]:
        yield "equalized"


def _range(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.4g} … {high:.4g}"


def decibels(number: float | None) -> str:
    """Format a ratio in dB, or `exact` if there is no noise."""
    return "exact" if number is None else f"{number:.1f} dB"


def summary(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences that sum up the result."""
    measured = found["measured"]
    yield (
        f"SQNR of the outputs {decibels(measured['sqnr_db'])} on "
        f"{counted(measured['samples'], 'sample')} of {measured['on']}"
    )
    if len(measured["outputs_db"]) > 1:
        names = [value["name"] for value in found["outputs"]]
        yield ", ".join(
            f"{name} {decibels(db)}" for name, db in zip(names, measured["outputs_db"], strict=True)
        )
    if measured["accuracy"] is not None:
        change = measured["accuracy"] - measured["accuracy_float"]
        yield (
            f"accuracy {measured['accuracy']:.2%}, float {measured['accuracy_float']:.2%}: "
            f"{100 * change:+.2f} points"
        )
    for cost in found["costs"]:
        yield cost["text"]
    for layer in found["exceptions"]:
        yield f"{layer['dtype']}: '{layer['name']}' ({layer['op']}): {layer['reason']}"
    if not found["exceptions"]:
        yield "every layer is int8"


@dataclass(frozen=True, kw_only=True)
class RangePlot:
    """Histogram of a layer's outputs, with lengths formatted as SVG text.

    Attributes:
        name, operator: name and operator of the layer.
        bars: left, width, top and height of each bar of the histogram.
        range: left and right end of the range of the integers, or None if there is none.
        shaded: width of that range.
        zero: position of zero, or empty if zero is outside the drawing.
        chosen, seen: the chosen range and the observed range as text.
    """

    name: str
    operator: str
    bars: tuple[tuple[str, str, str, str], ...]
    range: tuple[str, str] | None
    shaded: str
    zero: str
    chosen: str
    seen: str


@dataclass(frozen=True, kw_only=True)
class QuantizeParameters(Parameters):
    """Variables of `report/quantize.html.j2`.

    Attributes:
        network, smelt: the network and Smelt's version.
        samples: number of calibration samples.
        recipe: names and values of the recipe's settings.
        summary, losses: one paragraph each.
        steps: cells of each step, and the width of its bar in percent.
        columns: headings of the layers' table.
        rows: cells of each layer, and the widths of its two bars: total noise and added noise.
        histograms: one per layer.
        width, height: size of a histogram in SVG units.
    """

    network: str
    smelt: str
    samples: int
    recipe: tuple[tuple[str, object], ...]
    summary: tuple[str, ...]
    steps: tuple[tuple[tuple[object, ...], str], ...]
    losses: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[tuple[object, ...], str, str], ...]
    histograms: tuple[RangePlot, ...]
    width: float
    height: float


def html(found: Mapping[str, Any]) -> str:
    """Return a self-contained HTML page of the report."""
    table = layers(found)
    noise, added = (
        _widths([layer[key] for layer in found["layers"]]) for key in ("sqnr_db", "added_db")
    )
    parameters = QuantizeParameters(
        network=found["network"],
        smelt=found["smelt"],
        samples=found["calibration_samples"],
        recipe=tuple((key.replace("_", " "), value) for key, value in found["recipe"].items()),
        summary=tuple(summary(found)),
        steps=_bars(steps(found).rows, [step["sqnr_db"] for step in found["steps"]]),
        losses=tuple(losses(found)),
        columns=table.columns,
        rows=tuple(zip(table.rows, noise, added, strict=True)),
        histograms=tuple(map(_histogram, found["layers"])),
        width=_WIDTH,
        height=_HEIGHT,
    )
    return page("quantize.html.j2", parameters)


def _bars(
    rows: Sequence[tuple[object, ...]], numbers: Sequence[float | None]
) -> tuple[tuple[tuple[object, ...], str], ...]:
    return tuple(zip(rows, _widths(numbers), strict=True))


def _widths(numbers: Sequence[float | None]) -> list[str]:
    """Return bar widths for dB values, in percent of the longest; None (exact) gives 100 %."""
    known = [max(number, 0.0) for number in numbers if number is not None]
    most = max(known, default=0.0) or 1.0
    return [f"{100.0 if x is None else 100.0 * max(x, 0.0) / most:.2f}" for x in numbers]


def _histogram(layer: Mapping[str, Any]) -> RangePlot:
    """Draw the histogram of a layer's outputs, and the ends of the range of its integers.

    Heights are square roots of the counts, so that tails beyond the range stay visible. The
    tallest bar, often that of zeros, is cut to the height of the second tallest.
    """
    ends = [layer[key] for key in ("least", "greatest", "low", "high") if layer[key] is not None]
    left, right = min(ends, default=0.0), max(ends, default=1.0)
    span = (right - left) or 1.0

    def across(number: float) -> float:
        return _WIDTH * (number - left) / span

    counts = layer["histogram"]
    most = max(sorted(counts)[-2:-1], default=0) or 1
    least, greatest = layer["least"] or 0.0, layer["greatest"] or 0.0
    step = across(greatest) - across(least)
    width = max(step / max(len(counts), 1), 0.5)
    bars = [
        (across(least) + index * step / len(counts), width, _HEIGHT * min(count / most, 1.0) ** 0.5)
        for index, count in enumerate(counts)
        if count
    ]
    low, high = layer["low"], layer["high"]
    chosen = None if low is None or high is None else (across(low), across(high))
    return RangePlot(
        name=layer["name"],
        operator=layer["operator"],
        bars=tuple((f"{x:.2f}", f"{w:.2f}", f"{_HEIGHT - h:.2f}", f"{h:.2f}") for x, w, h in bars),
        range=None if chosen is None else (f"{chosen[0]:.2f}", f"{chosen[1]:.2f}"),
        shaded="" if chosen is None else f"{max(chosen[1] - chosen[0], 0.5):.2f}",
        zero=f"{across(0.0):.2f}" if left <= 0.0 <= right else "",
        chosen=_range(low, high),
        seen=_range(layer["least"], layer["greatest"]),
    )
