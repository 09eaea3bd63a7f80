"""Classes of channels that can be rescaled together without changing the network's function.

If a channel of a tensor is multiplied by a positive factor, the operator that computes it must
multiply by the factor, and its readers must divide by it. Products can do both in their weights.
Operators with `f(s * x) = s * f(x)` pass the factor on. All other operators, and the network's
inputs and outputs, require a factor of one. A clamp does too, but channels that stay below its
limit may be enlarged until they approach it. Channels are the last axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from smelt.ir import Activation, Array, Graph, Node, Value
from smelt.ir.homogeneity import Homogeneity
from smelt.ir.weights import weights_rule
from smelt.quant.plan import NodeKind, QuantizationPlan, is_real
from smelt.quant.weights.integers import to_matrices

FIXED = 0
"""Class of channels with factor one."""


def channels_of(value: Value) -> int:
    """Return the number of channels of a tensor."""
    return value.type.shape[-1] if value.type.shape else 1


def tap_channels(node: Node) -> Array:
    """Return the input channel of each tap of a product's matrix, int64 `[groups, taps]`.

    See `integers.to_matrices` for the layout.
    """
    shape = node.input(1).type.shape
    met = np.broadcast_to(weights_rule(node.op).input_channels(node), shape)
    return to_matrices(node, met)[:, 0].astype(np.int64)


_SHORT = 0.8
"""Channels up to this fraction of a clamp's limit are assumed never to reach it."""

ChannelReach = Mapping[Value, tuple[Array, Array]]
"""Largest magnitude below and above zero of each channel of a tensor, `[channels]` each."""


class Classes:
    """Classes of channels that must have the same factor, as a union-find structure."""

    def __init__(
        self, graph: Graph, plan: QuantizationPlan, limits: ChannelReach = MappingProxyType({})
    ) -> None:
        """Find the classes of a network.

        Args:
            graph: a float network.
            plan: kind of each node.
            limits: largest magnitudes of the values' channels. Channels without an entry are
                assumed to reach their clamps.
        """
        self._parent = [FIXED]
        self._limits = limits
        self._most: list[tuple[Array, Array]] = []
        self._of: dict[Value, Array] = {}
        self._undecided: list[tuple[Node, Sequence[Homogeneity]]] = []
        self._plan = plan
        for value in graph.values():
            if value.data is None and is_real(value):
                start, count = len(self._parent), channels_of(value)
                self._parent += range(start, start + count)
                self._of[value] = np.arange(start, start + count)
        for value in (*graph.inputs, *graph.results, *(s.before for s in graph.states)):
            self._fix(value)
        for node in graph.nodes:
            self._visit(node)
        for node, ways in self._undecided:
            self._choose(node, ways)

    def of(self, value: Value) -> Array:
        """Return the class of each channel, int64 `[channels]`."""
        return np.array([self._find(int(i)) for i in self._of[value]], np.int64)

    def __iter__(self) -> Iterator[Value]:
        return iter(self._of)

    def __contains__(self, value: Value) -> bool:
        return value in self._of

    @property
    def count(self) -> int:
        """Return the number of class indices."""
        return len(self._parent)

    @property
    def most(self) -> Array:
        """Return the largest allowed factor of each class, float64 `[count]`, at least one."""
        found = np.full(self.count, np.inf)
        for own, bounds in self._most:
            np.minimum.at(found, [self._find(int(i)) for i in own], bounds)
        return np.maximum(found, 1.0)

    def _find(self, index: int) -> int:
        while self._parent[index] != index:
            self._parent[index] = self._parent[self._parent[index]]
            index = self._parent[index]
        return index

    def _join(self, a: Array, b: Array) -> None:
        """Merge classes pair by pair, with broadcasting; `FIXED` always stays a root."""
        for i, j in zip(*map(np.ravel, np.broadcast_arrays(a, b)), strict=True):
            first, second = sorted((self._find(int(i)), self._find(int(j))))
            self._parent[second] = first

    def _fix(self, value: Value | None) -> None:
        if value in self._of:
            self._join(self._of[value], np.array(FIXED))

    def _fix_all(self, node: Node) -> None:
        for value in (*node.inputs, *node.outputs):
            self._fix(value)

    def _visit(self, node: Node) -> None:
        kind = self._plan.kind[node]
        if kind is NodeKind.PLAIN:
            return
        if kind is NodeKind.PRODUCT:
            self._product(node)
            return
        ways = () if kind is NodeKind.FLOAT else node.op.homogeneity(node)
        if not ways:
            self._fix_all(node)
        elif len(ways) == 1:
            self._pass_on(node, ways[0])
        else:
            self._undecided.append((node, ways))

    def _product(self, node: Node) -> None:
        activation = node.op.fused_activation or Activation.NONE
        if not activation.is_homogeneous:
            self._clamped(node.output, *activation.limits)
        if not weights_rule(node.op).keeps_channels(node):
            self._fix(node.input(0))

    def _clamped(self, value: Value, low: float, high: float) -> None:
        """Fix the channels that reach a clamp, and limit the factors of the others."""
        if value not in self._limits:
            self._fix(value)
            return
        below, above = self._limits[value]
        room = _SHORT * np.minimum(
            high / np.maximum(above, 1e-30), -low / np.maximum(below, 1e-30) if low else np.inf
        )
        own = self._of[value]
        self._join(own[room < 1.0], np.array(FIXED))
        self._most.append((own, room))

    def _pass_on(self, node: Node, way: Homogeneity) -> None:
        for index in way.fixed:
            self._fix(node.input(index))
        for link in way.links:
            x = node.input(link.operand)
            self._join(self._of[x][link.source], self._of[node.output][link.result])

    def _choose(self, node: Node, ways: Sequence[Homogeneity]) -> None:
        """Prefer to fix the smaller operand, unless the other one is fixed anyway."""
        ways = sorted(ways, key=lambda way: sum(node.input(i).type.size for i in way.fixed))
        free = (w for w in ways if any(self.of(node.input(k.operand)).any() for k in w.links))
        self._pass_on(node, next(free, ways[-1]))
