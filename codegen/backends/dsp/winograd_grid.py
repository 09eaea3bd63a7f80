"""The tiles of a convolution by minimal filtering, and its transformed weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.backends.dsp.scaling import DspScaling
from smelt.codegen.backends.dsp.winograd_inputs import ROW_ORDER, InputTransform
from smelt.codegen.lower.window import Window
from smelt.ir import Array

_TRANSFORM = np.asarray([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, -2]], np.int64)
"""Of the weights, along columns: what sums need in the end."""

_TRANSFORM_ROWS = np.asarray([[1, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 1]], np.int64)
"""The same along rows, where the factors 2 and -2 are left to the sums."""


@dataclass(frozen=True)
class Grid:
    """The tiles of a convolution.

    Attributes:
        window: its geometry.
        scaling: how sums become outputs.
        size: height and width of the output.
        inputs: how inputs are transformed.
    """

    window: Window
    scaling: DspScaling
    size: tuple[int, int]
    inputs: InputTransform

    @property
    def tiles(self) -> int:
        """Tiles at a time."""
        return self.inputs.tiles

    @property
    def row(self) -> int:
        """Words that requantize a channel."""
        return self.scaling.rows.shape[1]

    @property
    def pair_words(self) -> int:
        """Words of two output channels."""
        return 16 * self.window.depth + 2 * self.row

    @property
    def row_bytes(self) -> int:
        """Bytes of an output row."""
        return self.size[1] * self.window.outputs

    @property
    def inner(self) -> bool:
        """Whether there is room for tiles whose inputs are all within the image."""
        return self.window.size[0] >= 4 and self.window.size[1] >= self.inputs.columns

    @property
    def border_row(self) -> int:
        """Bytes from a row of four channels at a border to the next.

        Columns lie as far apart as in the image; with many channels all rows fit between two.
        """
        return 4 if self.window.depth >= 16 else self.inputs.columns * self.window.depth

    @property
    def border_bytes(self) -> int:
        """Bytes of four channels at a border."""
        return 3 * self.border_row + (self.inputs.columns - 1) * self.window.depth + 4

    @property
    def shared(self) -> int:
        """Words of an output channel's weights that one load of four registers brings."""
        return 4 // self.tiles

    def input(self, k: str, tile: str) -> str:
        """C index of word `k` of a tile's inputs of a position."""
        return k if self.tiles == 1 else f"{k} / 2 * 4 + {tile} * 2 + {k} % 2"

    def weight(self, k: str, channel: str) -> str:
        """C index of word `k` of the weights of one of two output channels of a position."""
        shared = self.shared
        return f"{k} / {shared} * {2 * shared} + {channel} * {shared} + {k} % {shared}"

    def packed(self, weights: Array) -> Array:
        """int32: weights `[o, 3, 3, i]` and the scaling as the assembly reads them."""
        g = np.einsum("ia,oabc,jb->ojic", _TRANSFORM, weights.astype(np.int64), _TRANSFORM_ROWS)
        g = g[:, :, ROW_ORDER]
        outputs, depth = len(g), g.shape[3]
        # Channels 4q + (0, 2), then 4q + (1, 3), as SXTB16 widens four inputs.
        words = g.reshape(outputs // 2, 2, 16, depth // 4, 2, 2).swapaxes(4, 5) & 0xFFFF
        # One load brings words of one output channel, or half as many of both.
        loads = words.reshape(outputs // 2, 2, 16, -1, self.shared, 2).transpose(0, 2, 3, 1, 4, 5)
        words = (loads[..., 0] | loads[..., 1] << 16).reshape(outputs // 2, -1)
        rows = self.scaling.rows.reshape(outputs // 2, -1)
        whole = np.concatenate([words, rows], axis=1)
        return whole.astype(np.uint64).astype(np.uint32).view(np.int32).ravel()
