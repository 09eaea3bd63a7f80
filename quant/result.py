"""Result of a quantization: the network, and measurements of its noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.ir import Array, Graph, Quant
from smelt.quant.ranges.activation_statistics import finite
from smelt.quant.recipe import Recipe

SILENT = 1e-30
"""Power below which signal and noise are considered zero."""


def sqnr(signal: float, noise: float) -> float:
    """Return signal / noise (sums of squares) in dB; infinite without noise."""
    if noise <= SILENT:
        return float("inf")
    return float(10.0 * np.log10(max(signal, SILENT) / noise))


@dataclass(frozen=True)
class Layer:
    """A stored tensor of the quantized network, compared with the float network.

    Real numbers are those of the equalized float network. If `equalized`, each channel's scale
    differs from that of the file.

    Attributes:
        name: name of the tensor.
        op: operator that computes it; `input` for an input of the network.
        origin: operator of the model file; empty for an input.
        dtype: stored type: `i8` or `i16`.
        quant: quantization of the stored integers; None for float.
        sqnr: dB relative to the float network, with all noise up to here including the inputs'.
        added: dB of the noise that this layer alone adds, given exact rounded inputs.
        low, high: real numbers of the smallest and largest stored integer.
        least, greatest: observed minimum and maximum.
        counts: histogram of observed elements, int64 `[64]`, in equal bins from `least` to
            `greatest`.
        equalized: whether its channels were rescaled.
    """

    name: str
    op: str
    origin: str
    dtype: str
    quant: Quant | None
    sqnr: float
    added: float
    low: float
    high: float
    least: float
    greatest: float
    counts: Array
    equalized: bool


@dataclass(frozen=True)
class StepGain:
    """Quality of the network after a step of the recipe and all steps before it.

    Attributes:
        name: `minmax` is the baseline. The recipe's steps follow: `equalization`, `ranges`, `weight
            clipping`, `weight rounding`, `bias correction`. The last is `int16` or `float` if some
            layers use that type.
        sqnr: SQNR in dB on the calibration samples, from the mean relative noise of all outputs.
        outputs: SQNR of each output in dB.
    """

    name: str
    sqnr: float
    outputs: tuple[float, ...]


@dataclass(frozen=True)
class NonInt8Layer:
    """A layer that does not compute in int8.

    Attributes:
        name: name of its first result.
        op: its operator.
        origin: operator of the model file.
        dtype: type that it computes in: `float32` or `int16`.
        reason: why, in one sentence.
        chosen: whether it could be int8, but with more noise.
    """

    name: str
    op: str
    origin: str
    dtype: str
    reason: str
    chosen: bool = False


@dataclass(frozen=True)
class Quantized:
    """A quantized network.

    Attributes:
        graph: the network. Inputs and outputs are int8, with the float network's order and shapes.
        exceptions: layers that are not int8; empty unless they were allowed.
        steps: SQNR after each step of the recipe; only the last if steps were not measured.
        layers: stored tensors in execution order, inputs first; empty if not measured.
        recipe: recipe that was used. It has `compensated` rounding if `searched` is worse, and
            `minmax` ranges if `mse` ranges are worse.
        samples: number of calibration samples.
        ignored: indices of ignored outliers; see `samples.outliers`.
        plain: if some layers are not int8 by choice, the network in which they are.
    """

    graph: Graph
    exceptions: tuple[NonInt8Layer, ...]
    steps: tuple[StepGain, ...]
    layers: tuple[Layer, ...]
    recipe: Recipe
    samples: int
    ignored: tuple[int, ...]
    plain: Graph | None = None

    @property
    def sqnr(self) -> float:
        """Return the outputs' SQNR in dB on the calibration samples; see `StepGain.sqnr`."""
        return self.steps[-1].sqnr


HURTING = 5
"""Number of layers to report as adding most noise."""


def noisiest_layers(layers: Sequence[Layer]) -> list[str]:
    """Return the names of the layers that add most noise, worst first."""
    adding = [layer for layer in layers if layer.quant is not None and np.isfinite(layer.added)]
    return [layer.name for layer in sorted(adding, key=lambda layer: layer.added)[:HURTING]]


def output_noise(
    expected: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]]
) -> tuple[float, tuple[float, ...]]:
    """Return the SQNR in dB of all outputs together and of each; see `StepGain.sqnr`.

    Args:
        expected: for each sample, one array per output.
        found: the same for the quantized network, dequantized.
    """
    ratios: list[float] = []
    for reference, ours in zip(zip(*expected, strict=True), zip(*found, strict=True), strict=True):
        wanted = finite(np.stack(reference)).astype(np.float64)
        error = wanted - np.stack(ours)
        ratios.append(float(np.square(error).sum()) / max(float(np.square(wanted).sum()), SILENT))
    together = sqnr(1.0, float(np.mean(ratios))) if ratios else float("inf")
    return together, tuple(sqnr(1.0, ratio) for ratio in ratios)
