"""Fitting of weights to the noise in their inputs.

A product is a convolution or a dense layer. The noise that earlier layers add to its input depends
on the input, because weights are rounded and ranges are clipped. A linear model predicts the noise
from the noisy input, and is merged into the weights, so that they cancel the predicted noise. This
is the asymmetric reconstruction of Nagel et al., "Up or Down? Adaptive Rounding for Post-Training
Quantization", ICML 2020, by ridge regression. The ridge (the amount of regularization) is chosen by
cross-validation: the model is fitted to one half of the samples and evaluated on the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.ir import Array

_RIDGES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
"""Candidate ridges, relative to the mean variance of the input."""


@dataclass(frozen=True)
class Noise:
    """Moments about the mean of a product's input and of its noise, over one half of the samples.

    Attributes:
        moments: second moments of the noisy input, `[groups, taps, taps]`.
        crossed: `[groups, taps, taps]`; `[g, i, j]` is the mean of the noise of tap i times the
            noisy input of tap j.
    """

    moments: Array
    crossed: Array


def fitted(weights: Array, halves: Sequence[Noise]) -> Array:
    """Return weights with the least expected error, given the noise of their inputs.

    Args:
        weights: weights, `[groups, outputs, taps]`.
        halves: moments of each half of the samples.
    """
    first, second = halves
    ridge, least = 0.0, 0.0
    for candidate in _RIDGES:
        error = _error(weights, _change(weights, first, candidate), second)
        error += _error(weights, _change(weights, second, candidate), first)
        if error < least:
            ridge, least = candidate, error
    if not ridge:
        return weights
    both = Noise(
        (first.moments + second.moments) / 2.0,
        (first.crossed + second.crossed) / 2.0,
    )
    return weights - _change(weights, both, ridge)


def _change(weights: Array, noise: Noise, ridge: float) -> Array:
    """Return the change to subtract from weights to cancel the predicted noise."""
    size = np.diagonal(noise.moments, axis1=1, axis2=2).mean(axis=1)
    damped: Array = noise.moments + (ridge * size + 1e-30)[:, None, None] * np.eye(weights.shape[2])
    return weights @ noise.crossed @ np.linalg.inv(damped)


def _error(weights: Array, change: Array, noise: Noise) -> float:
    """Return the increase of the outputs' squared error over that of unchanged weights."""
    own = (change @ noise.moments * change).sum()
    return float(own - 2.0 * (weights @ noise.crossed * change).sum())
