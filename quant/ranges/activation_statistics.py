"""What activations look like: a float network is run on calibration data, each tensor watched."""

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
"""Magnitude of a product's input up to which sums of squares stay within float32."""

ELEMENTS = 1 << 16
"""Elements of a tensor that are kept, over all samples."""


@dataclass(frozen=True)
class Observation:
    """What was seen of one tensor.

    Attributes:
        elements: float32 `[samples, n]`: some of the elements of each sample, chosen at random.
        low, high: float32 `[samples]`: the least and the greatest element of each sample.
        power: float64 `[samples]`: the mean square of each sample's elements.
        lows, highs: float32 `[samples, channels]`: the same in each channel, the last axis.
    """

    elements: Array
    low: Array
    high: Array
    power: Array
    lows: Array
    highs: Array

    @staticmethod
    def of_constant(array: Array) -> Observation:
        """What there is to see of a constant, as if it were one sample."""
        flat = finite(array).reshape(-1, array.shape[-1] if array.ndim else 1)
        limits = np.stack([flat.min(axis=0), flat.max(axis=0)])
        power = float(np.square(flat, dtype=np.float64).mean())
        return _summary([(flat.ravel(), limits, power)])

    def part(self, samples: slice) -> Observation:
        """What was seen in some of the samples."""
        return Observation(
            self.elements[samples],
            self.low[samples],
            self.high[samples],
            self.power[samples],
            self.lows[samples],
            self.highs[samples],
        )

    def channel_limits(self) -> tuple[Array, Array]:
        """How far each channel reaches below and above zero, both positive: `[channels]`.

        Samples that are far louder than the others do not count.
        """
        usual = self.power <= 4.0 * _LOUD * np.median(self.power) + 1e-30
        low, high = self.lows[usual].min(axis=0), self.highs[usual].max(axis=0)
        return np.maximum(-low, 0.0), np.maximum(high, 0.0)

    @property
    def weights(self) -> Array:
        """float64 `[samples]`: see `sample_weights`."""
        return sample_weights(self.power)


def finite(array: Array) -> Array:
    """Infinities brought to the greatest magnitude beside them, which masks stand for; NaN to 0."""
    good = np.isfinite(array)
    if good.all():
        return array
    most = np.abs(array[good]).max(initial=0.0)
    return np.nan_to_num(array, nan=0.0, posinf=most, neginf=-most)


def sample_weights(power: Array) -> Array:
    """What a squared error in each sample counts: the same in all, but for samples that are loud.

    In one whose power is far above that of the others it counts against its own power, so that it
    does not drown them.
    """
    usual = _LOUD * float(np.median(power)) + 1e-3 * float(np.mean(power)) + 1e-30
    return 1.0 / np.maximum(power, usual)


_LOUD = 4.0
"""From this much above the median on, a sample's power is out of the ordinary."""


def evaluated(graph: Graph, sample: Sample, what: str) -> Evaluation:
    """Run a float network on a sample.

    Args:
        graph: a float network.
        sample: one array per input.
        what: the sample is called in messages.

    Raises:
        QuantizationError: a layer makes infinities or NaN of numbers, multiplies what is too
            large, or looks up what its table does not hold.
    """
    with np.errstate(all="ignore"):
        found = evaluate(graph, sample)
    reach = max((_reach(array) for array in sample), default=0.0)
    remedy = f"; the sample reaches {reach:g}: scale it as those that the network was trained on"
    spoilt = not all(map(_is_finite, found.outputs))
    for node in graph.nodes:
        if isinstance(node.op, Gather):
            _require_rows(graph, node, node.op.axis, found.values, what)
        most = _reach(found.values[node.input(0)]) if node.op.quantized_weights else 0.0
        if most > _LARGEST:
            raise QuantizationError(
                f"{what} makes the input of {node.op.name} of {node.origin} reach {most:g}, whose "
                f"square float32 does not hold{remedy}"
            )
        results = [found.values[v] for v in node.outputs]
        # Quotients by zero and their like may be thrown away by what follows.
        fatal = spoilt or node.op.quantized_weights
        if not fatal or all(map(_is_finite, results)) or _makes_masks(node):
            continue
        # What a mask's infinities go through is no overflow.
        if all(v is None or _is_finite(found.values[v]) for v in node.inputs):
            bad = next(array[~np.isfinite(array)][0] for array in results if not _is_finite(array))
            raise QuantizationError(
                f"{what} makes {node.op.name} of {node.origin} compute {bad}{remedy}"
            )
    return found


def _require_rows(
    graph: Graph, node: Node, axis: int, found: Mapping[Value, Array], what: str
) -> None:
    """Demand indices of elements that there are: others stand for the nearest, which hides them."""
    indices, rows = found[node.input(1)], node.input(0).type.shape[axis]
    outside = (indices < -rows) | (indices >= rows)
    if not outside.any():
        return
    place = np.unravel_index(int(np.argmax(outside)), indices.shape)
    origin = _source(graph, node.input(1))
    where = f"{what} of input '{origin.name}'" if origin in graph.inputs else what
    raise QuantizationError(
        f"{where} makes {node.op.name} of {node.origin} look up {indices[place]} (at "
        f"{list(map(int, place))}), and the table has {rows} rows, 0 to {rows - 1}: "
        "number tokens as in training, with the vocabulary that the table was made for"
    )


def _source(graph: Graph, value: Value) -> Value:
    """What a value was made of, back through all that has one input that is computed."""
    makers = {output: node for node in graph.nodes for output in node.outputs}
    while value in makers:
        computed = [v for v in makers[value].inputs if v is not None and v.data is None]
        if len(computed) != 1:
            break
        (value,) = computed
    return value


def _reach(array: Array) -> float:
    """The largest magnitude of numbers; infinities do not count."""
    if array.dtype.kind != "f":
        return 0.0
    return float(np.abs(array).max(initial=0.0, where=np.isfinite(array)))


def _is_finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _makes_masks(node: Node) -> bool:
    """The logarithm of zero is what some networks mask by."""
    return isinstance(node.op, Unary) and node.op.kind == "log"


def observe(
    graph: Graph,
    samples: Sequence[Sample],
    seed: int,
    numbers: Sequence[int] | None = None,
) -> dict[Value, Observation]:
    """Run a float network on every sample.

    Args:
        graph: a float network.
        samples: one array per input each.
        seed: of the choice of elements.
        numbers: what messages call the samples by; their positions where None.

    Returns:
        By value, of those of float32 that are computed. Of the last states of an LSTM, what they
        were after every step is seen.

    Raises:
        QuantizationError: a layer makes infinities or NaN of numbers.
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
        traces = [
            op.trace(node, [None if v is None else found[v] for v in node.inputs])
            for node, op in layers
        ]
        for (node, _), trace in zip(layers, traces, strict=True):
            found |= zip(node.outputs[-2:], trace, strict=True)
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
