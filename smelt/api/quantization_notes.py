"""What is said of a quantization: what it cost, and what is odd about its calibration data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from smelt.api.quantization_cost import island_costs
from smelt.ir import Graph
from smelt.quant.data.samples import doubtful
from smelt.quant.recipe import Recipe
from smelt.quant.result import Quantized, hurting
from smelt.samples import Sample

FEW = 32
"""Fewer samples than this are said to be few."""

POOR = 12.0
"""Outputs that are less than so many dB above the noise are said to be poor."""

_NAMED = 20
"""How many samples or files a note names."""


def result_notes(quantized: Quantized, asked: Recipe) -> list[str]:
    """What it was quantized on, where the recipe was not followed, the cost, the exceptions."""
    notes = [
        f"quantized on {_counted(quantized.samples, 'sample')}: the outputs' signal is "
        f"{quantized.sqnr:.1f} dB above the noise"
    ]
    if quantized.samples < FEW:
        notes.append(
            f"only {_counted(quantized.samples, 'calibration sample')}: 100 or more, of all kinds "
            "that the device will see, give better ranges"
        )
    if quantized.recipe.ranges != asked.ranges:
        notes.append(
            f"ranges are {quantized.recipe.ranges}: found on one half of the calibration samples, "
            f"those of {asked.ranges} make the outputs of the other half noisier"
        )
    if quantized.sqnr < POOR:
        layers = ", ".join(f"'{name}'" for name in hurting(quantized.layers)[:3])
        notes.append(
            f"{POOR:.0f} dB and less is poor: look at "
            + (f"{layers}, which add most noise" if layers else "what `smelt quantize` shows")
            + ", whether the samples are those that the network was trained on, and try --recipe "
            "best or --allow int16"
        )
    notes += [str(cost) for cost in island_costs(quantized)]
    notes += [
        f"layer '{island.name}' ({island.op}) is {island.dtype}: {island.reason}"
        for island in quantized.exceptions
    ]
    return notes


def data_notes(
    quantized: Quantized, original: Graph, samples: Sequence[Sample], short: Sequence[Path]
) -> list[str]:
    """What is odd about calibration data.

    Args:
        quantized: the network.
        original: the float network.
        samples: what it was calibrated on.
        short: sounds that are shorter than the input.
    """
    notes: list[str] = []
    if quantized.ignored:
        notes.append(
            f"calibration {_numbered(quantized.ignored)} of those used "
            f"{'was' if len(quantized.ignored) == 1 else 'were'} left out: far louder than the "
            "others; if they are genuine, give more like them"
        )
    loud = doubtful(original, samples)
    if loud:
        notes.append(
            f"calibration {_numbered(loud)} of those used "
            f"{'is' if len(loud) == 1 else 'are'} far louder than the others, but too many to be "
            "left out as mistakes: ranges reach as far as they do; remove them if they are wrong"
        )
    if short:
        names = ", ".join(f"'{file.name}'" for file in short[:_NAMED])
        notes.append(
            f"{_counted(len(short), 'sound')} shorter than the input, followed by zeros: {names}"
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
