"""Checks of calibration samples, and detection of outliers among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from smelt.errors import QuantizationError
from smelt.ir import Array, Graph, Value
from smelt.samples import Sample

_DEVIATIONS = 5.0
"""Number of standard deviations, in logarithms of magnitudes, beyond which a sample is loud."""

_LOUD = 2.0
"""Minimum magnitude of a loud sample relative to the median; below it, int8 loses little."""

_FEWEST = 5
"""Minimum number of samples for detecting outliers."""

_PART = 10
"""At most one sample in this many is ignored as an outlier, but at least one may be."""

_SMALLEST = 1e-15
"""Below this magnitude, scales and sums of squares approach the smallest float32."""


def check_samples(graph: Graph, samples: Sequence[Sample]) -> None:
    """Check that a network can be calibrated with these samples.

    Raises:
        QuantizationError: there are none, or one has a wrong shape or type or is not finite, or an
            input is constant or almost zero in all samples.
    """
    if not samples:
        raise QuantizationError(
            f"there are no calibration samples for '{graph.name}'; give at least one, "
            "preferably 100"
        )
    check_arrays(graph, samples, "calibration sample")
    for position, value in enumerate(graph.inputs):
        if value.type.dtype.is_float and value.type.size:
            _check_range(value, [sample[position] for sample in samples])


def check_arrays(graph: Graph, samples: Sequence[Sample], what: str) -> None:
    """Check that a network can be run on these samples.

    Args:
        graph: the network.
        samples: for each sample, one array per input.
        what: word for a sample in messages.

    Raises:
        QuantizationError: a sample has a wrong shape or type, or is not finite.
    """
    for index, sample in enumerate(samples):
        if len(sample) != len(graph.inputs):
            raise QuantizationError(
                f"{what} {index} has {len(sample)} arrays, but '{graph.name}' has "
                f"{len(graph.inputs)} inputs: {', '.join(v.name for v in graph.inputs)}"
            )
        for value, array in zip(graph.inputs, sample, strict=True):
            where = f"{what} {index} of input '{value.name}'"
            if array.shape != value.type.shape or array.dtype != value.type.dtype.numpy:
                raise QuantizationError(
                    f"{where} is {array.dtype}{list(array.shape)}; the network takes {value.type}"
                )
            if value.type.dtype.is_float and not np.isfinite(array).all():
                place = np.unravel_index(int(np.argmin(np.isfinite(array))), array.shape)
                raise QuantizationError(
                    f"{where} contains {array[place]} at {list(map(int, place))}; remove the "
                    "sample or fix its preprocessing"
                )


def _check_range(value: Value, arrays: Sequence[Array]) -> None:
    """Check that the range of a float input is suitable for int8."""
    least, greatest = min(a.min() for a in arrays), max(a.max() for a in arrays)
    if value.type.size > 1 and least == greatest:
        raise QuantizationError(
            f"input '{value.name}' is {least} everywhere in all {len(arrays)} calibration "
            "samples, so its range is unknown; give real data"
        )
    if 0.0 < max(-least, greatest) < _SMALLEST:
        raise QuantizationError(
            f"input '{value.name}' is between {least:g} and {greatest:g} in all {len(arrays)} "
            f"calibration samples: numbers below {_SMALLEST:g} are too small for int8 scales; "
            "scale them like the network's training data"
        )


def outliers(graph: Graph, samples: Sequence[Sample]) -> tuple[int, ...]:
    """Return the indices of outliers: few samples that are far louder than the others.

    Corrupted samples would widen all ranges. A sample is loud if its mean square or its largest
    element is far above the median, in logarithms and measured by the median absolute deviation
    (Iglewicz and Hoaglin, "How to detect and handle outliers", 1993). Loud samples are outliers
    only if they are few.
    """
    few = {
        i for found in _loud(graph, samples) if len(found) <= _most_outliers(samples) for i in found
    }
    return tuple(sorted(few))


def doubtful(graph: Graph, samples: Sequence[Sample]) -> tuple[int, ...]:
    """Return the indices of loud samples that are too many to be ignored as outliers."""
    loud = {i for found in _loud(graph, samples) for i in found}
    return tuple(sorted(loud.difference(outliers(graph, samples))))


def _most_outliers(samples: Sequence[Sample]) -> int:
    return max((len(samples) - 1) // _PART, 1)


def _loud(graph: Graph, samples: Sequence[Sample]) -> Iterator[list[int]]:
    """Yield loud samples, for each float input by mean squares and then by largest elements."""
    for position, value in enumerate(graph.inputs):
        if not value.type.dtype.is_float or not value.type.size:
            continue
        squares = [np.square(sample[position], dtype=np.float64) for sample in samples]
        yield _outlying(np.sqrt([s.mean() for s in squares]))
        yield _outlying(np.sqrt([s.max() for s in squares]))


def _outlying(magnitude: Array) -> list[int]:
    """Return the indices of magnitudes far above the median, ignoring zeros."""
    heard = np.flatnonzero(magnitude)
    if len(heard) < _FEWEST:
        return []
    logarithm = np.log(magnitude[heard])
    beyond = logarithm - np.median(logarithm)
    # The factor 1.4826 converts to the standard deviation of a normal distribution. The last factor
    # compensates for deviations of few samples, which may be small by chance.
    deviation = 1.4826 * float(np.median(np.abs(beyond))) * (1.0 + 8.0 / len(heard))
    return [int(i) for i in heard[beyond > max(_DEVIATIONS * deviation, np.log(_LOUD))]]
