"""From a float network and samples to a quantized one, and what that cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from smelt.codegen.passes import run_passes
from smelt.errors import ConfigError, QuantizationError
from smelt.frontend import Imported
from smelt.ir import Array, Graph, evaluate
from smelt.quant.data import Preprocessing, not_images, read_folder, spread
from smelt.quant.interface import float_interface
from smelt.quant.observation import evaluated
from smelt.quant.quantized import Quantized, hurting, output_noise
from smelt.quant.quantizer import quantize, require_float
from smelt.quant.recipe import RECIPES, Recipe
from smelt.quant.samples import check_samples
from smelt.quant_cost import island_costs
from smelt.samples import Sample, bind_samples, dequantize, load_arrays

FEW = 32
"""Fewer samples than this are said to be few."""

POOR = 12.0
"""Outputs that are less than so many dB above the noise are said to be poor."""


@dataclass(frozen=True)
class Settings:
    """How a network is quantized.

    Attributes:
        calibration: an `.npz` or `.npy` file, or a folder of images or wav files.
        recipe: the steps.
        allow: what layers may be: `float` those that have no int8 form, and those without which the
            outputs are poor; `int16` those that gain by it.
        real_interface: whether inputs and outputs are float32.
        samples: how many of the calibration samples are used; all where None.
        preprocessing: of images; the usual one where None.
    """

    calibration: Path
    recipe: Recipe = field(default_factory=lambda: RECIPES["default"])
    allow: frozenset[str] = frozenset()
    real_interface: bool = False
    samples: int | None = None
    preprocessing: Preprocessing | None = None


@dataclass(frozen=True)
class Quantization:
    """A network before and after.

    Attributes:
        imported: the quantized network, as if it came from a file.
        original: the float network; weights folded, images channels last.
        quantized: the quantized network with integers at its interface, and how it came about.
        samples: what it was calibrated on.
    """

    imported: Imported
    original: Graph
    quantized: Quantized
    samples: Sequence[Sample]


@dataclass(frozen=True)
class Comparison:
    """The quantized network beside the float one, both in numpy.

    Attributes:
        samples: how many.
        sqnr: dB over all outputs; see `smelt.quant.quantized.StepGain`.
        outputs: dB of each output.
        accuracy, original_accuracy: share of the samples whose largest element of the first output
            is where the label says; None without labels.
    """

    samples: int
    sqnr: float
    outputs: tuple[float, ...]
    accuracy: float | None = None
    original_accuracy: float | None = None


def quantize_network(
    imported: Imported, settings: Settings, *, measure: bool = False
) -> Quantization:
    """Quantize a float network.

    Args:
        imported: the network.
        settings: how.
        measure: whether each step and each layer is measured, which takes time.

    Raises:
        QuantizationError: the calibration data is unusable.
        UnsupportedError: an operator has no int8 form, and floats are not allowed; or the network
            is quantized already.
        ConfigError: the data does not fit the network.
    """
    require_float(imported.graph)
    samples = read_samples(
        settings.calibration, imported.graph, settings.preprocessing, settings.samples
    )
    original = run_passes(imported.graph)
    try:
        quantized = quantize(original, samples, settings.recipe, settings.allow, measure=measure)
    except QuantizationError as error:
        raise QuantizationError(f"'{settings.calibration}': {error}") from error
    graph = float_interface(quantized.graph) if settings.real_interface else quantized.graph
    notes = (*imported.notes, *_notes(quantized, settings.recipe))
    return Quantization(Imported(graph, notes), original, quantized, samples)


def read_samples(
    source: Path,
    graph: Graph,
    preprocessing: Preprocessing | None = None,
    count: int | None = None,
) -> list[Sample]:
    """Samples of a float network out of a file or a folder, checked.

    Args:
        source: see `Settings.calibration`.
        graph: the network.
        preprocessing: of images; the usual one where None.
        count: how many to take, spread evenly over the file; all where None.

    Raises:
        QuantizationError: they cannot be learnt from.
        ConfigError: they do not fit the network; or preprocessing of images was asked for, and
            there are none.
    """
    if source.is_dir():
        samples = read_folder(source, graph, preprocessing, count)
        _check(graph, samples, source)
        return samples
    if preprocessing is not None and source.exists():
        raise ConfigError(not_images(source, "arrays"))
    arrays = {name: _single(array) for name, array in load_arrays(source).items()}
    try:
        found, _ = bind_samples(graph, arrays)
    except ConfigError as error:
        raise QuantizationError(f"'{source}': {error}{_remedy(arrays)}") from error
    # Before some are chosen, so that their numbers are the file's.
    _check(graph, found, source)
    return spread(found, count, source)


def _check(graph: Graph, samples: Sequence[Sample], source: Path) -> None:
    try:
        check_samples(graph, samples)
    except QuantizationError as error:
        raise QuantizationError(f"'{source}': {error}") from error


def read_labels(source: str) -> Array:
    """The classes of samples: int64 `[n]`, out of an `.npy` file, or an `.npz` as FILE:NAME.

    Raises:
        ConfigError: there is no such array, or it does not hold one integer a sample.
    """
    path, name = Path(source), ""
    if not path.exists() and ":" in source:
        head, _, name = source.rpartition(":")
        path = Path(head)
    arrays = load_arrays(path)
    if not name and len(arrays) == 1:
        (name,) = arrays
    if name not in arrays:
        raise ConfigError(
            f"--labels {source}: say which array holds the labels, as {path}:NAME; the file has "
            f"{', '.join(sorted(arrays)) or 'nothing'}"
        )
    labels = arrays[name]
    if labels.dtype.kind not in "iu" or labels.size != labels.shape[0]:
        raise ConfigError(
            f"--labels {source}: an array of {labels.dtype}{list(labels.shape)}; one integer a "
            "sample is needed, the index of the class"
        )
    return labels.reshape(-1).astype(np.int64)


def compare(
    quantization: Quantization, samples: Sequence[Sample], labels: Array | None = None
) -> Comparison:
    """Run both networks.

    Args:
        quantization: the networks.
        samples: for the float network.
        labels: int64 `[samples]`: the class of each.

    Raises:
        ConfigError: the labels do not fit samples or network.
        QuantizationError: the float network computes something that is not finite.
    """
    original, graph = quantization.original, quantization.quantized.graph
    if labels is not None:
        _require_labels(original, len(samples), labels)
    expected = [
        evaluated(original, sample, f"sample {index}").outputs
        for index, sample in enumerate(samples)
    ]
    found = [
        tuple(
            dequantize(array, value.type)
            for array, value in zip(evaluate(graph, s).outputs, graph.outputs, strict=True)
        )
        for s in as_stored(graph, samples)
    ]
    total, outputs = output_noise(expected, found)
    if labels is None:
        return Comparison(len(samples), total, outputs)
    return Comparison(
        len(samples), total, outputs, _accuracy(found, labels), _accuracy(expected, labels)
    )


def as_stored(graph: Graph, samples: Sequence[Sample]) -> list[Sample]:
    """Samples of a float network in the element types of the quantized network's inputs."""
    columns = map(np.stack, zip(*samples, strict=True))
    names = [value.name for value in graph.inputs]
    return bind_samples(graph, dict(zip(names, columns, strict=True)))[0]


