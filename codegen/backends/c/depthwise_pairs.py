"""int8 depthwise convolutions, two pixels in a 64-bit multiply-add (see `convolution_blocks`).

The two pixels are neighbors in a row or in a column of the output. A line is a row (or column) of
the window along that axis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from smelt.codegen.backends.c.convolution_blocks import fits_pairs
from smelt.codegen.lower.function_names import channels, steps
from smelt.codegen.lower.image_loops import Frame, ImageLoop
from smelt.codegen.lower.input_pixel import input_pixel
from smelt.codegen.lower.kernel import (
    BodyCost,
    InnerFunction,
    Input,
    KernelCall,
    Output,
    Packed,
    Parameters,
    Request,
)
from smelt.codegen.lower.layer_sizes import LayerSizes
from smelt.codegen.lower.loop_heads import loop_head
from smelt.codegen.lower.nested_loops import total
from smelt.codegen.lower.output_stage import OutputStage
from smelt.codegen.lower.window import Window
from smelt.codegen.text.expressions import advance, in_parentheses, offset
from smelt.ir import Array, DType, Node
from smelt.ops.core.convolution import DepthwiseConv2D
from smelt.targets import Target

_UNROLLED = 16
"""Up to this many taps are unrolled without a loop."""


@dataclass(frozen=True)
class DepthwisePairParameters(Parameters):
    """Variables of `depthwise_pair.j2`; texts are C.

    Attributes:
        outputs: output channels.
        multiplier: output channels of an input channel.
        channel: statement that defines the pointer `channel` to the constants of channel `o`; empty
            if there are none.
        line_inputs: inputs of a line, if there is a loop over lines; else 0.
        run: weights of a line, if there is a loop over lines; else 0.
        weights: weights of a channel, if lines are unrolled; else 0.
        lines: lines of a window, if there is a loop over them; else 0.
        sums: statements that add the products of all lines; with a loop, of one line.
        results: statements that store the outputs.
    """

    outputs: int
    multiplier: int
    channel: str
    line_inputs: int
    run: int
    weights: int
    lines: int
    sums: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class DepthwisePairsParameters(Parameters):
    """Variables of `depthwise_pairs.j2`; texts are C.

    Attributes:
        title, notes: text of the function's comment.
        neighbors: `columns` if the two pixels are in one row, else `rows`.
        images: the loop over images.
        each_row, each_column: open the loops over output pixels; empty for a single row or column.
        padded: whether an input pixel can lie outside of the image.
        constants: whether channels have constants in the array `channels`.
        taps: input pixels under the windows of both output pixels.
        each_line: opens the loop over lines of the windows; empty if there is one line.
        each_word: opens the loop over inputs of a line; empty if they are not evenly spaced.
        places: row and column of each input of a line, as `y, x`; a single one with that loop.
        top, side: the first row and column under the first window.
        first, second: addresses of the output pixels.
    """

    title: str
    notes: tuple[str, ...]
    neighbors: str
    images: ImageLoop
    each_row: str
    each_column: str
    padded: bool
    constants: bool
    taps: int
    each_line: str
    each_word: str
    places: tuple[str, ...]
    top: str
    side: str
    first: str
    second: str


def serves_pairs(node: Node, target: Target) -> bool:
    """Return whether this form serves a depthwise convolution with constant, symmetric weights."""
    if node.output.type.dtype is not DType.INT8 or "long_multiply" not in target.features:
        return False
    return fits_pairs(np.moveaxis(node.input(1).array, 3, 0))


def depthwise_pairs(
    node: Node,
    window: Window,
    frame: Frame,
    finish: OutputStage,
    weights: Array,
    request: Request,
    *,
    stem: str,
) -> KernelCall:
    """Return the call that computes an int8 depthwise convolution.

    Args:
        node: the convolution.
        window: its geometry.
        frame: the output pixels to compute.
        finish: output stage; its bias includes the input's zero point.
        weights: int8 `[o, kh, kw]`.
        request: `--optimize` preference.
        stem: stem of the function's name.
    """
    x, y = node.input(0).type, node.output.type
    axis = min((1, 0), key=lambda a: _cost(window, (y.shape[1], y.shape[2]), a))
    guarded = window.padded or y.shape[1 + axis] % 2 == 1
    ordered = weights if axis else weights.transpose(0, 2, 1)
    padding = np.full(x.shape[3], x.zero_point, np.int8)
    call = KernelCall(
        template="backends/c/depthwise_pairs.j2",
        stem=stem,
        details=finish.details,
        parameters=_parameters(node, window, frame, finish, axis, guarded=guarded),
        operands=(
            Input(0, "input"),
            *((Packed("padding", padding),) if guarded else ()),
            Packed("weights", np.ascontiguousarray(ordered)),
            *finish.operands,
            Output(0, "output"),
        ),
        uses={"SMELT_ARRAY"},
        inner=(
            _pair(node, window, finish, axis, stem + steps(node) + channels(node)),
            input_pixel(window.size, frame.source, padded=guarded),
        ),
        summary="pairs of pixels in one multiply-add",
    )
    if request.optimize != "size":
        return call
    sizes = LayerSizes.of(window, frame, finish)
    parameters = replace(
        _parameters(node, sizes.window, sizes.frame, sizes.finish, axis, guarded=guarded),
        title=sizes.title(node),
        notes=sizes.finish.notes,
        second=_second(sizes.frame, axis, odd=guarded),
    )
    cost = BodyCost(5 * node.macs, 300 + 10 * window.taps)
    inner = (
        _pair(node, sizes.window, sizes.finish, axis, stem + steps(node), sizes.struct.kind),
        sizes.input_pixel(x.dtype, padded=guarded),
    )
    shared = sizes.shared(call, parameters, cost, parameters, inner)
    return replace(call, shared=replace(shared, call=replace(shared.call, uses=call.uses)))


def _pair(
    node: Node, window: Window, finish: OutputStage, axis: int, stem: str, layer: str = ""
) -> InnerFunction:
    """Return the function that computes two pixels, which are neighbors along an axis.

    Args:
        node: the convolution.
        window: its geometry.
        finish: output stage.
        axis: 0 for neighbors in a column, 1 for those in a row.
        stem: start of the function's name.
        layer: the kind of the `LayerStruct` with the layer's numbers; empty if there is none.
    """
    multiplier = node.output.type.shape[3] // node.input(0).type.shape[3]
    run, lines = window.kernel[axis], window.kernel[1 - axis]
    words, used = _words(window, axis)
    looped = lines > 1 and lines * run > _UNROLLED
    taps, channel = "tap" if looped else "taps", "c" if multiplier > 1 else "o"
    clamp = node.op.activation.name.lower() if isinstance(node.op, DepthwiseConv2D) else ""
    return InnerFunction(
        template="backends/c/depthwise_pair.j2",
        stem=f"{stem}_pair",
        details={"neighbors": "across" if axis else "down", **finish.details, "clamp": clamp},
        parameters=DepthwisePairParameters(
            outputs=window.outputs,
            multiplier=multiplier,
            channel=finish.row("o"),
            line_inputs=len(used) if looped else 0,
            run=run if looped else 0,
            weights=0 if looped else lines * run,
            lines=lines if looped else 0,
            sums=tuple(
                statement
                for line in range(1 if looped else lines)
                for statement in _line_sums(line, words, used, taps, channel)
            ),
            # The first pixel is stored last: if there is no second one, both addresses are equal.
            results=(
                f"b[o] = {finish.output('high_sum_23((uint64_t)total)')};",
                f"a[o] = {finish.output('low_sum_23((uint64_t)total)')};",
            ),
        ),
        uses=finish.uses | {"SMELT_NOINLINE", "low_sum_23", "high_sum_23"},
        layer=layer,
    )


def _words(window: Window, axis: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the positions of inputs in a line of the windows of both pixels.

    They are the positions of the two inputs of each weight, then those of all inputs, ascending.
    """
    stride, dilation = window.stride[axis], window.dilation[axis]
    words = [(k * dilation, k * dilation + stride) for k in range(window.kernel[axis])]
    return words, sorted({column for word in words for column in word})


