"""Choice of a product's integers, given the actual values of its int8 input.

The input contains all noise of earlier layers. The bias corrects the mean of the error that this
noise and the rounded weights cause (Nagel et al., "Data-Free Quantization Through Weight
Equalization and Bias Correction", ICCV 2019, the empirical form). So only the variance of errors
matters when weights are rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.ir import Array, Node
from smelt.quant.recipe import Recipe
from smelt.quant.weights.fitting import Noise, fitted
from smelt.quant.weights.integers import (
    StoredProduct,
    clipped_scales,
    from_matrices,
    nearest,
    real_bias,
    safe_scales,
    stored_bias,
    to_matrices,
    unclipped_scales,
    windows,
)
from smelt.quant.weights.rounding import damped, searched

_DAMPING, _FEW = 0.1, 0.5
"""Damping: fraction of the mean second moment that is added to each, against overfitting to few
samples. The first number always applies; the second is multiplied by taps per window."""


@dataclass(frozen=True)
class Statistics:
    """Weighted moments of a product's input over all windows of all samples.

    Attributes:
        mean: mean of the float network's input, `[groups, taps]`.
        stored_mean: mean of the int8 network's input, `[groups, taps]`.
        moments: second moments of the int8 network's input, `[groups, taps, taps]`.
        crossed: mean of the int8 input's error times the int8 input, `[groups, taps, taps]`.
        rows: number of windows.
    """

    mean: Array
    stored_mean: Array
    moments: Array
    crossed: Array
    rows: int

    @property
    def centered(self) -> Array:
        """Return the covariances: second moments about the mean."""
        return self.moments - self.stored_mean[:, :, None] * self.stored_mean[:, None, :]

    @property
    def noise(self) -> Noise:
        """Return the moments of input and error about their means, for `fitting`."""
        drift = self.stored_mean - self.mean
        crossed = self.crossed - drift[:, :, None] * self.stored_mean[:, None, :]
        return Noise(self.centered, crossed)

    def __add__(self, other: Statistics) -> Statistics:
        """Return the average of the statistics of two sets of samples."""
        return Statistics(
            (self.mean + other.mean) / 2.0,
            (self.stored_mean + other.stored_mean) / 2.0,
            (self.moments + other.moments) / 2.0,
            (self.crossed + other.crossed) / 2.0,
            self.rows + other.rows,
        )


def gather(
    node: Node,
    real: Sequence[Array],
    stored: Sequence[Array],
    counts: Array,
    *,
    crossed: bool,
) -> Statistics:
    """Return the moments of a product's input over samples.

    Args:
        node: the product in the float network.
        real: its input in the float network, for each sample.
        stored: its input in the int8 network, dequantized, for each sample.
        counts: weight of each sample.
        crossed: whether to compute `crossed` moments; otherwise they are zero.
    """
    groups, _, taps = to_matrices(node, node.input(1).array).shape
    mean, stored_mean = np.zeros((2, groups, taps))
    moments, errors = np.zeros((2, groups, taps, taps))
    rows = 0
    for count, x, ours in zip(counts, real, stored, strict=True):
        wanted, found = windows(node, x), windows(node, ours)
        part = count / found.shape[1]
        rows += found.shape[1]
        mean += part * wanted.sum(axis=1, dtype=np.float64)
        stored_mean += part * found.sum(axis=1, dtype=np.float64)
        moments += part * (found.transpose(0, 2, 1) @ found)
        if crossed:
            errors += part * ((found - wanted).transpose(0, 2, 1) @ found)
    total = counts.sum()
    return Statistics(mean / total, stored_mean / total, moments / total, errors / total, rows)


@dataclass(frozen=True)
class RoundedWeights:
    """A product's weights rounded to integers.

    Attributes:
        integers: the weights as float64 integers, `[groups, outputs, taps]`.
        scales: scale of each output, `[groups, outputs]`.
        bias: real bias, `[groups, outputs]`.
    """

    integers: Array
    scales: Array
    bias: Array


def choose_integers(
    node: Node, input_scale: float, halves: Sequence[Statistics], recipe: Recipe
) -> StoredProduct:
    """Return weights, scales and bias of a product in stored form; see `choose_rounding`."""
    found = choose_rounding(node, input_scale, halves, recipe)
    return StoredProduct(
        from_matrices(node, found.integers, node.input(1)).astype(np.int8),
        found.scales.ravel(),
        stored_bias(found.bias, input_scale, found.scales).ravel(),
    )


def choose_rounding(
    node: Node,
    input_scale: float,
    halves: Sequence[Statistics],
    recipe: Recipe,
    *,
    sharing: int = 0,
) -> RoundedWeights:
    """Choose weights, scales and bias of a product.

    Args:
        node: the product in the float network.
        input_scale: scale of its int8 input.
        halves: statistics of its input in two halves of the samples; empty if the recipe needs
            none.
        recipe: quantization steps to take.
        sharing: number of equal parts of the outputs that share one scale each; 0 for one scale
            per output.
    """
    weights = to_matrices(node, node.input(1).array)
    bias = real_bias(node).reshape(weights.shape[:2])
    if not halves:
        scales = safe_scales(
            _shared(unclipped_scales(weights), sharing), weights, bias, input_scale
        )
        scales = _shared(scales, sharing)
        return RoundedWeights(nearest(weights, scales), scales, bias)
    statistics = halves[0] + halves[1]
    wanted = np.einsum("got,gt->go", weights, statistics.mean)
    if needs_errors(recipe):
        weights = fitted(weights, [half.noise for half in halves])
    counted = statistics.centered if recipe.correct_bias else statistics.moments
    moments = damped(counted, _DAMPING + _FEW * weights.shape[2] / statistics.rows)
    scales = _shared(unclipped_scales(weights), sharing)
    if recipe.clip_weights:
        scales = _clipped(weights, np.diagonal(moments, axis1=1, axis2=2), sharing)
    alone = recipe.rounding == "searched" and recipe.clip_weights and not sharing
    candidates = [
        _shared(safe_scales(scales * part, weights, bias, input_scale), sharing)
        for part in (_PARTS if alone else (1.0,))
    ]
    scales = candidates[0]
    if recipe.rounding == "nearest":
        integers = nearest(weights, scales)
    else:
        integers, scales = searched(weights, candidates, moments)
    if recipe.correct_bias:
        rounded = integers * scales[..., None]
        bias = bias + wanted - np.einsum("got,gt->go", rounded, statistics.stored_mean)
    return RoundedWeights(integers, scales, bias)


def _shared(scales: Array, sharing: int) -> Array:
    """Return scales where each part of the outputs has its largest scale; see `choose_rounding`."""
    if not sharing:
        return scales
    parts = scales.reshape(len(scales), sharing, -1)
    return np.broadcast_to(parts.max(axis=2, keepdims=True), parts.shape).reshape(scales.shape)


def _clipped(weights: Array, importance: Array, sharing: int) -> Array:
    """Return `clipped_scales`, treating each part of the outputs like one output."""
    if not sharing:
        return clipped_scales(weights, importance)
    groups, outputs, _ = weights.shape
    size = outputs // sharing
    parts = weights.reshape(groups, sharing, -1)
    return np.repeat(clipped_scales(parts, np.tile(importance, (1, size))), size, axis=1)


_PARTS = (1.0, 0.98, 0.96, 0.94, 0.92, 0.9, 1.02, 1.05, 1.08)
"""Candidate scales, relative to the first, for searched rounding with compensated errors."""


def needs_statistics(recipe: Recipe) -> bool:
    """Return whether a recipe's steps need statistics of products' inputs."""
    return recipe.clip_weights or recipe.correct_bias or recipe.rounding != "nearest"


def needs_errors(recipe: Recipe) -> bool:
    """Return whether a recipe's steps need the correlation of inputs with their errors."""
    return recipe.rounding == "searched" and recipe.correct_bias
