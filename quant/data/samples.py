"""Calibration samples: what can be used, and which stand too far out to be believed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from smelt.errors import QuantizationError
from smelt.ir import Array, Graph, Value
from smelt.samples import Sample

_DEVIATIONS = 5.0
"""Standard deviations of the logarithms of magnitudes from which on a sample is loud."""

_LOUD = 2.0
"""Magnitude that a loud sample has at least, against the median: less costs int8 little."""

_FEWEST = 5
"""Samples of which one can be said to be unlike the others."""

_PART = 10
"""Fewer than one sample in so many are left out, but one at least: more are no exception."""

_SMALLEST = 1e-15
"""Magnitude below which scales and sums of squares come near the least of float32."""


def check_samples(graph: Graph, samples: Sequence[Sample]) -> None:
    """Demand samples that a network can be quantized with.

    Raises:
        QuantizationError: there are none, or one is of another shape or element type or is not
            finite; or an input is the same number everywhere, or next to nothing.
    """
    if not samples:
        raise QuantizationError(
            f"there are no calibration samples for '{graph.name}'; give at least one, better 100"
        )
    check_arrays(graph, samples, "calibration sample")
    for position, value in enumerate(graph.inputs):
        if value.type.dtype.is_float and value.type.size:
            _check_range(value, [sample[position] for sample in samples])


def check_arrays(graph: Graph, samples: Sequence[Sample], what: str) -> None:
    """Demand samples that a network can be run on.

    Args:
        graph: the network.
        samples: one array per input each.
        what: messages call one of them.

    Raises:
        QuantizationError: one is of another shape or element type, or is not finite.
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
                    f"{where} holds {array[place]} at {list(map(int, place))}; remove the sample "
                    "or repair its preprocessing"
                )


def _check_range(value: Value, arrays: Sequence[Array]) -> None:
    """Demand numbers of a float input that int8 can tell apart."""
    least, greatest = min(a.min() for a in arrays), max(a.max() for a in arrays)
    if value.type.size > 1 and least == greatest:
        raise QuantizationError(
            f"input '{value.name}' is {least} everywhere in all {len(arrays)} calibration "
            "samples, which tells nothing of its range; give real data"
        )
    if 0.0 < max(-least, greatest) < _SMALLEST:
        raise QuantizationError(
            f"input '{value.name}' lies between {least:g} and {greatest:g} in all {len(arrays)} "
            f"calibration samples: numbers below {_SMALLEST:g} are too small for scales of int8; "
            "give them as those that the network was trained on"
        )


def outliers(graph: Graph, samples: Sequence[Sample]) -> tuple[int, ...]:
    """The few samples, if any, that are far louder than the others, or hold far larger elements.

    Corrupted ones among them would stretch every range. In the logarithms of mean squares, and of
    largest elements, they lie far above the median, measured by the median absolute deviation
    (Iglewicz and Hoaglin, "How to detect and handle outliers", 1993), and are an exception.
    """
    few = {i for found in _loud(graph, samples) if len(found) <= _most(samples) for i in found}
    return tuple(sorted(few))


def doubtful(graph: Graph, samples: Sequence[Sample]) -> tuple[int, ...]:
    """The samples as loud as `outliers`, but too many of them to be left out."""
    loud = {i for found in _loud(graph, samples) for i in found}
    return tuple(sorted(loud.difference(outliers(graph, samples))))


def _most(samples: Sequence[Sample]) -> int:
    return max((len(samples) - 1) // _PART, 1)


def _loud(graph: Graph, samples: Sequence[Sample]) -> Iterator[list[int]]:
    """Loud samples: of each float input first by mean squares, then by largest elements."""
    for position, value in enumerate(graph.inputs):
        if not value.type.dtype.is_float or not value.type.size:
            continue
        squares = [np.square(sample[position], dtype=np.float64) for sample in samples]
        yield _far(np.sqrt([s.mean() for s in squares]))
        yield _far(np.sqrt([s.max() for s in squares]))


def _far(magnitude: Array) -> list[int]:
    """Those far above the median; silence has no say."""
    heard = np.flatnonzero(magnitude)
    if len(heard) < _FEWEST:
        return []
    logarithm = np.log(magnitude[heard])
    beyond = logarithm - np.median(logarithm)
    # 1.4826 makes a standard deviation of a normal distribution's; a few samples' may be by chance
    # small.
    deviation = 1.4826 * float(np.median(np.abs(beyond))) * (1.0 + 8.0 / len(heard))
    return [int(i) for i in heard[beyond > max(_DEVIATIONS * deviation, np.log(_LOUD))]]
