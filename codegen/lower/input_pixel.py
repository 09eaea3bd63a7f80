"""The C function that finds an input pixel, which layers with equal images share."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.image_loops import PixelStrides
from smelt.codegen.lower.kernel import InnerFunction, Parameters
from smelt.ir import DType


@dataclass(frozen=True)
class InputPixelParameters(Parameters):
    """Variables of `lower/input_pixel.j2`; texts are C.

    Attributes:
        c_type: Type of an element.
        outside: Condition that pixel (y, x) is outside of the image; empty if none can be.
        offset: Elements from the image's first pixel to pixel (y, x).
    """

    c_type: str
    outside: str
    offset: str


def input_pixel(
    size: tuple[int, int],
    strides: PixelStrides,
    *,
    padded: bool,
    dtype: DType = DType.INT8,
    layer: str = "",
) -> InnerFunction:
    """Return the function that finds an input pixel.

    Its C arguments are the input, `padding` if there is any, row, column, and the layer's struct.

    Args:
        size: Height and width of the image.
        strides: Its strides.
        padded: Whether pixels can be outside of the image.
        dtype: Type of an element.
        layer: The kind of the `LayerStruct` with these numbers; empty if they are literals.
    """
    height, width = size
    stem = "padded_pixel" if padded else "pixel"
    if not layer:
        stem += f"_{height}x" if padded else "_"
        stem += f"{width}x{strides.pixel}"
    return InnerFunction(
        template="lower/input_pixel.j2",
        stem=stem,
        details={"type": dtype.value, "layer": "scaled" if "_" in layer else "unscaled"},
        parameters=InputPixelParameters(
            c_type=dtype.c_name,
            outside=f"y < 0 || y >= {height} || x < 0 || x >= {width}" if padded else "",
            offset=strides.offset("y", "x"),
        ),
        layer=layer,
    )
