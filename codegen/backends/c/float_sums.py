"""Sums of float convolutions, as C: a variable each, or in arrays that are vectors."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from smelt.codegen.backends.c.vector_loops import lane_loops, vectors_of
from smelt.codegen.lower.c_expressions import Store
from smelt.codegen.lower.window import Window
from smelt.codegen.text.helpers import uses_in


@dataclass(frozen=True)
class Channels:
    """Output channels of a group, from `begin` to `end`, `count` at a time.

    A block that is alone may compute more than there are, with weights of zero for the others.
    `unrolled` of the `length` inputs of a run are written out in one turn of the innermost loop.
    """

    begin: int
    end: int
    count: int
    length: int = 1
    unrolled: int = 1

    @property
    def repeats(self) -> bool:
        """Whether a loop over them is needed."""
        return self.end - self.begin > self.count

    @property
    def lanes(self) -> tuple[tuple[int, int], ...]:
        """The first and the number of the channels that share an array of sums."""
        return vectors_of(self.count)

    @property
    def real(self) -> int:
        """Channels of a block that there are."""
        return min(self.count, self.end - self.begin)

    @property
    def stored(self) -> tuple[tuple[int, int], ...]:
        """`lanes`, without the channels that there are not."""
        return tuple((first, min(size, self.real - first)) for first, size in self.lanes)

    @property
    def text(self) -> str:
        """How many there are, for comments."""
        return f"{self.end - self.begin} channel" + "s" * (self.end - self.begin > 1)

    @property
    def computed(self) -> int:
        """Channels in all blocks, with those that there are not."""
        return max(self.count, self.end - self.begin)

    @property
    def looped(self) -> int:
        """Inputs of a run that a loop goes over; 0 where everything is written out."""
        return 0 if self.length <= self.unrolled else self.length - self.length % self.unrolled

    @property
    def remaining(self) -> int:
        """Inputs written out after the loop."""
        return self.length - self.looped


@dataclass(frozen=True)
class FloatSums:
    """The sums of a block of pixels times channels.

    Attributes:
        pixels: in a block.
        vectors: whether neighbouring channels share vector registers.
        fused: whether products are added without a rounding of their own.
        store: how a sum becomes an output.
    """

    pixels: int
    vectors: bool
    fused: bool
    store: Store

    def begin(self, channels: Channels) -> tuple[str, ...]:
        """C lines that declare the sums; they start from the biases at `weights`."""
        lines: list[str] = []
        if self.vectors:
            for p in range(self.pixels):
                sizes = channels.lanes
                lines += [f"SMELT_ARRAY float sum{p}_{first}[{size}];" for first, size in sizes]
                lines += lane_loops(sizes, lambda n, at, p=p: f"sum{p}_{n}[j] = weights[{at}];")
            return tuple(lines)
        for j in range(channels.count):
            lines.append(f"float sum0_{j} = weights[{j}];")
            lines += [f"float sum{p}_{j} = sum0_{j};" for p in range(1, self.pixels)]
        return tuple(lines)

    def products(self, channels: Channels) -> tuple[str, ...]:
        """C lines that add the products of input `k` of each pixel's run, in vectors."""
        lines = [f"const float x{p} = in{p}[k];" for p in range(self.pixels)]
        for p in range(self.pixels):
            lines += lane_loops(
                channels.lanes, lambda n, at, p=p: f"sum{p}_{n}[j] += x{p} * weights[{at}];"
            )
        return tuple(lines)

    def stretch(self, channels: Channels, length: int) -> tuple[str, ...]:
        """C lines that add the products of so many inputs of each run one by one, and move on."""
        pixels, count = range(self.pixels), channels.count
        lines = [f"float {', '.join(f'x{p}' for p in pixels)}, w;"]
        for k in range(length):
            lines += [f"x{p} = in{p}[{k}];" for p in pixels]
            for j in range(count):
                lines.append(f"w = weights[{k * count + j}];")
                lines += [self.added(f"sum{p}_{j}", f"x{p}", "w") for p in pixels]
        lines += [f"in{p} += {length};" for p in pixels]
        return (*lines, f"weights += {length * count};")

    def added(self, total: str, value: str, weight: str) -> str:
        """The C statement that adds a product to a sum."""
        if self.fused:
            return f"{total} = fmaf({value}, {weight}, {total});"
        return f"{total} += {value} * {weight};"

    def stores(self, channels: Channels, pixel: int) -> tuple[str, ...]:
        """C lines that store a pixel's results."""
        p = pixel
        if self.vectors:
            return lane_loops(
                channels.stored, lambda n, at: f"out{p}[{at}] = {self.store(f'sum{p}_{n}[j]')};"
            )
        count = channels.count
        return tuple(f"out{p}[{j}] = {self.store(f'sum{p}_{j}')};" for j in range(count))


