"""The loop over the windows of a convolution, on cores with the DSP extension.

All convolutions of a network share its source code. With `--optimize speed`, compilers inline it,
so that all sizes are constants. Otherwise, layers of different sizes share the machine code too.
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.dsp.tile import DspTile
from smelt.codegen.lower.image_loops import Frame, ImageLoop
from smelt.codegen.lower.kernel import InnerFunction, Parameters
from smelt.codegen.lower.window import Window
from smelt.codegen.text.helpers import when
from smelt.ir import Node
from smelt.ops.core.convolution import Pair


@dataclass(frozen=True)
class WindowSizes:
    """The sizes of one convolution; see the struct in `backends/dsp/windows.j2`.

    In a body that layers of different heights share, the numbers that depend on the height print as
    fields of the layer's struct.

    Attributes:
        images: The loop over images.
        size: Height and width of an input image.
        width: Pixels in an output row.
        kernel: Rows and columns of the window.
        stride: Strides of rows and columns.
        before: Padding above and to the left.
        dilation: Dilation of rows.
        inside: Windows whose first row and column are at least 0 and below these are in the image.
        padded: Some windows may lie partly outside of the image.
    """

    images: ImageLoop
    size: Pair
    width: int
    kernel: Pair
    stride: Pair
    before: Pair
    dilation: int
    inside: Pair
    padded: bool

    @property
    def text(self) -> str:
        """The windows of an image of any height, for comments."""
        (rows, columns), (down, right) = self.kernel, self.stride
        return f"{rows}x{columns} windows, stride {down}x{right}, of {self.size[1]} columns"

    @staticmethod
    def of(node: Node, window: Window) -> WindowSizes:
        """Return the sizes of a node."""
        reach = (window.kernel[0] - 1) * window.dilation[0]
        return WindowSizes(
            images=Frame.of(node).images,
            size=window.size,
            width=node.output.type.shape[2],
            kernel=window.kernel,
            stride=window.stride,
            before=(window.padding[0][0], window.padding[1][0]),
            dilation=window.dilation[0],
            inside=(max(0, window.size[0] - reach), max(0, window.size[1] - window.kernel[1] + 1)),
            padded=window.padded,
        )


@dataclass(frozen=True)
class WindowParameters(Parameters):
    """Variables of `window_sizes.j2` and `window_row.j2`, in `backends/dsp`.

    Attributes:
        linkage: C words before the functions.
        inlined: The functions are inlined wherever they are called.
    """

    linkage: str
    inlined: bool

    @staticmethod
    def of(tile: DspTile) -> WindowParameters:
        """Return the variables for all convolutions of a network."""
        inlined = tile.optimize != "size"
        return WindowParameters("SMELT_INLINE" if inlined else "static", inlined)


@dataclass(frozen=True)
class WindowsParameters(Parameters):
    """Variables of `backends/dsp/windows.j2`.

    Attributes:
        pixels: Pixels in a group.
        targets: C expressions of the addresses of a group's outputs.
        padded: Some windows may lie partly outside of the image.
        last: The loop computes whole groups of the last pixels, which another loop has left.
        linkage: C words before the function.
    """

    pixels: int
    targets: tuple[str, ...]
    padded: bool
    last: bool
    linkage: str


def window_sizes(tile: DspTile) -> InnerFunction:
    """Return the struct with the sizes of a convolution, and the function that finds windows."""
    parameters = WindowParameters.of(tile)
    return InnerFunction(
        template="backends/dsp/window_sizes.j2",
        stem="windows",
        parameters=parameters,
        uses=when(parameters.inlined, "SMELT_INLINE"),
    )


def _window_row(tile: DspTile) -> InnerFunction:
    """Return the function that reads a row of a window, with padding outside of the image."""
    parameters = WindowParameters.of(tile)
    return InnerFunction(
        template="backends/dsp/window_row.j2",
        stem="window_row",
        parameters=parameters,
        uses={"string.h"} | when(parameters.inlined, "SMELT_INLINE"),
        inner=(window_sizes(tile),),
    )


def windows_loop(tile: DspTile, *, padded: bool, last: bool = False) -> InnerFunction:
    """Return the loop over windows for all convolutions with tiles of equally many pixels.

    Args:
        tile: the sizes of a group of pixels.
        padded: whether windows may lie partly outside of the image.
        last: whether the loop computes only the pixels that another loop has left. These are few,
            so layers share the machine code.
    """
    linkage = "static" if last else WindowParameters.of(tile).linkage
    return InnerFunction(
        template="backends/dsp/windows.j2",
        stem=f"windows_{tile.pixels}" + "_last" * last + ("" if padded else "_unpadded"),
        parameters=WindowsParameters(
            pixels=tile.pixels,
            targets=("to", "to + s->outputs", "to + 2 * s->outputs")[: tile.pixels],
            padded=padded,
            last=last,
            linkage=linkage,
        ),
        uses={"SMELT_ARRAY"} | when(linkage == "SMELT_INLINE", linkage),
        inner=(window_sizes(tile), *((_window_row(tile),) if padded else ())),
    )
