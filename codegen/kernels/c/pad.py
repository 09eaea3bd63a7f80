"""Pad: a constant border around a tensor of any rank, or around a rectangle of pixels."""

from __future__ import annotations

import numpy as np

from smelt.codegen.kernels.base import STORED_FLOATS, Input, Kernel, KernelCall, Output, Request
from smelt.codegen.kernels.c.images import frame, pixel_offset
from smelt.codegen.render import c_elements
from smelt.errors import GraphError
from smelt.ir import Array, Node, TensorType
from smelt.ops.pad import Pad
from smelt.targets import Target


class PadKernel(Kernel):
    """Writes the output from its first element to its last: fills and block copies."""

    op = Pad
    floats = STORED_FLOATS
    spatial = True

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        if isinstance(node.op, Pad) and node.op.mode != "constant":
            return f"mode '{node.op.mode}' has a kernel of its own."
        return None

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        op, x, y = node.op, node.input(0).type, node.output.type
        if not isinstance(op, Pad):
            raise TypeError(f"{op.name} is no Pad")
        is_read = node.optional(1) is not None
        fill = _fill(np.asarray(op.stored_value(y), y.dtype.numpy).reshape(1))
        if is_read:
            fill |= {"value": "value[0]", "byte": None}
        parameters: dict[str, object] = {"x": x, "y": y, "padding": op.padding, **fill}
        if request.placement is None:
            parameters["axes"] = _axes(op, x)
            template, summary = "c/pad.j2", "fills and block copies in order"
        else:
            parameters |= _pixels(node, op, request)
            template, summary = "c/pad_pixels.j2", "pixel by pixel"
        return KernelCall(
            template=template,
            stem="pad",
            parameters=parameters,
            operands=(
                Input(0, "input"),
                *((Input(1, "value"),) if is_read else ()),
                Output(0, "output"),
            ),
            summary=summary,
        )


def _fill(element: Array) -> dict[str, object]:
    """The border's element in C, and the byte it consists of (None if of several)."""
    content = element.tobytes()
    return {
        "value": c_elements(element)[0],
        "byte": content[0] if len(set(content)) == 1 else None,
        "size": element.itemsize,
    }


def _axes(op: Pad, x: TensorType) -> list[tuple[int, int, int]]:
    """For each axis the elements of its border before, its size, and its border after.

    An axis without border joins the one outside it.
    """
    joined: list[tuple[int, int, int]] = []
    for size, (before, after) in zip(x.shape, op.padding, strict=True):
        if joined and not before and not after:
            joined[-1] = joined[-1][0] * size, joined[-1][1] * size, joined[-1][2] * size
        else:
            joined.append((before, size, after))
    width = 1
    axes: list[tuple[int, int, int]] = []
    for before, size, after in reversed(joined):
        axes.insert(0, (before * width, size, after * width))
        width *= before + size + after
    return [axis for axis in axes[:-1] if axis != (0, 1, 0)] + (axes[-1:] or [(0, 1, 0)])


def _pixels(node: Node, op: Pad, request: Request) -> dict[str, object]:
    if len(op.padding) != 4 or any(op.padding[0]):
        raise GraphError(f"{node.origin}: only padding of rows, columns and channels can be placed")
    place = frame(node, request)
    (top, _), (left, _), (before, after) = op.padding[1:]
    x = node.input(0).type
    return {
        **place.variables,
        "top": top,
        "left": left,
        "before": before,
        "after": after,
        "c_type": x.dtype.c_name,
        "input_pixel": pixel_offset(place.source, "iy", "ix"),
        "output_pixel": pixel_offset(place.target, "y", "x"),
    }


KERNELS = (PadKernel(),)
