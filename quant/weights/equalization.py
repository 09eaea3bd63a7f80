"""Cross-layer equalization: rescales channels without changing the function of the network.

All channels of an activation share one scale, so channels with a small range are stored coarsely.
Weights have one scale per output channel, which all input channels share. Rescaling by free factors
(see `rescaling`) improves both (Nagel et al., "Data-Free Quantization Through Weight Equalization
and Bias Correction", ICCV 2019; Xiao et al., "SmoothQuant", ICML 2023). Here all factors are chosen
together: they minimize the expected noise at the network's outputs due to rounding of all
activations and weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from smelt.ir import Array, Graph, Node, Value
from smelt.quant.plan import NodeKind, QuantizationPlan, classify
from smelt.quant.ranges.activation_statistics import Observation
from smelt.quant.sensitivity import Sensitivity
from smelt.quant.weights.integers import from_matrices, real_bias, to_matrices
from smelt.quant.weights.rescaling import FIXED, Classes, channels_of, tap_channels
from smelt.samples import Sample

_NORM = 8
"""Order of the norm that approximates a maximum and, unlike it, has a useful slope. A low order
leaves headroom: if many channels have the same peak, other samples exceed it more likely."""

_STEPS = 300


@dataclass(frozen=True)
class _TensorStatistics:
    """Classes, largest magnitudes and noise cost of the channels of a stored tensor."""

    classes: Array
    low: Array
    high: Array
    cost: Array


@dataclass(frozen=True)
class _ProductStatistics:
    """A product with several input channels: `[rows, channels]` magnitudes, and noise costs."""

    classes: Array
    peaks: Array
    power: Array
    cost: Array


def equalize(
    graph: Graph,
    plan: QuantizationPlan,
    seen: Mapping[Value, Observation],
    samples: Sequence[Sample],
) -> tuple[Graph, frozenset[Value]]:
    """Rescale channels to minimize the expected noise.

    Args:
        graph: a float network.
        plan: kind of each node.
        seen: statistics of all values.
        samples: calibration data.

    Returns:
        The network with the same values, and those values whose channels were rescaled.
    """
    limits = {v: seen[v].channel_limits() for v in plan.stored}
    classes = Classes(graph, plan, limits)
    # Begin with equal channels, so that the result does not depend on the file's scales.
    first = np.minimum(_even(classes, limits), classes.most)
    even = _rescaled(graph, plan, classes, first)
    sensitivity = Sensitivity(even, classify(even), samples)
    activations = [_activation(v, classes, first, limits[v], sensitivity) for v in plan.stored]
    weights = [
        found
        for node in even.nodes
        if sensitivity.is_product(node)
        for found in _weights(node, classes, sensitivity)
    ]
    factors = np.minimum(first * _minimize(classes.count, activations, weights), classes.most)
    changed = [v for v in classes if (np.abs(factors[classes.of(v)] - 1.0) > 1e-6).any()]
    return _rescaled(graph, plan, classes, factors), frozenset(changed)


def _activation(
    value: Value,
    classes: Classes,
    factors: Array,
    limits: tuple[Array, Array],
    sensitivity: Sensitivity,
) -> _TensorStatistics:
    own = classes.of(value)
    low, high = (limit * factors[own] for limit in limits)
    pixels = value.type.size / channels_of(value)
    return _TensorStatistics(own, low, high, sensitivity.of(value) * pixels / (12 * 255.0**2))


def _weights(node: Node, classes: Classes, sensitivity: Sensitivity) -> list[_ProductStatistics]:
    x, y = node.input(0), node.output
    magnitudes = np.abs(to_matrices(node, node.input(1).array))
    channels = tap_channels(node)
    groups, rows, _ = magnitudes.shape
    depth = len(np.unique(channels[0]))
    if depth == 1:
        # Skip: the weights' scales absorb the scale of a single input channel.
        return []
    peaks = np.zeros((groups, rows, channels_of(x)))
    for tap in range(channels.shape[1]):
        for group in range(groups):
            own = peaks[group, :, channels[group, tap]]
            peaks[group, :, channels[group, tap]] = np.maximum(own, magnitudes[group, :, tap])
    taps = channels.shape[1] / depth
    power = sensitivity.power(x) * taps
    own = np.zeros((groups, channels_of(x)))
    own[np.arange(groups)[:, None], channels] = 1.0
    pixels = y.type.size / channels_of(y)
    cost = sensitivity.of_sums(node) * pixels / (12 * 127.0**2)
    shape = (groups * rows, channels_of(x))
    powers = np.repeat(own * power, rows, axis=0)
    return [_ProductStatistics(classes.of(x), peaks.reshape(shape), powers, cost)]


def _minimize(
    count: int, activations: Sequence[_TensorStatistics], weights: Sequence[_ProductStatistics]
) -> Array:
    """Return the factors of all classes that minimize the noise, `[classes]` (Adam's method)."""
    logs = np.zeros(count)
    mean, square = np.zeros(count), np.zeros(count)
    best, least = logs, np.inf
    for step in range(_STEPS):
        noise, slope = _noise(logs, activations, weights)
        if noise < least:
            best, least = logs, noise
        slope[FIXED] = 0.0
        slope = slope / max(noise, 1e-300)
        mean = 0.9 * mean + 0.1 * slope
        square = 0.99 * square + 0.01 * slope**2
        rate = 0.1 * (1.0 - step / _STEPS)
        unbiased = mean / (1 - 0.9 ** (step + 1)), square / (1 - 0.99 ** (step + 1))
        logs = logs - rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-9)
    return np.exp(best)


