"""Methods that choose the range of real numbers for the 256 integers of an activation.

- `minmax`: the range of all observed elements.
- `percentile`: all but a share of the elements at both ends.
- `mse`: the least mean squared error, weighted by each sample's power. If the elements are
  multiples of one step, as pixels are, a range without any error.
- `entropy`: the least divergence of the stored distribution from the observed one (Migacz, "8-bit
  Inference with TensorRT", GTC 2017), searched over both ends, because ranges are asymmetric.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from smelt.ir import Array, Quant
from smelt.quant.ranges.activation_statistics import Observation, finite, sample_weights
from smelt.quant.recipe import Recipe

_LEVELS = 255
_BINS = 2048

Range = tuple[float, float]


def quant_of(range_: Range) -> Quant:
    """Return int8 scale and zero point of a range, widened to include zero exactly."""
    low, high = min(range_[0], 0.0), max(range_[1], 0.0)
    scale = float(np.float32((high - low) / _LEVELS))
    if scale < 1e-30:
        return Quant.per_tensor(1.0, 0)
    return Quant.per_tensor(scale, min(max(round(-128 - low / scale), -128), 127))


@dataclass(frozen=True)
class ReaderView:
    """How one reader uses a tensor whose range is to be chosen.

    Attributes:
        observation: statistics of the tensor.
        function: elementwise function that the reader applies; None if it reads elements as such.
    """

    observation: Observation
    function: Callable[[Array], Array] | None = None


def choose(views: Sequence[ReaderView], recipe: Recipe) -> Range:
    """Return the range of tensors that share a quantization.

    With `mse`, the error is measured after the readers' functions: elements with equal results need
    not be distinguished.
    """
    observations = [view.observation for view in views]
    low = min(min(float(o.low.min()) for o in observations), 0.0)
    high = max(max(float(o.high.max()) for o in observations), 0.0)
    if recipe.ranges == "minmax" or high == low:
        return low, high
    elements = np.concatenate([o.elements.ravel() for o in observations]).astype(np.float64)
    if recipe.ranges == "percentile":
        outside = 100.0 - recipe.percentile
        below, above = np.percentile(elements, [outside / 2, 100.0 - outside / 2])
        return min(float(below), 0.0), max(float(above), 0.0)
    if recipe.ranges == "entropy":
        return _entropy(elements, low, high)
    factors = [headroom(o) for o in observations]
    below, above = max(f[0] for f in factors), max(f[1] for f in factors)
    low, high = low * below, high * above
    return _grid(elements, low, high) or _least_error([_Errors.of(v) for v in views], low, high)


def headroom(observation: Observation) -> Range:
    """Return factors by which other samples may exceed the observed minimum and maximum.

    Clipping affects rare elements, of which a few samples contain too few. So the range of least
    error for the observed samples is too narrow for others, the more so the fewer the samples. That
    does not apply if most samples reach the same end, as pixels or clamped values do.
    """
    few = _HEADROOM * (128.0 / len(observation.power)) ** 0.25

    def beyond(peaks: Array) -> float:
        most = max(float(peaks.max()), 1e-30)
        usual = float(np.quantile(np.maximum(peaks, 0.0), 0.8))
        return 1.0 + few * min(_OPEN * (1.0 - usual / most), 1.0)

    return beyond(-observation.low), beyond(observation.high)


_HEADROOM = 0.2
"""Maximum headroom for 128 samples."""

_OPEN = 8.0
"""An end is open if 80 % of the samples stay below it by at least one part in this many."""

_UNSEEN = 0.1
"""Weight of the simulated louder samples, relative to observed ones."""


@dataclass(frozen=True)
class _Errors:
    """Squared errors of what one reader computes from elements, weighted by sample.

    Elements of similar size are merged.

    Attributes:
        level: the elements, float64 `[n]`.
        weight: weight of each element's squared error, float64 `[n]`.
        first, second: weighted sums of the reader's exact results and of their squares.
        function: see `ReaderView`.
    """

    level: Array
    weight: Array
    first: Array
    second: Array
    function: Callable[[Array], Array] | None

    @staticmethod
    def of(view: ReaderView) -> _Errors:
        seen = view.observation.elements
        below, above = headroom(view.observation)
        elements = np.concatenate([seen, np.where(seen < 0, below, above).astype("f4") * seen])
        wanted = elements if view.function is None else finite(view.function(elements))
        wanted = wanted.astype(np.float64)
        weights = sample_weights(np.square(wanted).mean(axis=1))
        weights[len(seen) :] *= _UNSEEN
        weights = np.repeat(weights, elements.shape[1]) / elements.size
        order = np.argsort(elements, axis=None)
        elements, wanted, weights = (a.ravel()[order] for a in (elements, wanted, weights))
        starts = np.arange(elements.size)
        starts = starts[
            (starts < _ENDS) | (starts >= elements.size - _ENDS) | (starts % _TOGETHER == 0)
        ]
        counts = np.diff(np.append(starts, elements.size))

        def sums(a: Array) -> Array:
            return np.add.reduceat(a, starts)

        return _Errors(
            sums(elements.astype(np.float64)) / counts,
            sums(weights),
            sums(weights * wanted),
            sums(weights * wanted**2),
            view.function,
        )

    def __call__(self, range_: Range) -> float:
        scale, zero_point = quant_of(range_).scalar
        # Operations are in place because this runs for many ranges.
        steps = self.level / scale
        np.rint(steps, out=steps)
        steps += zero_point
        np.maximum(steps, -128, out=steps)
        np.minimum(steps, 127, out=steps)
        stored = steps.astype(np.int64)
        real = (np.arange(-128, 128) - zero_point) * scale
        if self.function is not None:
            real = finite(self.function(real.astype(np.float32))).astype(np.float64)
        found = real[stored + 128]
        return float(self.second.sum() - 2.0 * found @ self.first + found**2 @ self.weight)


def _grid(elements: Array, low: float, high: float) -> Range | None:
    """Return a range that represents all elements exactly, or None if there is none.

    The elements must be multiples of a step, and 255 steps must reach from `low` to `high`.
    """
    least = (high - low) / _LEVELS
    some = np.unique(elements[:: max(elements.size // 1024, 1)])
    if len(some) > _LEVELS + 1:
        return None
    distinct = np.unique(np.append(elements, 0.0))
    gaps = np.diff(distinct)
    gaps = gaps[gaps > 1e-4 * least]
    if not gaps.size or gaps.min() < 0.999 * least:
        return None
    step = float(gaps.min())
    # Allow for rounding errors of float32 preprocessing.
    if np.abs(distinct / step - np.rint(distinct / step)).max() > 0.01:
        return None
    scale = step / max(int(step / least * 1.001), 1)
    low = -float(np.ceil(-low / scale - 0.01)) * scale
    return low, low + _LEVELS * scale


_ENDS, _TOGETHER = 512, 16
"""Number of smallest and largest elements that are not merged; number of others per merge."""


def _least_error(errors: Sequence[_Errors], low: float, high: float) -> Range:
    """Move both ends inwards to minimize the error: first on a coarse grid, then in small steps."""

    def total(range_: Range) -> float:
        return sum(error(range_) for error in errors)

    lows = [low * part for part in _COARSE] if low < 0.0 else [0.0]
    highs = [high * part for part in _COARSE] if high > 0.0 else [0.0]
    best = min(((a, b) for a in lows for b in highs), key=total)
    least = total(best)
    step = 0.12
    while step > 0.004:
        moved = False
        for below, above in _MOVES:
            range_ = (
                max(best[0] * (1.0 + step * below), low),
                min(best[1] * (1.0 + step * above), high),
            )
            found = total(range_)
            if found < least:
                best, least, moved = range_, found, True
        if not moved:
            step /= 2
    return best


_COARSE = tuple(0.72**i for i in range(14))
_MOVES = ((-1, -1), (-1, 0), (0, -1), (1, 0), (0, 1), (1, 1))


def _entropy(elements: Array, low: float, high: float) -> Range:
    # Ignore zeros: they are exact in any range, and ReLUs create so many that they would dominate.
    histogram, _ = np.histogram(elements[elements != 0], _BINS, (low, high))
    width = (high - low) / _BINS
    zero = round(-low / width)
    best, least = (low, high), np.inf
    for first in _cuts(0, zero):
        for last in _cuts(_BINS, zero):
            if last - first < _LEVELS:
                continue
            found = _divergence(histogram, first, last)
            if found < least:
                best, least = (low + first * width, low + last * width), found
    return best


def _cuts(end: int, zero: int) -> list[int]:
    """Return candidate ends of a range, from the farthest one towards zero in 24 steps."""
    return [round(end + (zero - end) * i / 24) for i in range(24)]


def _divergence(histogram: Array, first: int, last: int) -> float:
    """Return the Kullback-Leibler divergence of the clipped distribution from its 255 levels."""
    inside = histogram[first:last].astype(np.float64)
    clipped = inside.copy()
    clipped[0] += histogram[:first].sum()
    clipped[-1] += histogram[last:].sum()
    level = np.arange(last - first) * _LEVELS // (last - first)
    seen = inside > 0
    mass = np.bincount(level, inside, _LEVELS)
    bins = np.bincount(level, seen.astype(np.float64), _LEVELS)
    spread = np.where(seen, (mass / np.maximum(bins, 1))[level], 0.0)
    p, q = clipped / clipped.sum(), spread / max(spread.sum(), 1e-30)
    # Clipped elements fall into bins in which the stored distribution has none.
    return float((p[p > 0] * np.log(p[p > 0] / np.maximum(q[p > 0], 1e-10))).sum())
