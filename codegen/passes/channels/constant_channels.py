"""Exact removal of channels that are constant or never read in integer networks.

Interval arithmetic, from the full range of the inputs, bounds the stored numbers of each channel. A
channel with only one possible number is constant: the layers that read it add its contribution to
their bias. A channel that nothing reads is not computed. Training with weight decay leaves many
channels of both kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from smelt.codegen.passes.context import DEFAULT, PassContext, Removal
from smelt.codegen.passes.subgraphs import Names
from smelt.ir import Array, DType, Graph, Node, Quant, Value
from smelt.ir.channels import Bounds, ChannelRule, Mask, Narrowing, all_channels, channels, narrowed

_DTYPES = (DType.INT8, DType.UINT8, DType.INT16)


@dataclass(frozen=True)
class ChannelPlan:
    """Bounds of the stored numbers of each channel, and the channels that stay."""

    graph: Graph
    bounds: Mapping[Value, Bounds]
    kept: Mapping[Value, Mask]

    def removals(self) -> tuple[Removal, ...]:
        """Return the removed channels by layer."""
        found: list[Removal] = []
        for node in self.graph.nodes:
            mask = self.kept.get(node.outputs[0])
            if mask is None or mask.all():
                continue
            constant = int((~mask & self.bounds[node.output].constant).sum())
            gone = int((~mask).sum())
            found.append(Removal(node.origin, mask.size, constant, gone - constant))
        return tuple(found)


def drop_channels(graph: Graph, context: PassContext = DEFAULT) -> Graph:
    """Remove constant and unread channels from networks of quantized integers.

    Each layer keeps a multiple of the context's `granularity` channels, or all of them.
    """
    plan = plan_channels(graph, context.granularity)
    context.report(plan.removals())
    return apply_plan(plan)


def plan_channels(graph: Graph, granularity: int = 1) -> ChannelPlan:
    """Return which channels stay; see `drop_channels`."""
    if graph.lengths or not any(v.type.is_quantized for v in graph.values()):
        return ChannelPlan(graph, {}, {})
    bounds = _bounds(graph)
    return ChannelPlan(graph, bounds, _kept(graph, bounds, granularity))


def _rule(node: Node) -> ChannelRule | None:
    """Return the channel rule for a node of quantized integers, or None."""
    rule = node.op.channel_rule
    computed = [v for v in (*node.inputs, *node.outputs) if v is not None and v.data is None]
    if rule is None or any(
        v.type.dtype not in _DTYPES or v.type.size == 0 or not v.type.shape for v in computed
    ):
        return None
    return rule if rule.serves(node) else None


def _bounds(graph: Graph) -> dict[Value, Bounds]:
    found: dict[Value, Bounds] = {}
    for node in graph.nodes:
        rule = _rule(node)
        if rule is None:
            continue
        operands = [None if v is None else _bounds_of(v, found) for v in node.inputs]
        found[node.output] = rule.bounds(node, operands)
    return found


def _bounds_of(value: Value, found: Mapping[Value, Bounds]) -> Bounds | None:
    if value.data is not None:
        return Bounds.of_arrays(value.data) if value.type.dtype.is_integer else None
    if value.type.dtype not in _DTYPES:
        return None
    return found.get(value) or Bounds.of_type(value.type)


def _kept(graph: Graph, bounds: Mapping[Value, Bounds], granularity: int) -> dict[Value, Mask]:
    """Return a mask of the channels that stay for each value; other values keep all channels.

    The masks grow until nothing changes and each has full groups of `granularity`. Each round first
    goes backward: it keeps the operand channels that a result needs. Then it goes forward: it keeps
    the result channels that follow from the kept operand channels.
    """
    free = _free(graph, bounds)
    kept = {v: all_channels(v.type) if v not in free else ~all_channels(v.type) for v in bounds}
    for value in graph.results:
        kept[value] = all_channels(value.type)
    while True:
        before = {v: mask.copy() for v, mask in kept.items()}
        for node in reversed(graph.nodes):
            _propagate_backward(node, bounds, kept)
        for node in graph.nodes:
            _propagate_forward(node, bounds, kept)
        if any((kept[v] != mask).any() for v, mask in before.items()):
            continue
        ragged = next((v for v in kept if _missing(kept[v], granularity)), None)
        if ragged is None:
            return kept
        mask = kept[ragged]
        mask[np.flatnonzero(~mask)[: _missing(mask, granularity)]] = True


def _missing(mask: Mask, granularity: int) -> int:
    """Return how many more channels must stay so that all groups are full, and there is one."""
    count = int(mask.sum())
    wanted = -(-max(count, 1) // granularity) * granularity
    return min(wanted, mask.size) - count


def _propagate_backward(
    node: Node, bounds: Mapping[Value, Bounds], kept: dict[Value, Mask]
) -> None:
    """Keep the channels of a node's operands that its result needs."""
    rule = _rule(node) if node.outputs[0] in bounds else None
    needs: Sequence[Mask | None] = [
        None if v is None else all_channels(v.type) for v in node.inputs
    ]
    if rule is not None:
        operands = [None if v is None else _bounds_of(v, bounds) for v in node.inputs]
        computed, needs = rule.needs(node, kept[node.output], operands)
        kept[node.output] |= computed
    for value, needed in zip(node.inputs, needs, strict=True):
        if value in kept and needed is not None:
            kept[value] |= needed


