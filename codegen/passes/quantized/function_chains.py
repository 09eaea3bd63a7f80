"""Merging of chains of functions of one 8-bit tensor into a table of 256 results.

A chain may contain requantizations, Dequantize and Quantize, clamps, activations and other
elementwise functions. It is evaluated for all 256 inputs by the operators' references, so that
every bit stays. If the table returns every number that the input can hold unchanged, the chain is
dropped.
"""

from __future__ import annotations

import numpy as np

from smelt.codegen.passes.channels.constant_channels import plan_channels
from smelt.codegen.passes.context import DEFAULT, PassContext
from smelt.codegen.passes.rewriting import Matcher, replace_nodes
from smelt.ir import Array, DType, Graph, Node, Value
from smelt.ops.core.table import Table

_EIGHT_BITS = (DType.INT8, DType.UINT8)


def merge_functions(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Replace chains of functions of one 8-bit tensor by a table; drop those without effect."""
    bounds = plan_channels(graph).bounds

    def reachable(value: Value) -> slice:
        """Return the slice of the stored numbers, in ascending order, that a value can hold."""
        lowest, highest = value.type.dtype.limits
        known = bounds.get(value)
        if known is not None:
            return slice(int(known.low.min()) - lowest, int(known.high.max()) - lowest + 1)
        return slice(0, highest - lowest + 1)

    def merge(node: Node, matcher: Matcher) -> Node | Value | None:
        if len(node.outputs) != 1 or node.output.type.dtype not in _EIGHT_BITS:
            return None
        chain = _chain(node, matcher)
        if not chain:
            return None
        source, results = _argument(chain[0]), _results(chain)
        if source is None:
            return None
        seen = reachable(source)
        same = source.type == node.output.type and not matcher.is_result(node.output)
        if same and (results[seen] == _stored(source)[seen]).all():
            return source
        if len(chain) == 1:
            return None
        table = matcher.constant(f"{node.output.name}:table", results)
        return Node(Table(), (source, table), node.outputs, node.origin)

    return replace_nodes(graph, merge)


def tabulated(node: Node) -> Array | None:
    """Return the result of a function for each stored 8-bit number, in ascending order.

    Returns None if the node is not a function of one 8-bit tensor with 8-bit results.
    """
    x = _argument(node)
    if x is None or {x.type.dtype, node.output.type.dtype} - set(_EIGHT_BITS):
        return None
    return _results([node])


def _chain(node: Node, matcher: Matcher) -> list[Node]:
    """Return the longest chain of functions from an 8-bit tensor to the node.

    Returns an empty list if the node is not a function of one tensor.
    """
    chain: list[Node] = []
    found: list[Node] = []
    current: Node | None = node
    while current is not None:
        x = _argument(current)
        if x is None or x.type.shape != node.output.type.shape:
            break
        chain.insert(0, current)
        if x.type.dtype in _EIGHT_BITS:
            found = list(chain)
            # An 8-bit value with other users must be computed anyway, so the chain starts there.
            current = matcher.single_use_producer(x)
        else:
            current = matcher.producer(x)
    return found


def _argument(node: Node) -> Value | None:
    """Return the one tensor that a node is an elementwise function of, or None."""
    if not node.op.elementwise or node.op.moves_data or len(node.outputs) != 1:
        return None
    computed = [v for v in node.inputs if v is not None and v.data is None]
    constants = [v for v in node.inputs if v is not None and v.data is not None]
    if isinstance(node.op, Table):
        constants = []
    quant = None if len(computed) != 1 else computed[0].type.quant
    if len(computed) != 1 or any(v.type.size != 1 for v in constants):
        return None
    return computed[0] if quant is None or quant.is_per_tensor else None


def _stored(value: Value) -> Array:
    low, high = value.type.dtype.limits
    return np.arange(low, high + 1).astype(value.type.dtype.numpy)


def _results(chain: list[Node]) -> Array:
    """Return the result of a chain for each stored number, in ascending order."""
    x = _argument(chain[0])
    if x is None:
        raise ValueError(f"{chain[0].origin} is not a function of one tensor")
    known = {x: _stored(x)}
    for node in chain:
        operands = [None if v is None else known.get(v, _constant(node, v)) for v in node.inputs]
        (known[node.output],) = node.op.reference(node, operands)
    return np.asarray(known[chain[-1].output], chain[-1].output.type.dtype.numpy)


def _constant(node: Node, value: Value) -> Array | None:
    """Return a constant operand as a scalar, or unchanged for a table."""
    if value.data is None:
        return None
    return value.data if isinstance(node.op, Table) else value.data.reshape(())
