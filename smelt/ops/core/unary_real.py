"""Real functions of the unary operators that numpy lacks.

They take float64 arrays, and the operator's `alpha` and `beta` if they use them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from smelt.ir import Array

RealFunction = Callable[[Array, float, float], Array]
"""A function of an array and the operator's `alpha` and `beta`."""


def plain(function: Callable[[Array], Array]) -> RealFunction:
    """Return `function` as one that ignores `alpha` and `beta`."""

    def compute(x: Array, alpha: float, beta: float) -> Array:
        return function(x)

    return compute


def within(low: float, high: float) -> RealFunction:
    """Return a clamp to fixed limits."""
    return plain(lambda x: np.clip(x, low, high))


def logistic(x: Array) -> Array:
    """Return `1 / (1 + e^-x)`."""
    # Use the equal form with an exponential that does not overflow.
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    """Return `alpha · x + beta`, clamped to [0, 1]."""
    return np.clip(alpha * x + beta, 0, 1)


def hard_swish(x: Array) -> Array:
    """Return `x · relu6(x + 3) / 6` (Howard et al., "Searching for MobileNetV3")."""
    return x * np.clip(x + 3, 0, 6) / 6


def swish(x: Array, alpha: float, beta: float) -> Array:
    """Return `x` times the logistic function of `alpha · x`."""
    return x * logistic(alpha * x)


def softplus(x: Array) -> Array:
    """Return `log(1 + e^x)`."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def softsign(x: Array) -> Array:
    """Return `x / (1 + |x|)`."""
    return x / (1 + np.abs(x))


def mish(x: Array) -> Array:
    """Return `x · tanh(softplus(x))` (Misra, "Mish: a self regularized activation function")."""
    return x * np.tanh(softplus(x))


def erf(x: Array) -> Array:
    """Return the error function."""
    values = [math.erf(v) for v in x.ravel().tolist()]
    return np.asarray(values, np.float64).reshape(x.shape)


def gelu(x: Array) -> Array:
    """Return `x` times the cumulative distribution function of the normal distribution."""
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x: Array) -> Array:
    """Return GELU with its error function approximated by a hyperbolic tangent."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def leaky_relu(x: Array, alpha: float, beta: float) -> Array:
    """Return `x` if it is positive, else `alpha · x`."""
    return np.where(x > 0, x, x * alpha)


def thresholded_relu(x: Array, alpha: float, beta: float) -> Array:
    """Return `x` if it is above `alpha`, else 0."""
    return np.where(x > alpha, x, 0)


def elu(x: Array, alpha: float, beta: float) -> Array:
    """Return `x` if it is not negative, else `alpha · (e^x - 1)`."""
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def celu(x: Array, alpha: float, beta: float) -> Array:
    """Return `max(x, 0) + min(0, alpha · (e^(x / alpha) - 1))`."""
    return np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(x / alpha))


def selu(x: Array, alpha: float, beta: float) -> Array:
    """Return ELU times `beta`."""
    return beta * elu(x, alpha, 0.0)


def shrink(x: Array, alpha: float, beta: float) -> Array:
    """Return 0 in [-alpha, alpha]; else `x` moved towards 0 by `beta`."""
    return np.where(x < -alpha, x + beta, np.where(x > alpha, x - beta, 0))


def rsqrt(x: Array) -> Array:
    """Return `1 / sqrt(x)`."""
    return 1 / np.sqrt(x)


def to_float16(x: Array) -> Array:
    """Round to float16, ties to even."""
    return x.astype(np.float16)


def to_bfloat16(x: Array) -> Array:
    """Round to bfloat16, ties to even: it is the upper half of a float32's bits."""
    bits = x.astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), x, rounded.view(np.float32))
