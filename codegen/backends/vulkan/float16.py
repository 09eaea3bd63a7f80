"""Pass that stores the GPU's tensors as float16, to halve memory and memory traffic.

Only the storage type changes. Inputs, outputs, states and the CPU's layers stay float32, with a
Cast between float32 and float16 layers. Biases stay float32 too, because they are added to float32
sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.passes.cleanup.dead_nodes import drop_dead_nodes
from smelt.codegen.passes.subgraphs import Names
from smelt.errors import ModelError, UnsupportedError
from smelt.ir import Array, DType, Graph, Node, Origin, Value, verify
from smelt.ir.weights import BIAS
from smelt.ops.core.binary import Binary
from smelt.ops.core.cast import Cast
from smelt.ops.tensor.reshape import Reshape

_LARGEST = float(np.finfo(np.float16).max)
_LEAST = float(np.finfo(np.float16).smallest_normal)

_FACTORS = frozenset({"mul", "div"})
"""Kinds of Binary whose constant is a factor, which must not be clamped; an added mask may be."""


def use_float16(graph: Graph, partitioner: Partitioner) -> Graph:
    """Store as float16 what the GPU writes and reads, if its kernels support that.

    Args:
        graph: After legalization.
        partitioner: Knows which nodes the GPU computes.

    Returns:
        The verified graph. A layer keeps its name. Its output keeps its name too, unless it is an
        output of the graph.
    """
    return verify(_Float16Rewrite(graph, partitioner).run(), use_float16.__name__)


def stored_as_float16(graph: Graph, partitioner: Partitioner) -> Mapping[Node, Node]:
    """Return the float16 form of each layer, if all layers that the GPU serves were placed on it.

    Layers that would stay float32 are missing.
    """
    narrowing = _Float16Rewrite(graph, partitioner)
    narrowing.run()
    return narrowing.narrowed


def conversion(source: Value, target: Value, origin: Origin) -> Node:
    """Return a Cast of one tensor to the type of another."""
    return Node(Cast(target.type.dtype), (source,), (target,), origin)


class _Float16Rewrite:
    """One run of the pass, node by node.

    The twin of a value or node is its float16 form.

    Attributes:
        nodes: The new nodes.
        narrowed: Twins of nodes, which replace them.
        narrow: Twins of float32 values, some of which may never be computed.
        wide: What float32 layers read for values that are stored as float16.
        made: Values whose twins are computed.
        large: Values that may exceed the range of float16.
        end: Index in `nodes` after the last float16 node, which is on the GPU.
    """

    def __init__(self, graph: Graph, partitioner: Partitioner) -> None:
        self._graph = graph
        self._partitioner = partitioner
        self._names = Names(graph)
        self.nodes: list[Node] = []
        self.narrowed: dict[Node, Node] = {}
        self.narrow: dict[Value, Value] = {}
        self.wide: dict[Value, Value] = {}
        self.made: set[Value] = set()
        self.large: set[Value] = set()
        self.end = 0

    def run(self) -> Graph:
        """Return the new graph, without the reshapes and twins of reshapes that nothing reads."""
        results = frozenset(self._graph.results)
        for node in self._graph.nodes:
            twin = self._twin(node, results)
            if twin is None:
                inputs = tuple(None if v is None else self._widened(v) for v in node.inputs)
                self.nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
                continue
            self.narrowed[node] = twin
            if not isinstance(node.op, Reshape):
                self.end = len(self.nodes)
            for value, _ in differing(node.inputs, twin.inputs):
                self._halve(value, node.origin)
            self._add(twin)
            for value, own in differing(node.outputs, twin.outputs):
                self.narrow[value] = own
                self.made.add(value)
                if value in results:
                    self._add(conversion(own, value, node.origin))
                    self.wide[value] = value
        return drop_dead_nodes(replace(self._graph, nodes=tuple(self.nodes)))

    def _add(self, node: Node) -> None:
        """Insert a node at the end of the last run of GPU layers.

        After the CPU layers that follow it, a conversion would need another submission.
        """
        self.nodes.insert(self.end, node)
        self.end += 1

    def _halve(self, value: Value, origin: Origin) -> None:
        """Compute a value's twin unless it exists; if it is reshaped, from its source's twin."""
        if value in self.made:
            return
        self.made.add(value)
        own = self._narrowed(value)
        if own.is_constant:
            return
        reshape = self._reshape(value)
        if reshape is None:
            self._add(conversion(value, own, origin))
        else:
            self._halve(reshape.input(0), origin)
            source = self._narrowed(reshape.input(0))
            self._add(replace(reshape, inputs=(source,), outputs=(own,)))
        self.wide[value] = value

    def _widened(self, value: Value) -> Value:
        """Return what a float32 layer reads for a value; insert the conversion if needed."""
        if value not in self.made or value.is_constant:
            return value
        if value not in self.wide:
            own = replace(value, name=self._names.fresh(f"{value.name}_f32"))
            self.wide[value] = own
            reshape = self._reshape(value)
            if reshape is None:
                origin = self._graph.producer[value].origin
                self._add(conversion(self.narrow[value], own, origin))
            else:
                source = self._widened(reshape.input(0))
                self._add(replace(reshape, inputs=(source,), outputs=(own,)))
        return self.wide[value]

    def _reshape(self, value: Value) -> Node | None:
        """Return the Reshape that produces a value; None if another operator does."""
        producer = self._graph.producer.get(value)
        return producer if producer is not None and isinstance(producer.op, Reshape) else None

    def _twin(self, node: Node, results: frozenset[Value]) -> Node | None:
        """Return the node with float16 data; None if it stays float32."""
        if isinstance(node.op, Reshape):
            source = node.input(0)
            self.large |= {node.output} if source in self.large else set()
            stored = source in self.made and source not in self.wide and node.output not in results
            return self._with_halves(node, results) if stored else None
        if not self._fits_float16(node) or not self._on_gpu(node):
            return None
        twin = self._with_halves(node, results)
        try:
            types = node.op.infer([None if v is None else v.type for v in twin.inputs])
        except ModelError:
            return None
        fits = [t.dtype for t in types] == [v.type.dtype for v in twin.outputs]
        return twin if fits and self._on_gpu(twin) else None

    def _fits_float16(self, node: Node) -> bool:
        """Return whether a node may be stored as float16: its types, values and constants fit."""
        operands = [v for v in node.inputs if v is not None]
        values = [*operands, *node.outputs]
        settles = node.macs > 0 or node.op.settles
        if node.op.grows(node) or (not settles and any(v in self.large for v in values)):
            self.large |= set(node.outputs)
            return False
        if node.op.converts or any(v.type.is_quantized for v in values):
            return False
        if not any(map(_is_wide, values)) or all(v.is_constant for v in operands):
            return False
        return all(_constant_fits(v.data, node) for v in operands if _is_wide(v))

    def _on_gpu(self, node: Node) -> bool:
        try:
            return isinstance(self._partitioner.choose(node).taken.call, ShaderCall)
        except UnsupportedError:
            return False

    def _with_halves(self, node: Node, results: frozenset[Value]) -> Node:
        inputs = tuple(
            self._narrowed(v) if v is not None and not _is_bias(node, i) else v
            for i, v in enumerate(node.inputs)
        )
        outputs = tuple(
            self._stored(v, self._names.fresh(f"{v.name}_f16") if v in results else v.name)
            for v in node.outputs
        )
        return replace(node, inputs=inputs, outputs=outputs)

    def _narrowed(self, value: Value) -> Value:
        if value not in self.narrow:
            name = self._names.fresh(f"{value.name}_f16") if _is_wide(value) else value.name
            self.narrow[value] = self._stored(value, name)
        return self.narrow[value]

    def _stored(self, value: Value, name: str) -> Value:
        if not _is_wide(value):
            return value
        if value.data is not None:
            return Value.constant(name, _halves(value.data))
        return Value(name, replace(value.type, dtype=DType.FLOAT16))


def differing(
    values: tuple[Value | None, ...], narrowed: tuple[Value | None, ...]
) -> Iterator[tuple[Value, Value]]:
    """Yield a node's values that differ in its twin, each with the twin's value."""
    for value, twin in zip(values, narrowed, strict=True):
        if value is not None and twin is not None and twin is not value:
            yield value, twin


def _is_wide(value: Value) -> bool:
    return value.type.dtype is DType.FLOAT32


def _is_bias(node: Node, index: int) -> bool:
    value = node.inputs[index]
    bias = node.op.weights_rule is not None and index == BIAS
    return bias and value is not None and value.is_constant


def _constant_fits(data: Array | None, node: Node) -> bool:
    """Return whether a constant of the node may be stored as float16.

    Weights: the largest must be a normal float16 number; smaller ones add little to the sums.
    Operands of Binary: none may be subnormal, and factors must not exceed float16's range. Other
    constants, such as masks, may be clamped to that range.
    """
    if data is None:
        return True
    size = np.abs(data[np.isfinite(data) & (data != 0)])
    if node.macs:
        return not size.size or _LEAST <= float(size.max()) <= _LARGEST
    if not isinstance(node.op, Binary):
        return True
    largest = _LARGEST if node.op.kind in _FACTORS else np.inf
    return bool(size.min(initial=np.inf) >= _LEAST and size.max(initial=0) <= largest)


def _halves(data: Array) -> Array:
    """Return the nearest float16 numbers; finite ones are clamped to float16's range."""
    return np.where(np.isfinite(data), np.clip(data, -_LARGEST, _LARGEST), data).astype(np.float16)
