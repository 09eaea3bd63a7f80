"""Calibration samples: what can be used, and which stand too far out to be believed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.errors import QuantizationError
from smelt.ir import Array, Graph
from smelt.quant.observation import Sample

_GAP = 16.0
"""Power by which samples stand out: more than this times that of any other."""

_FEW = 64
"""At most one sample in so many stands out, or it is no exception."""


def check_samples(graph: Graph, samples: Sequence[Sample]) -> None:
    """Demand samples that a network can be quantized with.

    Raises:
        QuantizationError: there are none, or one is of another shape or element type, is not
            finite, or an input is the same number everywhere.
    """
    if not samples:
        raise QuantizationError(
            f"there are no calibration samples for '{graph.name}'; give at least one, better 100"
        )
    for index, sample in enumerate(samples):
        if len(sample) != len(graph.inputs):
            raise QuantizationError(
                f"calibration sample {index} has {len(sample)} arrays, but '{graph.name}' has "
                f"{len(graph.inputs)} inputs: {', '.join(v.name for v in graph.inputs)}"
            )
        for value, array in zip(graph.inputs, sample, strict=True):
            where = f"calibration sample {index} of input '{value.name}'"
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
    for position, value in enumerate(graph.inputs):
        arrays = [sample[position] for sample in samples]
        least, greatest = min(a.min() for a in arrays), max(a.max() for a in arrays)
        if value.type.dtype.is_float and value.type.size > 1 and least == greatest:
            raise QuantizationError(
                f"input '{value.name}' is {least} everywhere in all {len(samples)} calibration "
                "samples, which tells nothing of its range; give real data"
            )


def outliers(graph: Graph, samples: Sequence[Sample]) -> tuple[int, ...]:
    """The few samples, if any, that are far louder than all others, or hold far larger elements.

    A corrupted one among them would stretch every range.
    """
    found: set[int] = set()
    allowed = len(samples) // _FEW if len(samples) >= _FEW else int(len(samples) >= _FEW // 4)
    for position, value in enumerate(graph.inputs):
        if not value.type.dtype.is_float or not value.type.size:
            continue
        squares = [np.square(sample[position], dtype=np.float64) for sample in samples]
        found.update(_apart(np.array([s.mean() for s in squares]), allowed))
        found.update(_apart(np.array([s.max() for s in squares]), allowed))
    return tuple(sorted(found))


def _apart(power: Array, allowed: int) -> list[int]:
    """Those above a gap that has at most so many above it."""
    order = np.argsort(power)
    for count in range(allowed, 0, -1):
        if power[order[-count]] > _GAP * power[order[-count - 1]] > 0.0:
            return [int(i) for i in order[-count:]]
    return []
