"""Moving and merging of reshapes."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from smelt.codegen.passes.cleanup.dead_nodes import drop_dead_nodes
from smelt.codegen.passes.context import DEFAULT, PassContext
from smelt.codegen.passes.layout.layout_choices import axes
from smelt.codegen.passes.rewriting import Matcher, replace_nodes
from smelt.codegen.passes.subgraphs import Names
from smelt.ir import Graph, Node, Rewrite, Shape, Value
from smelt.ops.tensor.reshape import Reshape


def sink_reshapes(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Move the reshape of an elementwise operator's operands behind the operator.

    The operator can then be merged with the operators before it, and the reshape with reshapes that
    follow.
    """
    names = Names(graph)
    reshaped: dict[Value, Node] = {}

    def sink(node: Node) -> Rewrite:
        if isinstance(node.op, Reshape):
            reshaped[node.output] = node
            return None
        sources = _sources(node, reshaped, names)
        if sources is None:
            return None
        shape = next(v.type.shape for v in sources if not v.is_constant)
        output = node.output
        inner = Value(names.fresh(f"{output.name}:reshaped"), output.type.with_shape(shape))
        last = Node(Reshape(output.type.shape), (inner,), (output,), node.origin)
        reshaped[output] = last
        return [replace(node, inputs=sources, outputs=(inner,)), last], [output]

    return drop_dead_nodes(graph.rewrite(sink))


def _sources(node: Node, reshaped: dict[Value, Node], names: Names) -> tuple[Value, ...] | None:
    """Return an elementwise operator's operands before their common reshape; None if not common."""
    found = axes(node)
    if found is None or not found.elementwise:
        return None
    shape = node.output.type.shape
    given = [v for v in node.inputs if v is not None]
    computed = [v for v in given if not v.is_constant]
    before = {v: reshaped[v].input(0) for v in computed if v in reshaped}
    shapes = {v.type.shape for v in before.values()}
    if len(before) < len(set(computed)) or len(shapes) != 1 or len(given) < len(node.inputs):
        return None
    if any(v.type.shape != shape for v in computed):
        return None
    (source,) = shapes
    constants = {v: _reshaped_constant(v, shape, source, names) for v in given if v.is_constant}
    sources = [before.get(v) or constants.get(v) for v in given]
    return None if None in sources else tuple(v for v in sources if v is not None)


def _reshaped_constant(value: Value, shape: Shape, source: Shape, names: Names) -> Value | None:
    """Convert a constant that broadcasts to `shape` to one that broadcasts to `source`, or None."""
    size = value.type.size
    if size == 1:
        new: Shape = ()
    elif size == prod(shape):
        new = source
    elif shape[-1:] == source[-1:] == (size,) == value.type.shape[-1:]:
        new = (size,)
    else:
        return None
    if new == value.type.shape or (len(new) < 2 and len(value.type.shape) <= len(source)):
        return value
    name = names.fresh(f"{value.name}:reshaped")
    return Value(name, value.type.with_shape(new), value.array.reshape(new))


def merge_reshapes(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Merge consecutive reshapes into one, and drop those that change nothing."""
    return replace_nodes(graph, _merged)


def _merged(node: Node, matcher: Matcher) -> Node | Value | None:
    if not isinstance(node.op, Reshape):
        return None
    source = node.input(0)
    before = matcher.producer(source)
    if before is not None and isinstance(before.op, Reshape):
        source = before.input(0)
    if source.type == node.output.type and not matcher.is_result(node.output):
        return source
    return None if source is node.input(0) else replace(node, inputs=(source,))
