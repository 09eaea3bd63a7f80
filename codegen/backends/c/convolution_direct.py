"""Convolutions that compute one output at a time, without packing or scratch.

They serve nodes that the block forms do not: convolutions with groups, with weights computed at run
time, or with 16-bit activations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.lower.image_loops import Frame, ImageLoop
from smelt.codegen.lower.kernel import Input, KernelCall, Operand, Output, Packed, Parameters
from smelt.codegen.lower.output_stage import OutputStage
from smelt.codegen.lower.quantized_products import centered_weights
from smelt.codegen.lower.window import Window
from smelt.codegen.text.expressions import offset, times
from smelt.ir import DType, Node


@dataclass(frozen=True)
class DirectParameters(Parameters):
    """Variables of `convolution_direct.j2`; texts are C.

    Attributes:
        title, notes: text of the function's comment.
        images: the loop over images.
        each_row, each_column, each_output: lines that open the loops over output rows, columns and
            channels; empty if there is one of them.
        padded: whether windows can be partly outside of the image.
        size: height and width of the input; zeros without padding, where they are unused.
        c_type, input_type, weight_type, sum_type: types of outputs, inputs, weights and sums.
        each_line, each_tap: lines that open the loops over a window's rows and their taps; empty
            if there is one, which is always inside of the image.
        row, column: input row and column of a tap.
        output: the output channel.
        first_weight: address of its first weight.
        weight_row: weights of a row of taps, skipped if the row is outside of the image; 0 without
            padding.
        channel: statement that defines the pointer `channel` to an output channel's constants;
            empty if there are none.
        input: address of the first input of a tap.
        depth: inputs of a tap; 0 in a depthwise convolution, which needs no loop over them.
        product: product of an input and a weight.
        result: the stored output, given `sum`.
        output_pixel: address of the output pixel.
    """

    title: str
    notes: tuple[str, ...]
    images: ImageLoop
    each_row: str
    each_column: str
    each_output: str
    padded: bool
    size: tuple[int, int]
    c_type: str
    input_type: str
    weight_type: str
    sum_type: str
    each_line: str
    each_tap: str
    row: str
    column: str
    output: str
    first_weight: str
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
    """Return the call that computes a convolution.

    Args:
        node: the convolution: input, weights `[o, kh, kw, i]` (depthwise: `[1, kh, kw, o]`), bias.
        window: its geometry.
        frame: the output pixels to compute.
        finish: output stage; its bias is the model's, without zero points folded in.
        stem: stem of the function's name.
        depthwise: whether each output channel has a single input channel.
    """
    x, weights, y = node.input(0).type, node.input(1).type, node.output.type
    stored, zero_point = _weights(node, 3 if depthwise else 0)
    weight_step = window.outputs if depthwise else window.depth
    element = "0" if depthwise else "i"
    value = _centered(f"in[{element}]", 0 if x.quant is None else x.zero_point)
    weight = f"(weight[{element}] - ({zero_point}))" if zero_point else f"weight[{element}]"
    is_float = y.dtype.is_float
    each_line, each_tap = _window_loops(window, weight_step)
    output = "o" if window.outputs > 1 else "0"
    multiplier = window.outputs // x.shape[-1] if depthwise else 1
    first_channel = _first_channel(window, multiplier, depthwise=depthwise)
    parameters = DirectParameters(
        title=f"{node.op.name}: {x} -> {y}",
        notes=(window.text, *finish.notes),
        images=frame.images,
        each_row=frame.each_row,
        each_column=frame.each_column,
        padded=window.padded,
        size=window.size if window.padded else (0, 0),
        c_type=y.dtype.c_name,
        input_type=x.dtype.c_name,
        weight_type=DType.INT16.c_name if isinstance(stored, Packed) else weights.dtype.c_name,
        sum_type="float" if is_float else "int64_t" if finish.wide else "int32_t",
        each_output=_loop("o", window.outputs),
        each_line=each_line,
        each_tap=each_tap,
        row=window.tap(0, frame.row, "ky"),
        column=window.tap(1, frame.column, "kx"),
        output=output,
        first_weight=offset(
            "weights", times(output, 1 if depthwise else window.taps * window.depth)
        ),
        weight_row=window.kernel[1] * weight_step if window.padded else 0,
        channel=finish.row(output, "float" if is_float else "int32_t"),
        input=f"input + {frame.source.offset('iy', 'ix')}{first_channel}",
        depth=0 if depthwise else window.depth,
        product=f"{value} * {weight}",
        result=finish.output("sum"),
        output_pixel=offset("output", frame.target.offset(frame.row, frame.column)),
    )
    return KernelCall(
        template="backends/c/convolution_direct.j2",
        stem=stem,
        details=finish.details,
        parameters=parameters,
        operands=(Input(0, "input"), stored, *finish.operands, Output(0, "output")),
        uses=finish.uses,
        summary="direct: one output at a time",
    )


def _weights(node: Node, channel_axis: int) -> tuple[Operand, int]:
    """Return the operand of the weights, and the zero point that C code subtracts from each."""
    quant = node.input(1).type.quant
    zero_points = {0} if quant is None else set(quant.zero_point)
    if len(zero_points) == 1:
        return Input(1, "weights"), zero_points.pop()
    # Zero points differ among channels, so they are subtracted before weights are stored.
    centered = centered_weights(node, channel_axis).astype(np.int16)
    return Packed("weights", np.moveaxis(centered, 0, channel_axis)), 0


def _centered(value: str, zero_point: int) -> str:
    """Return the C expression of a value minus its zero point."""
    return f"({offset(value, -zero_point)})" if zero_point else value


def _window_loops(window: Window, weight_step: int) -> tuple[str, str]:
    """Return the lines that open the loops over a window's rows and their taps.

    A loop with one iteration is left out, unless its body skips taps outside of the image.
    """
    (rows, columns), step = window.kernel, f", weight += {weight_step}"
    if not window.padded and columns == 1:
        return _loop("ky", rows, step), ""
    each_tap = f"for (int32_t kx = 0; kx < {columns}; ++kx{step}) {{"
    if not window.padded and rows == 1:
        return "", each_tap
    return f"for (int32_t ky = 0; ky < {rows}; ++ky) {{", each_tap


def _loop(name: str, size: int, step: str = "") -> str:
    """Return the line that opens a loop, empty if it would have one iteration."""
    if size == 1:
        return ""
    return f"for (int32_t {name} = 0; {name} < {size}; ++{name}{step}) {{"


def _first_channel(window: Window, multiplier: int, *, depthwise: bool) -> str:
    """Return the C term that adds the first input channel of output channel `o` to an offset."""
    if window.outputs == 1:
        return ""
    if depthwise:
        return " + o" if multiplier == 1 else f" + o / {multiplier}"
    if window.groups == 1:
        return ""
    return f" + o / {window.outputs // window.groups} * {window.depth}"
