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
from smelt.quant.observation import sample_weights
from smelt.quant.recipe import Recipe
from smelt.quant.rounding import compensated, damped
from smelt.quant.weights import (
    Stored,
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
        rows: how many windows there were.
    """

    mean: Array
    stored_mean: Array
    moments: Array
    rows: int

    @property
    def centred(self) -> Array:
        """The second moments without what the means make of them."""
        return self.moments - self.stored_mean[:, :, None] * self.stored_mean[:, None, :]


def gather(node: Node, real: Sequence[Array], stored: Sequence[Array], power: Array) -> Statistics:
    """Moments of a product's input.

    Args:
        node: the product, of the float network.
        real: its input in the float network, by sample.
        stored: the same in the int8 network, dequantized.
        power: mean square of its float output, by sample.
    """
    weights = sample_weights(power)
    weights = weights / weights.sum()
    groups, _, taps = to_matrices(node, node.input(1).array).shape
    mean, stored_mean = np.zeros((2, groups, taps))
    moments = np.zeros((groups, taps, taps))
    count = 0
    for weight, x, ours in zip(weights, real, stored, strict=True):
        rows = windows(node, ours)
        part = weight / rows.shape[1]
        count += rows.shape[1]
        mean += part * windows(node, x).sum(axis=1, dtype=np.float64)
        stored_mean += part * rows.sum(axis=1, dtype=np.float64)
        moments += part * (rows.transpose(0, 2, 1) @ rows)
    return Statistics(mean, stored_mean, moments, count)


def choose_integers(
    node: Node, input_scale: float, statistics: Statistics | None, recipe: Recipe
) -> Stored:
    """Weights, scales and bias of a product.

    Args:
        node: the product, of the float network.
        input_scale: of its int8 input.
        statistics: of its input; may be None where the recipe needs none.
        recipe: which steps to take.
    """
    weights = to_matrices(node, node.input(1).array)
    bias = real_bias(node).reshape(weights.shape[:2])
    if statistics is None:
        scales = safe_scales(largest_scales(weights), weights, bias, input_scale)
        integers = nearest(weights, scales)
        return _stored(node, integers, scales, bias, input_scale)
    counted = statistics.centred if recipe.correct_bias else statistics.moments
    moments = damped(counted, _DAMPING + _FEW * weights.shape[2] / statistics.rows)
    scales = largest_scales(weights)
    if recipe.clip_weights:
        scales = clipped_scales(weights, np.diagonal(moments, axis1=1, axis2=2))
    scales = safe_scales(scales, weights, bias, input_scale)
    if recipe.rounding == "nearest":
        integers = nearest(weights, scales)
    else:
        integers = compensated(weights, scales, moments)
    if recipe.correct_bias:
        rounded = integers * scales[..., None]
        wanted = np.einsum("got,gt->go", weights, statistics.mean)
        bias = bias + wanted - np.einsum("got,gt->go", rounded, statistics.stored_mean)
    return _stored(node, integers, scales, bias, input_scale)


def needs_statistics(recipe: Recipe) -> bool:
    """Whether a recipe's steps look at the inputs of products."""
    return recipe.clip_weights or recipe.correct_bias or recipe.rounding != "nearest"


def _stored(node: Node, integers: Array, scales: Array, bias: Array, input_scale: float) -> Stored:
    return Stored(
        from_matrices(node, integers, node.input(1)).astype(np.int8),
        scales.ravel(),
        stored_bias(bias, input_scale, scales).ravel(),
    )
