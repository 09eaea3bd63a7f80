"""Loops over the output pixels of images, and offsets of pixels in memory."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.nested_loops import ArrayLoop, total
from smelt.codegen.text.expressions import times
from smelt.ir import Node, TensorType


@dataclass(frozen=True)
class PixelStrides:
    """Distances between rows and pixels of an image, in elements; pixel (0, 0) comes first."""

    row: int
    pixel: int

    @staticmethod
    def of(type_: TensorType) -> PixelStrides:
        """Return the strides of the images in a tensor `[n, h, w, c]`."""
        return PixelStrides(type_.shape[2] * type_.shape[3], type_.shape[3])

    def offset(self, y: str, x: str) -> str:
        """Return the C expression of pixel (y, x)'s offset in elements; `y` and `x` are C too."""
        return total((times(y, self.row), times(x, self.pixel)))


@dataclass(frozen=True)
class ImageLoop:
    """A loop over `batch` images, as templates print it.

    The sizes are in elements; they are 0 for a single image, which needs no loop.
    """

    batch: int
    input_size: int
    output_size: int


@dataclass(frozen=True)
class Frame:
    """The images that a kernel reads and writes: `batch` of them, contiguous in memory.

    Attributes:
        source: Strides of an input image.
        target: Strides of an output image.
        height: Rows of an output image.
        width: Pixels of such a row.
        batch: Number of images.
        input_size: Elements of an input image.
        output_size: Elements of an output image.
    """

    source: PixelStrides
    target: PixelStrides
    height: int
    width: int
    batch: int
    input_size: int
    output_size: int

    @staticmethod
    def of(node: Node) -> Frame:
        """Return the frame of a node with image tensors `[n, h, w, c]`."""
        x, y = node.input(0).type, node.output.type
        batch, height, width, _ = y.shape
        sizes = x.size // batch, y.size // batch
        return Frame(PixelStrides.of(x), PixelStrides.of(y), height, width, batch, *sizes)

    @property
    def pixels(self) -> int:
        """Pixels of an output image."""
        return self.height * self.width

    @property
    def row(self) -> str:
        """The C expression of an output pixel's row: `y`, or 0 if there is one row."""
        return "y" if self.height > 1 else "0"

    @property
    def column(self) -> str:
        """The C expression of an output pixel's column: `x`, or 0 if there is one column."""
        return "x" if self.width > 1 else "0"

    @property
    def each_row(self) -> str:
        """The C line that opens the loop over output rows; empty if there is one row."""
        return ArrayLoop("y", self.height, ()).head if self.height > 1 else ""

    @property
    def each_column(self) -> str:
        """The C line that opens the loop over a row's pixels; empty if there is one column."""
        return ArrayLoop("x", self.width, ()).head if self.width > 1 else ""

    @property
    def images(self) -> ImageLoop:
        """The loop over the images."""
        if self.batch == 1:
            return ImageLoop(1, 0, 0)
        return ImageLoop(self.batch, self.input_size, self.output_size)

    @staticmethod
    def of_rows(node: Node) -> Frame:
        """Return the frame of a dense layer: its rows are the pixels of an image with one row."""
        x, y, (outputs, depth) = node.input(0).type, node.output.type, node.input(1).type.shape
        source, target = PixelStrides(x.size, depth), PixelStrides(y.size, outputs)
        return Frame(
            source=source,
            target=target,
            height=1,
            width=x.size // depth,
            batch=1,
            input_size=x.size,
            output_size=y.size,
        )
