"""The plainest form of every convolution: one output at a time, no packing, no scratch.

It serves what the blocked forms do not: groups, weights computed at run time, 16-bit activations.
"""

from __future__ import annotations

import numpy as np

from smelt.codegen.kernels.base import Input, KernelCall, Operand, Output, Packed
from smelt.codegen.kernels.c.finish import Finish
from smelt.codegen.kernels.c.images import Frame
from smelt.codegen.kernels.c.products import centred_weights
from smelt.codegen.kernels.c.window import Window
from smelt.ir import DType, Node


def direct(
    node: Node, window: Window, frame: Frame, finish: Finish, *, stem: str, depthwise: bool = False
) -> KernelCall:
    """The call that computes a convolution; `finish` holds the bias as the model has it.

    Args:
        node: input, weights `[o, kh, kw, i]` (`[1, kh, kw, o]` where depthwise), bias.
        window: its geometry.
        frame: the output pixels to compute.
        finish: what follows each sum.
        stem: of the function's name.
        depthwise: whether each input channel has outputs of its own.
    """
    x, weights, y = node.input(0).type, node.input(1).type, node.output.type
    zero_points = () if weights.quant is None else weights.quant.zero_point
    stored: Operand = Input(1, "weights")
    if len(set(zero_points)) > 1:
        # A zero point for each channel: weights are stored without.
        centred = centred_weights(node, 3 if depthwise else 0).astype(np.int16)
        stored = Packed("weights", np.moveaxis(centred, 0, 3 if depthwise else 0))
        zero_points = ()
    multiplier = window.outputs // x.shape[-1] if depthwise else 1
    parameters: dict[str, object] = {
        "frame": frame,
        "title": f"{node.op.name}: {x} -> {y}",
        "notes": [window.text, *finish.notes],
        "w": window,
        "f": finish,
        "is_float": y.dtype.is_float,
        "sum_type": "float" if y.dtype.is_float else "int64_t" if finish.wide else "int32_t",
        "row_type": "float" if y.dtype.is_float else "int32_t",
        "channel": "o" if finish.fields == 1 else f"o * {finish.fields}",
        "c_type": y.dtype.c_name,
        "input_type": x.dtype.c_name,
        "weight_type": DType.INT16.c_name if isinstance(stored, Packed) else weights.dtype.c_name,
        "depthwise": depthwise,
        "iy": window.tap(0, "y", "ky"),
        "ix": window.tap(1, "x", "kx"),
        "pixel": frame.source.offset("iy", "ix"),
        "output_pixel": frame.target.offset("y", "x"),
        "first_weight": "o" if depthwise else f"o * {window.taps * window.depth}",
        "weight_step": window.outputs if depthwise else window.depth,
        "weight_row": window.kernel[1] * (window.outputs if depthwise else window.depth),
        "first_channel": _first_channel(window, multiplier, depthwise=depthwise),
        "input_zero_point": 0 if x.quant is None else x.zero_point,
        "weight_zero_points": zero_points,
    }
    return KernelCall(
        template="c/convolution_direct.j2",
        stem=stem,
        parameters=parameters,
        operands=(
            Input(0, "input"),
            stored,
            *finish.operands,
            Output(0, "output"),
        ),
        helpers=finish.helpers,
        summary="direct: one output at a time",
    )


def _first_channel(window: Window, multiplier: int, *, depthwise: bool) -> str:
    if depthwise:
        return " + o" if multiplier == 1 else f" + o / {multiplier}"
    if window.groups == 1:
        return ""
    return f" + o / {window.outputs // window.groups} * {window.depth}"
