"""Weights fitted to the noise that their inputs carry.

What the layers before have added to a product's input is not independent of it: weights were
rounded there, and ends of ranges clipped. A linear model of that noise, given the noisy input,
goes into the weights (the asymmetric reconstruction of Nagel et al., "Up or Down? Adaptive Rounding
for Post-Training Quantization", ICML 2020, as ridge regression). How far the model can be believed
is cross-validated: it is fitted to one half of the samples and judged by the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.ir import Array

_RIDGES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
"""Against the mean of the input's variances."""


@dataclass(frozen=True)
class Noise:
    """Moments of one half of the samples, all about the mean.

    Attributes:
        moments: second moments of the stored input, `[groups, taps, taps]`.
        crossed: of its error with it: `[g, i, j]` is the mean of error i times input j.
    """

    moments: Array
    crossed: Array


def fitted(weights: Array, halves: Sequence[Noise]) -> Array:
    """Weights of least expected error on inputs with their noise.

    Args:
        weights: `[groups, outputs, taps]`.
        halves: of the samples.
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
    """What is to be taken from weights, so that it takes out the noise that can be told."""
    size = np.diagonal(noise.moments, axis1=1, axis2=2).mean(axis=1)
    damped: Array = noise.moments + (ridge * size + 1e-30)[:, None, None] * np.eye(weights.shape[2])
    return weights @ noise.crossed @ np.linalg.inv(damped)


def _error(weights: Array, change: Array, noise: Noise) -> float:
    """How much more the outputs' squared error is than that of the weights unchanged."""
    own = (change @ noise.moments * change).sum()
    return float(own - 2.0 * (weights @ noise.crossed * change).sum())
