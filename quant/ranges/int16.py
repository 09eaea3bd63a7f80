"""Layers that can compute in int16, and their quantization.

The rules are TensorFlow Lite's for 16-bit activations: symmetric, with 8-bit weights. A layer
computes either in int8 or in int16. A requantization connects layers of different types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from smelt.errors import ModelError, UnsupportedError
from smelt.ir import DType, Node, Quant, TensorType, Value
from smelt.ops.core.unary import Unary
from smelt.quant.plan import NodeKind, QuantizationPlan, is_real, probed
from smelt.quant.ranges.activation_statistics import Observation
from smelt.quant.ranges.shared_ranges import Group

_HEADROOM = 1.25
"""Factor by which ranges exceed the observed one: 16 bits have precision to spare."""

_LIMIT = DType.INT16.limits[1]


def serves(node: Node, plan: QuantizationPlan) -> bool:
    """Return whether a node of the float network can compute in int16."""
    match plan.kind[node]:
        case NodeKind.PRODUCT:
            return True
        case NodeKind.FUNCTION:
            alone = plan.path[node.output] == (node,)
            return alone and isinstance(node.op, Unary) and _has_form(node)
        case NodeKind.NATIVE:
            return node.op.sixteen_bits and len(node.outputs) == 1 and _has_form(node)
        case _:
            return False


def _has_form(node: Node) -> bool:
    try:
        probed(node, [Quant.per_tensor(2.0**-3)] * len(node.inputs), None, DType.INT16)
    except (ModelError, UnsupportedError):
        return False
    return True


def wide_quants(
    nodes: Sequence[Node],
    groups: Sequence[Group],
    quants: Mapping[Value, Quant],
    seen: Mapping[Value, Observation],
) -> dict[Value, Quant]:
    """Return the int16 quantization of each value that an int16 layer computes or reads.

    Args:
        nodes: the int16 layers.
        groups: groups of values that share a quantization, in int8 and in int16.
        quants: int8 quantization of each value.
        seen: statistics of the values.
    """
    found: dict[Value, Quant] = {}
    together = {value: group.values for group in groups for value in group.values}
    for node in nodes:
        for value in (*node.inputs, *node.outputs):
            if value is None or not is_real(value) or value in found or value not in quants:
                continue
            members = together[value]
            reach = max(_reach(member, seen) for member in members) * _HEADROOM
            quant = Quant.per_tensor(max(reach, 1e-6) / _LIMIT)
            found.update(dict.fromkeys(members, quant))
    for node in nodes:
        fixed = node.op.output_quant([_wide(v, found) for v in node.inputs])
        if fixed is not None:
            found[node.output] = fixed
    return found


def _reach(value: Value, seen: Mapping[Value, Observation]) -> float:
    of = Observation.of_constant(value.data) if value.data is not None else seen[value]
    return float(max(np.abs(of.low).max(), np.abs(of.high).max()))


def _wide(value: Value | None, quants: Mapping[Value, Quant]) -> TensorType | None:
    if value is None or value not in quants:
        return None if value is None else value.type
    return replace(value.type, dtype=DType.INT16, quant=quants[value])
