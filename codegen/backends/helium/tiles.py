"""Sums of products on Helium: eight dot products at a time, sixteen products an instruction.

A tile is two pixels times four outputs, or one pixel times eight. The inputs of a pixel are cut
into chunks of sixteen bytes, which lie in one row (`row`) or in the rows of an image (`image`).
Where a row ends within a chunk, weights beyond are zero, so that what is read there does not
matter. Chunks of a row stay in registers from tile to tile, as many as fit; the rest is read
forwards by one tile and backwards by the next, so that the last chunk of the one is the first of
the other. Chunks of an image serve both pixels where their windows overlap.

Weights are one stream in the order of use: for each tile, for each chunk, those of each output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from smelt.codegen.backends.helium.assembly import ACCUMULATORS
from smelt.codegen.backends.helium.scaling import GroupRun, LaneGroup, groups, permuted, runs
from smelt.ir import Array
from smelt.ops.core.convolution import Pair

CHUNK = 16
_WRITTEN_OUT = 8
"""Chunks of a row up to this many lie within reach of an address's offset."""
_WORD_REACH = 508
"""Largest offset of an address of words."""
MOST_IMAGE_CHUNKS = 40
"""Chunks of an image are written out: this many keep the code short."""

ROWS = ("r11", "r9", "r1")
"""Registers that point into the rows of an image."""

Source = Literal["row", "image"]


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """How all outputs of a few pixels are computed.

    Attributes:
        source: where inputs come from.
        pixels: 1 or 2.
        kernel: height and width of a window; (1, 1) of a row.
        depth: bytes of a tap.
        pitch: bytes from the inputs of one pixel to those of the next.
        channels: outputs.
        output_pitch: bytes from the outputs of one pixel to those of the next.
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
        """Inputs of a pixel."""
        return self.kernel[0] * self.kernel[1] * self.depth

    @property
    def outputs(self) -> int:
        """Of a tile."""
        return len(ACCUMULATORS) // self.pixels

    @property
    def parts(self) -> tuple[LaneGroup, ...]:
        """The outputs, as they are narrowed and stored."""
        return groups(self.channels)

    @property
    def runs(self) -> tuple[GroupRun, ...]:
        """The same, those of equal size together."""
        return runs(self.parts)

    @property
    def chunks(self) -> int:
        """Of sixteen inputs, the last one partial perhaps."""
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
        """Bytes from the inputs of one group to those of the next."""
        return self.pixels * self.pitch

    @property
    def output_step(self) -> int:
        """The same for outputs."""
        return self.pixels * self.output_pitch

    @property
    def inputs(self) -> int:
        """Bytes of a group's rows of inputs."""
        return self.step - self.pitch + self.length

    @property
    def reach(self) -> int:
        """Bytes that are read for a group."""
        return self.step - self.pitch + CHUNK * self.chunks

    @property
    def parameters(self) -> tuple[str, ...]:
        """Of the function in C."""
        rest = ("int32_t *sums", "const int32_t *channels", "int32_t groups")
        common = ("int8_t *out", "const int32_t *weights", *rest)
        if self.source == "row":
            return ("const int8_t *in", *common)
        return ("const int8_t *const *rows", *common, "int32_t offset")

    @property
    def count(self) -> int:
        """Tiles, the last one partial perhaps."""
        vectors = sum(part.vectors for part in self.parts)
        return -(-vectors * 4 // self.outputs)

    @property
    def looped(self) -> bool:
        """Whether chunks are looped over."""
        return self.source != "image" and self.chunks > _WRITTEN_OUT

    @property
    def resident(self) -> dict[tuple[int, int], str]:
        """By pixel and chunk, the register in which it stays."""
        if self.looped or self.source == "image":
            return {}
        all_ = [(p, c) for c in range(self.chunks) for p in range(self.pixels)]
        places = all_[:6] if self.pixels == 1 or len(all_) <= 6 else all_[:5]
        return {place: f"q{i}" for i, place in enumerate(places)}

    @property
    def snakes(self) -> bool:
        """Whether every second tile goes through the chunks backwards."""
        return bool(self.resident) and len(self.resident) < self.chunks * self.pixels

    @property
    def sums(self) -> int:
        """int32 of working memory."""
        return self.count * len(ACCUMULATORS)

    @property
    def copies(self) -> int:
        """Bytes of working memory for copies of the last inputs."""
        if self.source == "row" and self.length % CHUNK:
            return self.reach
        return 0

    @property
    def words(self) -> int:
        """Of the stream of weights."""
        return self.count * self.chunks * self.outputs * CHUNK // 4

    def fits(self) -> bool:
        """Whether the chunks of an image lie within reach."""
        if self.source != "image":
            return True
        last = (self.kernel[1] - 1) * self.depth + self.pitch + self.depth - CHUNK
        small = self.chunks <= MOST_IMAGE_CHUNKS and len(ROWS) >= self.kernel[0]
        return small and self.depth % CHUNK == 0 and last <= _WORD_REACH and self.pixels == 2

    def order(self, tile: int) -> list[int]:
        """The chunks of the weights in the order in which a tile reads them."""
        if self.source == "image":
            height, width = self.kernel
            return [
                (y * width + x) * self.across + c
                for y in range(height)
                for c in range(self.across)
                for x in range(width)
            ]
        return list(range(self.chunks)[:: -1 if self.snakes and tile % 2 else 1])

    def packed(self, weights: Array) -> Array:
        """The stream of weights, int32 words of four.

        Args:
            weights: int8 `[o, length]`.
        """
        wide = np.zeros((self.channels, self.chunks * CHUNK), np.int8)
        wide[:, : self.length] = weights
        ordered = permuted(self.parts, wide).reshape(-1, self.chunks, CHUNK)
        rows = np.zeros((self.count * self.outputs, self.chunks, CHUNK), np.int8)
        rows[: len(ordered)] = ordered
        tiles = rows.reshape(self.count, self.outputs, self.chunks, CHUNK)
        stream = [tiles[i][:, self.order(i)].transpose(1, 0, 2) for i in range(self.count)]
        return np.ascontiguousarray(stream).view(np.int32).ravel()
