"""The functions on Helium that load padded rows of an image, and copy windows from them."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.helium.assembly import AssemblyLines
from smelt.codegen.backends.helium.convolution_plan import TilePlan
from smelt.codegen.backends.helium.memory import COPY, FILL
from smelt.codegen.backends.helium.tile_functions import windows_assembly
from smelt.codegen.lower.kernel import InnerFunction, Parameters
from smelt.ops.core.convolution import Pair


@dataclass(frozen=True)
class PaddedRowParameters(Parameters):
    """Variables of `backends/helium/padded_row.j2`.

    Attributes:
        width: columns to load.
        size: height and width of the image.
        depth: channels of a pixel.
        zero: value of the padding.
    """

    width: int
    size: Pair
    depth: int
    zero: int


@dataclass(frozen=True)
class CopyWindowsParameters(Parameters):
    """Variables of `backends/helium/copy_windows.j2`; sizes are in bytes.

    Attributes:
        body: the assembly.
        rows: rows of a window.
        length: size of a copied window, rounded up to whole chunks.
        segment: size of one row of a window.
        pitch: distance from one window to the next in the image.
    """

    body: AssemblyLines
    rows: int
    length: int
    segment: int
    pitch: int


def padded_row(plan: TilePlan, zero: int) -> InnerFunction:
    """Return the function that loads a row of an image with padding of value `zero`."""
    g = plan.geometry
    width = g.width(plan.columns)
    return InnerFunction(
        template="backends/helium/padded_row.j2",
        stem=f"padded_row_{width}x{g.depth}",
        details={"size": f"of_{g.size[0]}x{g.size[1]}", "zero": f"zero{zero}".replace("-", "m")},
        parameters=PaddedRowParameters(width, g.size, g.depth, zero),
        inner=(COPY, FILL),
    )


def copied_windows(plan: TilePlan) -> InnerFunction:
    """Return the function that copies the windows of a row of outputs."""
    g, length = plan.geometry, plan.tiles.length
    return InnerFunction(
        template="backends/helium/copy_windows.j2",
        stem=f"windows_of_{g.kernel[0]}x{g.segment}",
        details={"length": f"in_{length}", "pitch": f"pitch{g.pitch}"},
        parameters=CopyWindowsParameters(
            windows_assembly(plan).body, g.kernel[0], length, g.segment, g.pitch
        ),
        uses={"SMELT_NAKED", "string.h"},
    )
