"""How spatial kernels loop over output pixels and find pixels in memory."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.kernels.base import Layout, Request
from smelt.errors import GraphError
from smelt.ir import Node


def pixel_offset(layout: Layout, y: str, x: str) -> str:
    """The C expression of where pixel (y, x) starts, in elements."""
    if layout.wraps_rows:
        return f"({y} * {layout.row} + {x} * {layout.pixel}) % {layout.ring}"
    column = x if layout.pixel == 1 else f"{x} * {layout.pixel}"
    return f"{row_offset(layout, y)} + {column}"


def row_offset(layout: Layout, y: str) -> str:
    """The C expression of where row y starts; only where the ring cannot wrap within a row."""
    if layout.ring is None:
        return f"{y} * {layout.row}"
    return f"{y} % {layout.ring // layout.row} * {layout.row}"


@dataclass(frozen=True)
class Frame:
    """What a spatial kernel walks over: C bounds of the output pixels, and the two layouts.

    `batch` images of `input_size` and `output_size` elements stand one after the other.
    """

    source: Layout
    target: Layout
    y: tuple[str, str]
    x: tuple[str, str]
    batch: int
    input_size: int
    output_size: int
    rectangle: bool

    @staticmethod
    def of_rows(node: Node) -> Frame:
        """Rows of a dense layer's input and output, as the pixels of an image of one line."""
        x, y, (outputs, depth) = node.input(0).type, node.output.type, node.input(1).type.shape
        columns = ("0", str(x.size // depth))
        source, target = Layout(x.size, depth), Layout(y.size, outputs)
        return Frame(source, target, ("0", "1"), columns, 1, x.size, y.size, False)

    @property
    def variables(self) -> dict[str, object]:
        """The frame as templates know it."""
        return {"frame": self, "rectangle": self.rectangle}


def frame(node: Node, request: Request) -> Frame:
    """The frame of a node from an `[n, h, w, c]` image to another.

    Raises:
        GraphError: a placement is asked for a batch of several images.
    """
    sources, target = request.layouts(node)
    x, y = node.input(0).type, node.output.type
    placed = request.placement is not None
    if placed and y.shape[0] != 1:
        raise GraphError(f"{node.origin}: a batch of {y.shape[0]} images cannot be placed in rings")
    return Frame(
        sources[0],
        target,
        ("y_begin", "y_end") if placed else ("0", str(y.shape[1])),
        ("x_begin", "x_end") if placed else ("0", str(y.shape[2])),
        y.shape[0],
        x.size // x.shape[0],
        y.size // y.shape[0],
        placed,
    )
