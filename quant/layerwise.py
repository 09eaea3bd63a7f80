"""Layer-by-layer conversion of a float network to int8, with both networks run on all samples.

When a product is converted, the values of its int8 input are therefore known for every sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from smelt.ir import Array, Graph, Node, Quant, Value
from smelt.ops.arithmetic.fixed_point import dequantize_onnx
from smelt.ops.sequence.lstm import Lstm
from smelt.quant.convert import Choosers, Int8Builder, Wide, store
from smelt.quant.plan import QuantizationPlan
from smelt.quant.ranges.activation_statistics import finite, sample_weights
from smelt.quant.recipe import Recipe
from smelt.quant.result import Layer, sqnr
from smelt.quant.rewrites.recurrent import gate_layers
from smelt.quant.weights.correction import (
    Statistics,
    choose_integers,
    gather,
    needs_errors,
    needs_statistics,
)
from smelt.quant.weights.integers import StoredProduct
from smelt.quant.weights.lstm import StoredLstm, choose_lstm, hidden_before
from smelt.samples import Sample

_BINS = 64

_LOCAL = 16
"""Number of samples on which a layer's own noise is measured."""


@dataclass(frozen=True)
class Converted:
    """The int8 network, the float and the dequantized int8 outputs per sample, and the layers."""

    graph: Graph
    expected: Sequence[tuple[Array, ...]]
    found: Sequence[tuple[Array, ...]]
    layers: tuple[Layer, ...]


