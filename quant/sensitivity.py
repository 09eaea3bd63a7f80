"""Sensitivity of the outputs to noise in each channel of each tensor.

The variance of independent noise is propagated backwards through the network: through a product
with the squares of its weights, through a function with the square of its slope. A sensitivity is
the noise power at the outputs, relative to their power, for noise of variance one in one element.

Real noise is not independent: a weight has the same error at all pixels, and neighboring pixels are
rounded alike. Therefore each tensor, and the weights of each product, are perturbed one after the
other. The ratio of the measured to the expected noise of the outputs scales the sensitivities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from smelt.ir import Activation, Array, Graph, Node, Value, evaluate
from smelt.ops.core.binary import Binary
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.prelu import PRelu
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.pad import Pad
from smelt.quant.plan import NodeKind, QuantizationPlan, is_real, only_moves
from smelt.quant.ranges.activation_statistics import finite
from smelt.quant.weights.integers import (
    from_matrices,
    real_bias,
    to_matrices,
    unclipped_scales,
    windows,
)
from smelt.quant.weights.rescaling import channels_of, tap_channels
from smelt.samples import Sample

_MACS = 1e8
"""Multiply-accumulates to spend on one evaluation of the samples."""

_STEP = 1e-2
"""Step of difference quotients, relative to the root mean square of a tensor."""


class Sensitivity:
    """Sensitivities and powers of the computed values of a float network, by channel."""

    def __init__(self, graph: Graph, plan: QuantizationPlan, samples: Sequence[Sample]) -> None:
        self._plan = plan
        selected = without_loud_samples(samples)[: _sample_count(graph)]
        self._runs = [evaluate(graph, sample).values for sample in selected]
        self._of = {
            v: np.zeros(channels_of(v)) for v in graph.values() if v.data is None and is_real(v)
        }
        self._power = {v: self._mean_square(v) for v in self._of}
        self._sums: dict[Node, Array] = {}
        for value in graph.outputs:
            if value in self._of:
                power = self._power[value].sum() * value.type.size / channels_of(value)
                self._of[value] += 1.0 / max(power, 1e-30)
        for node in reversed(graph.nodes):
            if any(v in self._of for v in node.outputs):
                self._visit(node)
        self._probe(graph)
        self._runs = []

    def of(self, value: Value) -> Array:
        """Return the sensitivity to noise in an element of each channel, float64 `[channels]`."""
        return self._of[value]

    def is_product(self, node: Node) -> bool:
        """Return whether a node is a product."""
        return node in self._sums

    def of_sums(self, node: Node) -> Array:
        """Return the sensitivity to noise in a product's sums, float64 `[channels]`."""
        return self._sums[node]

    def power(self, value: Value) -> Array:
        """Return the mean square of each channel's elements, float64 `[channels]`."""
        return self._power[value]

    def _mean_square(self, value: Value) -> Array:
        runs = [finite(run[value]).reshape(-1, channels_of(value)) for run in self._runs]
        return np.mean([np.square(run, dtype=np.float64).mean(axis=0) for run in runs], axis=0)

    def _visit(self, node: Node) -> None:
        if self._plan.kind[node] is NodeKind.PRODUCT:
            self._product(node)
        elif only_moves(node):
            self._move(node)
        elif isinstance(node.op, (Unary, PRelu)):
            self._add(node, node.input(0), self._slope(node, 0) * self._of[node.output])
        elif isinstance(node.op, Binary):
            for index, value in enumerate(node.inputs):
                if value in self._of:
                    self._add(node, value, self._slope(node, index) * self._of[node.output])
        elif isinstance(node.op, (Pool2D, Reduce)) and node.op.kind in ("mean", "average"):
            x = node.input(0)
            ratio = node.output.type.size / x.type.size
            count = x.type.size / node.output.type.size
            if isinstance(node.op, Pool2D):
                count = node.op.window[0] * node.op.window[1]
            self._add(node, x, self._of[node.output] * ratio / count, scaled=True)
        else:
            self._keep_ratio(node)

    def _add(self, node: Node, x: Value, found: Array, *, scaled: bool = False) -> None:
        """Add sensitivity to that of an input.

        Args:
            node: the operator.
            x: the input.
            found: sensitivity by channel of the output.
            scaled: whether `found` is already for one element of the input, not of the output.
        """
        target = self._of[x]
        if not scaled:
            found = found * (node.output.type.size / x.type.size)
        if len(found) != len(target):
            # The operator broadcasts along the channels, or reduces them.
            found = np.full(len(target), found.mean())
        target += found

    def _product(self, node: Node) -> None:
        x, y = node.input(0), node.output
        active = self._active(node)
        sums = active * self._of[y]
        self._sums[node] = sums
        weights = np.square(to_matrices(node, node.input(1).array))
        taps = np.einsum("got,go->gt", weights, sums.reshape(weights.shape[:2]))
        channels = tap_channels(node)
        found = np.bincount(channels.ravel(), taps.ravel(), channels_of(x))
        pixels = y.type.size / channels_of(y), x.type.size / channels_of(x)
        self._of[x] += found * pixels[0] / pixels[1]

    def _active(self, node: Node) -> Array:
        """Return the share of a product's outputs that the activation does not clip, by channel."""
        low, high = (node.op.fused_activation or Activation.NONE).limits
        runs = [run[node.output].reshape(-1, channels_of(node.output)) for run in self._runs]
        unclipped = [((run > low) & (run < high)).mean(axis=0) for run in runs]
        return np.maximum(np.mean(unclipped, axis=0), 1e-3)

    def _slope(self, node: Node, index: int) -> Array:
        """Return the mean square of the slope with respect to one operand, by output channel."""
        y = node.output
        found: list[Array] = []
        for run in self._runs:
            operands = [
                None if v is None else run[v] if v.data is None else v.data for v in node.inputs
            ]
            x = operands[index]
            if x is None:
                raise ValueError(f"{node.origin} has no operand {index}")
            step = _STEP * float(np.sqrt(np.mean(np.square(x, dtype=np.float64)))) + 1e-12
            with np.errstate(all="ignore"):
                operands[index] = (x + step).astype(x.dtype)
                (after,) = node.op.reference(node, operands)
                operands[index] = (x - step).astype(x.dtype)
                (before,) = node.op.reference(node, operands)
                slope = (after.astype(np.float64) - before) / (2 * step)
            slope = np.nan_to_num(slope, nan=0.0, posinf=0.0, neginf=0.0)
            found.append(np.square(slope).reshape(-1, channels_of(y)).mean(axis=0))
        return np.mean(found, axis=0)

    def _move(self, node: Node) -> None:
        """Add the sensitivities of moved elements to those of their sources.

        The operator's reference finds the sources: it moves the elements' positions.
        """
        start, positions = 1, list[Array | None]()
        for value in node.inputs:
            shape = () if value is None else value.type.shape
            size = 1 if value is None else value.type.size
            positions.append(np.arange(start, start + size, dtype=np.float64).reshape(shape))
            start += size
        op = replace(node.op, value=None) if isinstance(node.op, Pad) else node.op
        (sources,) = op.reference(node, positions)
        y = node.output
        spread = np.broadcast_to(self._of[y], (*y.type.shape[:-1], channels_of(y)))
        found = np.bincount(sources.ravel().astype(np.int64), spread.ravel(), start)
        start = 1
        for value in node.inputs:
            if value in self._of:
                own = found[start : start + value.type.size].reshape(-1, channels_of(value))
                self._of[value] += own.mean(axis=0)
            start += 0 if value is None else value.type.size

    def _probe(self, graph: Graph) -> None:
        rng = np.random.default_rng(0)
        probe = Probe(graph, self._runs)
        for value in self._plan.stored:
            runs = [finite(run[value]).reshape(-1, channels_of(value)) for run in self._runs]
            widest = np.max(runs, axis=(0, 1)), np.min(runs, axis=(0, 1))
            steps = np.subtract(*widest, dtype=np.float64) / 255.0
            perturbed = [_rounded(run[value], steps) for run in self._runs]
            pixels = value.type.size / channels_of(value)
            expected = float(self._of[value] @ steps**2) * pixels / 12.0
            self._of[value] = self._of[value] * _ratio(probe.noise(value, perturbed), expected)
        for node in graph.nodes:
            if self._plan.kind[node] is NodeKind.PRODUCT:
                self._probe_weights(node, probe, rng)

    def _probe_weights(self, node: Node, probe: Probe, rng: np.random.Generator) -> None:
        """Measure the effect of errors like those of rounded weights.

        The bias is corrected for the mean error.
        """
        x, weights = node.input(0), to_matrices(node, node.input(1).array)
        steps = unclipped_scales(weights)
        errors = steps[..., None] * rng.uniform(-0.5, 0.5, weights.shape)
        means = np.mean([windows(node, run[x]).mean(axis=1) for run in self._runs], axis=0)
        bias = real_bias(node) - np.einsum("got,gt->go", errors, means).ravel()
        real = from_matrices(node, weights + errors, node.input(1)).astype(np.float32)
        made = replace(node, inputs=(x, node.inputs[1], Value.constant("", bias)))
        perturbed = [
            node.op.reference(made, (run[x], real, bias.astype(np.float32)))[0]
            for run in self._runs
        ]
        taps = self._power[x][tap_channels(node)].sum(axis=1)
        pixels = node.output.type.size / channels_of(node.output)
        sums = self._sums[node].reshape(steps.shape)
        expected = float((sums * steps**2 * taps[:, None]).sum()) * pixels / 12.0
        found = probe.noise(node.output, perturbed)
        self._sums[node] = self._sums[node] * _ratio(found, expected)

    def _keep_ratio(self, node: Node) -> None:
        """Assume that noise has the same ratio to the power before and after the operator.

        This is for operators without a better model.
        """
        total = 0.0
        for value in node.outputs:
            if value in self._of:
                pixels = value.type.size / channels_of(value)
                total += float(self._of[value] @ self._power[value]) * pixels
        for value in node.inputs:
            if value in self._of:
                power = self._power[value].sum() * value.type.size / channels_of(value)
                self._of[value] += total / max(power, 1e-30)