@dataclass(frozen=True)
class FloatChannels:
    """Channels of a group whose sums a function of its own computes.

    Attributes:
        real: how many of a block there are, in the function's name.
        text: what the function computes, for its comment.
        loop: C line that opens the loop over blocks; empty where there is one.
        count: channels of a block.
        output: what is added to a pixel's address for the block's first channel.
        begin: C lines that declare the sums.
        turn: C lines of one turn of the loop over inputs; none where scalars are written out.
        run_end: how far that loop goes with scalars; else 0.
        last: C lines for the inputs after the loop.
        stores: C lines that store the results of each pixel.
        arguments: of the function's call.
        weights: how many each group has for the channels; 0 where there is one group.
    """

    real: int
    text: str
    loop: str
    count: int
    output: str
    begin: tuple[str, ...]
    turn: tuple[str, ...]
    run_end: int
    last: tuple[str, ...]
    stores: tuple[tuple[str, ...], ...]
    arguments: str
    weights: int

    @property
    def uses(self) -> frozenset[str]:
        """The helpers and headers that the lines use."""
        return uses_in(chain(self.begin, self.turn, self.last, *self.stores))

    @staticmethod
    def of(channels: Channels, sums: FloatSums, runs: Window) -> FloatChannels:
        """Some channels of a convolution."""
        begin, end, count = channels.begin, channels.end, channels.count
        per_group, each = runs.outputs // runs.groups, 1 + runs.taps * runs.depth
        grouped, alone = runs.groups > 1, not channels.repeats
        of_group, several = " of a group" * grouped, f", {count} at a time" * channels.repeats
        text = f"{channels.text}{of_group} of {sums.pixels} pixel{'s' * (sums.pixels > 1)}{several}"
        loop = f"for (int32_t o = {begin}; o < {end}; o += {count}) {{"
        arguments = f"taps, weights{f' + {begin * each}' * (begin > 0)}, outputs"
        output = f" + {begin}" * (begin > 0) if alone else " + o"
        if grouped:
            loop = f"for (const int32_t end = o + {end - begin}; o < end; o += {count}) {{"
            first = f"group * {per_group}" + f" + {begin}" * (begin > 0)
            arguments = f"taps, weight, outputs, group * {runs.depth}, {first}"
            output = " + o"
        turn = last = ()
        if sums.vectors:
            turn = sums.products(channels)
        else:
            turn = sums.stretch(channels, channels.unrolled) if channels.looped else ()
            last = sums.stretch(channels, channels.remaining) if channels.remaining else ()
        return FloatChannels(
            real=channels.real,
            text=text,
            loop="" if alone else loop,
            count=count,
            output=output,
            begin=sums.begin(channels),
            turn=turn,
            run_end=0 if sums.vectors else channels.looped,
            last=last,
            stores=tuple(sums.stores(channels, pixel) for pixel in range(sums.pixels)),
            arguments=arguments,
            weights=channels.computed * each if grouped else 0,
        )