def _parameters(
    node: Node, window: Window, frame: Frame, finish: OutputStage, axis: int, *, guarded: bool
) -> DepthwisePairsParameters:
    """Return the template's variables.

    Args:
        node: the convolution.
        window: its geometry.
        frame: the output pixels to compute.
        finish: output stage.
        axis: axis along which the two pixels are neighbors: 0 for rows, 1 for columns.
        guarded: whether a window can be partly outside of the image.
    """
    x, y = node.input(0).type, node.output.type
    lines, (_, used) = window.kernel[1 - axis], _words(window, axis)
    first, along = ("top", "side") if axis else ("side", "top")
    evenly = used == list(range(0, used[-1] + 1, used[1] - used[0]))
    line_end, line_step = lines * window.dilation[1 - axis], window.dilation[1 - axis]
    line = "line" if lines > 1 else first
    ats = ["at"] if evenly else [f"{along} + {j}" for j in used]
    places = [f"{line}, {at}" if axis else f"{at}, {line}" for at in ats]
    each_row, each_column = _each_output(frame, axis)
    row, column = _first(frame, axis)
    return DepthwisePairsParameters(
        title=f"{node.op.name}: {x} -> {y}",
        notes=(window.text, *finish.notes),
        neighbors="columns" if axis else "rows",
        images=frame.images,
        each_row=each_row,
        each_column=each_column,
        padded=guarded,
        constants=bool(finish.row("o")),
        taps=lines * len(used),
        each_line=_loop_head("line", first, line_end, line_step) if lines > 1 else "",
        each_word=_loop_head("at", along, used[-1] + 1, used[1] - used[0]) if evenly else "",
        places=tuple(places),
        top=window.origin(0, row),
        side=window.origin(1, column),
        first=total(("output", frame.target.offset(row, column))),
        second=_second(frame, axis, odd=y.shape[1 + axis] % 2 == 1),
    )