def without_loud_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples that are not far louder than the others."""
    power = np.array(
        [sum(float(np.square(a, dtype=np.float64).mean()) for a in sample) for sample in samples]
    )
    bound = 16.0 * float(np.median(power)) + 1e-30
    return [sample for sample, p in zip(samples, power, strict=True) if p <= bound] or list(samples)


class Probe:
    """Recomputes a network in which one tensor is perturbed."""

    def __init__(self, graph: Graph, runs: Sequence[Mapping[Value, Array]]) -> None:
        self._graph, self._runs = graph, runs
        self._power = {
            v: sum(float(np.square(finite(run[v]), dtype=np.float64).sum()) for run in runs)
            for v in graph.outputs
        }

    def noise(self, value: Value, perturbed: Sequence[Array]) -> float:
        """Return the noise of all outputs relative to their power.

        Args:
            value: the perturbed value.
            perturbed: its perturbed array for each sample.
        """
        noise = dict.fromkeys(self._power, 0.0)
        for run, array in zip(self._runs, perturbed, strict=True):
            changed = {value: array}
            for node in self._graph.nodes:
                if value in node.outputs or not any(v in changed for v in node.inputs):
                    continue
                operands = [
                    None if v is None else changed[v] if v in changed else run[v]
                    for v in node.inputs
                ]
                results = node.op.reference(node, operands)
                changed.update(zip(node.outputs, results, strict=True))
            for v in noise:
                if v in changed:
                    error = np.subtract(finite(changed[v]), finite(run[v]), dtype=np.float64)
                    noise[v] += float(np.square(error).sum())
        return sum(noise[v] / max(self._power[v], 1e-30) for v in noise)


def _rounded(x: Array, steps: Array) -> Array:
    """Round elements to multiples of a step, by channel."""
    safe = np.where(steps > 0, steps, 1.0)
    return np.where(steps > 0, np.rint(x / safe) * safe, x).astype(x.dtype)


def _ratio(found: float, expected: float) -> float:
    """Return the ratio of measured to expected noise, clipped to a plausible range."""
    return float(np.clip(found / max(expected, 1e-30), 0.05, 1e4)) if expected > 0 else 1.0


def _sample_count(graph: Graph) -> int:
    return int(np.clip(_MACS / max(graph.macs, 1), 3, 12))
