"""QDQ export of operators that move elements."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from smelt.ir import Node, Op
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.copy import Copy
from smelt.ops.tensor.pad import Pad
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.resize import Resize
from smelt.ops.tensor.slice import Slice
from smelt.quant.qdq.graph import Emitter, Exporter
from smelt.quant.qdq.shapes import order_of, reshaped, unsupported


def _reshape(exporter: Exporter, node: Node, _: Reshape) -> None:
    x, y = node.input(0), node.output
    name = reshaped(exporter, exporter.real(x), x.type.shape, y.type.shape, y.name)
    exporter.finish(y, name)


def _slice(exporter: Exporter, node: Node, op: Slice) -> None:
    if not op.sizes:
        exporter.finish(node.output, exporter.real(node.input(0)))
        return
    first = exporter.may_be_channels_first(node)
    order = order_of(first, node.input(0))
    ends = [s + n * step for s, n, step in zip(op.starts, op.sizes, op.steps, strict=True)]
    # ONNX counts negative ends from the back, so an end before the first element is a very small
    # number.
    columns = (op.starts, [e if e >= 0 else -(2**62) for e in ends], range(len(order)), op.steps)
    operands = [
        exporter.constant(
            f"{node.name}_{what}",
            np.asarray([column[axis] if what != "axes" else i for i, axis in enumerate(order)]),
        )
        for what, column in zip(("starts", "ends", "axes", "steps"), columns, strict=True)
    ]
    name = exporter.emit(
        "Slice", [exporter.real(node.input(0), first=first), *operands], f"{node.name}_slice"
    )
    exporter.finish(node.output, name, first=first)


def _concat(exporter: Exporter, node: Node, op: Concat) -> None:
    given = [v for v in node.inputs if v is not None]
    first = exporter.may_be_channels_first(node) and all(len(v.type.shape) == 4 for v in given)
    names = [exporter.real(v, first=first) for v in given]
    axis = order_of(first, node.output).index(op.axis)
    name = exporter.emit("Concat", names, f"{node.name}_concat", axis=axis)
    exporter.finish(node.output, name, first=first)


def _pad(exporter: Exporter, node: Node, op: Pad) -> None:
    x, given = node.input(0), node.optional(1)
    if op.mode not in ("constant", "edge", "reflect") or (given and given.data is None):
        raise unsupported(node, f"of mode {op.mode}, or with a computed value,")
    if op.mode == "reflect" and any(
        max(pair) >= size for pair, size in zip(op.padding, x.type.shape, strict=True)
    ):
        raise unsupported(node, "by more than the image has")
    first = exporter.may_be_channels_first(node)
    order = order_of(first, x)
    pads = [op.padding[axis][end] for end in (0, 1) for axis in order]
    stored = op.value if given is None else given.array.reshape(()).item()
    value = np.float32(0.0 if stored is None else stored)
    if x.type.quant is not None and stored is not None:
        value = np.float32((stored - x.type.zero_point) * x.type.scale)
    name = exporter.emit(
        "Pad",
        [
            exporter.real(x, first=first),
            exporter.constant(f"{node.name}_pads", np.asarray(pads, np.int64)),
            exporter.constant(f"{node.name}_value", np.asarray(value)),
        ],
        f"{node.name}_pad",
        mode=op.mode,
    )
    exporter.finish(node.output, name, first=first)


def _copy(exporter: Exporter, node: Node, _: Copy) -> None:
    exporter.set_stored(node.output, exporter.stored(node.input(0)))


def _resize(exporter: Exporter, node: Node, op: Resize) -> None:
    n, height, width, channels = node.output.type.shape
    sizes = exporter.constant(
        f"{node.name}_sizes", np.asarray([n, channels, height, width], np.int64)
    )
    coordinates = "half_pixel" if op.half_pixel_centers else "asymmetric"
    if op.align_corners:
        coordinates = "align_corners"
    rounds = op.align_corners or op.half_pixel_centers
    name = exporter.emit(
        "Resize",
        [exporter.real(node.input(0), first=True), "", "", sizes],
        f"{node.name}_resize",
        mode="nearest" if op.kind == "nearest" else "linear",
        nearest_mode="round_prefer_ceil" if rounds else "floor",
        coordinate_transformation_mode=coordinates,
    )
    exporter.finish(node.output, name, first=True)


EMITTERS: Mapping[type[Op], Emitter] = {
    Concat: _concat,
    Copy: _copy,
    Pad: _pad,
    Reshape: _reshape,
    Resize: _resize,
    Slice: _slice,
}
"""Emitters by operator."""
