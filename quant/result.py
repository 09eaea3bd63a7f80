"""What a quantization comes to: the network, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.ir import Array, Graph, Quant
from smelt.quant.ranges.activation_statistics import finite
from smelt.quant.recipe import Recipe

SILENT = 1e-30
"""Power below which there is neither signal nor noise to speak of."""


def sqnr(signal: float, noise: float) -> float:
    """Signal-to-quantization-noise ratio in dB of two sums of squares; infinite without noise."""
    if noise <= SILENT:
        return float("inf")
    return float(10.0 * np.log10(max(signal, SILENT) / noise))


@dataclass(frozen=True)
class Layer:
    """One stored tensor of the quantized network, beside what it was in float.

    Real numbers are those of the equalized float network: of another scale, channel by channel,
    than the file's where `equalized`.

    Attributes:
        name: of the tensor.
        op: the operator that computes it; `input` for an input of the network.
        origin: the operator of the model file; empty for an input.
        dtype: how it is stored: `i8`, or `i16`.
        quant: of the stored integers; None in float.
        sqnr: dB against the float network; all noise up to here, the inputs' included.
        added: dB; the noise that this layer itself adds to inputs that are exact but quantized.
        low, high: real numbers that the least and the greatest stored integer stand for.
        least, greatest: what was seen.
        counts: int64 `[64]`: histogram of the elements seen, in equal bins from `least` to
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
    """How good the network was after one step of the recipe, all steps before it done.

    Attributes:
        name: `minmax`, the baseline; then those of `equalization`, `ranges`, `weight clipping`,
            `weight rounding` and `bias correction` that the recipe takes; `int16` or `float` where
            layers were allowed to, and do, compute in that for less noise.
        sqnr: dB, on the calibration samples; of several outputs, by the mean of their relative
            noise.
        outputs: dB of each output.
    """

    name: str
    sqnr: float
    outputs: tuple[float, ...]


@dataclass(frozen=True)
class Island:
    """A layer that is not computed in int8.

    Attributes:
        name: of its (first) result.
        op: its operator.
        origin: the operator of the model file.
        dtype: what it is computed in: `float32` or `int16`.
        reason: why, in one sentence.
        chosen: whether it could be int8, with more noise.
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
        graph: inputs and outputs are int8, in the order and shapes of the float network's.
        exceptions: the layers that are not int8; none unless they were allowed.
        steps: what each step of the recipe brought; the last alone where they were not measured.
        layers: every stored tensor, in execution order, the inputs first; none where they were not
            measured.
        recipe: how it was made; with `compensated` rounding where `searched` would be worse, and
            with `minmax` ranges where those of `mse` would be.
        samples: how many calibration samples there were.
        ignored: indices of those that stood too far out to be believed; see `samples.outliers`.
        plain: the network with all layers int8 that can be, where some that can are not.
    """

    graph: Graph
    exceptions: tuple[Island, ...]
    steps: tuple[StepGain, ...]
    layers: tuple[Layer, ...]
    recipe: Recipe
    samples: int
    ignored: tuple[int, ...]
    plain: Graph | None = None

    @property
    def sqnr(self) -> float:
        """dB of the outputs on the calibration samples; see `StepGain.sqnr`."""
        return self.steps[-1].sqnr


HURTING = 5
"""Layers that are named as those which add most noise."""


def hurting(layers: Sequence[Layer]) -> list[str]:
    """Names of the layers that add most noise, the worst first."""
    adding = [layer for layer in layers if layer.quant is not None and np.isfinite(layer.added)]
    return [layer.name for layer in sorted(adding, key=lambda layer: layer.added)[:HURTING]]


def output_noise(
    expected: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]]
) -> tuple[float, tuple[float, ...]]:
    """SQNR in dB of real outputs, of all together and of each; see `StepGain.sqnr`.

    Args:
        expected: per sample, one array per output.
        found: the same of the quantized network, dequantized.
    """
    ratios: list[float] = []
    for reference, ours in zip(zip(*expected, strict=True), zip(*found, strict=True), strict=True):
        wanted = finite(np.stack(reference)).astype(np.float64)
        error = wanted - np.stack(ours)
        ratios.append(float(np.square(error).sum()) / max(float(np.square(wanted).sum()), SILENT))
    together = sqnr(1.0, float(np.mean(ratios))) if ratios else float("inf")
    return together, tuple(sqnr(1.0, ratio) for ratio in ratios)
