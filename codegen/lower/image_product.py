"""Convolutions and dense layers as products over the pixels of images."""

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
    """A convolution with one group, or a dense layer.

    Attributes:
        node: The node; rows of a dense layer are the pixels of an image with one row.
        window: The geometry.
        place: The images.
    """

    node: Node[Conv2D | FullyConnected]
    window: Window
    place: Frame

    @staticmethod
    def of(node: Node[Conv2D | FullyConnected]) -> ImageProduct:
        """Return the product of a node."""
        if isinstance(node.op, Conv2D):
            return ImageProduct(node, Window.of(node), Frame.of(node))
        outputs, depth = node.input(1).type.shape
        rows = node.input(0).type.size // depth
        return ImageProduct(node, Window.dense(rows, depth, outputs), Frame.of_rows(node))

    @property
    def stem(self) -> str:
        """The stem of the function's name."""
        rows, columns = self.window.kernel
        return f"conv_{rows}x{columns}" if isinstance(self.node.op, Conv2D) else "fully_connected"

    @property
    def run(self) -> int:
        """Inputs under a row of the window."""
        return self.window.kernel[1] * self.window.depth

    @property
    def contiguous(self) -> bool:
        """Whether the columns of a window are adjacent in memory."""
        return self.window.dilation[1] == 1 and self.place.source.pixel == self.window.depth

    @property
    def has_runs(self) -> bool:
        """Whether a window has several columns and each of its rows can be contiguous."""
        return self.contiguous and 1 < self.window.kernel[1] <= self.window.size[1]

    def padding(self, columns: int) -> tuple[Packed, ...]:
        """Return the operand with `columns` padding pixels, if the window is padded."""
        if not self.window.padded:
            return ()
        zero_point = self.node.input(0).type.zero_point
        return (Packed("padding", np.full(columns * self.window.depth, zero_point, np.int8)),)


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """How the input pixels under a window are found.

    Attributes:
        pixel: C of the offset of input pixel (y, x).
        size: Height and width of the image; None without padding.
        top, side: C of the first row and column under a window.
        width: Pixels of a row of outputs.
        tall: Whether windows have several rows.
        row_step: Distance of the window's rows (dilation); 0 if there is only one.
        end, step: End and step of the loop over columns, if there is one; else 0.
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
        """Return the footprint of a convolution; `whole` if rows are always contiguous."""
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
