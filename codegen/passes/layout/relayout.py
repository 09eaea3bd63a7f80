"""Rebuilding of a graph so that every node has its chosen layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smelt.codegen.passes.layout.axis_order import Key, Layout, permutation
from smelt.codegen.passes.layout.layout_choices import NodeLayout
from smelt.codegen.passes.subgraphs import Names
from smelt.ir import Graph, Node, Op, Origin, Quant, TensorType, Value
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.transpose import Transpose


def relay_out(graph: Graph, layouts: Mapping[Node, NodeLayout]) -> Graph:
    """Rebuild a graph with these layouts, and add transpositions where two nodes disagree."""
    rebuilt = _Rebuilt(graph)
    for node in graph.nodes:
        rebuilt.add(node, layouts[node])
    outputs = tuple(map(rebuilt.result, graph.outputs))
    states = tuple(replace(s, after=rebuilt.result(s.after)) for s in graph.states)
    return replace(graph, nodes=tuple(rebuilt.nodes), outputs=outputs, states=states)


class _Rebuilt:
    """The new nodes, and for each value of the old graph its new value and layout."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self._names = Names(graph)
        self._results = set(graph.results)
        self._held: dict[Value, tuple[Value, Layout]] = {}
        self._moved: dict[tuple[Value, Key, tuple[int, ...]], Value] = {}
        self._origins: dict[Value, Origin] = {}
        self._given: dict[Value, Value] = {}

    def add(self, node: Node, layouts: NodeLayout) -> None:
        """Append a node with these layouts, after the transpositions that its operands need."""
        self._origins |= dict.fromkeys(node.outputs, node.origin)
        if layouts.op is None:
            self._pass_on(node, layouts)
            return
        inputs = tuple(
            None if v is None or layout is None else self._laid_out(v, layout, node.origin)
            for v, layout in zip(node.inputs, layouts.inputs, strict=True)
        )
        outputs = tuple(
            self._renewed(v, layout)
            for v, layout in zip(node.outputs, layouts.outputs, strict=True)
        )
        if (layouts.op, inputs, outputs) != (node.op, node.inputs, node.outputs):
            node = replace(node, op=layouts.op, inputs=inputs, outputs=outputs)
        self.nodes.append(node)

    def result(self, value: Value) -> Value:
        """Return a result of the graph in its natural layout and with its own name."""
        natural = Layout.natural(value.type.shape)
        origin = self._origins.get(value, Origin("RESULT", 0, value.name))
        if value not in self._given:
            held = self._laid_out(value, natural, origin, value.name)
            if held.name != value.name:
                held = self._emit(Reshape(held.type.shape), held, value.name, origin)
            self._given[value] = held
        return self._given[value]

    def _pass_on(self, node: Node, layouts: NodeLayout) -> None:
        """Make the result the operand itself, which is transposed first if its layout differs."""
        (source,), (wanted,), (layout,) = node.inputs, layouts.inputs, layouts.outputs
        assert source is not None
        assert wanted is not None
        name = self._fresh(node.output, layout)
        held = self._laid_out(source, wanted, node.origin, name, reshapes=False)
        self._held[node.output] = held, replace(layout, shape=held.type.shape)

    def _renewed(self, value: Value, layout: Layout) -> Value:
        """Return the value that replaces an old one in a layout, or the same if nothing changes."""
        held = value
        if layout != Layout.natural(value.type.shape):
            held = Value(self._fresh(value, layout), _laid_out_type(value.type, layout))
        self._held[value] = held, layout
        return held

    def _fresh(self, value: Value, layout: Layout) -> str:
        """Return the name of a value in a layout; a result keeps its name in its natural layout."""
        if value not in self._results or layout == Layout.natural(value.type.shape):
            return value.name
        return self._names.fresh(f"{value.name}:laid_out")

    def _laid_out(
        self,
        value: Value,
        layout: Layout,
        origin: Origin,
        name: str | None = None,
        *,
        reshapes: bool = True,
    ) -> Value:
        """Return an old value in a layout, adding a transposition if needed.

        With `reshapes` false, the value may have another shape in the same layout.
        """
        held, at = self._held.get(value, (value, Layout.natural(value.type.shape)))
        if at.key == layout.key and (held.type.shape == layout.shape or not reshapes):
            return held
        found = (value, layout.key, layout.shape)
        if found not in self._moved:
            if value.is_constant:
                self._moved[found] = self._constant(value, layout)
            else:
                steps = _steps(at, layout)
                self._moved[found] = self._chain(value.name, steps, held, name, origin)
        return self._moved[found]

    def _constant(self, value: Value, layout: Layout) -> Value:
        name = self._names.fresh(f"{value.name}:transposed")
        type_ = _laid_out_type(value.type, layout)
        return Value(name, type_, layout.apply(value.array).copy(order="C"))

    def _chain(
        self, stem: str, steps: list[Op], held: Value, name: str | None, origin: Origin
    ) -> Value:
        """Append unary operators to a value; the last result gets the name, if one is given."""
        for index, op in enumerate(steps):
            last = index == len(steps) - 1
            kind = "transposed" if isinstance(op, Transpose) else "reshaped"
            fresh = name if name and last else self._names.fresh(f"{stem}:{kind}")
            held = self._emit(op, held, fresh, origin)
        return held

    def _emit(self, op: Op, operand: Value, name: str, origin: Origin) -> Value:
        (type_,) = op.infer([operand.type])
        result = Value(name, TensorType(type_.shape, type_.dtype, op.output_quant([operand.type])))
        self.nodes.append(Node(op, (operand,), (result,), origin))
        return result


def _steps(source: Layout, target: Layout) -> list[Op]:
    """Return the operators that convert a tensor from one layout to another."""
    if source.key == target.key:
        return [] if source.shape == target.shape else [Reshape(target.shape)]
    found = permutation(source, target)
    if found is None:
        natural = replace(Layout.natural(source.view), shape=target.view)
        return [*_steps(source, natural), *_steps(Layout.natural(target.view), target)]
    shape, order = found
    moved = tuple(shape[axis] for axis in order)
    before = [] if source.shape == shape else [Reshape(shape)]
    after = [] if moved == target.shape else [Reshape(target.shape)]
    return [*before, Transpose(order), *after]


def _laid_out_type(type_: TensorType, layout: Layout) -> TensorType:
    quant = type_.quant
    if quant is not None and quant.axis is not None and layout.view == type_.shape:
        quant = Quant(quant.scale, quant.zero_point, layout.order.index(quant.axis))
    return TensorType(layout.shape, type_.dtype, quant)