def _even(classes: Classes, limits: Mapping[Value, tuple[Array, Array]]) -> Array:
    """Return factors that give all channels of a tensor equal peaks, `[classes]`."""
    peaks = np.zeros(classes.count)
    for value, (low, high) in limits.items():
        np.maximum.at(peaks, classes.of(value), np.maximum(high, low))
    found = peaks[peaks > 0]
    usual = float(np.median(found)) if found.size else 1.0
    factors = np.where(peaks > 1e-6 * usual, usual / np.maximum(peaks, 1e-30), 1.0)
    factors[FIXED] = 1.0
    return factors


def _noise(
    logs: Array, activations: Sequence[_TensorStatistics], weights: Sequence[_ProductStatistics]
) -> tuple[float, Array]:
    """Return the expected noise at the outputs, and its gradient by the factors' logarithms."""
    total, slope = 0.0, np.zeros_like(logs)
    for a in activations:
        own = logs[a.classes]
        high, high_parts = _maximum(np.log(np.maximum(a.high, 1e-30)) + own)
        low, low_parts = _maximum(np.log(np.maximum(a.low, 1e-30)) + own)
        range_ = high + low
        each = a.cost * np.exp(-2 * own)
        noise = range_**2 * each.sum()
        total += noise
        derivative = 2 * range_ * each.sum() * (high * high_parts + low * low_parts)
        np.add.at(slope, a.classes, derivative - 2 * range_**2 * each)
    for w in weights:
        own = logs[w.classes]
        peak, parts = _maximum(np.log(np.maximum(w.peaks, 1e-30)) - own)
        power = w.power * np.exp(2 * own)
        each = w.cost * peak**2
        sums = power.sum(axis=1)
        total += float(each @ sums)
        derivative = 2 * (each[:, None] * power) - 2 * (each * sums)[:, None] * parts
        np.add.at(slope, w.classes, derivative.sum(axis=0))
    return total, slope


def _maximum(logs: Array) -> tuple[Array, Array]:
    """Return a norm of high order along the last axis, given logarithms, and each share of it."""
    top = logs.max(axis=-1, keepdims=True)
    powers = np.exp(_NORM * (logs - top))
    sums = powers.sum(axis=-1, keepdims=True)
    norm = np.exp(top + np.log(sums) / _NORM)
    return norm[..., 0], powers / sums


def _rescaled(graph: Graph, plan: QuantizationPlan, classes: Classes, factors: Array) -> Graph:
    """Multiply constants by the factors; the network's values stay the same objects."""

    def rule(node: Node) -> tuple[Sequence[Node], Sequence[Value]] | None:
        if plan.kind[node] is NodeKind.PRODUCT:
            x, y = (factors[classes.of(v)] for v in (node.input(0), node.output))
            made = _product(node, x, y)
        else:
            scaled = {index for way in node.op.homogeneity(node) for index in way.scaled}
            if not scaled or node.output not in classes:
                return None
            made = _constants(node, scaled, factors[classes.of(node.output)])
        return [made], made.outputs

    return graph.rewrite(rule)


def _product(node: Node, x: Array, y: Array) -> Node:
    weights = to_matrices(node, node.input(1).array)
    outputs = y.reshape(*weights.shape[:2], 1)
    matrices = weights * outputs / x[tap_channels(node)][:, None, :]
    scaled = from_matrices(node, matrices, node.input(1)).astype(np.float32)
    bias = (real_bias(node) * y).astype(np.float32)
    operands = (
        node.input(0),
        Value.constant(f"{node.name}:weights:equalized", scaled),
        Value.constant(f"{node.name}:bias:equalized", bias),
    )
    return replace(node, inputs=operands)


def _constants(node: Node, scaled: Set[int], y: Array) -> Node:
    """Multiply a node's constant operands by the factors of its output."""
    name = f"{node.name}:equalized"
    inputs = tuple(
        v
        if v is None or index not in scaled or (y == 1.0).all()
        else Value.constant(name, np.asarray(v.array * y, np.float32))
        for index, v in enumerate(node.inputs)
    )
    return replace(node, inputs=inputs)
