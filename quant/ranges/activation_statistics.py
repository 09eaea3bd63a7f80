"""Statistics of activations, collected by running a float network on calibration data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from smelt.errors import QuantizationError
from smelt.ir import Array, DType, Evaluation, Graph, Node, Value, evaluate
from smelt.ops.core.unary import Unary
from smelt.ops.sequence.lstm import Lstm
from smelt.ops.tensor.gather import Gather
from smelt.samples import Sample

_LARGEST = 1e15
"""Largest magnitude of a product's input for which sums of squares stay within float32."""

ELEMENTS = 1 << 16
"""Number of elements of a tensor to keep, over all samples."""


@dataclass(frozen=True)
class Observation:
    """Statistics of one tensor.

    Attributes:
        elements: random elements of each sample, float32 `[samples, n]`.
        low, high: minimum and maximum of each sample, float32 `[samples]`.
        power: mean square of each sample's elements, float64 `[samples]`.
        lows, highs: minimum and maximum by channel (the last axis), float32 `[samples, channels]`.
    """

    elements: Array
    low: Array
    high: Array
    power: Array
    lows: Array
    highs: Array

    @staticmethod
    def of_constant(array: Array) -> Observation:
        """Return the statistics of a constant, as one sample."""
        flat = finite(array).reshape(-1, array.shape[-1] if array.ndim else 1)
        limits = np.stack([flat.min(axis=0), flat.max(axis=0)])
        power = float(np.square(flat, dtype=np.float64).mean())
        return _summary([(flat.ravel(), limits, power)])

    def part(self, samples: slice) -> Observation:
        """Return the statistics of a slice of the samples."""
        return Observation(
            self.elements[samples],
            self.low[samples],
            self.high[samples],
            self.power[samples],
            self.lows[samples],
            self.highs[samples],
        )

    def channel_limits(self) -> tuple[Array, Array]:
        """Return the largest magnitudes below and above zero of each channel, `[channels]` each.

        Samples that are far louder than the others are ignored.
        """
        usual = self.power <= 4.0 * _LOUD * np.median(self.power) + 1e-30
        low, high = self.lows[usual].min(axis=0), self.highs[usual].max(axis=0)
        return np.maximum(-low, 0.0), np.maximum(high, 0.0)

    @property
    def weights(self) -> Array:
        """Return the samples' weights, float64 `[samples]`; see `sample_weights`."""
        return sample_weights(self.power)


def finite(array: Array) -> Array:
    """Replace infinities, which stand for masks, by the largest finite magnitude, and NaN by 0."""
    good = np.isfinite(array)
    if good.all():
        return array
    most = np.abs(array[good]).max(initial=0.0)
    return np.nan_to_num(array, nan=0.0, posinf=most, neginf=-most)


def sample_weights(power: Array) -> Array:
    """Return the weight of squared errors in each sample: the inverse of the sample's power.

    The power of quiet samples is raised to a minimum, so that all but loud samples have equal
    weights. Loud samples have less weight, so that they do not dominate.
    """
    usual = _LOUD * float(np.median(power)) + 1e-3 * float(np.mean(power)) + 1e-30
    return 1.0 / np.maximum(power, usual)


_LOUD = 4.0
"""A sample is loud if its power exceeds the median by this factor."""


def evaluated(graph: Graph, sample: Sample, what: str) -> Evaluation:
    """Run a float network on a sample and check the results.

    Args:
        graph: a float network.
        sample: one array per input.
        what: name of the sample in messages.

    Raises:
        QuantizationError: a layer computes infinity or NaN from finite numbers, multiplies numbers
            that are too large, or looks up an index that its table does not have.
    """
    with np.errstate(all="ignore"):
        found = evaluate(graph, sample)
    reach = max((_reach(array) for array in sample), default=0.0)
    remedy = f"; the sample reaches {reach:g}: scale it like the network's training data"
    damaged = not all(map(_is_finite, found.outputs))
    for node in graph.nodes:
        if isinstance(node.op, Gather):
            _require_rows(graph, node, node.op.axis, found.values, what)
        most = _reach(found.values[node.input(0)]) if node.op.quantized_weights else 0.0
        if most > _LARGEST:
            raise QuantizationError(
                f"{what}: the input of {node.op.name} of {node.origin} reaches {most:g}, so its "
                f"square exceeds float32{remedy}"
            )
        results = [found.values[v] for v in node.outputs]
        # Later layers may discard results such as quotients by zero.
        fatal = damaged or node.op.quantized_weights
        if not fatal or all(map(_is_finite, results)) or _makes_masks(node):
            continue
        # Ignore infinities that come from a mask rather than from an overflow here.
        if all(v is None or _is_finite(found.values[v]) for v in node.inputs):
            bad = next(array[~np.isfinite(array)][0] for array in results if not _is_finite(array))
            raise QuantizationError(
                f"{what}: {node.op.name} of {node.origin} computes {bad}{remedy}"
            )
    return found


