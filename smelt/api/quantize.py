"""From a float network and samples to a quantized one, and what that cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from smelt.api.quantization_notes import data_notes, result_notes
from smelt.argument_checks import as_flag, as_instance, as_integer, as_items, as_path, wrong
from smelt.codegen.passes import run_passes
from smelt.errors import ConfigError, QuantizationError
from smelt.formatting import counted
from smelt.frontend import Imported
from smelt.ir import Array, Graph, evaluate
from smelt.quant.data.folders import Preprocessing, not_images, padded, read_folder, spread
from smelt.quant.data.samples import check_arrays, check_samples
from smelt.quant.io_conversion import float_interface
from smelt.quant.quantizer import quantize, require_float
from smelt.quant.ranges.activation_statistics import evaluated
from smelt.quant.recipe import ALLOWED, RECIPES, Recipe
from smelt.quant.result import Quantized, output_noise
from smelt.samples import Sample, bind_samples, dequantize, load_arrays


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

    Raises:
        ConfigError: one is of another type.
    """

    calibration: Path
    recipe: Recipe = field(default_factory=lambda: RECIPES["default"])
    allow: frozenset[str] = frozenset()
    real_interface: bool = False
    samples: int | None = None
    preprocessing: Preprocessing | None = None

    def __post_init__(self) -> None:
        wanted = (
            "the path of an .npz or .npy file, or of a folder of images or wav files (arrays are "
            "saved by numpy.savez)"
        )
        object.__setattr__(self, "calibration", as_path(self.calibration, "calibration", wanted))
        if isinstance(self.recipe, str) and self.recipe in RECIPES:
            object.__setattr__(self, "recipe", RECIPES[self.recipe])
        names = " or ".join(map(repr, RECIPES))
        as_instance(self.recipe, "recipe", Recipe, f"a Recipe, or {names}")
        allowed = f"a set of {' and '.join(map(repr, ALLOWED))}"
        items = as_items(self.allow, "allow", allowed)
        if not all(isinstance(item, str) and item in ALLOWED for item in items):
            raise wrong("allow", allowed, self.allow)
        object.__setattr__(self, "allow", frozenset(map(str, items)))
        as_flag(self.real_interface, "real_interface")
        if self.samples is not None:
            object.__setattr__(self, "samples", as_integer(self.samples, "samples", 1))
        if self.preprocessing is not None:
            as_instance(self.preprocessing, "preprocessing", Preprocessing, "a Preprocessing")


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
        sqnr: dB over all outputs; see `smelt.quant.result.StepGain`.
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
    short = padded(settings.calibration, imported.graph)
    notes = (
        *imported.notes,
        *result_notes(quantized, settings.recipe),
        *data_notes(quantized, original, samples, short),
    )
    return Quantization(Imported(graph, notes), original, quantized, samples)


def read_samples(
    source: Path,
    graph: Graph,
    preprocessing: Preprocessing | None = None,
    count: int | None = None,
    *,
    test: bool = False,
) -> list[Sample]:
    """Samples of a float network out of a file or a folder, checked.

    Args:
        source: see `Settings.calibration`.
        graph: the network.
        preprocessing: of images; the usual one where None.
        count: how many to take, spread evenly over the file; all where None.
        test: whether they are to be measured on, not to be learnt from.

    Raises:
        QuantizationError: they cannot be learnt from, or measured on.
        ConfigError: they do not fit the network; or preprocessing of images was asked for, and
            there are none.
    """
    if source.is_dir():
        samples = read_folder(source, graph, preprocessing, count)
        _check(graph, samples, source, test)
        return samples
    if preprocessing is not None and source.exists():
        raise ConfigError(not_images(source, "arrays"))
    names = {f"input_{i}": value.name for i, value in enumerate(graph.inputs)}
    names |= {name: name for name in names.values()}
    arrays = {
        name: _single(array, f"'{source}': input '{names[name]}'") if name in names else array
        for name, array in load_arrays(source).items()
    }
    try:
        found, _ = bind_samples(graph, arrays)
    except ConfigError as error:
        raise QuantizationError(f"'{source}': {error}{_remedy(arrays)}") from error
    # Before some are chosen, so that their numbers are the file's.
    _check(graph, found, source, test)
    return spread(found, count, source)


def _check(graph: Graph, samples: Sequence[Sample], source: Path, test: bool) -> None:
    try:
        if test:
            check_arrays(graph, samples, "test sample")
        else:
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
    if labels.dtype.kind not in "iu" or labels.size != next(iter(labels.shape), 0):
        raise ConfigError(
            f"--labels {source}: an array of {labels.dtype}{list(labels.shape)}; one integer a "
            "sample is needed, the index of the class"
        )
    return labels.reshape(-1).astype(np.int64)


def compare(
    quantization: Quantization,
    samples: Sequence[Sample],
    labels: Array | None = None,
    what: str = "sample",
) -> Comparison:
    """Run both networks.

    Args:
        quantization: the networks.
        samples: for the float network.
        labels: int64 `[samples]`: the class of each.
        what: messages call a sample.

    Raises:
        ConfigError: the labels do not fit samples or network.
        QuantizationError: the float network computes something that is not finite.
    """
    original, graph = quantization.original, quantization.quantized.graph
    if labels is not None:
        _require_labels(original, len(samples), labels)
    expected = [
        evaluated(original, sample, f"{what} {index}").outputs
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
            f"{counted(len(labels), 'label')} for {counted(samples, 'sample')}: give one a sample"
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


def _single(array: Array, where: str) -> Array:
    """Floats of any width as float32.

    Raises:
        QuantizationError: a number is too large for it.
    """
    if array.dtype.kind != "f":
        return array
    with np.errstate(over="ignore"):
        single = array.astype(np.float32)
    lost = np.isinf(single) & np.isfinite(array)
    if lost.any():
        place = np.unravel_index(int(np.argmax(lost)), array.shape)
        raise QuantizationError(
            f"{where} holds {array[place]} at {list(map(int, place))} of the whole array, more "
            "than float32 does; scale it as what the network was trained on"
        )
    return single


def _remedy(arrays: Mapping[str, Array]) -> str:
    if not any(array.dtype.kind in "iu" for array in arrays.values()):
        return ""
    return "; store float32, the numbers that the float network was trained on (pixels / 255, say)"
