"""C code of the sums of float convolutions: one variable per sum, or arrays for vectors."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.c.vector_loops import lane_loops, vectors_of
from smelt.codegen.lower.c_expressions import Store

CALL, STORE = 40, 5
"""Assumed instructions of a call with its saved registers, and of an output that is stored."""

REPEATED = 2
"""Additional instructions of an iteration if the end of the loop is an argument, on Cortex-M4."""


@dataclass(frozen=True)
class Channels:
    """Output channels of a group, from `begin` to `end`, in blocks of `count`.

    `count` may exceed the number of channels of a single block, to fill its vectors; the weights of
    the extra channels are zero. The innermost loop runs over the `length` inputs of a run,
    `unrolled` of them at a time.
    """

    begin: int
    end: int
    count: int
    length: int = 1
    unrolled: int = 1

    @property
    def repeats(self) -> bool:
        """Whether there are several blocks, so that a loop over them is needed."""
        return self.end - self.begin > self.count

    @property
    def lanes(self) -> tuple[tuple[int, int], ...]:
        """`(first channel, size)` of each array of sums."""
        return vectors_of(self.count)

    @property
    def real(self) -> int:
        """Channels of a block, without those that only fill up vectors."""
        return min(self.count, self.end - self.begin)

    @property
    def stored(self) -> tuple[tuple[int, int], ...]:
        """`lanes`, without the channels that only fill up vectors."""
        return tuple((first, min(size, self.real - first)) for first, size in self.lanes)

    @property
    def text(self) -> str:
        """The number of channels in words, for comments."""
        return f"{self.end - self.begin} channel" + "s" * (self.end - self.begin > 1)

    @property
    def computed(self) -> int:
        """Channels of all blocks, with those that only fill up vectors."""
        return max(self.count, self.end - self.begin)

    @property
    def looped(self) -> int:
        """Inputs of a run that the loop covers; 0 if all are unrolled without a loop."""
        return 0 if self.length <= self.unrolled else self.length - self.length % self.unrolled

    @property
    def iterations(self) -> int:
        """Iterations of the loop over inputs; 0 without a loop."""
        return self.looped // self.unrolled

    @property
    def remaining(self) -> int:
        """Inputs of a run that are unrolled after the loop."""
        return self.length - self.looped


@dataclass(frozen=True)
class FloatSums:
    """The sums of a block of pixels times channels.

    Attributes:
        pixels: pixels of a block.
        vectors: whether neighboring channels share vector registers.
        fused: whether to use fused multiply-adds, which do not round the product.
        store: how a sum becomes an output.
    """

    pixels: int
    vectors: bool
    fused: bool
    store: Store

    def begin(self, channels: Channels) -> tuple[str, ...]:
        """Return C lines that declare the sums, set to the biases at `weights`."""
        lines: list[str] = []
        if self.vectors:
            for p in range(self.pixels):
                sizes = channels.lanes
                lines += [f"SMELT_ARRAY float sum{p}_{first}[{size}];" for first, size in sizes]
                lines += lane_loops(
                    sizes, lambda n, j, at, p=p: f"sum{p}_{n}[{j}] = weights[{at}];"
                )
            return tuple(lines)
        for j in range(channels.count):
            lines.append(f"float sum0_{j} = weights[{j}];")
            lines += [f"float sum{p}_{j} = sum0_{j};" for p in range(1, self.pixels)]
        return tuple(lines)

    def products(self, channels: Channels, k: str) -> tuple[str, ...]:
        """Return C lines that add the products of input `k` of each pixel's run, in vectors."""
        lines = [f"const float x{p} = in{p}[{k}];" for p in range(self.pixels)]
        for p in range(self.pixels):
            lines += lane_loops(
                channels.lanes, lambda n, j, at, p=p: f"sum{p}_{n}[{j}] += x{p} * weights[{at}];"
            )
        return tuple(lines)

    def stretch(self, channels: Channels, length: int) -> tuple[str, ...]:
        """Return C lines that add the products of `length` inputs of each run, unrolled.

        The lines advance the pointers to inputs and weights.
        """
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
        """Return the C statement that adds a product to a sum."""
        if self.fused:
            return f"{total} = fmaf({value}, {weight}, {total});"
        return f"{total} += {value} * {weight};"

    def stores(self, channels: Channels, pixel: int) -> tuple[str, ...]:
        """Return C lines that store a pixel's results."""
        p = pixel
        if self.vectors:
            return lane_loops(
                channels.stored,
                lambda n, j, at: f"out{p}[{at}] = {self.store(f'sum{p}_{n}[{j}]')};",
            )
        count = channels.count
        return tuple(f"out{p}[{j}] = {self.store(f'sum{p}_{j}')};" for j in range(count))
