"""int8 convolutions three columns wide for Armv7-M without the DSP extension, without patches.

As in `convolution_pairs`, one multiplication adds the products of two channels of a pixel to a sum.
But inputs are not packed again for each output pixel. Instead, the image rows under a slab of
output rows are widened once, into lines of words that hold two channels each:

    [row][pair of channels][column]

Four neighboring outputs of a channel need six columns of a line, or nine with stride 2. With
stride 2, a line has its even columns first, then its odd columns. One assembly function computes
all outputs of a channel in a row, four at a time. For each line, it needs only two more loads after
the load of the first four columns.

A channel's weights are words. They are words in flash if there are few of them compared to the
pixels. Otherwise they are bytes in flash and are expanded to words in scratch once per slab. The
larger the slab, the less often that happens; so a slab takes all scratch that the plan offers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.armv7m.assembly import UnrolledLoop
from smelt.codegen.backends.armv7m.convolution_pairs import WORD_WEIGHTS
from smelt.codegen.backends.armv7m.convolution_rows_assembly import LineSums, outputs_of_row
from smelt.codegen.backends.armv7m.convolution_rows_layers import shared_rows
from smelt.codegen.backends.armv7m.convolution_rows_parameters import (
    ExpandWeightsParameters,
    RowParameters,
    RowsOfPairsParameters,
    RowText,
    Slabs,
    WidenRowParameters,
)
from smelt.codegen.backends.armv7m.instructions import CONDITION
from smelt.codegen.backends.armv7m.packing import last_inputs
from smelt.codegen.backends.armv7m.paired_weights import (
    PairedWeights,
    in_pairs,
    pairs_of,
    repair_words,
    two_in_a_word,
)
from smelt.codegen.backends.armv7m.plain_functions import UPPER_HALF
from smelt.codegen.lower.image_loops import Frame
from smelt.codegen.lower.image_product import ImageProduct
from smelt.codegen.lower.kernel import (
    InnerFunction,
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.lower.output_slabs import OutputSlabs
from smelt.codegen.lower.products_32bit import SCRATCH_BYTES, scaling_of
from smelt.codegen.lower.stored_output import stored_output
from smelt.codegen.text.expressions import offset, times
from smelt.codegen.text.helpers import when
from smelt.ir import Array, DType, Node
from smelt.ops.arithmetic.fixed_point import wrap_int32
from smelt.ops.core.convolution import Conv2D

PIXELS = 4
"""Neighboring outputs whose sums, inputs and weights fit into registers."""

COLUMNS = 3
"""Columns of the supported windows."""

_WORTH_EXPANDING = 16
"""Smallest number of blocks of outputs for which few weights are expanded in scratch."""

_REACH = 4096
"""Number of bytes that an immediate offset, or the immediate of ADDW, can address."""

_UNROLLED = {"speed": 24, "ram": 24, "size": 1}
"""Upper limit of the steps per iteration of the loop."""


class WidenedLines:
    """The layout of a slab of the image in scratch.

    A step of the assembly computes one row of the window for one pair of channels.

    Attributes:
        window: geometry of the convolution.
        height, width: size of the output.
        pitch: words of a line.
        even: words of a line before the odd columns, with stride 2.
        row: words of a row of the image: all its lines.
        steps: steps of an output.
        order: columns of the window in the order in which a step uses them.
        places: positions of these columns in a line, for the first output.
    """

    def __init__(self, product: ImageProduct) -> None:
        window, pairs = product.window, len(pairs_of(product.window.depth))
        stride = window.stride[1]
        self.window = window
        self.height, self.width = product.frame.height, product.frame.width
        self.pitch = self.width * stride + COLUMNS - stride
        self.even = self.width + COLUMNS // 2
        self.row = pairs * self.pitch
        self.steps = window.kernel[0] * pairs
        self.order = (0, 1, 2) if stride == 1 else (0, 2, 1)
        self.places = (0, 1, 2) if stride == 1 else (0, 1, self.even)

    @property
    def weights(self) -> int:
        """Words of a channel's weights, without the start of its sums."""
        return COLUMNS * self.steps

    def rows(self, slab: int) -> int:
        """Return the number of image rows under `slab` rows of outputs."""
        return (slab - 1) * self.window.stride[0] + self.window.kernel[0]

    def scratch_words(self, slab: int) -> int:
        """Return the words of scratch for a slab."""
        return self.rows(slab) * self.row

    def offset(self, step: int, place: int) -> int:
        """Return the offset of an input of a line's first output, in bytes.

        Args:
            step: the row of the window and pair of channels.
            place: the column, as an index into `places`.
        """
        return 4 * (step * self.pitch + self.places[place])

    def column(self, x: str) -> str:
        """Return the C expression of the position of column x in a line."""
        return x if self.window.stride[1] == 1 else f"({x} & 1) * {self.even} + {x} / 2"

    def slab_in(self, scratch_limit: int) -> int:
        """Return the most output rows for which scratch suffices; at least one."""
        fixed, each = self.scratch_words(0), self.window.stride[0] * self.row
        return max(1, min(self.height, (scratch_limit // 4 - fixed) // each))

    def slab(self, weights: int, request: Request) -> tuple[int, bool]:
        """Return the output rows of a slab, and whether weights are expanded in scratch."""
        scratch_limit, words = request.scratch_limit, 4 * (1 + self.weights)
        slab = self.slab_in(scratch_limit - words)
        fits = 4 * self.scratch_words(slab) + words <= max(scratch_limit, SCRATCH_BYTES)
        few = weights <= WORD_WEIGHTS and request.optimize != "size"
        if fits and not (few and slab * -(-self.width // PIXELS) < _WORTH_EXPANDING):
            return slab, True
        return self.slab_in(scratch_limit), False


class SlidingRowsConv2D(Kernel[Conv2D]):
    """Convolutions with one group, three columns wide, with at least four outputs per row."""

    op = Conv2D
    uses_scratch_limit = True

    @override
    def offer(self, node: Node[Conv2D], request: Request) -> KernelCall | Refusal:
        if node.op.groups > 1:
            return Refusal(f"{node.op.name} with widened rows supports only one group.")
        scaling, product = scaling_of(node), ImageProduct.of(node)
        if isinstance(scaling, Refusal):
            return scaling
        lines = WidenedLines(product)
        if refusal := _refuse_lines(node.op.name, lines):
            return refusal
        weights = PairedWeights.of(_by_steps(node.input(1).array, lines))
        sums = LineSums(
            stride=lines.window.stride[1],
            pitch=lines.pitch,
            even=lines.even,
            weights=1 + lines.weights,
            loop=UnrolledLoop.of(lines.steps - 1, _UNROLLED[request.optimize]),
            repaired=weights.repaired,
            outputs=lines.window.outputs,
            blocks=lines.width // PIXELS,
            scaling=scaling.signed,
        )
        slab, expands = lines.slab(node.input(1).type.size, request)
        parameters = _parameters(product, lines, slab, expands=expands)
        call = KernelCall(
            template="backends/armv7m/convolution_rows.j2",
            stem=f"conv_{lines.window.kernel[0]}x{COLUMNS}_rows",
            details=scaling.details,
            parameters=parameters,
            operands=(
                Input(0, "input"),
                *product.padding(1),
                Packed("weights", _bytes(weights) if expands else _words(weights)),
                Packed("constants", _constants(lines, weights, sums)),
                Scratch("image", DType.INT32, lines.scratch_words(slab)),
                *((Scratch("words", DType.INT32, 1 + lines.weights),) if expands else ()),
                Output(0, "output"),
            ),
            uses=when(parameters.slabs.kept, "string.h"),
            inner=(
                _row(lines, sums, scaling.details),
                _widened_row(lines, product.frame),
                *((_expanded_weights(lines),) if expands else ()),
            ),
            summary=f"two taps in one multiplication, {slab} rows of outputs widened at a time",
            form="armv7m_rows_3",
            work=_work(lines, weights, product.frame.batch, slab if expands else None),
        )
        if not expands or request.optimize != "size":
            return call
        return replace(call, shared=shared_rows(call, product, parameters, slab))


def _refuse_lines(name: str, lines: WidenedLines) -> Refusal | None:
    """Return why a shape is not supported; None if it is."""
    window = lines.window
    if window.kernel[1] != COLUMNS or window.stride[1] > 2 or window.dilation != (1, 1):
        return Refusal(
            f"{name} with widened rows supports only windows three columns wide, with a "
            "horizontal stride of 1 or 2 and no dilation."
        )
    if lines.width < PIXELS or PIXELS * window.outputs >= _REACH:
        return Refusal(
            f"{name} with widened rows supports only {PIXELS} or more outputs per row, and fewer "
            f"than {_REACH // PIXELS} channels."
        )
    if 4 * lines.scratch_words(1) > SCRATCH_BYTES:
        return Refusal(f"{name} has rows too long to widen into {SCRATCH_BYTES} bytes.")
    return None


def _parameters(
    product: ImageProduct, lines: WidenedLines, slab: int, *, expands: bool
) -> RowsOfPairsParameters:
    """Return the template's variables; `expands`: weights are expanded to words in scratch."""
    return RowsOfPairsParameters(
        title=lines.window.title(product.node),
        images=product.frame.images,
        outputs=lines.window.outputs,
        padded=lines.window.padded,
        slabs=_slabs(lines, slab),
        expands=expands,
        weights=0 if expands else 1 + lines.weights,
    )


def _work(
    lines: WidenedLines, weights: PairedWeights, batch: int, slab: int | None
) -> dict[str, int]:
    """Return the work of a call; `slab`: rows of a slab if it expands weights, else None."""
    rows, blocks = batch * lines.height, -(-lines.width // PIXELS)
    calls = rows * lines.window.outputs
    slabs = 0 if slab is None else -(-lines.height // slab)
    return {
        "products": calls * blocks * lines.weights,
        "repairs": rows * blocks * weights.repair_count,
        "outputs": calls * blocks,
        "rows": calls,
        "made": batch * slabs * lines.window.outputs * lines.weights,
        "widened": batch * lines.scratch_words(lines.height),
        "calls": 1,
    }


def _row(lines: WidenedLines, sums: LineSums, details: Mapping[str, str]) -> InnerFunction:
    """Return the function that computes a channel of a row, in images of any height."""
    (rows, columns), stride = lines.window.kernel, lines.window.stride[1]
    row = RowText(
        condition=CONDITION,
        assembly=outputs_of_row(sums).text,
        fields=sums.scaling.rows.shape[1],
        outputs=(sums.outputs, 4 * sums.outputs),
        steps=lines.steps,
        pitch=lines.pitch,
        places=tuple(f" + {at}" if at else "" for at in lines.places),
        repaired=sums.repaired,
        blocks=sums.blocks,
    )
    return InnerFunction(
        template="backends/armv7m/convolution_row.j2",
        stem=f"row_of_{rows}x{columns}{'_s2' if stride > 1 else ''}",
        details={"outputs": f"c{sums.outputs}", **details},
        parameters=RowParameters(row),
        uses={"SMELT_ARRAY", "SMELT_NAKED"},
        inner=(stored_output(sums.scaling.steps, CONDITION), UPPER_HALF),
    )


def _widened_row(lines: WidenedLines, frame: Frame) -> InnerFunction:
    """Return the function that widens a row of the image."""
    window = lines.window
    before = window.padding[1][0]
    column = "x" if window.padded and before == 0 else "i"
    parameters = WidenRowParameters(
        size=window.size if window.padded else None,
        column=column,
        x=offset("i", -before) if before else "",
        pixel=frame.source.offset("y", "x" if window.padded else "i"),
        place=lines.column(column),
        pitch=(lines.pitch, 2 * lines.pitch),
        fours=window.depth // 4,
        tail=last_inputs(window.depth, ["in"], lines.pitch),
    )
    return InnerFunction(
        template="backends/armv7m/widen_row.j2",
        stem=f"widen_row_{window.size[1]}x{window.depth}",
        details={
            "stride": f"s{window.stride[1]}",
            "height": f"h{window.size[0]}",
            "padding": f"pad_{before}_{window.padding[1][1]}",
        },
        parameters=parameters,
        uses=when(parameters.fours, "string.h"),
    )


def _expanded_weights(lines: WidenedLines) -> InnerFunction:
    """Return the function that expands a channel's weights from bytes to words of two."""
    return InnerFunction(
        template="backends/armv7m/expand_weights.j2",
        stem=f"expand_{lines.weights}_words",
        parameters=ExpandWeightsParameters(lines.weights // 2, lines.weights % 2 == 1),
    )


def _slabs(lines: WidenedLines, slab: int) -> Slabs:
    window, height, width = lines.window, lines.height, lines.width
    slabs, stride = OutputSlabs.of(height, slab), window.stride[0]
    kept = max(window.kernel[0] - stride, 0) if slabs.several else 0
    rows = lines.rows(slab)
    return Slabs(
        slabs=slabs,
        needed=offset(times(slabs.count, stride), window.kernel[0] - stride),
        kept=kept,
        moved=((rows - kept) * lines.row, kept * lines.row) if kept else (0, 0),
        stride=stride,
        row=lines.row,
        line_step=stride * lines.row,
        first=offset("have", -window.padding[0][0]),
        output_step=width * window.outputs,
        blocks=width // PIXELS,
        last=(width - PIXELS, (width - PIXELS) * window.outputs) if width % PIXELS else None,
    )


def _by_steps(weights: Array, lines: WidenedLines) -> Array:
    """Return int64 `[o, steps * 3, 2]`: weights w_a and w_b in the order of the assembly."""
    paired = in_pairs(weights, lines.window.depth).transpose(0, 1, 3, 2, 4)
    return paired[:, :, :, lines.order].reshape(len(weights), lines.weights, 2)


def _words(weights: PairedWeights) -> Array:
    """Return int32: for each channel the start of its sums, then words of two weights."""
    return _stream(np.column_stack([weights.starts, weights.words]))


def _bytes(weights: PairedWeights) -> Array:
    """Return int32: for each channel the start of its sums, then words of four weights."""
    odd = weights.kept.shape[1] % 2
    even = np.pad(weights.kept, ((0, 0), (0, odd), (0, 0))) + 128
    return _stream(np.column_stack([weights.starts, two_in_a_word(even[:, ::2], even[:, 1::2])]))


def _constants(lines: WidenedLines, weights: PairedWeights, sums: LineSums) -> Array:
    """Return int32: for each channel the number of repairs, the repairs, then requantization."""
    parts: list[Array] = []
    for repairs, row in zip(weights.repairs, sums.scaling.rows, strict=True):
        if sums.repaired:
            placed = [(lines.offset(*divmod(at, COLUMNS)), lack << 16) for at, lack in repairs]
            parts.append(repair_words(placed))
        parts.append(row)
    return _stream(np.concatenate(parts))


def _stream(values: Array) -> Array:
    return wrap_int32(values.ravel()).astype(np.int32)


KERNELS = (SlidingRowsConv2D(),)
