"""Pad: a constant border around a tensor of any rank."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from smelt.codegen.kernels.base import (
    STORED_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Refusal,
    Request,
)
from smelt.codegen.render import c_elements
from smelt.ir import Array, Node, TensorType
from smelt.ops.pad import Pad


class PadKernel(Kernel[Pad]):
    """Writes the output from its first element to its last: fills and block copies."""

    op = Pad
    floats = STORED_FLOATS

    @override
    def offer(self, node: Node[Pad], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        if op.mode != "constant":
            return Refusal(f"mode '{op.mode}' has a kernel of its own.")
        is_read = node.optional(1) is not None
        fill = _fill(np.asarray(op.stored_value(y), y.dtype.numpy).reshape(1))
        if is_read:
            fill |= {"value": "value[0]", "byte": None}
        return KernelCall(
            template="c/pad.j2",
            stem="pad",
            parameters={"x": x, "y": y, "padding": op.padding, "axes": _axes(op, x), **fill},
            operands=(
                Input(0, "input"),
                *((Input(1, "value"),) if is_read else ()),
                Output(0, "output"),
            ),
            summary="fills and block copies in order",
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


KERNELS = (PadKernel(),)