def _propagate_forward(node: Node, bounds: Mapping[Value, Bounds], kept: dict[Value, Mask]) -> None:
    """Keep the channels of a node's result that correspond to kept operand channels."""
    rule = _rule(node) if node.outputs[0] in bounds else None
    if rule is not None:
        masks = [None if v is None else kept.get(v, all_channels(v.type)) for v in node.inputs]
        kept[node.output] |= rule.result_channels(node, masks)


def _free(graph: Graph, bounds: Mapping[Value, Bounds]) -> set[Value]:
    """Return the values whose channels can be removed.

    Such a value comes from a layer that computes each output channel separately, such as a
    convolution, or is computed channel by channel from such values.
    """
    free: set[Value] = set()
    for node in graph.nodes:
        if node.outputs[0] not in bounds:
            continue
        rule = _rule(node)
        operands = [v for v in node.inputs if v is not None and v.data is None]
        if rule is not None and (rule.chooses or all(v in free for v in operands)):
            free.add(node.output)
    return free


def apply_plan(plan: ChannelPlan) -> Graph:
    """Return the graph without the removed channels."""
    if not plan.removals():
        return plan.graph
    names = Names(plan.graph)
    new: dict[Value, Value] = {}

    def build(stem: str, data: Array, quant: Quant | None) -> Value:
        return Value.constant(names.fresh(stem), data, quant)

    def narrow(node: Node) -> Node:
        inputs = tuple(None if v is None else new.get(v, v) for v in node.inputs)
        if not any(v in plan.kept for v in (*node.inputs, *node.outputs) if v is not None):
            return node
        rule = _rule(node) if node.outputs[0] in plan.kept else None
        if rule is None:
            return replace(node, inputs=inputs)
        result = plan.kept[node.output]
        operands = [None if v is None else _bounds_of(v, plan.bounds) for v in node.inputs]
        kept = [None if v is None else _mask(v, node, result, plan) for v in node.inputs]
        if all(m is None or m.all() for m in (result, *kept)):
            return replace(node, inputs=inputs)
        op, own = rule.narrow(node, Narrowing(result, kept, operands, build))
        inputs = tuple(None if v is None else new.get(v, v) for v in own)
        if not result.all():
            new[node.output] = Value(node.output.name, narrowed(node.output.type, result))
        return replace(node, op=op, inputs=inputs, outputs=(new.get(node.output, node.output),))

    nodes = tuple(narrow(node) for node in plan.graph.nodes)
    return replace(plan.graph, nodes=nodes)


def _mask(value: Value, node: Node, result: Mask, plan: ChannelPlan) -> Mask:
    """Return the channels that an operand keeps; a per-channel constant keeps the result's."""
    if value.data is None:
        return plan.kept.get(value, all_channels(value.type))
    alike = channels(value.type) == result.size
    return result if alike else all_channels(value.type)
