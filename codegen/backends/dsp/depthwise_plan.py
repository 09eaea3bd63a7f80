"""Sizes, scratch and packed weights of depthwise convolutions on cores with the DSP extension.

Scratch holds the inputs of four channels, as many rows at once as fit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from smelt.codegen.backends.dsp.convolution import DspProducts
from smelt.codegen.backends.dsp.depthwise_assembly import INPUT_SHIFT, ChannelCode
from smelt.codegen.backends.dsp.depthwise_inputs import input_pairs, widening_cost
from smelt.codegen.backends.dsp.depthwise_products import OutputBlock
from smelt.codegen.lower.kernel import InnerFunction, Request
from smelt.codegen.lower.window import Window
from smelt.ir import Array, TensorType
from smelt.targets import Optimize

SCRATCH_WORDS = 1024
"""Words of scratch for the inputs of four channels; more only if one strip of rows needs more."""

_MOST_TAPS = 511
"""The most taps for which sums of products with shifted inputs fit into 32 bits."""


@dataclass(frozen=True)
class DepthwisePlan:
    """How a depthwise convolution is computed.

    Attributes:
        found: window, weights and scaling.
        size: height and width of the output.
        zero_point: zero point of the input.
        optimize: goal of the optimization.
        wanted: words of scratch that the inputs should not exceed, unless one strip needs more.
        most: words of scratch that the inputs cannot exceed.
        paired: whether a single output row is computed by the functions for two.
    """

    found: DspProducts
    size: tuple[int, int]
    zero_point: int
    optimize: Optimize
    wanted: int = SCRATCH_WORDS
    most: int = SCRATCH_WORDS
    paired: bool = False

    @staticmethod
    def of(
        found: DspProducts, x: TensorType, output: TensorType, request: Request
    ) -> DepthwisePlan:
        """Return the plan for input `x` and an output.

        An image of one row is treated as an image of one column, whose rows can be paired.
        """
        w, size = found.window, output.shape[1:3]
        zero_point = x.zero_point
        if w.size[0] == w.kernel[0] == size[0] == 1 and (w.stride[1] % 2 == 0 or w.stride[1] == 1):
            turned = replace(
                w,
                kernel=w.kernel[::-1],
                stride=w.stride[::-1],
                padding=w.padding[::-1],
                size=w.size[::-1],
            )
            weights = np.swapaxes(found.weights, 1, 2)
            found = DspProducts(turned, weights, found.scaling)
            size = size[::-1]
        wanted = SCRATCH_WORDS
        if request.limited:
            wanted = min(wanted, request.scratch_limit // 4)
        return DepthwisePlan(
            found,
            (size[0], size[1]),
            zero_point,
            request.optimize,
            wanted,
            max(SCRATCH_WORDS, request.scratch_limit // 4),
        )

    @property
    def window(self) -> Window:
        """The window, with rows and columns exchanged if the image is treated as one column."""
        return self.found.window

    @property
    def rows(self) -> int:
        """Output rows of a strip."""
        return 2 if self.paired else min(self.size[0], 2)

    @property
    def vertical(self) -> bool:
        """Whether the image has one column, so that a block is four output rows."""
        return self.rows == 2 and self.window.size[1] == self.window.kernel[1] == 1

    @cached_property
    def code(self) -> ChannelCode:
        """The function that computes the outputs of channels."""
        w = self.window
        block = OutputBlock(w.kernel, w.stride, self.rows)
        if self.vertical:
            block = replace(block, stride=(w.stride[0], block.advance))
        rest = self.found.scaling.left - INPUT_SHIFT - self._weight_shift
        return ChannelCode(block, self.found.scaling, rest, self.vertical)

    @property
    def pair_row(self) -> int:
        """Words of a row of pairs, padding included."""
        if self.vertical:
            return 1
        return (self.size[1] - 1) * self.window.stride[1] + self.window.kernel[1]

    @property
    def strips(self) -> int:
        """Strips whose inputs are in scratch at once: as many as fit; 0 if none fits."""
        block = self.code.block
        if 4 * self.pair_row * block.pairs > self.most:
            return 0
        spare_rows = max(self.wanted // 4 // self.pair_row - block.pairs, 0)
        return min(spare_rows // block.advance + 1, -(-self.size[0] // self.rows))

    @property
    def plane(self) -> int:
        """Words of a channel's inputs in scratch."""
        block = self.code.block
        return ((self.strips - 1) * block.advance + block.pairs) * self.pair_row

    @property
    def kept(self) -> int:
        """Rows of pairs that the strips in scratch leave for the next ones, if there are any."""
        block, last = self.code.block, self.rows * self.strips >= self.size[0]
        return 0 if last else max(block.pairs - block.advance, 0)

    @property
    def in_place(self) -> bool:
        """Whether the output may have the address of the input.

        It may if outputs never overwrite inputs of their own channels that are not in scratch yet.
        """
        w, (height, width) = self.window, self.size
        shrinks = height <= w.size[0] and width <= w.size[1]
        return shrinks and w.padding[0][0] < w.kernel[0]

    @property
    def fits(self) -> bool:
        """Whether a strip fits into scratch, offsets into instructions, and sums into 32 bits."""
        exact = self.code.rest >= 0 or self.window.taps <= _MOST_TAPS
        return self.strips > 0 and self.code.fits and exact

    @property
    def numbers(self) -> dict[str, int]:
        """The fields of the layer's struct (see `FIELDS`), in order."""
        w = self.window
        return {
            "channels": w.outputs,
            "pair_row": self.pair_row,
            "plane": self.plane,
            "output_row": self.size[1] * w.outputs,
            "addend": self.found.scaling.addend,
            "input_height": w.size[0],
            "input_row": w.size[1] * w.outputs,
            "input_columns": self._columns,
            "left": w.padding[1][0],
            "top": w.padding[0][0],
            "output_width": self.size[1],
            "output_height": self.size[0],
            "rows_at_once": self.rows * self.strips,
            "padding": self.zero_point * (1 << INPUT_SHIFT),
        }

    @property
    def inputs(self) -> InnerFunction:
        """The functions that widen pairs of rows of four channels."""
        return input_pairs(vertical=self.vertical, unrolled=self._unrolled)

    @property
    def cost(self) -> int:
        """Approximate number of instructions for one channel of an image."""
        strips = -(-self.size[0] // self.rows)
        slabs = -(-strips // self.strips)
        block = self.code.block
        pairs = strips * block.advance + max(block.pairs - block.advance, 0)
        moved = (slabs - 1) * self.kept * self.pair_row
        widened = widening_cost(pairs, self._columns, unrolled=self._unrolled)
        calls = strips, self.size[1]
        if self.vertical:
            calls = 1, strips
        glue = 20 * slabs + moved
        return widened // 4 + glue + self.code.instructions(*calls)

    @property
    def packed(self) -> Array:
        """For each channel its requantization constants, then its weights; int32."""
        weights = self.found.weights.astype(np.int64) << self._weight_shift
        none = np.zeros(len(weights), np.int64)
        halves = [
            [none if tap is None else weights[:, tap[0], tap[1]] for tap in word]
            for word in self.code.block.weights
        ]
        words = [(low & 0xFFFF) | (high & 0xFFFF) << 16 for low, high in halves]
        whole = np.concatenate([self.found.scaling.rows, np.stack(words, axis=1)], axis=1)
        return whole.astype(np.uint64).astype(np.uint32).view(np.int32).ravel()

    @property
    def _unrolled(self) -> bool:
        return self.optimize != "size"

    @property
    def _columns(self) -> int:
        """Columns of the image under any window."""
        read = (self.size[1] - 1) * self.window.stride[1] + self.window.kernel[1]
        return max(min(read - self.window.padding[1][0], self.window.size[1]), 0)

    @property
    def _weight_shift(self) -> int:
        """Left shift of the weights: the part of the sums' shift that 16 bits permit."""
        largest = int(np.abs(self.found.weights.astype(np.int64)).max(initial=1))
        free = 15 - largest.bit_length()
        return max(min(self.found.scaling.left - INPUT_SHIFT, free), 0)
