"""Convolutions and dense layers as products over the pixels of images, as templates find these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.lower.image_loops import Frame
from smelt.codegen.lower.kernel import Packed
from smelt.codegen.lower.window import Window
from smelt.ir import Node
from smelt.ops.core.convolution import Conv2D
from smelt.ops.core.fully_connected import FullyConnected


@dataclass(frozen=True)
class ImageProduct:
    """A convolution of one group.

    Attributes:
        node: what is computed; rows of a dense layer are the pixels of an image of one line.
        window: its geometry.
        place: the images.
    """

    node: Node[Conv2D | FullyConnected]
    window: Window
    place: Frame

    @staticmethod
    def of(node: Node[Conv2D | FullyConnected]) -> ImageProduct:
        """That of a node."""
        if isinstance(node.op, Conv2D):
            return ImageProduct(node, Window.of(node), Frame.of(node))
        outputs, depth = node.input(1).type.shape
        rows = node.input(0).type.size // depth
        return ImageProduct(node, Window.dense(rows, depth, outputs), Frame.of_rows(node))

    @property
    def stem(self) -> str:
        """The stem of a function's name."""
        rows, columns = self.window.kernel
        return f"conv_{rows}x{columns}" if isinstance(self.node.op, Conv2D) else "fully_connected"

    @property
    def run(self) -> int:
        """Inputs under a row of the window."""
        return self.window.kernel[1] * self.window.depth

    @property
    def contiguous(self) -> bool:
        """Whether columns of a window are neighbours in memory."""
        return self.window.dilation[1] == 1 and self.place.source.pixel == self.window.depth

    @property
    def has_runs(self) -> bool:
        """Whether each row of a window of several columns may lie in one piece."""
        return self.contiguous and 1 < self.window.kernel[1] <= self.window.size[1]

    def padding(self, columns: int) -> tuple[Packed, ...]:
        """The operand that stands for so many columns outside of an image, if any are needed."""
        if not self.window.padded:
            return ()
        zero_point = self.node.input(0).type.zero_point
        return (Packed("padding", np.full(columns * self.window.depth, zero_point, np.int8)),)


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """How the input pixels under a window are found.

    Attributes:
        pixel: C of where input pixel (y, x) starts.
        size: of the image; None without padding.
        top, side: C of the first row and column under a window.
        width: pixels of a row of outputs.
        tall: whether windows have several rows.
        row_step: from one row to the next; 0 where there is one.
        end, step: of the columns, where they are found one by one; else 0.
    """

    pixel: str
    size: tuple[int, int] | None
    top: str
    side: str
    width: int
    tall: bool
    row_step: int
    end: int
    step: int

    @staticmethod
    def of(product: ImageProduct, *, whole: bool) -> Footprint:
        """That of a convolution; `whole` where rows are always found in one piece."""
        window, place, tall = product.window, product.place, product.window.kernel[0] > 1
        return Footprint(
            pixel=place.source.offset("y", "x"),
            size=window.size if window.padded else None,
            top=window.origin(0, "y"),
            side=window.origin(1, "x"),
            width=place.width,
            tall=tall,
            row_step=window.dilation[0] if tall else 0,
            end=0 if whole else window.end[1],
            step=0 if whole else window.dilation[1],
        )