def _require_rows(
    graph: Graph, node: Node, axis: int, found: Mapping[Value, Array], what: str
) -> None:
    """Check that indices are within the table; the reference would clamp them silently."""
    indices, rows = found[node.input(1)], node.input(0).type.shape[axis]
    outside = (indices < -rows) | (indices >= rows)
    if not outside.any():
        return
    place = np.unravel_index(int(np.argmax(outside)), indices.shape)
    origin = _source(graph, node.input(1))
    where = f"{what} of input '{origin.name}'" if origin in graph.inputs else what
    raise QuantizationError(
        f"{where}: {node.op.name} of {node.origin} looks up {indices[place]} (at "
        f"{list(map(int, place))}), but the table has {rows} rows, 0 to {rows - 1}: "
        "number tokens as in training, with the same vocabulary"
    )


def _source(graph: Graph, value: Value) -> Value:
    """Return the origin of a value, following nodes with a single computed input backwards."""
    makers = {output: node for node in graph.nodes for output in node.outputs}
    while value in makers:
        computed = [v for v in makers[value].inputs if v is not None and v.data is None]
        if len(computed) != 1:
            break
        (value,) = computed
    return value


def _reach(array: Array) -> float:
    """Return the largest finite magnitude."""
    if array.dtype.kind != "f":
        return 0.0
    return float(np.abs(array).max(initial=0.0, where=np.isfinite(array)))


def _is_finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _makes_masks(node: Node) -> bool:
    """Return whether a node is a logarithm: some networks use log(0) as a mask."""
    return isinstance(node.op, Unary) and node.op.kind == "log"


def observe(
    graph: Graph,
    samples: Sequence[Sample],
    seed: int,
    numbers: Sequence[int] | None = None,
) -> dict[Value, Observation]:
    """Run a float network on all samples and collect statistics.

    Args:
        graph: a float network.
        samples: for each sample, one array per input.
        seed: seed for the random choice of elements.
        numbers: numbers of the samples in messages; None uses their positions.

    Returns:
        Statistics of each computed float32 value. For the last states of an LSTM, they cover the
        states after every step.

    Raises:
        QuantizationError: a layer computes infinity or NaN.
    """
    rng = np.random.default_rng(seed)
    values = [
        v
        for v in graph.values()
        if v.data is None and v.type.dtype is DType.FLOAT32 and v.type.size
    ]
    layers = [(node, node.op) for node in graph.nodes if isinstance(node.op, Lstm)]
    sizes = {v: v.type.size for v in values}
    for node, _ in layers:
        steps = node.input(0).type.shape[0]
        sizes.update((v, steps * v.type.size) for v in node.outputs[-2:])
    count = max(ELEMENTS // len(samples), 64)
    chosen = {
        v: None if size <= count else np.sort(rng.choice(size, count, replace=False))
        for v, size in sizes.items()
    }
    seen: dict[Value, list[tuple[Array, Array, float]]] = {v: [] for v in values}
    for number, sample in zip(numbers or range(len(samples)), samples, strict=True):
        found = evaluated(graph, sample, f"calibration sample {number}").values
        histories = [
            op.states_by_step(node, [None if v is None else found[v] for v in node.inputs])
            for node, op in layers
        ]
        for (node, _), states in zip(layers, histories, strict=True):
            found |= zip(node.outputs[-2:], states, strict=True)
        for value in values:
            array = finite(found[value])
            flat = array.reshape(-1, value.type.shape[-1] if value.type.shape else 1)
            kept = flat.ravel() if chosen[value] is None else flat.ravel()[chosen[value]]
            limits = np.stack([flat.min(axis=0), flat.max(axis=0)])
            power = float(np.square(flat, dtype=np.float64).mean())
            seen[value].append((kept, limits, power))
    return {value: _summary(parts) for value, parts in seen.items()}


def _summary(parts: Sequence[tuple[Array, Array, float]]) -> Observation:
    limits = np.stack([limits for _, limits, _ in parts])
    return Observation(
        np.stack([kept for kept, _, _ in parts]),
        limits[:, 0].min(axis=1),
        limits[:, 1].max(axis=1),
        np.array([power for _, _, power in parts]),
        limits[:, 0],
        limits[:, 1],
    )
