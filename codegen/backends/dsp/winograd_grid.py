"""The tiles and the transformed weights of a convolution by minimal filtering."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.backends.dsp.scaling import DspScaling
from smelt.codegen.backends.dsp.winograd_inputs import ROW_ORDER, InputTransform
from smelt.codegen.lower.window import Window
from smelt.ir import Array

_TRANSFORM = np.asarray([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, -2]], np.int64)
"""Transform of the weights along columns, with all factors."""

_TRANSFORM_ROWS = np.asarray([[1, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 1]], np.int64)
"""Transform along rows, without the factors 2 and -2, by which sums are multiplied instead."""


@dataclass(frozen=True)
class Grid:
    """The tiles of a convolution.

    Attributes:
        window: the window of the convolution.
        scaling: the requantization.
        size: height and width of the output.
        inputs: the transform of the inputs.
    """

    window: Window
    scaling: DspScaling
    size: tuple[int, int]
    inputs: InputTransform

    @property
    def tiles(self) -> int:
        """Tiles that are computed together."""
        return self.inputs.tiles

    @property
    def row(self) -> int:
        """Words of a channel's requantization constants."""
        return self.scaling.rows.shape[1]

    @property
    def pair_words(self) -> int:
        """Words of weights and constants of two output channels."""
        return 16 * self.window.depth + 2 * self.row

    @property
    def row_bytes(self) -> int:
        """Bytes of an output row."""
        return self.size[1] * self.window.outputs

    @property
    def inner(self) -> bool:
        """Whether the image is large enough for tiles whose inputs are all within it."""
        return self.window.size[0] >= 4 and self.window.size[1] >= self.inputs.columns

    @property
    def border_row(self) -> int:
        """Bytes from a row of the copy of four channels at a border to the next row.

        Columns are as far apart as in the image. With 16 channels or more, the four bytes of each
        of the four rows fit between two columns.
        """
        return 4 if self.window.depth >= 16 else self.inputs.columns * self.window.depth

    @property
    def border_bytes(self) -> int:
        """Bytes of the copy of four channels at a border."""
        return 3 * self.border_row + (self.inputs.columns - 1) * self.window.depth + 4

    @property
    def loaded(self) -> int:
        """Words of an output channel's weights that are consecutive for one load of four words."""
        return 4 // self.tiles

    def input(self, k: str, tile: str) -> str:
        """Return the C expression of the index of word `k` of a tile's inputs at a position."""
        return k if self.tiles == 1 else f"{k} / 2 * 4 + {tile} * 2 + {k} % 2"

    def weight(self, k: str, channel: str) -> str:
        """Return the C expression of the index of word `k` of an output channel's weights there."""
        n = self.loaded
        return f"{k} / {n} * {2 * n} + {channel} * {n} + {k} % {n}"

    def packed(self, weights: Array) -> Array:
        """Return weights `[o, 3, 3, i]`, transformed, and the scaling, in the assembly's order."""
        g = np.einsum("ia,oabc,jb->ojic", _TRANSFORM, weights.astype(np.int64), _TRANSFORM_ROWS)
        g = g[:, :, ROW_ORDER]
        outputs, depth = len(g), g.shape[3]
        # Channels 4 * q + (0, 2), then 4 * q + (1, 3), as SXTB16 widens four inputs.
        words = g.reshape(outputs // 2, 2, 16, depth // 4, 2, 2).swapaxes(4, 5) & 0xFFFF
        # A load of four words reads four of one output channel, or two of each of both.
        loads = words.reshape(outputs // 2, 2, 16, -1, self.loaded, 2).transpose(0, 2, 3, 1, 4, 5)
        words = (loads[..., 0] | loads[..., 1] << 16).reshape(outputs // 2, -1)
        rows = self.scaling.rows.reshape(outputs // 2, -1)
        whole = np.concatenate([words, rows], axis=1)
        return whole.astype(np.uint64).astype(np.uint32).view(np.int32).ravel()
