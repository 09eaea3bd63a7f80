"""The integers of a product, chosen against what its int8 input really holds.

All noise of the layers before is in that input. The bias takes up the mean of the error that it
and the rounded weights make (Nagel et al., "Data-Free Quantization Through Weight Equalization and
Bias Correction", ICCV 2019, the empirical form), so that only how errors vary counts when weights
are rounded.
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
    largest_scales,
    nearest,
    real_bias,
    safe_scales,
    stored_bias,
    to_matrices,
    windows,
)
from smelt.quant.weights.rounding import damped, searched

_DAMPING, _FEW = 0.1, 0.5
"""Part of the mean second moment that is added to each, so that few samples are not overfitted:
at least, and if there were as many windows as taps."""


@dataclass(frozen=True)
class Statistics:
    """Moments of a product's input over all windows of all samples, each sample by its weight.

    Attributes:
        mean: of the float network's, `[groups, taps]`.
        stored_mean: of the int8 network's.
        moments: second moments of the int8 network's, `[groups, taps, taps]`.
        crossed: the mean of what the int8 network's departs by, times what it is: `[groups, taps,
            taps]`.
        rows: how many windows there were.
    """

    mean: Array
    stored_mean: Array
    moments: Array
    crossed: Array
    rows: int

    @property
    def centred(self) -> Array:
        """The second moments without what the means make of them."""
        return self.moments - self.stored_mean[:, :, None] * self.stored_mean[:, None, :]

    @property
    def noise(self) -> Noise:
        """The same of the errors, for `fitting`."""
        drift = self.stored_mean - self.mean
        crossed = self.crossed - drift[:, :, None] * self.stored_mean[:, None, :]
        return Noise(self.centred, crossed)

    def __add__(self, other: Statistics) -> Statistics:
        """Of two sets of samples, each of which counts half."""
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
    """Moments of a product's input over samples.

    Args:
        node: the product, of the float network.
        real: its input in the float network, by sample.
        stored: the same in the int8 network, dequantized.
        counts: what each sample counts.
        crossed: whether errors are set beside what they are errors of; those moments are zero else.
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
    """A product's weights as integers (float64), `[groups, outputs, taps]`.

    Attributes:
        integers: the weights.
        scales: of each output, `[groups, outputs]`.
        bias: in real numbers, `[groups, outputs]`.
    """

    integers: Array
    scales: Array
    bias: Array


def choose_integers(
    node: Node, input_scale: float, halves: Sequence[Statistics], recipe: Recipe
) -> StoredProduct:
    """Weights, scales and bias of a product as it stores them; see `choose_rounding`."""
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
    """Weights, scales and bias of a product.

    Args:
        node: the product, of the float network.
        input_scale: of its int8 input.
        halves: its input in two halves of the samples; none where the recipe needs none.
        recipe: which steps to take.
        sharing: into how many equal parts its outputs fall, each with one scale; 0 if each output
            has a scale of its own.
    """
    weights = to_matrices(node, node.input(1).array)
    bias = real_bias(node).reshape(weights.shape[:2])
    if not halves:
        scales = safe_scales(_shared(largest_scales(weights), sharing), weights, bias, input_scale)
        scales = _shared(scales, sharing)
        return RoundedWeights(nearest(weights, scales), scales, bias)
    statistics = halves[0] + halves[1]
    wanted = np.einsum("got,gt->go", weights, statistics.mean)
    if needs_errors(recipe):
        weights = fitted(weights, [half.noise for half in halves])
    counted = statistics.centred if recipe.correct_bias else statistics.moments
    moments = damped(counted, _DAMPING + _FEW * weights.shape[2] / statistics.rows)
    scales = _shared(largest_scales(weights), sharing)
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
    """The largest scale of each part of the outputs for all of it; see `choose_rounding`."""
    if not sharing:
        return scales
    parts = scales.reshape(len(scales), sharing, -1)
    return np.broadcast_to(parts.max(axis=2, keepdims=True), parts.shape).reshape(scales.shape)


def _clipped(weights: Array, importance: Array, sharing: int) -> Array:
    """`clipped_scales`, of each part of the outputs as if it were one of them."""
    if not sharing:
        return clipped_scales(weights, importance)
    groups, outputs, _ = weights.shape
    size = outputs // sharing
    parts = weights.reshape(groups, sharing, -1)
    return np.repeat(clipped_scales(parts, np.tile(importance, (1, size))), size, axis=1)


_PARTS = (1.0, 0.98, 0.96, 0.94, 0.92, 0.9, 1.02, 1.05, 1.08)
"""Of a scale that is searched: the weights then make up for one another's errors."""


def needs_statistics(recipe: Recipe) -> bool:
    """Whether a recipe's steps look at the inputs of products."""
    return recipe.clip_weights or recipe.correct_bias or recipe.rounding != "nearest"


def needs_errors(recipe: Recipe) -> bool:
    """Whether they look at how the errors of these inputs depend on them."""
    return recipe.rounding == "searched" and recipe.correct_bias
