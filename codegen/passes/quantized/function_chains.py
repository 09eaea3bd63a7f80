"""Chains of functions of one 8-bit tensor: what the whole chain does is known for all 256 inputs.

So requantizations in a row, Dequantize followed by Quantize, clamps, activations and what lies
between them are one table; and where the table gives back each number that its input can hold,
nothing at all. The numbers are those of the operators' references: every bit stays.
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
    """Make chains of functions of one 8-bit tensor one table; drop those that change nothing."""
    bounds = plan_channels(graph).bounds

    def reachable(value: Value) -> slice:
        """Which of the stored numbers, in ascending order, a value can hold."""
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
    """What a function of one 8-bit tensor makes of each stored number, in ascending order.

    None where the node is no such function, or its results are not of 8 bits.
    """
    x = _argument(node)
    if x is None or {x.type.dtype, node.output.type.dtype} - set(_EIGHT_BITS):
        return None
    return _results([node])


def _chain(node: Node, matcher: Matcher) -> list[Node]:
    """The longest chain of functions that ends with a node and starts from 8-bit numbers.

    Empty where the node is no function of one tensor.
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
            # What others read too is there anyhow, and smaller than real numbers.
            current = matcher.sole(x)
        else:
            current = matcher.producer(x)
    return found


def _argument(node: Node) -> Value | None:
    """The one tensor that a node is an elementwise function of; None if it is none."""
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
    """What a chain makes of each stored number, in ascending order."""
    x = _argument(chain[0])
    if x is None:
        raise ValueError(f"{chain[0].origin} is no function of one tensor")
    known = {x: _stored(x)}
    for node in chain:
        operands = [None if v is None else known.get(v, _constant(node, v)) for v in node.inputs]
        (known[node.output],) = node.op.reference(node, operands)
    return np.asarray(known[chain[-1].output], chain[-1].output.type.dtype.numpy)


def _constant(node: Node, value: Value) -> Array | None:
    """A constant operand; of one element, but for the results of a table."""
    if value.data is None:
        return None
    return value.data if isinstance(node.op, Table) else value.data.reshape(())
