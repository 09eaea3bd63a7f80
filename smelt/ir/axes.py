"""Which axes of a node's operands and results are the same, and how its attributes follow them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from smelt.ir.graph import Node, Op, Value

Item = TypeVar("Item")

AxisNames = tuple[int, ...]
"""A name for each axis of a tensor: axes of the same name are moved together."""

AxisOrder = tuple[int, ...]
"""Names in the order in which memory shall hold their axes."""

Rebuild = Callable[[AxisOrder], "Op | None"]
"""The operator for the names in another order; None where nothing is left to do."""


@dataclass(frozen=True)
class Axes:
    """The axes of a node.

    Attributes:
        natural: every name, as the node stands.
        inputs: the names of each operand; None for one whose layout cannot change.
        outputs: the names of each result.
        rebuild: the operator's attributes in another order of names.
        allows: whether the operator exists for that order.
        broadcasts: operands line up at their last axis, and may lack leading ones.
        elementwise: each element is computed of those in its place alone.
    """

    natural: AxisNames
    inputs: tuple[AxisNames | None, ...]
    outputs: tuple[AxisNames, ...]
    rebuild: Rebuild
    allows: Callable[[AxisOrder], bool] = lambda _: True
    broadcasts: bool = False
    elementwise: bool = False

    def extended(self, partial: Sequence[int]) -> AxisOrder:
        """An order of every name, of some: those left out follow their natural predecessors."""
        order = list(partial)
        for index, name in enumerate(self.natural):
            if name not in order:
                order.insert(order.index(self.natural[index - 1]) + 1 if index else 0, name)
        return tuple(order)


def _rank(value: Value | None) -> int:
    return 0 if value is None else len(value.type.shape)


def alike(node: Node, rebuild: Rebuild) -> Axes:
    """Every operand and result has the same axes."""
    names = tuple(range(_rank(node.outputs[0])))
    return Axes(names, (names,) * len(node.inputs), (names,) * len(node.outputs), rebuild)


def broadcast(node: Node, rebuild: Rebuild, *, elementwise: bool = False) -> Axes:
    """Every result has the same axes, to which the operands are broadcast."""
    axes, rank = alike(node, rebuild), _rank(node.outputs[0])
    inputs = tuple(axes.natural[rank - _rank(v) :] for v in node.inputs)
    return replace(axes, inputs=inputs, broadcasts=True, elementwise=elementwise)


def of_first(node: Node, rebuild: Rebuild) -> Axes:
    """The first operand and the results have the same axes, other operands know nothing of them."""
    axes = alike(node, rebuild)
    return replace(axes, inputs=(axes.natural, *(None for _ in node.inputs[1:])))


def along_last(node: Node, count: int = 1) -> Axes:
    """The same, where the last axes stay where they are."""
    axes = of_first(node, lambda _: node.op)

    def allows(order: AxisOrder) -> bool:
        return order[-count:] == axes.natural[-count:]

    return replace(axes, allows=allows)


def reduced(
    node: Node, gone: Sequence[int], rebuild: Rebuild, others: Sequence[AxisNames | None] = ()
) -> Axes:
    """The result lacks some axes of the first operand."""
    names = tuple(range(_rank(node.input(0))))
    kept = tuple(name for name in names if name not in gone)
    return Axes(names, (names, *others), (kept,), rebuild)


def found(axes: Sequence[int], order: AxisOrder) -> tuple[int, ...]:
    """Where some axes are after a permutation."""
    return tuple(index for index, axis in enumerate(order) if axis in axes)


def picked(field: Sequence[Item], order: AxisOrder) -> tuple[Item, ...]:
    """What stands beside each axis, after a permutation."""
    return tuple(field[axis] for axis in order)
