"""C code of the sums of a block of pixels times output channels (see `convolution_blocks`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smelt.codegen.lower.loop_heads import loop_head
from smelt.codegen.lower.output_stage import OutputStage
from smelt.codegen.text.expressions import advance, offset

InputForm = Literal["packed", "paired", "single"]
"""How inputs of neighboring pixels reach the multiplications.

- `packed`: two per word, packed into scratch once per block.
- `paired`: two per word, packed again at each use.
- `single`: each on its own, with one sum for each pixel.
"""

COPIES = "/* Products are added to copies: gcc then moves fewer words between registers. */"
"""The C comment above local copies of 64-bit totals."""


@dataclass(frozen=True, kw_only=True)
class BlockTiling:
    """How a convolution is cut into blocks.

    Attributes:
        form: how inputs reach the multiplications.
        pixels: pixels of a block.
        outputs: output channels of a block.
        channels: all output channels.
        length: inputs that the innermost loop runs over.
        unrolled: inputs in one iteration of that loop.
        step: channels of a pixel that are packed without a loop.
        singly: whether channels after the whole blocks are computed one by one.
    """

    form: InputForm
    pixels: int
    outputs: int
    channels: int
    length: int
    unrolled: int
    step: int
    singly: bool

    @property
    def wide(self) -> bool:
        """Whether a 64-bit accumulator holds the sums of two pixels."""
        return self.form != "single"

    @property
    def columns(self) -> int:
        """Accumulators of an output channel in a block."""
        return self.pixels // 2 if self.wide else self.pixels

    @property
    def whole(self) -> int:
        """Output channels in whole blocks."""
        return self.channels // self.outputs * self.outputs

    @property
    def looped(self) -> int:
        """Inputs that the loop covers; 0 if all inputs are unrolled without a loop."""
        if self.length <= self.unrolled:
            return 0
        return self.length // self.unrolled * self.unrolled

    def suffixes(self, count: int) -> list[str]:
        """Return the suffixes of the C names of the accumulators of `count` channels."""
        return [self._suffix(j, p) for j in range(count) for p in range(self.columns)]

    def sum(self, channel: int, pixel: int) -> str:
        """Return the C expression of the sum of a channel and pixel of a block."""
        if not self.wide:
            return f"sum{self._suffix(channel, pixel)}"
        half = "high" if pixel % 2 else "low"
        return f"{half}_sum_23(total{self._suffix(channel, pixel // 2)})"

    def _suffix(self, channel: int, column: int) -> str:
        return str(channel) if self.columns == 1 else f"{channel}_{column}"

    @property
    def text(self) -> tuple[str, ...]:
        """Lines for the function's comment."""
        size = f"{self.pixels} pixels" if self.pixels > 1 else "1 pixel"
        repeated = "; an incomplete block repeats the last pixel" if self.pixels > 1 else ""
        first = f"{size} times {self.outputs} channels at a time{repeated}."
        if not self.wide:
            return (first,)
        where = ", stored in `patch`" if self.form == "packed" else ""
        return (
            first,
            f"Inputs of two pixels share a word, input0 + 2^23 * input1{where}.",
            "The product of the word and a weight is product0 + 2^23 * product1, so one 64-bit",
            "accumulator holds sum0 + 2^23 * sum1.",
        )


