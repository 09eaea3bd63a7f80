"""Axes of operands and results that a transpose must move together.

A transpose can move from one side of a node to the other if the operator's attributes (an axis, a
list of pads) are permuted in the same way. `Axes` describes how.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from smelt.ir.graph import Node, Op, Value

Item = TypeVar("Item")

AxisNames = tuple[int, ...]
"""A number for each axis of a tensor. Axes with the same number must be moved together."""

AxisOrder = tuple[int, ...]
"""Axis names, in the order that the axes have in memory afterwards."""

Rebuild = Callable[[AxisOrder], "Op | None"]
"""Returns the operator for another order of axis names; None if the node then does nothing."""


@dataclass(frozen=True)
class Axes:
    """How the axes of a node's operands and results correspond.

    Attributes:
        natural: every axis name, in the node's present order.
        inputs: the axis names of each operand; None if the operand's layout cannot change.
        outputs: the axis names of each result.
        rebuild: returns the operator with its attributes permuted.
        allows: returns whether the operator can compute with that order of axes.
        broadcasts: operands are aligned at their last axis, and may lack leading axes.
        elementwise: each output element depends only on the operand elements at its position.
    """

    natural: AxisNames
    inputs: tuple[AxisNames | None, ...]
    outputs: tuple[AxisNames, ...]
    rebuild: Rebuild
    allows: Callable[[AxisOrder], bool] = lambda _: True
    broadcasts: bool = False
    elementwise: bool = False

    def extended(self, partial: Sequence[int]) -> AxisOrder:
        """Extend an order of some names to all names: put each missing one after its predecessor.

        The predecessor of a name is the one before it in `natural`.
        """
        order = list(partial)
        for index, name in enumerate(self.natural):
            if name not in order:
                order.insert(order.index(self.natural[index - 1]) + 1 if index else 0, name)
        return tuple(order)


def _rank(value: Value | None) -> int:
    return 0 if value is None else len(value.type.shape)


def same_axes(node: Node, rebuild: Rebuild) -> Axes:
    """Return axes for a node whose operands and results all have the same axes."""
    names = tuple(range(_rank(node.outputs[0])))
    return Axes(names, (names,) * len(node.inputs), (names,) * len(node.outputs), rebuild)


def broadcast(node: Node, rebuild: Rebuild, *, elementwise: bool = False) -> Axes:
    """Return axes for a node whose operands are broadcast to the axes of its results."""
    axes, rank = same_axes(node, rebuild), _rank(node.outputs[0])
    inputs = tuple(axes.natural[rank - _rank(v) :] for v in node.inputs)
    return replace(axes, inputs=inputs, broadcasts=True, elementwise=elementwise)


def of_first(node: Node, rebuild: Rebuild) -> Axes:
    """Return axes for a node whose first operand and results have the same axes.

    The layout of the other operands cannot change.
    """
    axes = same_axes(node, rebuild)
    return replace(axes, inputs=(axes.natural, *(None for _ in node.inputs[1:])))


def along_last(node: Node, count: int = 1) -> Axes:
    """Return axes as `of_first` does, with the last `count` axes fixed at their position."""
    axes = of_first(node, lambda _: node.op)

    def allows(order: AxisOrder) -> bool:
        return order[-count:] == axes.natural[-count:]

    return replace(axes, allows=allows)


def reduced(
    node: Node, gone: Sequence[int], rebuild: Rebuild, others: Sequence[AxisNames | None] = ()
) -> Axes:
    """Return axes for a node whose result has the first operand's axes except those in `gone`."""
    names = tuple(range(_rank(node.input(0))))
    kept = tuple(name for name in names if name not in gone)
    return Axes(names, (names, *others), (kept,), rebuild)


def positions_after(axes: Sequence[int], order: AxisOrder) -> tuple[int, ...]:
    """Return the positions of `axes` after a permutation, in ascending order."""
    return tuple(index for index, axis in enumerate(order) if axis in axes)


def permuted(field: Sequence[Item], order: AxisOrder) -> tuple[Item, ...]:
    """Permute a list that has one item for each axis."""
    return tuple(field[axis] for axis in order)
