"""The sums of a block of pixels times output channels, as C: see `convolution_blocks`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smelt.codegen.lower.output_stage import OutputStage

InputForm = Literal["packed", "paired", "single"]
"""Two of them in a word, brought together once or at every use; or each by itself."""


@dataclass(frozen=True, kw_only=True)
class BlockTiling:
    """How a convolution is cut into blocks.

    Attributes:
        form: how inputs reach the sums.
        pixels: in a block.
        outputs: channels in a block.
        channels: of the output.
        length: inputs that one innermost loop runs over.
        unrolled: inputs in one turn of that loop.
        step: channels of a pixel that are packed without a loop.
    """

    form: InputForm
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
    def whole(self) -> int:
        """Channels in whole blocks."""
        return self.channels - self.channels % self.outputs

    @property
    def looped(self) -> int:
        """Inputs that the loop runs over; 0 where everything is written out."""
        return 0 if self.length <= self.unrolled else self.length - self.length % self.unrolled

    def suffixes(self, count: int) -> list[str]:
        """What tells the accumulators of so many channels from each other, in C names."""
        return [self._suffix(j, p) for j in range(count) for p in range(self.columns)]

    def sum(self, channel: int, pixel: int) -> str:
        """The C expression of the sum of a block's channel and pixel."""
        if not self.wide:
            return f"sum{self._suffix(channel, pixel)}"
        half = "high" if pixel % 2 else "low"
        return f"{half}_sum(total{self._suffix(channel, pixel // 2)})"

    def _suffix(self, channel: int, column: int) -> str:
        return str(channel) if self.columns == 1 else f"{channel}_{column}"

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


@dataclass(frozen=True, kw_only=True)
class ChannelSums:
    """Channels whose sums a function of its own computes, so that they have all registers.

    Attributes:
        count: how many channels.
        loop: C line that opens the loop over blocks of so many; empty for those of the last block.
        first: the first channel of the last block.
        accumulators: C lines that declare them.
        turn: C lines of one turn of the loop over inputs; none where all inputs are written out.
        last: C lines for the inputs after the loop.
        results: C lines that store the sums.
        weights: how many the function reads.
        stores: C lines that make outputs of a channel's sums, for each channel.
    """

    count: int
    loop: str
    first: int
    accumulators: tuple[str, ...]
    turn: tuple[str, ...]
    last: tuple[str, ...]
    results: tuple[str, ...]
    weights: int
    stores: tuple[tuple[str, ...], ...]

    @staticmethod
    def of(
        cut: BlockTiling, count: int, finish: OutputStage, products: int, *, whole: bool
    ) -> ChannelSums:
        """The channels in whole blocks, or in the last one; each is a sum of so many products."""
        accumulator = "uint64_t total" if cut.wide else "int32_t sum"
        pairs = [(i, j) for i in range(cut.pixels) for j in range(count)]
        rest = cut.length - cut.looped
        return ChannelSums(
            count=count,
            loop=f"for (int32_t o = 0; o < {cut.whole}; o += {cut.outputs}) {{" if whole else "",
            first=0 if whole else cut.whole,
            accumulators=tuple(f"{accumulator}{suffix} = 0;" for suffix in cut.suffixes(count)),
            turn=_stretch(cut, cut.unrolled, count) if cut.looped else (),
            last=_stretch(cut, rest, count) if rest else (),
            results=tuple(f"sums[{i * count + j}] = {cut.sum(j, i)};" for i, j in pairs),
            weights=count * products,
            stores=tuple(
                finish.stores(
                    channel,
                    *(
                        (f"out[{i}][{channel}]", f"sums[{i * count + j}]")
                        for i in range(cut.pixels)
                    ),
                )
                for j, channel in enumerate(["o", *(f"o + {j}" for j in range(1, count))])
            ),
        )


def _stretch(cut: BlockTiling, length: int, count: int) -> tuple[str, ...]:
    """C lines that add the products of so many inputs to the sums of a block, and move on.

    Copies of wide totals keep gcc from moving registers.
    """
    suffixes = cut.suffixes(count) if cut.wide else []
    words = [f"x{p}" for p in range(cut.columns)] + ["w"] * (cut.columns > 1)
    moves = [f"in{i} += {length};" for i in range(cut.pixels)]
    if cut.form == "packed":
        moves = [f"word += {length * cut.columns};"]
    return (
        *(f"int64_t sum{suffix} = (int64_t)total{suffix};" for suffix in suffixes),
        f"int32_t {', '.join(words)};",
        *(line for k in range(length) for line in _products(cut, k, count)),
        *moves,
        f"weight += {length * count};",
        *(f"total{suffix} = (uint64_t)sum{suffix};" for suffix in suffixes),
    )


def _products(cut: BlockTiling, k: int, count: int) -> list[str]:
    """C lines that add the products of the inputs at `k`."""
    inputs = {
        "packed": "word[{word}]",
        "paired": "in{even}[{k}] + in{odd}[{k}] * 8388608",
        "single": "in{p}[{k}]",
    }[cut.form]
    columns, wide = cut.columns, "(int64_t)" * cut.wide
    lines = [
        f"x{p} = {inputs.format(word=k * columns + p, even=2 * p, odd=2 * p + 1, p=p, k=k)};"
        for p in range(columns)
    ]
    for j, first in enumerate(range(0, count * columns, columns)):
        weight = f"weight[{k * count + j}]"
        if columns > 1:
            lines.append(f"w = {weight};")
            weight = "w"
        suffixes = cut.suffixes(count)[first : first + columns]
        lines += [f"sum{suffix} += {wide}x{p} * {weight};" for p, suffix in enumerate(suffixes)]
    return lines