@dataclass(frozen=True, kw_only=True)
class ChannelSums:
    """Output channels of a block; a separate C function computes their sums.

    In a function of its own, the sums can use all registers.

    Attributes:
        count: channels of a block.
        loop: C line that opens the loop over blocks; empty for a single block.
        accumulators: C lines that declare the accumulators.
        iteration: C lines of one iteration over inputs; empty if all inputs are unrolled.
        last: C lines for the inputs after the loop.
        results: C lines that store the sums in the array `sums`.
        weights: weights that the function reads.
        stores: C lines that compute outputs from the sums and store them.
    """

    count: int
    loop: str
    accumulators: tuple[str, ...]
    iteration: tuple[str, ...]
    last: tuple[str, ...]
    results: tuple[str, ...]
    weights: int
    stores: tuple[str, ...]

    @staticmethod
    def of(tiling: BlockTiling, finish: OutputStage, products: int, *, whole: bool) -> ChannelSums:
        """Return the channels of whole blocks, or those after them.

        Args:
            tiling: the blocks.
            finish: output stage.
            products: products of a sum.
            whole: whether the blocks are whole.
        """
        first, end = (0, tiling.whole) if whole else (tiling.whole, tiling.channels)
        count = tiling.outputs if whole else 1 if tiling.singly else end - first
        accumulator = "uint64_t total" if tiling.wide else "int32_t sum"
        pairs = [(i, j) for i in range(tiling.pixels) for j in range(count)]
        rest = tiling.length - tiling.looped
        loop = loop_head("o", end, first, count)
        channels = [offset("o" if loop else str(first), j) for j in range(count)]
        stores = finish.stores_in_order(
            [
                (
                    at,
                    [(f"out[{i}][{at}]", f"sums[{i * count + j}]") for i in range(tiling.pixels)],
                )
                for j, at in enumerate(channels)
            ]
        )
        return ChannelSums(
            count=count,
            loop=loop,
            accumulators=tuple(f"{accumulator}{suffix} = 0;" for suffix in tiling.suffixes(count)),
            iteration=_stretch(tiling, tiling.unrolled, count) if tiling.looped else (),
            last=_stretch(tiling, rest, count) if rest else (),
            results=tuple(f"sums[{i * count + j}] = {tiling.sum(j, i)};" for i, j in pairs),
            weights=count * products,
            stores=stores,
        )


def _stretch(tiling: BlockTiling, length: int, count: int) -> tuple[str, ...]:
    """Return C lines that add the products of `length` inputs to the sums of a block, unrolled.

    The lines advance the pointers to inputs and weights. The products are added to local copies of
    64-bit totals, because gcc then inserts fewer moves between registers.
    """
    suffixes = tiling.suffixes(count) if tiling.wide else []
    words = [f"x{p}" for p in range(tiling.columns)] + ["w"] * (tiling.columns > 1)
    moves = [f"{advance(f'in{i}', length)};" for i in range(tiling.pixels)]
    if tiling.form == "packed":
        moves = [f"{advance('word', length * tiling.columns)};"]
    return (
        *((COPIES,) if tiling.wide else ()),
        *(f"int64_t sum{suffix} = (int64_t)total{suffix};" for suffix in suffixes),
        f"int32_t {', '.join(words)};",
        *(line for k in range(length) for line in _products(tiling, k, count)),
        *moves,
        f"{advance('weight', length * count)};",
        *(f"total{suffix} = (uint64_t)sum{suffix};" for suffix in suffixes),
    )


def _products(tiling: BlockTiling, k: int, count: int) -> list[str]:
    """Return C lines that add the products of input `k` of each pixel."""
    inputs = {
        "packed": "word[{word}]",
        "paired": "in{even}[{k}] + in{odd}[{k}] * 8388608",
        "single": "in{p}[{k}]",
    }[tiling.form]
    columns, wide = tiling.columns, "(int64_t)" * tiling.wide
    lines = [
        f"x{p} = {inputs.format(word=k * columns + p, even=2 * p, odd=2 * p + 1, p=p, k=k)};"
        for p in range(columns)
    ]
    for j, first in enumerate(range(0, count * columns, columns)):
        weight = f"weight[{k * count + j}]"
        if columns > 1:
            lines.append(f"w = {weight};")
            weight = "w"
        suffixes = tiling.suffixes(count)[first : first + columns]
        lines += [f"sum{suffix} += {wide}x{p} * {weight};" for p, suffix in enumerate(suffixes)]
    return lines
