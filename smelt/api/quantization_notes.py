"""Notes for the user on a quantization: its result, and problems of the calibration data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from smelt.api.quantization_cost import non_int8_costs
from smelt.ir import Graph
from smelt.quant.data.samples import doubtful
from smelt.quant.recipe import Recipe
from smelt.quant.result import Quantized, noisiest_layers
from smelt.samples import Sample

FEW = 32
"""If there are fewer calibration samples than this, a note says so."""

POOR = 12.0
"""If the signal-to-noise ratio of the outputs is below this, in dB, a note says so."""

_NAMED = 20
"""Maximum number of samples or files that a note lists."""


def result_notes(quantized: Quantized, requested: Recipe) -> list[str]:
    """Return notes on the samples, the recipe, the noise, costs, and layers that are not int8."""
    notes = [
        f"quantized on {_counted(quantized.samples, 'sample')}: the outputs' signal is "
        f"{quantized.sqnr:.1f} dB above the noise"
    ]
    if quantized.samples < FEW:
        notes.append(
            f"only {_counted(quantized.samples, 'calibration sample')}: 100 or more that represent "
            "all inputs on the device give better ranges"
        )
    if quantized.recipe.ranges != requested.ranges:
        notes.append(
            f"ranges are {quantized.recipe.ranges} instead of {requested.ranges}, which made the "
            "outputs noisier in cross-validation on halves of the calibration samples"
        )
    if quantized.sqnr < POOR:
        layers = ", ".join(f"'{name}'" for name in noisiest_layers(quantized.layers)[:3])
        notes.append(
            f"less than {POOR:.0f} dB is poor: check "
            + (f"{layers}, which add most noise" if layers else "the table of `smelt quantize`")
            + ", check that the samples are like the network's training data, and try --recipe "
            "best or --allow int16"
        )
    notes += [str(cost) for cost in non_int8_costs(quantized)]
    notes += [
        f"layer '{layer.name}' ({layer.op}) is {layer.dtype}: {layer.reason}"
        for layer in quantized.exceptions
    ]
    return notes


def data_notes(
    quantized: Quantized, original: Graph, samples: Sequence[Sample], short: Sequence[Path]
) -> list[str]:
    """Return notes on problems of the calibration data.

    Args:
        quantized: the quantized network.
        original: the float network.
        samples: the calibration samples.
        short: sound files that are shorter than the input.
    """
    notes: list[str] = []
    if quantized.ignored:
        notes.append(
            f"calibration {_numbered(quantized.ignored)} of those used "
            f"{'was' if len(quantized.ignored) == 1 else 'were'} ignored: far larger values than "
            "the others; if they are genuine, add more like them"
        )
    loud = doubtful(original, samples)
    if loud:
        notes.append(
            f"calibration {_numbered(loud)} of those used "
            f"{'has' if len(loud) == 1 else 'have'} far larger values than the others, but are too "
            "many to ignore: the ranges include them; remove them if they are wrong"
        )
    if short:
        names = ", ".join(f"'{file.name}'" for file in short[:_NAMED])
        notes.append(
            f"{_counted(len(short), 'sound')} shorter than the input, padded with zeros: {names}"
            + _rest(len(short))
        )
    return notes


def _numbered(indices: Sequence[int]) -> str:
    listed = ", ".join(map(str, indices[:_NAMED])) + _rest(len(indices))
    return f"sample{'' if len(indices) == 1 else 's'} {listed}"


def _rest(count: int) -> str:
    return f" and {count - _NAMED} more" if count > _NAMED else ""


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
