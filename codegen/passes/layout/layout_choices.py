"""The layouts that a node can take: combinations of operand and result layouts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from smelt.codegen.passes.layout.axis_order import AxisPermutation, Layout
from smelt.ir import Node, Op, Value
from smelt.ir.axes import Axes, AxisNames
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.matmul import MatMul
from smelt.ops.tensor.reshape import Reshape


@dataclass(frozen=True)
class NodeLayout:
    """The layouts of a node's operands and results, and the operator on these layouts.

    Attributes:
        op: The operator on the stored tensors; None where the result is the operand itself.
        inputs: The layout of each operand; None for an absent one.
        outputs: The layout of each result.
    """

    op: Op | None
    inputs: tuple[Layout | None, ...]
    outputs: tuple[Layout, ...]


def natural_layouts(node: Node) -> NodeLayout:
    """Return the natural layouts of a node.

    A transposition reads its operand in the layout of its result, and so moves nothing itself.
    """
    found = axes(node)
    if found is not None:
        return _with_order(node, found, found.natural)
    return NodeLayout(
        node.op,
        tuple(None if v is None else Layout.natural(v.type.shape) for v in node.inputs),
        tuple(Layout.natural(v.type.shape) for v in node.outputs),
    )


def layouts_for_operand(
    node: Node, index: int, layout: Layout, now: NodeLayout
) -> NodeLayout | None:
    """Return layouts with which a node reads an operand in this one, or None; it has `now`."""
    op = node.op
    if isinstance(now.op, MatMul):
        return _product(now, now.op, index, layout)
    if isinstance(op, Reshape):
        return _reshape(layout, layout.after(op.shape))
    if isinstance(op, FullyConnected) and index == 0:
        layouts = _dense(node, op, layout)
        if layouts is not None:
            return layouts
    found = axes(node)
    if found is None:
        return None
    if layout.view != node.input(index).type.shape:
        return _agnostic(node, layout)
    return _ordered(node, found, found.inputs[index], layout)


def layouts_for_result(
    node: Node, index: int, layout: Layout, now: NodeLayout
) -> NodeLayout | None:
    """Return layouts with which a node writes a result in this one, or None; it has `now`."""
    if isinstance(now.op, MatMul):
        return _product(now, now.op, 2, layout)
    if isinstance(node.op, Reshape):
        return _reshape(layout.after(node.input(0).type.shape), layout)
    found = axes(node)
    if found is None:
        return None
    if layout.view != node.outputs[index].type.shape:
        return _agnostic(node, layout)
    return _ordered(node, found, found.outputs[index], layout)


def _reshape(source: Layout, target: Layout) -> NodeLayout:
    return NodeLayout(Reshape(target.shape), (source,), (target,))


def _ordered(node: Node, found: Axes, names: AxisNames | None, layout: Layout) -> NodeLayout | None:
    if names is None:
        return None
    order = found.extended([names[axis] for axis in layout.order])
    return _with_order(node, found, order) if found.allows(order) else None


def _with_order(node: Node, found: Axes, order: AxisPermutation) -> NodeLayout:
    inputs = tuple(
        None
        if value is None
        else Layout.natural(value.type.shape)
        if names is None
        else _placed(value, names, order, broadcasts=found.broadcasts)
        for value, names in zip(node.inputs, found.inputs, strict=True)
    )
    outputs = tuple(
        _placed(value, names, order)
        for value, names in zip(node.outputs, found.outputs, strict=True)
    )
    return NodeLayout(found.rebuild(order), inputs, outputs)


def _placed(
    value: Value, names: AxisNames, order: AxisPermutation, *, broadcasts: bool = False
) -> Layout:
    """Return the layout of a tensor whose axes have these names.

    In a broadcast operand, an axis of size 1 replaces each missing name after the first present
    one.
    """
    layout = Layout.plain(value.type.shape, tuple(names.index(n) for n in order if n in names))
    if not broadcasts or not names:
        return layout
    first = next(i for i, name in enumerate(order) if name in names)
    shape = tuple(value.type.shape[names.index(n)] if n in names else 1 for n in order[first:])
    return replace(layout, shape=shape)


def _agnostic(node: Node, layout: Layout) -> NodeLayout | None:
    """Return an elementwise operator with this layout everywhere, also if it merges axes."""
    found = axes(node)
    size = node.outputs[0].type.size
    if found is None or not found.elementwise:
        return None
    inputs: list[Layout | None] = []
    for value in node.inputs:
        if value is not None and value.type.size not in (1, size):
            return None
        moved = value is not None and value.type.size == size
        natural = None if value is None else Layout.natural(value.type.shape)
        inputs.append(replace(layout, shape=value.type.shape) if value and moved else natural)
    outputs = tuple(replace(layout, shape=value.type.shape) for value in node.outputs)
    return NodeLayout(node.op, tuple(inputs), outputs)


def _dense(node: Node, op: FullyConnected, layout: Layout) -> NodeLayout | None:
    """Return a dense layer that reads this layout: its weight columns are in another order."""
    weights, depth = node.input(1), node.input(1).type.shape[1]
    if not weights.is_constant or (op.keep_dims and layout.shape[-1:] != (depth,)):
        return None
    rows = node.input(0).type.size // depth
    split = next((i for i in range(len(layout.view)) if prod(layout.view[:i]) == rows), None)
    moving = [axis for axis in layout.order if layout.view[axis] != 1]
    if split is None:
        return None
    front = [axis for axis in moving if axis < split]
    if front != sorted(front) or moving[: len(front)] != front:
        return None
    columns = [axis for axis in layout.order if axis >= split]
    turned = Layout(
        (weights.type.shape[0], *layout.view[split:]),
        (0, *(axis - split + 1 for axis in columns)),
        weights.type.shape,
    )
    others = (Layout.natural(v.type.shape) if v else None for v in node.inputs[2:])
    return NodeLayout(op, (layout, turned, *others), (Layout.natural(node.output.type.shape),))


def _product(now: NodeLayout, op: MatMul, index: int, layout: Layout) -> NodeLayout | None:
    """Return a matrix product with another axis order of one operand or the result.

    `index` is 0 or 1 for an operand and 2 for the result.
    """
    old = (*now.inputs, *now.outputs)[index]
    if old is None or old.view != layout.view:
        return None
    # The position in memory of each axis of the graph's tensor: current and new.
    axes = range(len(layout.view))
    now_at, then_at = [old.order.index(axis) for axis in axes], layout.order
    if index == 2:
        result = op.result or tuple(axes)
        moved = tuple(result[now_at[axis]] for axis in then_at)
        return NodeLayout(replace(op, result=moved), now.inputs, (layout,))
    field = "left" if index == 0 else "right"
    permutation = getattr(op, field) or tuple(axes)
    moved = tuple(then_at.index(old.order[axis]) for axis in permutation)
    inputs = tuple(layout if i == index else old for i, old in enumerate(now.inputs))
    return NodeLayout(replace(op, **{field: moved}), inputs, now.outputs)


def axes(node: Node) -> Axes | None:
    """Return the axes of a node, or None if its layout must not change."""
    if any(_per_channel(v) for v in (*node.inputs, *node.outputs)):
        return None
    return node.op.axes_rule(node)


def _per_channel(value: Value | None) -> bool:
    """Return whether a computed tensor is quantized per channel."""
    quant = None if value is None or value.is_constant else value.type.quant
    return quant is not None and not quant.is_per_tensor
