"""What becomes of an operator when memory holds its operands or results in another layout.

`axes_of` says of an operator which axes of its operands and results are the same one, and how its
attributes follow them; `forms` builds on that. An operator that is in neither has one form: its
own. To add one, register a function with `@axes_of.register`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import TypeVar

from smelt.codegen.passes.layout import Order
from smelt.ir import Node, Op, Value
from smelt.ops.arg_reduce import ArgReduce
from smelt.ops.binary import Binary
from smelt.ops.cast import Cast
from smelt.ops.concat import Concat
from smelt.ops.copy import Copy
from smelt.ops.cumulative import Cumulative
from smelt.ops.fully_connected import FullyConnected
from smelt.ops.gather import Gather, GatherElements
from smelt.ops.normalization import LocalResponse, Normalization
from smelt.ops.pad import Pad
from smelt.ops.prelu import PRelu
from smelt.ops.quantize import Dequantize, Quantize
from smelt.ops.reduce import Reduce
from smelt.ops.resample import Resample
from smelt.ops.select import Select
from smelt.ops.slice import Slice
from smelt.ops.softmax import Hardmax, LogSoftmax, Softmax
from smelt.ops.table import Table
from smelt.ops.tile import Tile
from smelt.ops.top_k import TopK
from smelt.ops.transpose import Transpose
from smelt.ops.triangle import Triangle
from smelt.ops.unary import Unary

Item = TypeVar("Item")

Names = tuple[int, ...]
"""A name for each axis of a tensor: axes of the same name are moved together."""

Rebuild = Callable[[Order], Op | None]
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

    natural: Names
    inputs: tuple[Names | None, ...]
    outputs: tuple[Names, ...]
    rebuild: Rebuild
    allows: Callable[[Order], bool] = lambda _: True
    broadcasts: bool = False
    elementwise: bool = False

    def extended(self, partial: Sequence[int]) -> Order:
        """An order of every name, of some: those left out follow their natural predecessors."""
        order = list(partial)
        for index, name in enumerate(self.natural):
            if name not in order:
                order.insert(order.index(self.natural[index - 1]) + 1 if index else 0, name)
        return tuple(order)


def _rank(value: Value | None) -> int:
    return 0 if value is None else len(value.type.shape)


def _same(node: Node, rebuild: Rebuild) -> Axes:
    """Every operand and result has the same axes."""
    names = tuple(range(_rank(node.outputs[0])))
    return Axes(
        names,
        (names,) * len(node.inputs),
        (names,) * len(node.outputs),
        rebuild,
    )


@singledispatch
def axes_of(op: Op, node: Node) -> Axes | None:
    """The axes of a node of operator `op`, or None where it must stay as it is."""
    del op, node
    return None


@axes_of.register
def _(
    op: Binary | PRelu | Select | Unary | Cast | Quantize | Dequantize | Copy, node: Node
) -> Axes:
    return replace(_broadcast(node, lambda _: op), elementwise=True)


def _broadcast(node: Node, rebuild: Rebuild) -> Axes:
    """Every result has the same axes, to which the operands are broadcast."""
    axes, rank = _same(node, rebuild), _rank(node.outputs[0])
    inputs = tuple(axes.natural[rank - _rank(v) :] for v in node.inputs)
    return replace(axes, inputs=inputs, broadcasts=True)


@axes_of.register
def _(op: Normalization, node: Node) -> Axes:
    return _broadcast(node, lambda order: replace(op, axes=_found(op.axes, order)))


def _found(axes: tuple[int, ...], order: Order) -> tuple[int, ...]:
    """Where some axes are after a permutation."""
    return tuple(index for index, axis in enumerate(order) if axis in axes)


@axes_of.register
def _(op: Softmax | LogSoftmax | Hardmax | LocalResponse, node: Node) -> Axes:
    return _along_last(op, node)


@axes_of.register
def _(op: Triangle, node: Node) -> Axes:
    return _along_last(op, node, 2)


@axes_of.register
def _(op: FullyConnected, node: Node) -> Axes | None:
    """The axes before the last are rows, in any order."""
    return _along_last(op, node) if op.keep_dims else None


def _along_last(op: Op, node: Node, count: int = 1) -> Axes:
    """The last axes stay where they are."""
    axes = _of_first(node, lambda _: op)

    def allows(order: Order) -> bool:
        return order[-count:] == axes.natural[-count:]

    return replace(axes, allows=allows)


def _of_first(node: Node, rebuild: Rebuild) -> Axes:
    """The first operand and the results have the same axes, other operands know nothing of them."""
    axes = _same(node, rebuild)
    return replace(axes, inputs=(axes.natural, *(None for _ in node.inputs[1:])))


@axes_of.register
def _(op: Concat, node: Node) -> Axes:
    return _same(node, lambda order: Concat(order.index(op.axis)))


@axes_of.register
def _(op: GatherElements | TopK | Cumulative, node: Node) -> Axes:
    return _same(node, lambda order: replace(op, axis=order.index(op.axis)))


@axes_of.register
def _(op: ArgReduce, node: Node) -> Axes:
    names = tuple(range(_rank(node.input(0))))
    kept = tuple(name for name in names if op.keep_dims or name != op.axis)
    return Axes(names, (names,), (kept,), lambda o: replace(op, axis=o.index(op.axis)))


@axes_of.register
def _(op: Pad, node: Node) -> Axes:
    return _of_first(node, lambda order: replace(op, padding=_picked(op.padding, order)))


@axes_of.register
def _(op: Tile, node: Node) -> Axes:
    return _same(node, lambda order: Tile(_picked(op.multiples, order)))


@axes_of.register
def _(op: Slice, node: Node) -> Axes:
    fields = (op.starts, op.sizes, op.steps)
    return _same(node, lambda order: Slice(*(_picked(field, order) for field in fields)))


def _picked(field: tuple[Item, ...], order: Order) -> tuple[Item, ...]:
    return tuple(field[axis] for axis in order)


@axes_of.register
def _(op: Table, node: Node) -> Axes:
    return _of_first(node, lambda _: op)


@axes_of.register
def _(op: Resample, node: Node) -> Axes:
    return _of_first(node, lambda order: replace(op, axis=order.index(op.axis)))


@axes_of.register
def _(op: Gather, node: Node) -> Axes | None:
    """By a vector of indices, or by one index, which takes the axis away."""
    names, rank = tuple(range(_rank(node.input(0)))), _rank(node.input(1))
    if op.batch_dims or rank > 1:
        return None
    kept = tuple(name for name in names if rank or name != op.axis)
    return Axes(names, (names, None), (kept,), lambda o: replace(op, axis=o.index(op.axis)))


@axes_of.register
def _(op: Reduce, node: Node) -> Axes:
    names = tuple(range(_rank(node.input(0))))
    kept = tuple(name for name in names if op.keep_dims or name not in op.axes)

    def rebuild(order: Order) -> Op:
        return replace(op, axes=_found(op.axes, order))

    return Axes(names, (names,), (kept,), rebuild)


@axes_of.register
def _(op: Transpose, node: Node) -> Axes:
    """Nothing is moved where the operand already lies as the result shall."""
    names = tuple(range(_rank(node.input(0))))
    return Axes(op.permutation, (names,), (op.permutation,), lambda _: None)


def axes(node: Node) -> Axes | None:
    """The axes of a node, or None where it must stay as it is."""
    if any(_per_channel(v) for v in (*node.inputs, *node.outputs)):
        return None
    return axes_of(node.op, node)


def _per_channel(value: Value | None) -> bool:
    """Whether the quantization of a tensor that is computed names one of its axes."""
    quant = None if value is None or value.is_constant else value.type.quant
    return quant is not None and not quant.is_per_tensor