def _accuracy(outputs: Sequence[Sequence[Array]], labels: Array) -> float:
    hits = sum(int(s[0].argmax()) == int(c) for s, c in zip(outputs, labels, strict=True))
    return hits / len(labels)


def _require_labels(graph: Graph, samples: int, labels: Array) -> None:
    if len(labels) != samples:
        raise ConfigError(
            f"there are {len(labels)} labels and {samples} samples: give one a sample"
        )
    output = graph.outputs[0]
    classes = output.type.size
    if output.type.shape[-1:] != (classes,) or classes < 2:
        raise ConfigError(
            f"output '{output.name}' is {output.type}: labels need one element a class, and 2 "
            "classes at least"
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise ConfigError(
            f"labels from {labels.min()} to {labels.max()}: output '{output.name}' has {classes} "
            f"classes, 0 to {classes - 1}"
        )


def _single(array: Array) -> Array:
    """Floats of any width as float32; what is too large becomes infinite, and is found then."""
    if array.dtype.kind != "f":
        return array
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _remedy(arrays: Mapping[str, Array]) -> str:
    if not any(array.dtype.kind in "iu" for array in arrays.values()):
        return ""
    return "; store float32, the numbers that the float network was trained on (pixels / 255, say)"


def _notes(quantized: Quantized, asked: Recipe) -> list[str]:
    notes = [
        f"quantized on {_counted(quantized.samples, 'sample')}: the outputs' signal is "
        f"{quantized.sqnr:.1f} dB above the noise"
    ]
    if quantized.samples < FEW:
        notes.append(
            f"only {_counted(quantized.samples, 'calibration sample')}: 100 or more, of all kinds "
            "that the device will see, give better ranges"
        )
    if quantized.ignored:
        notes.append(
            f"calibration samples {', '.join(map(str, quantized.ignored))} of those used were left "
            "out: far louder than all others"
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


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
