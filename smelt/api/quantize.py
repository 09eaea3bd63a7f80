"""Quantization of a float network with calibration samples, and measurement of the result."""

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
    """Settings of a quantization.

    Attributes:
        calibration: path of an `.npz` or `.npy` file, or of a folder of images or WAV files.
        recipe: steps of the quantization.
        allow: types allowed besides int8. `float` is used for layers without an int8 form and for
            layers that would make the outputs poor; `int16` for layers that gain by it.
        real_interface: whether inputs and outputs are float32.
        samples: number of calibration samples to use, evenly spaced; None uses all.
        preprocessing: how images become inputs; None selects the defaults.

    Raises:
        ConfigError: a value has the wrong type.
    """

    calibration: Path
    recipe: Recipe = field(default_factory=lambda: RECIPES["default"])
    allow: frozenset[str] = frozenset()
    real_interface: bool = False
    samples: int | None = None
    preprocessing: Preprocessing | None = None

    def __post_init__(self) -> None:
        wanted = (
            "the path of an .npz or .npy file, or of a folder of images or WAV files (save arrays "
            "with numpy.savez)"
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
    """A network before and after quantization.

    Attributes:
        imported: the quantized network in the form of an imported file.
        original: the float network, with weights folded and images channels last.
        quantized: the quantized network with an integer interface, and data on its quantization.
        samples: the calibration samples.
    """

    imported: Imported
    original: Graph
    quantized: Quantized
    samples: Sequence[Sample]


@dataclass(frozen=True)
class Comparison:
    """Comparison of the quantized and the float network, both computed with numpy.

    Attributes:
        samples: number of samples.
        sqnr: signal-to-quantization-noise ratio over all outputs in dB; see
            `smelt.quant.result.StepGain`.
        outputs: the same ratio for each output.
        accuracy, original_accuracy: share of the samples for which the largest element of the first
            output is at the label's index; None without labels.
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
        imported: the float network.
        settings: settings of the quantization.
        measure: whether to measure the noise of each step and layer, which is slow.

    Raises:
        QuantizationError: the calibration data cannot be used.
        UnsupportedError: an operator has no int8 form and floats are not allowed, or the network
            is already quantized.
        ConfigError: the data does not match the network.
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
    """Read and check samples of a float network from a file or folder.

    Args:
        source: see `Settings.calibration`.
        graph: the float network.
        preprocessing: how images become inputs; None selects the defaults.
        count: number of samples to return, evenly spaced over the file; None returns all.
        test: whether the samples are for measuring rather than for calibration.

    Raises:
        QuantizationError: the samples cannot be used for calibration or measuring.
        ConfigError: the samples do not match the network, or `preprocessing` is given and the
            source contains no images.
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
    # Check before selecting samples, so that messages number them as in the file.
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
    """Return the classes of samples as int64 `[n]`, from an `.npy` file or an `.npz` as FILE:NAME.

    Raises:
        ConfigError: there is no such array, or it does not contain one integer per sample.
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
            f"--labels {source}: name the array of labels as {path}:NAME; the file contains "
            f"{', '.join(sorted(arrays)) or 'no array'}"
        )
    labels = arrays[name]
    if labels.dtype.kind not in "iu" or labels.size != next(iter(labels.shape), 0):
        raise ConfigError(
            f"--labels {source}: the array is {labels.dtype}{list(labels.shape)}; give one integer "
            "per sample, the index of its class"
        )
    return labels.reshape(-1).astype(np.int64)


def compare(
    quantization: Quantization,
    samples: Sequence[Sample],
    labels: Array | None = None,
    what: str = "sample",
) -> Comparison:
    """Run both networks and compare their outputs.

    Args:
        quantization: the two networks.
        samples: inputs of the float network.
        labels: class of each sample, int64 `[samples]`, or None.
        what: word for a sample in messages.

    Raises:
        ConfigError: the labels do not match the samples or the network.
        QuantizationError: the float network computes a value that is not finite.
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
    """Convert samples of a float network to the quantized network's input types."""
    columns = map(np.stack, zip(*samples, strict=True))
    names = [value.name for value in graph.inputs]
    return bind_samples(graph, dict(zip(names, columns, strict=True)))[0]


def _accuracy(outputs: Sequence[Sequence[Array]], labels: Array) -> float:
    hits = sum(int(s[0].argmax()) == int(c) for s, c in zip(outputs, labels, strict=True))
    return hits / len(labels)


def _require_labels(graph: Graph, samples: int, labels: Array) -> None:
    if len(labels) != samples:
        raise ConfigError(
            f"{counted(len(labels), 'label')} for {counted(samples, 'sample')}: give one label per "
            "sample"
        )
    output = graph.outputs[0]
    classes = output.type.size
    if output.type.shape[-1:] != (classes,) or classes < 2:
        raise ConfigError(
            f"output '{output.name}' is {output.type}: to use labels, the output needs one element "
            "per class and at least 2 classes"
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise ConfigError(
            f"labels from {labels.min()} to {labels.max()}: output '{output.name}' has {classes} "
            f"classes, numbered 0 to {classes - 1}"
        )


def _single(array: Array, where: str) -> Array:
    """Convert floats of any width to float32.

    Raises:
        QuantizationError: a number exceeds the range of float32.
    """
    if array.dtype.kind != "f":
        return array
    with np.errstate(over="ignore"):
        single = array.astype(np.float32)
    lost = np.isinf(single) & np.isfinite(array)
    if lost.any():
        place = np.unravel_index(int(np.argmax(lost)), array.shape)
        raise QuantizationError(
            f"{where}: element {list(map(int, place))} is {array[place]}, which exceeds float32; "
            "scale the data like the network's training data"
        )
    return single


def _remedy(arrays: Mapping[str, Array]) -> str:
    if not any(array.dtype.kind in "iu" for array in arrays.values()):
        return ""
    return "; store float32 values like the network's training data, for example pixels / 255"
