"""Which channels of which tensors can be rescaled without changing what a network computes.

If a channel of a tensor is multiplied by a positive number, whoever computes it must do so and
whoever reads it must undo it. Products can do both in their weights. Operators for which
`f(s · x) = s · f(x)` pass the factor on; all others, and the network's inputs and outputs, keep it
at one. A clamp does not, but channels that stay short of it may grow until they come near it.
Channels lie along the last axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from types import MappingProxyType

import numpy as np

from smelt.ir import Array, Graph, Node, Op, Value
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.convolution_nd import ConvTranspose
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.matmul import MatMul
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.prelu import PRelu
from smelt.ops.core.products import WeightedProduct
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.copy import Copy
from smelt.ops.tensor.pad import Pad
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.resize import Resize
from smelt.ops.tensor.slice import Slice
from smelt.ops.tensor.transpose import Transpose
from smelt.quant.forms import Form, Forms, is_real

FIXED = 0
"""The class of channels whose factor is one."""

_HOMOGENEOUS_UNARY = ("relu", "leaky_relu", "abs", "neg")
_HOMOGENEOUS_REDUCE = ("mean", "sum", "max", "min")
_HOMOGENEOUS = (Activation.NONE, Activation.RELU)


def channels_of(value: Value) -> int:
    """How many channels a tensor has."""
    return value.type.shape[-1] if value.type.shape else 1


def taps_channel(node: Node) -> Array:
    """For each row of a product's matrix, the input channel of each tap.

    int64 `[groups, taps]`; see `weights.to_matrices`.
    """
    channels = channels_of(node.input(0))
    shape = node.input(1).type.shape
    if isinstance(node.op, DepthwiseConv2D):
        return np.repeat(np.arange(channels)[:, None], shape[1] * shape[2], axis=1)
    if isinstance(node.op, Conv2D | ConvTranspose):
        last = isinstance(node.op, ConvTranspose)
        *kernel, depth = shape[:-1] if last else shape[1:]
        own = np.tile(np.arange(depth), prod(kernel))
        return own[None, :] + np.arange(node.op.groups)[:, None] * depth
    return np.arange(shape[1])[None, :] % channels


_SHORT = 0.8
"""Channels that reach no more than this part of a clamp are taken to stay short of it."""

Limits = Mapping[Value, tuple[Array, Array]]
"""How far each channel of a tensor reaches below and above zero, both positive: `[channels]`."""


class Classes:
    """Classes of channels that have one factor."""

    def __init__(self, graph: Graph, forms: Forms, limits: Limits = MappingProxyType({})) -> None:
        """Find them.

        Args:
            graph: a float network.
            forms: of its nodes.
            limits: of its values; of those that are not known, every channel reaches its clamps.
        """
        self._parent = [FIXED]
        self._limits = limits
        self._most: list[tuple[Array, Array]] = []
        self._of: dict[Value, Array] = {}
        self._forms = forms
        for value in graph.values():
            if value.data is None and is_real(value):
                start, count = len(self._parent), channels_of(value)
                self._parent += range(start, start + count)
                self._of[value] = np.arange(start, start + count)
        for value in (*graph.inputs, *graph.results, *(s.before for s in graph.states)):
            self._fix(value)
        for node in graph.nodes:
            self._visit(node)
        self._products_of_two(graph)

    def of(self, value: Value) -> Array:
        """int64 `[channels]`: the class of each channel; equal numbers are one class."""
        return np.array([self._find(int(i)) for i in self._of[value]], np.int64)

    def __iter__(self) -> Iterator[Value]:
        return iter(self._of)

    def __contains__(self, value: Value) -> bool:
        return value in self._of

    @property
    def count(self) -> int:
        """How many numbers there are for classes."""
        return len(self._parent)

    @property
    def most(self) -> Array:
        """float64 `[count]`: the largest factor that each class may have, at least one."""
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
        """Make classes one, pair by pair; arrays are broadcast. The fixed one stays the root."""
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
        form = self._forms.form[node]
        if form is Form.PLAIN:
            return
        if form is Form.PRODUCT:
            self._product(node)
            return
        rule = None if form is Form.FLOAT else self._rules().get(type(node.op))
        if rule is None or not rule(node):
            self._fix_all(node)

    def _rules(self) -> Mapping[type[Op], Callable[[Node], bool]]:
        """By operator, what joins classes and tells whether the operator passes factors on."""
        return {
            Binary: self._binary,
            Concat: self._concat,
            Copy: self._same,
            MatMul: self._matmul,
            PRelu: self._prelu,
            Pad: self._pad,
            Pool2D: self._pool,
            Reduce: self._reduce,
            Reshape: self._reshape,
            Resize: self._same,
            Slice: self._slice,
            Transpose: self._transpose,
            Unary: self._unary,
        }

    def _product(self, node: Node) -> None:
        if isinstance(node.op, WeightedProduct) and node.op.activation not in _HOMOGENEOUS:
            self._clamped(node.output, *node.op.activation.limits)
        x, depth = node.input(0), channels_of(node.input(0))
        if isinstance(node.op, FullyConnected) and node.input(1).type.shape[1] % depth:
            self._fix(x)

    def _clamped(self, value: Value, low: float, high: float) -> None:
        """Fix the channels that reach a clamp; bound the others, which do not get there."""
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

    def _same(self, node: Node) -> bool:
        """One computed input; each channel of it is one of the output, in the same place."""
        self._join(self._of[node.input(0)], self._of[node.output])
        return True

    def _unary(self, node: Node) -> bool:
        return (
            isinstance(node.op, Unary) and node.op.kind in _HOMOGENEOUS_UNARY and self._same(node)
        )

    def _prelu(self, node: Node) -> bool:
        return node.input(1).data is not None and self._same(node)

    def _binary(self, node: Node) -> bool:
        op = node.op
        if not isinstance(op, Binary) or op.activation not in _HOMOGENEOUS:
            return False
        a, b = node.input(0), node.input(1)
        constants = [v for v in (a, b) if v.data is not None]
        if op.kind in ("add", "sub", "maximum", "minimum"):
            if any(v.type.size == 1 and v.array.any() for v in constants):
                return False
        elif op.kind == "mul":
            if not constants:
                return True
        elif op.kind != "div" or b.data is None:
            return False
        for value in (a, b):
            if value.data is None:
                self._join(self._of[value], self._of[node.output])
        return True

    def _products_of_two(self, graph: Graph) -> None:
        """A product of two tensors has the factor of one of them if the other's is one."""
        nodes = [n for n in graph.nodes if isinstance(n.op, Binary) and n.op.kind == "mul"]
        for node in nodes:
            a, b = node.input(0), node.input(1)
            if self._forms.form[node] is Form.FLOAT or a.data is not None or b.data is not None:
                continue
            if a is b or not isinstance(node.op, Binary) or node.op.activation not in _HOMOGENEOUS:
                self._fix_all(node)
                continue
            fixed, other = (a, b) if a.type.size < b.type.size else (b, a)
            if not self.of(other).any():
                fixed, other = other, fixed
            self._fix(fixed)
            self._join(self._of[other], self._of[node.output])

    def _matmul(self, node: Node) -> bool:
        """Columns of the right operand that stay channels, and rows of the left that become so."""
        op, rank = node.op, len(node.output.type.shape)
        if not isinstance(op, MatMul):
            return False
        kept = op.result[-1] if op.result else rank - 1
        for value, other, order, axis in (
            (node.input(0), node.input(1), op.left, -2),
            (node.input(1), node.input(0), op.right, -1),
        ):
            last = len(value.type.shape) - 1
            moved = order or tuple(range(last + 1))
            if kept == rank + axis and moved[axis] == last and value in self._of:
                self._fix(other)
                self._join(self._of[value], self._of[node.output])
                return True
        return False

    def _pool(self, node: Node) -> bool:
        op = node.op
        return isinstance(op, Pool2D) and op.activation in _HOMOGENEOUS and self._same(node)

    def _reduce(self, node: Node) -> bool:
        op = node.op
        if not isinstance(op, Reduce) or op.kind not in _HOMOGENEOUS_REDUCE:
            return False
        x = node.input(0)
        if len(x.type.shape) - 1 in op.axes:
            self._join(self._of[x], self._of[x][0])
            self._join(self._of[node.output], self._of[x][0])
            return True
        return self._same(node)

    def _concat(self, node: Node) -> bool:
        op = node.op
        if not isinstance(op, Concat) or any(v is None or v.data is not None for v in node.inputs):
            return False
        inputs = [self._of[v] for v in node.inputs if v is not None]
        if op.axis == len(node.output.type.shape) - 1:
            self._join(np.concatenate(inputs), self._of[node.output])
        else:
            for classes in inputs:
                self._join(classes, self._of[node.output])
        return True

    def _pad(self, node: Node) -> bool:
        op = node.op
        zero = isinstance(op, Pad) and op.value in (None, 0) and len(node.inputs) == 1
        kept = isinstance(op, Pad) and op.padding[-1] == (0, 0)
        return zero and kept and self._same(node)

    def _slice(self, node: Node) -> bool:
        if not isinstance(node.op, Slice) or not node.op.sizes:
            return False
        op, classes = node.op, self._of[node.input(0)]
        taken = op.starts[-1] + np.arange(op.sizes[-1]) * op.steps[-1]
        self._join(classes[taken], self._of[node.output])
        return True

    def _transpose(self, node: Node) -> bool:
        op = node.op
        kept = isinstance(op, Transpose) and op.permutation[-1] == len(op.permutation) - 1
        return kept and self._same(node)

    def _reshape(self, node: Node) -> bool:
        """Element i of a tensor belongs to channel i modulo their number, before and after."""
        before, after = self._of[node.input(0)], self._of[node.output]
        if not len(before) or not len(after):
            return False
        count = max(len(before), len(after))
        if count % len(before) or count % len(after):
            self._join(before, before[0])
            self._join(after, before[0])
            return True
        self._join(np.resize(before, count), np.resize(after, count))
        return True
