"""The function for depthwise convolutions of any sizes, which it reads from a struct."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.depthwise_walk import ANY_PLANE, LAYERS
from smelt.codegen.lower.image_loops import ImageLoop
from smelt.codegen.lower.kernel import InnerFunction, Parameters


@dataclass(frozen=True)
class AnyPlaneParameters(Parameters):
    """Variables of `lower/depthwise_any_plane.j2`.

    Attributes:
        window: The size of the window, for the comment.
        images: The loop over images.
        fields: Words of a row of constants.
        channel: C of the input channel.
        reach: Lines of the window.
        across: C of the words from one line of words to the next.
        along: C of the words from one word to the next in its line.
    """

    window: str
    images: ImageLoop
    fields: int
    channel: str
    reach: int
    across: int | str
    along: int | str


@dataclass(frozen=True)
class AnyPlanePacking(Parameters):
    """Variables of `lower/depthwise_any_plane_pack.j2`.

    Attributes:
        across: C of the words from one line of words to the next.
    """

    across: int | str


def any_plane_pack(across: int | str) -> InnerFunction:
    """Return the function that packs the inputs of a channel; see `AnyPlanePacking`."""
    return InnerFunction(
        template="lower/depthwise_any_plane_pack.j2",
        stem="depthwise_pack",
        details={"across": "pairs_in_line" if across == 1 else "pairs_across"},
        parameters=AnyPlanePacking(across),
        uses={"SMELT_NOINLINE"},
        layer=LAYERS[ANY_PLANE],
    )
