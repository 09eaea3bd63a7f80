"""The delivery of a streamed input: the node that stands for the caller, who writes its rows."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.ir import Node, Op, Origin, Value


@dataclass(frozen=True)
class _Delivery(Op):
    """Rows of an input that the caller writes between two turns of a segment."""


def delivery_of(value: Value) -> Node:
    """Return the node that makes a streamed input; it is a part of segments, not of graphs."""
    return Node(_Delivery(), (), (value,), Origin("Delivery", 0, value.name))


def is_delivery(node: Node) -> bool:
    """Return whether a node is the delivery of a streamed input."""
    return isinstance(node.op, _Delivery)
