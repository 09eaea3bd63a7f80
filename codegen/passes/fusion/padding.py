"""Folding of zero padding into the operator that reads the padded image."""

from __future__ import annotations

from dataclasses import replace

from smelt.codegen.passes.context import DEFAULT, PassContext
from smelt.codegen.passes.rewriting import Matcher, replace_nodes
from smelt.ir import Graph, Node
from smelt.ops.core.convolution import NO_PADDING, Conv2D, DepthwiseConv2D, Padding2D
from smelt.ops.core.pool import Pool2D
from smelt.ops.tensor.pad import Pad


def fold_pads(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Move padding into convolutions and poolings where the result stays the same.

    Each window must still cover at least one pixel of the image.
    """
    return replace_nodes(graph, _folded)


def _folded(node: Node, matcher: Matcher) -> Node | None:
    op = node.op
    if not isinstance(op, Conv2D | DepthwiseConv2D | Pool2D):
        return None
    before = matcher.producer(node.input(0))
    if before is None or not isinstance(pad := before.op, Pad) or len(before.inputs) > 1:
        return None
    if pad.mode != "constant" or any(map(any, pad.padding[::3])):
        return None
    if pad.mode != "constant" or len(before.inputs) > 1:
        return None
    changed = _padded(node, op, pad, before)
    if changed is None or not _covered(node, changed):
        return None
    return replace(node, op=changed, inputs=(before.input(0), *node.inputs[1:]))


def _padded(
    node: Node, op: Conv2D | DepthwiseConv2D | Pool2D, pad: Pad, before: Node
) -> Conv2D | DepthwiseConv2D | Pool2D | None:
    """Return the operator with the sum of both paddings if both pad with the same value."""
    x, stored = before.input(0).type, pad.stored_value(before.output.type)
    (top, bottom), (left, right) = op.padding
    (above, below), (west, east) = pad.padding[1:3]
    padding: Padding2D = ((top + above, bottom + below), (left + west, right + east))
    if isinstance(op, Pool2D) and op.kind == "max":
        lowest = float("-inf") if x.dtype.is_float else x.dtype.limits[0]
        return replace(op, padding=padding) if stored == lowest else None
    if stored != (0 if x.quant is None else x.zero_point) or x.quant != before.output.type.quant:
        return None
    if not isinstance(op, Pool2D) or op.kind == "sum":
        return replace(op, padding=padding)
    # An average counts the border's pixels, but may not count the pixels of its own padding.
    if x.quant is not None or (op.padding != NO_PADDING and not op.counts_padding):
        return None
    return replace(op, padding=padding, counts_padding=True)


def _covered(node: Node, op: Conv2D | DepthwiseConv2D | Pool2D) -> bool:
    """Return whether every window covers at least one pixel outside the padding."""
    window = op.window if isinstance(op, Pool2D) else node.input(1).type.shape[1:3]
    return all(
        max(pads) <= (size - 1) * dilation
        for pads, size, dilation in zip(op.padding, window, op.dilation, strict=True)
    )
