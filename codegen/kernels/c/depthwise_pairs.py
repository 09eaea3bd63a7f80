"""int8 depthwise convolutions with two pixels in one 64-bit multiply-add (see `blocks`)."""

from __future__ import annotations

import numpy as np

from smelt.codegen.kernels.base import Input, KernelCall, Output, Packed
from smelt.codegen.kernels.c.blocks import fits_pairs
from smelt.codegen.kernels.c.finish import Finish
from smelt.codegen.kernels.c.images import Frame
from smelt.codegen.kernels.c.window import Window
from smelt.ir import Array, DType, Node
from smelt.targets import Target

_UNROLLED = 16
"""Taps up to this many are written out."""


def serves_pairs(node: Node, target: Target) -> bool:
    """Whether this form serves a depthwise convolution with constant, symmetric weights."""
    if node.output.type.dtype is not DType.INT8 or "long_multiply" not in target.features:
        return False
    return fits_pairs(np.moveaxis(node.input(1).array, 3, 0))


def depthwise_pairs(
    node: Node, window: Window, frame: Frame, finish: Finish, weights: Array, *, stem: str
) -> KernelCall:
    """The call that computes an int8 depthwise convolution.

    Args:
        node: what is computed.
        window: its geometry.
        frame: the output pixels to compute.
        finish: what follows each sum; its bias holds the input's zero point.
        weights: int8 `[o, kh, kw]`.
        stem: of the function's name.
    """
    x, y = node.input(0).type, node.output.type
    axis = min((1, 0), key=lambda a: _cost(window, (y.shape[1], y.shape[2]), a))
    stride, dilation = window.stride[axis], window.dilation[axis]
    run, lines = window.kernel[axis], window.kernel[1 - axis]
    words = [(k * dilation, k * dilation + stride) for k in range(run)]
    used = sorted({column for word in words for column in word})
    guarded = window.padded or y.shape[1 + axis] % 2 == 1
    looped = lines > 1 and lines * run > _UNROLLED
    channels = "const int32_t *channels," if finish.fields else ""
    step = used[1] - used[0]
    parameters: dict[str, object] = {
        "frame": frame,
        "title": f"{node.op.name}: {x} -> {y}",
        "notes": [window.text, *finish.notes],
        "w": window,
        "f": finish,
        "axis": axis,
        "run": run,
        "lines": lines,
        "looped": looped,
        "words": words,
        "used": used,
        "steps": (used[-1] + 1, step) if used == list(range(0, used[-1] + 1, step)) else None,
        "line_end": lines * window.dilation[1 - axis],
        "line_step": window.dilation[1 - axis],
        "guarded": guarded,
        "multiplier": window.outputs // x.shape[3],
        "pixels_parameters": "const int8_t *const *taps, const int8_t *weights, "
        f"{channels}\n    int8_t *a, int8_t *b",
        "top": window.origin(0, "y"),
        "side": window.origin(1, "x"),
        "second": _second(frame, y.shape[1 + axis], axis),
        "pixel": frame.source.offset("y", "x"),
        "output_pixel": frame.target.offset("y", "x"),
    }
    ordered = weights if axis else weights.transpose(0, 2, 1)
    padding = np.full(x.shape[3], x.zero_point, np.int8)
    return KernelCall(
        template="c/depthwise_pairs.j2",
        stem=stem,
        parameters=parameters,
        operands=(
            Input(0, "input"),
            *((Packed("padding", padding),) if guarded else ()),
            Packed("weights", np.ascontiguousarray(ordered)),
            *finish.operands,
            Output(0, "output"),
        ),
        helpers=finish.helpers | {"low_sum", "high_sum"},
        summary="pairs of pixels in one multiply-add",
    )


def _cost(window: Window, size: tuple[int, int], axis: int) -> int:
    """Roughly the instructions of a channel, if pixels are paired along the axis."""
    run, lines = window.kernel[axis], window.kernel[1 - axis]
    columns = {k * window.dilation[axis] + s for k in range(run) for s in (0, window.stride[axis])}
    return -(-size[axis] // 2) * size[1 - axis] * lines * (2 * len(columns) + 3 * run)


def _second(frame: Frame, size: int, axis: int) -> str:
    """The C expression of where the second pixel goes: over the first where there is none."""
    y, x = ("y", "x + 1") if axis else ("y + 1", "x")
    offset = frame.target.offset(y if axis else f"({y})", f"({x})" if axis else x)
    if size % 2 == 0:
        return f"output + {offset}"
    variable, end = ("x", frame.width) if axis else ("y", frame.height)
    return f"{variable} + 1 < {end} ? output + {offset} : out"
