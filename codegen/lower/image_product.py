"""Convolutions and dense layers as products over the pixels of images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.lower.image_loops import Frame
from smelt.codegen.lower.input_pixel import input_pixel
from smelt.codegen.lower.kernel import InnerFunction, Packed
from smelt.codegen.lower.window import Window
from smelt.ir import Node
from smelt.ops.core.convolution import Conv2D
from smelt.ops.core.fully_connected import FullyConnected


@dataclass(frozen=True)
class ImageProduct:
    """A convolution with one group, or a dense layer, as a product for each pixel.

    Attributes:
        node: The node; rows of a dense layer are the pixels of an image with one row.
        window: The sizes, strides and padding of its window.
        frame: The images that the product reads and writes.
    """

    node: Node[Conv2D | FullyConnected]
    window: Window
    frame: Frame

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
        """The number of inputs under one row of the window."""
        return self.window.kernel[1] * self.window.depth

    @property
    def contiguous(self) -> bool:
        """Whether the columns of a window are adjacent in memory."""
        return self.window.dilation[1] == 1 and self.frame.source.pixel == self.window.depth

    @property
    def has_runs(self) -> bool:
        """Whether a window has several columns and each of its rows can be contiguous."""
        return self.contiguous and 1 < self.window.kernel[1] <= self.window.size[1]

    def in_place(self, *, at_once: int = 1) -> tuple[tuple[int, int], ...]:
        """Return `KernelCall.in_place` of a kernel that computes all channels of a block of pixels.

        The kernel reads a block's inputs before it writes its outputs. But if a last block of fewer
        than `at_once` pixels begins with pixels of the block before, their inputs are overwritten;
        `at_once` is 1 if the kernel reads the last block's inputs in time.
        """
        window, frame = self.window, self.frame
        single = frame.batch == 1 and frame.pixels <= at_once
        whole = single or frame.pixels % at_once == 0
        return ((0, 0),) if window.pointwise and window.outputs <= window.depth and whole else ()

    @property
    def input_pixel(self) -> InnerFunction:
        """The C function that finds an input pixel."""
        return input_pixel(self.window.size, self.frame.source, padded=self.window.padded)

    def padding(self, columns: int) -> tuple[Packed, ...]:
        """Return the operand with `columns` padding pixels, if the window is padded."""
        if not self.window.padded:
            return ()
        zero_point = self.node.input(0).type.zero_point
        return (Packed("padding", np.full(columns * self.window.depth, zero_point, np.int8)),)


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """C expressions for the addresses of the input pixels under a window.

    Attributes:
        padded: Whether the window can be partly outside of the image.
        top, side: C of the first row and column under a window.
        width: Pixels of a row of outputs.
        tall: Whether windows have several rows.
        row_step: Distance of the window's rows (dilation); 0 if there is only one.
        end, step: End and step of the loop over the window's columns; 0 if there is no such loop.
    """

    padded: bool
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
        window, frame, tall = product.window, product.frame, product.window.kernel[0] > 1
        return Footprint(
            padded=window.padded,
            top=window.origin(0, "y"),
            side=window.origin(1, "x"),
            width=frame.width,
            tall=tall,
            row_step=window.dilation[0] if tall else 0,
            end=0 if whole else window.end[1],
            step=0 if whole else window.dilation[1],
        )