class ValueArrays:
    """Arrays of a network's values for all samples, while the network runs node by node."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._of: dict[Value, list[Array]] = {}

    def feed(self, value: Value, arrays: Sequence[Array]) -> None:
        """Set the arrays of a value."""
        self._of[value] = list(arrays)

    def run(self, node: Node) -> None:
        """Compute a node for all samples."""
        columns = [None if v is None else self[v] for v in node.inputs]
        results: list[tuple[Array, ...]] = []
        for sample in range(self._count):
            operands = [None if c is None else c[sample] for c in columns]
            results.append(node.op.reference(node, operands))
        for index, value in enumerate(node.outputs):
            self._of[value] = [result[index] for result in results]

    def __getitem__(self, value: Value) -> list[Array]:
        return [value.data] * self._count if value.data is not None else self._of[value]

    def drop(self, value: Value) -> None:
        """Free the arrays of a value."""
        self._of.pop(value, None)


class LayerwiseConversion:
    """Builds the int8 network while it runs on the calibration samples."""

    def __init__(
        self,
        graph: Graph,
        plan: QuantizationPlan,
        quants: Mapping[Value, Quant],
        samples: Sequence[Sample],
        recipe: Recipe,
        equalized: frozenset[Value] | None = None,
        wide: Wide | None = None,
    ) -> None:
        """Prepare the conversion.

        Args:
            graph: the float network, after equalization.
            plan: kind of each node.
            quants: quantization of its stored values.
            samples: for each sample, one array per input.
            recipe: quantization steps to take.
            equalized: values whose channels were rescaled; if given, layers are measured.
            wide: layers that compute in int16, or None.
        """
        self._graph, self._plan, self._recipe = graph, plan, recipe
        self._equalized = equalized
        choosers = Choosers(self._choose, self._choose_lstm)
        self._converter = Int8Builder(graph, plan, quants, choosers, wide)
        self._real, self._ours = ValueArrays(len(samples)), ValueArrays(len(samples))
        self._ran = 0
        self._layers: list[Layer] = []
        columns = list(zip(*samples, strict=True))
        states = [(s.before, [s.initial] * len(samples)) for s in graph.states]
        for value, arrays in (*zip(graph.inputs, columns, strict=True), *states):
            self._real.feed(value, arrays)
            ours = self._converter.stored.get(value, value)
            if ours.type.quant is not None:
                arrays = [store(array, ours.type.quant, ours.type.dtype) for array in arrays]
            self._ours.feed(ours, arrays)

    def run(self) -> Converted:
        """Convert and run all nodes."""
        last = self._last_uses()
        self._note(self._graph.inputs, "input", "", 0)
        for index, node in enumerate(self._graph.nodes):
            self._real.run(node)
            first = len(self._converter.nodes)
            self._converter.convert(node)
            self._catch_up()
            self._note(node.outputs, node.op.name, str(node.origin), first)
            for value in last.get(index, ()):
                self._real.drop(value)
                if value in self._converter.stored:
                    self._ours.drop(self._converter.stored[value])
        graph = self._converter.finish()
        self._catch_up()
        expected = zip(*(self._real[v] for v in self._graph.outputs), strict=True)
        found = zip(*(self._dequantized(v) for v in graph.outputs), strict=True)
        return Converted(graph, list(expected), list(found), tuple(self._layers))

    def _last_uses(self) -> dict[int, list[Value]]:
        """Return, by node index, the values that are last read by that node."""
        last: dict[Value, int] = {}
        for index, node in enumerate(self._graph.nodes):
            read = [v for v in node.inputs if v is not None and v.data is None]
            roots = [self._plan.root[v] for v in node.outputs if v in self._plan.root]
            last.update(dict.fromkeys((*read, *roots), index))
        kept = set(self._graph.results)
        uses: dict[int, list[Value]] = {}
        for value, index in last.items():
            if value not in kept:
                uses.setdefault(index, []).append(value)
        return uses

    def _catch_up(self) -> None:
        """Run the nodes that were created since the last call."""
        for node in self._converter.nodes[self._ran :]:
            self._ours.run(node)
        self._ran = len(self._converter.nodes)

    def _dequantized(self, value: Value) -> list[Array]:
        quant = value.type.quant
        arrays = self._ours[value]
        return arrays if quant is None else [dequantize_onnx(array, quant) for array in arrays]

    def _choose(self, node: Node, x: Value) -> StoredProduct:
        halves: list[Statistics] = []
        if needs_statistics(self._recipe):
            self._catch_up()
            real, ours = self._real[node.input(0)], self._dequantized(x)
            halves = self._halves(node, self._real[node.output], real, ours)
        return choose_integers(node, x.type.scale, halves, self._recipe)

    def _choose_lstm(self, node: Node, op: Lstm, x: Value, hidden: Quant) -> StoredLstm:
        halves: list[list[Statistics]] = [[], []]
        if needs_statistics(self._recipe):
            self._catch_up()
            own, again = gate_layers(node)
            before = [hidden_before(op, node, operands) for operands in self._operands(node)]
            stored = [dequantize_onnx(store(array, hidden), hidden) for array in before]
            results, inputs = self._real[node.outputs[-2]], self._real[node.input(0)]
            halves = [
                self._halves(own, results, inputs, self._dequantized(x)),
                self._halves(again, results, before, stored),
            ]
        scales = (x.type.scale, hidden.scalar[0])
        return choose_lstm(node, scales, (halves[0], halves[1]), self._recipe)

    def _operands(self, node: Node) -> list[list[Array | None]]:
        """Return a float node's operands for each sample."""
        columns = [None if v is None else self._real[v] for v in node.inputs]
        return [
            [None if c is None else c[sample] for c in columns]
            for sample in range(len(self._real[node.input(0)]))
        ]

    def _halves(
        self, node: Node, results: list[Array], real: list[Array], ours: list[Array]
    ) -> list[Statistics]:
        """Return statistics of a product's input, for two halves of the samples; see `gather`."""
        power = np.array([np.square(y, dtype=np.float64).mean() for y in results])
        # A single sample is both halves.
        second = slice(min(1, len(power) - 1), None, 2)
        counts, crossed = sample_weights(power), needs_errors(self._recipe)
        return [
            gather(node, real[half], ours[half], counts[half], crossed=crossed)
            for half in (slice(0, None, 2), second)
        ]

    def _note(self, values: Sequence[Value], op: str, origin: str, first: int) -> None:
        """Record measurements of stored values that the int8 nodes from `first` on compute."""
        if self._equalized is None:
            return
        for value in values:
            ours = self._converter.stored.get(value)
            if ours is None or ours.type.quant is None:
                continue
            real = finite(np.stack(self._real[value])).astype(np.float64)
            power = float(np.square(real).sum())
            error = float(np.square(np.stack(self._dequantized(ours)) - real).sum())
            scale, zero_point = ours.type.quant.scalar
            lowest, highest = ours.type.dtype.limits
            least, greatest = float(real.min()), float(real.max())
            counts, _ = np.histogram(real, _BINS, (least, max(greatest, least + 1e-30)))
            self._layers.append(
                Layer(
                    name=value.name,
                    op=op,
                    origin=origin,
                    dtype=ours.type.dtype.value,
                    quant=ours.type.quant,
                    sqnr=sqnr(power, error),
                    added=self._added(value, ours, first),
                    low=(lowest - zero_point) * scale,
                    high=(highest - zero_point) * scale,
                    least=least,
                    greatest=greatest,
                    counts=counts,
                    equalized=value in self._equalized,
                )
            )

    def _added(self, value: Value, ours: Value, first: int) -> float:
        """Return the SQNR in dB of the nodes from `first` on alone, given exact rounded inputs."""
        real = self._real[value][:_LOCAL]
        alone = ValueArrays(len(real))
        gate_layers = {stored: value for value, stored in self._converter.stored.items()}
        made: set[Value] = set()
        for node in self._converter.nodes[first:]:
            for x in node.inputs:
                if x is None or x.data is not None or x in made:
                    continue
                if x in gate_layers and x.type.quant is not None:
                    exact = [
                        store(array, x.type.quant, x.type.dtype)
                        for array in self._real[gate_layers[x]][:_LOCAL]
                    ]
                else:
                    exact = self._ours[x][:_LOCAL]
                alone.feed(x, exact)
            alone.run(node)
            made.update(node.outputs)
        quant = ours.type.quant
        if quant is None:
            raise ValueError(f"{ours.name} is not quantized")
        dtype = ours.type.dtype
        arrays = alone[ours] if ours in made else [store(array, quant, dtype) for array in real]
        found = [dequantize_onnx(array, quant) for array in arrays]
        wanted = finite(np.stack(real)).astype(np.float64)
        return sqnr(float(np.square(wanted).sum()), float(np.square(wanted - found).sum()))