def _each_output(frame: Frame, axis: int) -> tuple[str, str]:
    """Return the C lines that open the loops over output rows and columns.

    They are empty for loops of one iteration.
    """
    down, across = (1, 2) if axis else (2, 1)
    return (
        loop_head("y", frame.height, step=down) if frame.height > 1 else "",
        loop_head("x", frame.width, step=across) if frame.width > 1 else "",
    )


def _first(frame: Frame, axis: int) -> tuple[str, str]:
    """Return the C expressions of the first output pixel's row and column."""
    each_row, each_column = _each_output(frame, axis)
    return "y" if each_row else "0", "x" if each_column else "0"


def _loop_head(variable: str, start: str, length: int, step: int) -> str:
    """Return the C line that opens a loop from `start` to before `start + length`."""
    bounds = f"int32_t {variable} = {start}; {variable} < {start} + {length}"
    return f"for ({bounds}; {advance(variable, step)}) {{"


def _line_sums(
    line: int, words: list[tuple[int, int]], used: list[int], taps: str, channel: str
) -> tuple[str, ...]:
    """Return C lines that add the products of a line of the windows to `total`.

    Args:
        line: number of the line; 0 with a loop over lines.
        words: for each weight, the positions in the line of the two inputs that it multiplies.
        used: positions of all inputs in the line, ascending.
        taps: name of the array of pointers to input pixels.
        channel: name of the variable with the input channel.
    """
    first, weight = line * len(used), line * len(words)
    number = {j: first + i for i, j in enumerate(used)}
    return (
        *(f"const int32_t x{i} = {taps}[{i}][{channel}];" for i in number.values()),
        *(
            f"total += (int64_t)(x{number[a]} + x{number[b]} * 8388608) * weights[{weight + k}];"
            for k, (a, b) in enumerate(words)
        ),
    )


def _cost(window: Window, size: tuple[int, int], axis: int) -> int:
    """Estimate the instructions of a channel if pixels are paired along the axis."""
    run, lines = window.kernel[axis], window.kernel[1 - axis]
    columns = {k * window.dilation[axis] + s for k in range(run) for s in (0, window.stride[axis])}
    return -(-size[axis] // 2) * size[1 - axis] * lines * (2 * len(columns) + 3 * run)


def _second(frame: Frame, axis: int, *, odd: bool) -> str:
    """Return the C expression of the address of the second output pixel.

    If the number of pixels along the axis may be odd, the last one may have no second pixel; the
    expression is then the first pixel's address.
    """
    variable, size = ("x", frame.width) if axis else ("y", frame.height)
    if size == 1:
        return "out"
    row, column = _first(frame, axis)
    behind = in_parentheses(offset(column if axis else row, 1))
    pixel = (row, behind) if axis else (behind, column)
    address = f"output + {frame.target.offset(*pixel)}"
    return f"{variable} + 1 < {size} ? {address} : out" if odd else address
