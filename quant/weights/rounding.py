"""Rounding of weights to integers such that their errors compensate each other.

The error of an output is `e H eᵀ`, where `e` contains the errors of its weights and `H` the second
moments of its inputs. Weights are rounded one after the other, and the remaining weights are
adjusted to cancel the effect of each error (Frantar et al., "GPTQ", ICLR 2023, after Hassibi and
Stork's "Optimal Brain Surgeon", 1993). Then integers are changed one at a time as long as that
reduces the error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.ir import Array
from smelt.quant.weights.integers import LIMIT

_SWEEPS = 8
"""Maximum number of sweeps over all integers after the first rounding."""


def compensated(matrices: Array, scales: Array, moments: Array) -> Array:
    """Round weights to integers (as float64) with compensated errors.

    Args:
        matrices: real weights, `[groups, outputs, taps]`.
        scales: scales, `[groups, outputs]`.
        moments: second moments of the inputs, `[groups, taps, taps]`, positive definite.
    """
    units = matrices / scales[..., None]
    return improved(units, _sequential(units, moments), moments)


def searched(matrices: Array, candidates: Sequence[Array], moments: Array) -> tuple[Array, Array]:
    """Round weights with compensated errors, with the best of several scales for each output.

    Args:
        matrices: real weights, `[groups, outputs, taps]`.
        candidates: scales to try, each `[groups, outputs]`.
        moments: see `compensated`.

    Returns:
        The integers, and the chosen scales.
    """
    chosen, scales = np.zeros_like(matrices), candidates[0]
    least = np.full(scales.shape, np.inf)
    for tried in candidates:
        found = compensated(matrices, tried, moments)
        error = found * tried[..., None] - matrices
        noise = (np.matmul(error, moments) * error).sum(axis=2)
        better = noise < least
        chosen = np.where(better[..., None], found, chosen)
        scales = np.where(better, tried, scales)
        least = np.minimum(noise, least)
    return chosen, scales


def damped(moments: Array, part: float) -> Array:
    """Return second moments in units of their mean size, with `part` added to the diagonal.

    Taps without observations thus count weakly; if nothing varied, all taps count equally. Negative
    eigenvalues from rounding errors are compensated.
    """
    size = np.abs(np.diagonal(moments, axis1=1, axis2=2)).mean(axis=1)
    unit = np.where(size > 0, size, 1.0)
    scaled = moments / unit[:, None, None]
    least = np.minimum(np.linalg.eigvalsh(scaled)[:, 0], 0.0)
    extra = np.where(size > 0, part - 2 * least, 1.0)
    return scaled + extra[:, None, None] * np.eye(moments.shape[1])


def _sequential(units: Array, moments: Array) -> Array:
    taps = units.shape[2]
    result = np.empty_like(units)
    # Round the most important taps first, while many others are left to compensate their errors.
    order = np.argsort(-np.diagonal(moments, axis1=1, axis2=2), axis=1)
    groups = np.arange(len(units))[:, None]
    left = np.take_along_axis(units, order[:, None, :], axis=2)
    sorted_ = moments[groups[:, :, None], order[:, :, None], order[:, None, :]]
    # Upper triangular U with U'U = inverse(H): row i of U says how to spread the error of tap i.
    inverse = np.linalg.inv(sorted_)
    upper = np.linalg.cholesky((inverse + inverse.transpose(0, 2, 1)) / 2).transpose(0, 2, 1)
    chosen = np.empty_like(left)
    for tap in range(taps):
        column = left[:, :, tap]
        chosen[:, :, tap] = np.clip(np.rint(column), -LIMIT, LIMIT)
        error = (column - chosen[:, :, tap]) / upper[:, tap, tap][:, None]
        left[:, :, tap + 1 :] -= error[:, :, None] * upper[:, tap, None, tap + 1 :]
    np.put_along_axis(result, np.broadcast_to(order[:, None, :], result.shape), chosen, axis=2)
    return result


def improved(units: Array, integers: Array, moments: Array) -> Array:
    """Change integers one at a time as long as that reduces the error."""
    integers = integers.copy()
    slope = np.matmul(integers - units, moments)
    diagonal = np.diagonal(moments, axis1=1, axis2=2)
    for _ in range(_SWEEPS):
        moved = False
        for tap in range(units.shape[2]):
            best = integers[:, :, tap] - slope[:, :, tap] / diagonal[:, None, tap]
            step = np.clip(np.rint(best), -LIMIT, LIMIT) - integers[:, :, tap]
            if step.any():
                moved = True
                integers[:, :, tap] += step
                slope += step[:, :, None] * moments[:, None, tap, :]
        if not moved:
            break
    return integers
