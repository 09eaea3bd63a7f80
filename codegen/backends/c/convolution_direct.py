"""The plainest form of every convolution: one output at a time, no packing, no scratch.

It serves what the blocked forms do not: groups, weights computed at run time, 16-bit activations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.lower.image_loops import Frame, ImageLoop
from smelt.codegen.lower.kernel import Input, KernelCall, Operand, Output, Packed, Parameters
from smelt.codegen.lower.output_stage import OutputStage
from smelt.codegen.lower.quantized_products import centred_weights
from smelt.codegen.lower.window import Window
from smelt.codegen.text.expressions import offset
from smelt.ir import DType, Node


@dataclass(frozen=True)
class DirectParameters(Parameters):
    """Variables of `convolution_direct.j2`; texts are C.

    Attributes:
        title, notes: for the function's comment.
        images: the loop over images.
        height, width: of the output.
        padded: whether windows reach beyond the image.
        size: height and width of the input; 0 where nobody asks.
        c_type, input_type, weight_type, sum_type: of outputs, inputs, weights and sums.
        outputs: output channels.
        rows, columns: of a window.
        row, column: input position of a tap.
        first_weight: of output channel `o`.
        weight_step: from the weights of a tap to the next one's.
        weight_row: weights of a row of taps that is left out; 0 where none is.
        channel: statement that finds the constants of an output channel; empty where there are
            none.
        input: where the inputs of a tap start.
        depth: inputs of a tap; 0 in a depthwise convolution.
        product: of an input and a weight.
        result: what is stored.
        output_pixel: where output pixel (y, x) starts.
    """

    title: str
    notes: tuple[str, ...]
    images: ImageLoop
    height: int
    width: int
    padded: bool
    size: tuple[int, int]
    c_type: str
    input_type: str
    weight_type: str
    sum_type: str
    outputs: int
    rows: int
    columns: int
    row: str
    column: str
    first_weight: str
    weight_step: int
    weight_row: int
    channel: str
    input: str
    depth: int
    product: str
    result: str
    output_pixel: str


def direct(
    node: Node,
    window: Window,
    frame: Frame,
    finish: OutputStage,
    *,
    stem: str,
    depthwise: bool = False,
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
    stored, zero_point = _weights(node, 3 if depthwise else 0)
    weight_step = window.outputs if depthwise else window.depth
    element = "0" if depthwise else "i"
    value = _less(f"in[{element}]", 0 if x.quant is None else x.zero_point)
    weight = f"(weight[{element}] - ({zero_point}))" if zero_point else f"weight[{element}]"
    is_float = y.dtype.is_float
    multiplier = window.outputs // x.shape[-1] if depthwise else 1
    first_channel = _first_channel(window, multiplier, depthwise=depthwise)
    parameters = DirectParameters(
        title=f"{node.op.name}: {x} -> {y}",
        notes=(window.text, *finish.notes),
        images=frame.images,
        height=frame.height,
        width=frame.width,
        padded=window.padded,
        size=window.size if window.padded else (0, 0),
        c_type=y.dtype.c_name,
        input_type=x.dtype.c_name,
        weight_type=DType.INT16.c_name if isinstance(stored, Packed) else weights.dtype.c_name,
        sum_type="float" if is_float else "int64_t" if finish.wide else "int32_t",
        outputs=window.outputs,
        rows=window.kernel[0],
        columns=window.kernel[1],
        row=window.tap(0, "y", "ky"),
        column=window.tap(1, "x", "kx"),
        first_weight="o" if depthwise else f"o * {window.taps * window.depth}",
        weight_step=weight_step,
        weight_row=window.kernel[1] * weight_step if window.padded else 0,
        channel=finish.row("o", "float" if is_float else "int32_t"),
        input=f"{frame.source.offset('iy', 'ix')}{first_channel}",
        depth=0 if depthwise else window.depth,
        product=f"{value} * {weight}",
        result=finish.output("sum"),
        output_pixel=frame.target.offset("y", "x"),
    )
    return KernelCall(
        template="backends/c/convolution_direct.j2",
        stem=stem,
        parameters=parameters,
        operands=(Input(0, "input"), stored, *finish.operands, Output(0, "output")),
        uses=finish.uses,
        summary="direct: one output at a time",
    )


def _weights(node: Node, channel_axis: int) -> tuple[Operand, int]:
    """The weights as they are stored, and what is then taken from each."""
    quant = node.input(1).type.quant
    zero_points = {0} if quant is None else set(quant.zero_point)
    if len(zero_points) == 1:
        return Input(1, "weights"), zero_points.pop()
    # A zero point for each channel: weights are stored without.
    centred = centred_weights(node, channel_axis).astype(np.int16)
    return Packed("weights", np.moveaxis(centred, 0, channel_axis)), 0


def _less(value: str, zero_point: int) -> str:
    """The C expression of a value less its zero point."""
    return f"({offset(value, -zero_point)})" if zero_point else value


def _first_channel(window: Window, multiplier: int, *, depthwise: bool) -> str:
    if depthwise:
        return " + o" if multiplier == 1 else f" + o / {multiplier}"
    if window.groups == 1:
        return ""
    return f" + o / {window.outputs // window.groups} * {window.depth}"
