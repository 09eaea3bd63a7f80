"""int8 depthwise convolutions, a few channels of one pixel at a time."""

from __future__ import annotations

import numpy as np

from smelt.codegen.kernels.base import Input, KernelCall, Output, Packed
from smelt.codegen.kernels.c.finish import Finish
from smelt.codegen.kernels.c.images import Frame
from smelt.codegen.kernels.c.window import Window
from smelt.ir import Array, Node

_LANES = 4
_UNROLLED = 16
"""Taps up to this many are written out."""


def depthwise_lanes(
    node: Node, window: Window, frame: Frame, finish: Finish, weights: Array, *, stem: str
) -> KernelCall:
    """The call that computes a depthwise convolution without channel multiplier.

    Args:
        node: what is computed.
        window: its geometry.
        frame: the output pixels to compute.
        finish: what follows each sum; its bias holds the input's zero point.
        weights: `[o, kh, kw]`, as stored.
        stem: of the function's name.
    """
    x, y = node.input(0).type, node.output.type
    channels = window.outputs
    lanes = min(_LANES, channels)
    whole = channels - channels % lanes
    flat = weights.reshape(channels, -1)
    first = flat[:whole].reshape(-1, lanes, window.taps).transpose(0, 2, 1)
    parameters: dict[str, object] = {
        "frame": frame,
        "title": f"{node.op.name}: {x} -> {y}, {window.text}",
        "notes": finish.notes,
        "w": window,
        "f": finish,
        "c_type": x.dtype.c_name,
        "lanes": lanes,
        "whole": whole,
        "rest": channels - whole,
        "looped": window.taps > _UNROLLED,
        "iy": window.tap(0, "y", "ky"),
        "ix": window.tap(1, "x", "kx"),
        "pixel": frame.source.offset("y", "x"),
        "output_pixel": frame.target.offset("y", "x"),
    }
    operands = [
        Input(0, "input"),
        Packed("weights", np.concatenate([first.ravel(), flat[whole:].T.ravel()])),
        *finish.operands,
        Output(0, "output"),
    ]
    if window.padded:
        operands.insert(1, Packed("padding", np.full(channels, x.zero_point, x.dtype.numpy)))
    return KernelCall(
        template="c/depthwise_lanes.j2",
        stem=stem,
        parameters=parameters,
        operands=tuple(operands),
        helpers=finish.helpers,
        summary=f"1 pixel x {lanes} channels",
    )
