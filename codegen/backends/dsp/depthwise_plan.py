"""Plans of depthwise convolutions on cores with the DSP extension: what lies where, and when.

The inputs of four channels stand in working memory, as many rows as there is room for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from smelt.codegen.backends.dsp.convolution import DspProducts
from smelt.codegen.backends.dsp.depthwise_assembly import INPUT_SHIFT, ChannelCode
from smelt.codegen.backends.dsp.depthwise_inputs import widening, widening_cost
from smelt.codegen.backends.dsp.depthwise_products import OutputBlock
from smelt.codegen.lower.window import Window
from smelt.ir import Array, TensorType
from smelt.targets import Optimize

SCRATCH_WORDS = 1024
"""What the inputs of four channels may take."""

_MOST_TAPS = 511
"""The sum of so many products of shifted inputs is a number of 32 bits."""


@dataclass(frozen=True)
class DepthwisePlan:
    """How a depthwise convolution is computed.

    Attributes:
        found: its window, weights and scaling.
        size: height and width of the output.
        zero_point: of the input.
        optimize: what to weigh.
    """

    found: DspProducts
    size: tuple[int, int]
    zero_point: int
    optimize: Optimize

    @staticmethod
    def of(
        found: DspProducts, x: TensorType, output: TensorType, optimize: Optimize
    ) -> DepthwisePlan:
        """The plan for images of one type that become images of another.

        An image of one row becomes one of one column, whose rows can be paired.
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
        return DepthwisePlan(found, (size[0], size[1]), zero_point, optimize)

    @property
    def window(self) -> Window:
        """Its geometry."""
        return self.found.window

    @property
    def rows(self) -> int:
        """Rows of outputs of a strip."""
        return min(self.size[0], 2)

    @property
    def vertical(self) -> bool:
        """Whether the image is one column, so that blocks are four rows of it."""
        return self.rows == 2 and self.window.size[1] == self.window.kernel[1] == 1

    @cached_property
    def code(self) -> ChannelCode:
        """The function for the outputs of a channel."""
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
        """Strips whose inputs are in working memory at once, as many as there is room for."""
        block = self.code.block
        spare_rows = SCRATCH_WORDS // 4 // self.pair_row - block.pairs
        most = -(-self.size[0] // self.rows)
        return min(spare_rows // block.advance + 1, most) if spare_rows >= 0 else 0

    @property
    def plane(self) -> int:
        """Words of a channel's inputs."""
        block = self.code.block
        return ((self.strips - 1) * block.advance + block.pairs) * self.pair_row

    @property
    def fits(self) -> bool:
        """Whether there is room for the inputs of a strip, and sums that are shifted stay exact."""
        exact = self.code.rest >= 0 or self.window.taps <= _MOST_TAPS
        return self.strips > 0 and self.code.fits and exact

    @property
    def numbers(self) -> dict[str, int]:
        """What the functions read of a layer; assembly reads the first five."""
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
            "band": self.rows * self.strips,
            "padding": self.zero_point * (1 << INPUT_SHIFT),
        }

    @property
    def widening(self) -> tuple[str, ...]:
        """Instructions that widen pairs of rows of four channels."""
        return widening(vertical=self.vertical, unrolled=self._unrolled)

    @property
    def cost(self) -> int:
        """Instructions of one channel, about."""
        strips = -(-self.size[0] // self.rows)
        bands = -(-strips // self.strips)
        block = self.code.block
        pairs = (strips - bands) * block.advance + bands * block.pairs
        widened = widening_cost(pairs, self._columns, unrolled=self._unrolled)
        calls = strips, self.size[1]
        if self.vertical:
            calls = 1, strips
        return widened // 4 + (bands - 1) * 20 + 20 + self.code.instructions(*calls)

    @property
    def packed(self) -> Array:
        """int32: bias, multiplier and weights, channel after channel."""
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
        return self.optimize == "speed"

    @property
    def _columns(self) -> int:
        """Columns of the image that are read."""
        read = (self.size[1] - 1) * self.window.stride[1] + self.window.kernel[1]
        return max(min(read - self.window.padding[1][0], self.window.size[1]), 0)

    @property
    def _weight_shift(self) -> int:
        """Bits by which the weights are shifted, of those by which sums are."""
        largest = int(np.abs(self.found.weights.astype(np.int64)).max(initial=1))
        free = 15 - largest.bit_length()
        return max(min(self.found.scaling.left - INPUT_SHIFT, free), 0)
