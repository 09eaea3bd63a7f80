"""How kernels loop over the output pixels of images, and find pixels in memory."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.ir import Node, TensorType


@dataclass(frozen=True)
class PixelStrides:
    """How far apart rows and pixels of an image are, in elements; pixel (0, 0) comes first."""

    row: int
    pixel: int

    @staticmethod
    def of(type_: TensorType) -> PixelStrides:
        """Those of the images in a tensor `[n, h, w, c]`."""
        return PixelStrides(type_.shape[2] * type_.shape[3], type_.shape[3])

    def offset(self, y: str, x: str) -> str:
        """The C expression of where pixel (y, x) starts, in elements; `y` and `x` are C too."""
        return f"{y} * {self.row} + {x if self.pixel == 1 else f'{x} * {self.pixel}'}"


@dataclass(frozen=True)
class ImageLoop:
    """The loop over images, as templates print it: `batch` of them, and the elements of each.

    Of a single image, whose sizes are not printed, they are 0.
    """

    batch: int
    input_size: int
    output_size: int


@dataclass(frozen=True)
class Frame:
    """The images that a kernel reads and writes: `batch` of them, one right behind the other.

    Attributes:
        source: strides of an input image, which has `input_size` elements.
        target: strides of an output image, which has `output_size` elements.
        height: rows of an output image.
        width: pixels of such a row.
        batch: number of images.
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
        """The frame of a node from images `[n, h, w, c]` to others."""
        x, y = node.input(0).type, node.output.type
        batch, height, width, _ = y.shape
        sizes = x.size // batch, y.size // batch
        return Frame(PixelStrides.of(x), PixelStrides.of(y), height, width, batch, *sizes)

    @property
    def pixels(self) -> int:
        """Those of an output image."""
        return self.height * self.width

    @property
    def images(self) -> ImageLoop:
        """The loop over the images."""
        if self.batch == 1:
            return ImageLoop(1, 0, 0)
        return ImageLoop(self.batch, self.input_size, self.output_size)

    @staticmethod
    def of_rows(node: Node) -> Frame:
        """Rows of a dense layer's input and output, as the pixels of an image of one line."""
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
