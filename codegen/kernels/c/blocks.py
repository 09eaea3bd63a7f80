"""int8 convolutions in blocks of pixels times output channels, whose sums stay in registers.

Weights are packed in the order in which the innermost loop reads them. Where the processor
multiplies 32 by 32 bits into 64, int8 convolutions get two multiply-accumulates out of one
instruction: the input of one pixel plus 2^23 times that of another, times a weight, is the product
for the one plus 2^23 times the product for the other; and so are sums of such products, as long as
the lower one stays below 2^22.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from smelt.codegen.kernels.base import (
    Input,
    KernelCall,
    Operand,
    Output,
    Packed,
    Request,
    Scratch,
)
from smelt.codegen.kernels.c.finish import Finish
from smelt.codegen.kernels.c.images import Frame
from smelt.codegen.kernels.c.requantization import sum_range
from smelt.codegen.kernels.c.window import Window
from smelt.ir import Array, DType, Node

Form = Literal["packed", "paired", "single"]

PATCH_BYTES = 512
"""What the packed inputs of a block may take."""

HALVES = frozenset({"low_sum", "high_sum"})
_NONE = frozenset[str]()

LIMIT = 2**22
"""What the sum of the lower pixel of a pair must stay below."""


@dataclass(frozen=True)
class Blocks:
    """How a convolution is cut into blocks; see the template.

    Attributes:
        form: how inputs reach the sums.
        dtype: of inputs, weights and outputs.
        pixels: in a block.
        outputs: channels in a block.
        channels: of the output.
        length: inputs that one innermost loop runs over.
        unrolled: inputs in one turn of that loop.
        step: channels of a pixel that are packed without a loop.
    """

    form: Form
    dtype: DType
    pixels: int
    outputs: int
    channels: int
    length: int
    unrolled: int
    step: int

    @property
    def wide(self) -> bool:
        """Whether sums are 64 bits for two pixels."""
        return self.form != "single"

    @property
    def columns(self) -> int:
        """Accumulators of a channel."""
        return self.pixels // 2 if self.wide else self.pixels

    @property
    def c_type(self) -> str:
        """C type of an element."""
        return self.dtype.c_name

    @property
    def rest(self) -> int:
        """Channels in the last block, if it is not whole."""
        return self.channels % self.outputs

    @property
    def whole(self) -> int:
        """Channels in whole blocks."""
        return self.channels - self.rest

    @property
    def looped(self) -> int:
        """Inputs that the loop runs over; 0 where everything is written out."""
        return 0 if self.length <= self.unrolled else self.length - self.length % self.unrolled

    @property
    def remaining(self) -> int:
        """Inputs written out after the loop."""
        return self.length - self.looped

    def suffix(self, channel: int, column: int) -> str:
        """What tells one accumulator of a block from another, in C names."""
        return str(channel) if self.columns == 1 else f"{channel}_{column}"

    def sum(self, channel: int, pixel: int) -> str:
        """The C expression of the sum of a block's channel and pixel."""
        if not self.wide:
            return f"sum{self.suffix(channel, pixel)}"
        half = "high" if pixel % 2 else "low"
        return f"{half}_sum(total{self.suffix(channel, pixel // 2)})"

    @property
    def text(self) -> tuple[str, ...]:
        """Lines for the function's comment."""
        size = f"{self.pixels} pixels" if self.pixels > 1 else "1 pixel"
        first = f"{size} times {self.outputs} channels at a time; the last pixel fills up a block."
        if not self.wide:
            return (first,)
        where = "share a word of `patch`" if self.form == "packed" else "are brought into one word"
        return (
            first,
            f"Inputs of two pixels {where}, the second one 23 bits up; so the word's",
            "product with a weight is a product for either pixel, and 64 bits hold both sums.",
        )


def choose(window: Window, dtype: DType, weights: Array, pixels: int, request: Request) -> Blocks:
    """How to cut a convolution of one group into blocks.

    Args:
        window: its geometry.
        dtype: of input and output.
        weights: `[o, k]`.
        pixels: how many output pixels there are.
        request: target and preference.
    """
    products = window.taps * window.depth
    form: Form = "single"
    if dtype is DType.INT8 and "long_multiply" in request.target.features and fits_pairs(weights):
        form = "packed" if products * 4 <= PATCH_BYTES else "paired"
        if request.optimize == "ram":
            form = "paired"
    count, outputs, unrolled = 2, 4, 8
    if form == "packed" and products * 8 <= PATCH_BYTES and pixels > 2:
        count, outputs = 4, 2
    if form == "single":
        count, outputs, unrolled = 1, 4, 2
    length = products if form == "packed" else window.depth
    return Blocks(
        form,
        dtype,
        count,
        min(outputs, window.outputs),
        window.outputs,
        length,
        1 if request.optimize == "size" else max(min(length // 2, unrolled), 1),
        window.depth if window.depth <= 4 else 4 if window.depth % 4 == 0 else 1,
    )


def fits_pairs(weights: Array) -> bool:
    """Whether no sum of centred weights `[o, ...]` times int8 inputs leaves its 23 bits."""
    low, high = sum_range(np.zeros(len(weights), np.int64), weights)
    return bool((low > -LIMIT).all() and (high < LIMIT).all())


def blocks(
    node: Node,
    window: Window,
    frame: Frame,
    finish: Finish,
    weights: Array,
    request: Request,
    *,
    stem: str,
) -> KernelCall:
    """The call that computes a convolution of one group.

    Args:
        node: what is computed.
        window: its geometry.
        frame: the output pixels to compute.
        finish: what follows each sum; its bias holds the input's zero point.
        weights: `[o, kh, kw, i]` or `[o, i]`, as stored.
        request: target and preference.
        stem: of the function's name.
    """
    x, y = node.input(0).type, node.output.type
    weights = weights.reshape(window.outputs, -1)
    pixels = y.size // window.outputs // frame.batch
    cut = choose(window, x.dtype, weights, pixels, request)
    parameters: dict[str, object] = {
        "frame": frame,
        "title": f"{node.op.name}: {x} -> {y}, {window.text}",
        "notes": [*finish.notes, *cut.text],
        "w": window,
        "f": finish,
        "b": cut,
        "pixels": pixels,
        "top": window.origin(0, "y"),
        "side": window.origin(1, "x"),
        "pixel": frame.source.offset("y", "x"),
        "output_pixel": frame.target.offset("y", "x"),
    }
    operands: list[Operand] = [Input(0, "input")]
    if window.padded:
        zero = 0 if x.quant is None else x.zero_point
        operands.append(Packed("padding", np.full(window.depth, zero, x.dtype.numpy)))
    operands += [Packed("weights", _ordered(weights, cut.outputs)), *finish.operands]
    if cut.form == "packed":
        operands.append(Scratch("patch", DType.INT32, cut.length * cut.columns))
    return KernelCall(
        template="c/convolution_blocks.j2",
        stem=stem,
        parameters=parameters,
        operands=(*operands, Output(0, "output")),
        helpers=finish.helpers | (HALVES if cut.wide else _NONE),
        summary=f"{cut.form} inputs, {cut.pixels} pixels x {cut.outputs} channels",
    )


def _ordered(weights: Array, outputs: int) -> Array:
    """`[o, k]` weights in the order in which blocks of `outputs` channels read them."""
    whole = len(weights) - len(weights) % outputs
    first = weights[:whole].reshape(-1, outputs, weights.shape[1]).transpose(0, 2, 1)
    return np.concatenate([first.ravel(), weights[whole:].T.ravel()])
