"""Sums of products on Helium: eight dot products at a time, sixteen products per instruction.

A tile is two pixels times four output channels, or one pixel times eight. The inputs of a pixel are
cut into chunks of 16 bytes, which are in one contiguous row (`row`) or in the rows of an image
(`image`). If a row ends within a chunk, the weights beyond its end are zero, so the bytes read
there have no effect. As many chunks of a row as fit stay in registers from tile to tile. A chunk of
an image is used for both pixels if their windows overlap.

Weights are one stream in the order of use: for each tile the biases of its output channels, then
for each chunk, for each output channel, 16 weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from smelt.codegen.backends.helium.assembly import ACCUMULATORS
from smelt.codegen.backends.helium.scaling import LaneGroup, groups, permuted
from smelt.ir import Array
from smelt.ops.core.convolution import Pair

CHUNK = 16
"""Bytes of a vector register."""
_UNROLLED = 8
"""Upper limit of a row's unrolled chunks: offsets of byte loads reach no further."""
_MANY_TILES = 16
"""Number of tiles from which on two tiles of up to four chunks are unrolled."""
LOOP_CHUNKS = 4
"""Chunks that one iteration of the loop over chunks reads."""
_WORD_REACH = 508
"""Largest immediate offset of a load of words (VLDRW), in bytes."""
MOST_IMAGE_CHUNKS = 40
"""Upper limit of an image's chunks per window: all are unrolled, so this limits code size."""

ROWS = ("r11", "r9", "r1")
"""Registers that point into the rows of an image."""

Source = Literal["row", "image"]


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """The computation of all outputs of a group of one or two pixels.

    Attributes:
        source: whether inputs are in one row or in the rows of an image.
        pixels: pixels of a group, 1 or 2.
        kernel: height and width of a window; (1, 1) for a row.
        depth: bytes of a tap.
        pitch: bytes from one pixel's inputs to the next pixel's.
        channels: output channels.
        output_pitch: bytes from one pixel's outputs to the next pixel's.
    """

    source: Source
    pixels: int
    kernel: Pair
    depth: int
    pitch: int
    channels: int
    output_pitch: int

    @property
    def length(self) -> int:
        """Bytes of a pixel's inputs."""
        return self.kernel[0] * self.kernel[1] * self.depth

    @property
    def outputs(self) -> int:
        """Output channels of a tile."""
        return len(ACCUMULATORS) // self.pixels

    @property
    def parts(self) -> tuple[LaneGroup, ...]:
        """The groups in which output channels are narrowed and stored."""
        return groups(self.channels)

    @property
    def chunks(self) -> int:
        """Chunks of a pixel's inputs; the last one may be partial."""
        return -(-self.length // CHUNK)

    @property
    def across(self) -> int:
        """Chunks of a tap of an image."""
        return self.depth // CHUNK

    @property
    def row_chunks(self) -> int:
        """Chunks of a row of an image."""
        return self.kernel[1] * self.across

    @property
    def step(self) -> int:
        """Bytes from one group's inputs to the next group's."""
        return self.pixels * self.pitch

    @property
    def output_step(self) -> int:
        """Bytes from one group's outputs to the next group's."""
        return self.pixels * self.output_pitch

    @property
    def inputs(self) -> int:
        """Bytes of a group's inputs, for inputs in one row."""
        return self.step - self.pitch + self.length

    @property
    def reach(self) -> int:
        """Bytes that are read for a group, whole chunks included, for inputs in one row."""
        return self.step - self.pitch + CHUNK * self.chunks

    @property
    def count(self) -> int:
        """Tiles of a group; the last one may be partial."""
        vectors = sum(part.vectors for part in self.parts)
        return -(-vectors * 4 // self.outputs)

    @property
    def looped(self) -> bool:
        """Whether there is a loop over chunks; otherwise they are unrolled."""
        return self.source != "image" and self.chunks > _UNROLLED

    @property
    def resident(self) -> dict[tuple[int, int], str]:
        """The register of each (pixel, chunk) that stays in a register from tile to tile.

        The others are loaded into q6, or into q5 and q6 if both pixels lack a chunk.
        """
        if self.looped or self.source == "image":
            return {}
        pixels, chunks = range(self.pixels), range(self.chunks)
        if self.pixels * self.chunks <= 12:
            places = [(p, c) for p in pixels for c in chunks][:6]
        else:
            places = [(p, c) for c in chunks for p in pixels][:5]
        return {place: f"q{i}" for i, place in enumerate(places)}

    @property
    def tiles_at_once(self) -> int:
        """Tiles in an iteration of the loop over tiles: two if there is an even number of them.

        It is one for loops over chunks. Where few chunks are loaded again, it is two only if tiles
        are short, or many and not long: this limits code size.
        """
        if self.source != "row" or self.looped or self.count % 2:
            return 1
        if self.pixels * self.chunks - len(self.resident) > 8:
            return 2
        short = self.chunks <= (4 if self.count >= _MANY_TILES else 2)
        return 2 if self.pixels == 2 and short else 1

    @property
    def before(self) -> int:
        """Chunks before the loop over chunks, if there is one: 1 to 4."""
        return (self.chunks - 1) % LOOP_CHUNKS + 1

    @property
    def sums(self) -> int:
        """Number of int32 sums in scratch."""
        return self.count * len(ACCUMULATORS)

    @property
    def copies(self) -> int:
        """Bytes of scratch for copies of the last inputs; 0 if loads never exceed a row."""
        if self.source == "row" and self.length % CHUNK:
            return self.reach
        return 0

    @property
    def words(self) -> int:
        """Words (int32) of the stream of weights and biases."""
        return self.count * self.outputs * (1 + self.chunks * CHUNK // 4)

    def fits(self) -> bool:
        """Return whether the chunks of an image are few and within the reach of load offsets."""
        if self.source != "image":
            return True
        last = (self.kernel[1] - 1) * self.depth + self.pitch + self.depth - CHUNK
        small = self.chunks <= MOST_IMAGE_CHUNKS and len(ROWS) >= self.kernel[0]
        return small and self.depth % CHUNK == 0 and last <= _WORD_REACH and self.pixels == 2

    @property
    def order(self) -> list[int]:
        """The indices of chunks in the order in which a tile reads them."""
        if self.source == "image":
            height, width = self.kernel
            return [
                (y * width + x) * self.across + c
                for y in range(height)
                for c in range(self.across)
                for x in range(width)
            ]
        return list(range(self.chunks))

    def packed(self, weights: Array, biases: Array) -> Array:
        """Return the stream of weights: flat int32 words of four weights each, and biases.

        Args:
            weights: int8 `[o, length]`.
            biases: `[o]`.
        """
        wide = np.zeros((self.channels, self.chunks * CHUNK), np.int8)
        wide[:, : self.length] = weights
        ordered = permuted(self.parts, wide).reshape(-1, self.chunks, CHUNK)
        rows = np.zeros((self.count * self.outputs, self.chunks, CHUNK), np.int8)
        rows[: len(ordered)] = ordered
        tiles = rows.reshape(self.count, self.outputs, self.chunks, CHUNK)
        products = np.ascontiguousarray(tiles[:, :, self.order].transpose(0, 2, 1, 3))
        first = np.zeros(self.count * self.outputs, np.int32)
        first[: len(ordered)] = permuted(self.parts, biases).ravel()
        words = products.reshape(self.count, -1).view(np.int32)
        return np.hstack([first.reshape(self.count, -1), words]).ravel()
