"""Shared bodies for convolutions of images of any height, on cores with the DSP extension.

A layer of a segment computes different numbers of rows in different turns, with and without padding
above and below them. Its own bodies would differ only in a few numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smelt.codegen.backends.dsp.convolution_parameters import DspDotParameters
from smelt.codegen.backends.dsp.groups import PixelGroups, specialized_cost
from smelt.codegen.backends.dsp.windows import WindowSizes
from smelt.codegen.lower.function_names import channels
from smelt.codegen.lower.kernel import BodyCost, KernelCall, LayerStruct, SharedBody
from smelt.codegen.text.layer_number import LayerNumber
from smelt.ir import Node

_FIELDS = {
    "pixels": "of the output, which the first loop computes",
    "end": "all pixels of the output",
    "height": "of the input",
    "above": "rows of padding above the input",
    "inside": "no padding below a window if its first row is below this",
}

_BYTES = 560
"""Bytes of code of an inlined loop over windows, on Cortex-M4."""

_MORE_BYTES, _MORE_PER_CALL, _MORE_PER_GROUP = 40, 40, 12
"""Further bytes, and instructions for each call and each group of pixels, of a shared body."""


def any_height(
    node: Node, own: KernelCall, parameters: DspDotParameters, groups: Sequence[PixelGroups]
) -> SharedBody | None:
    """Return the body for images of any height; None if it would not save code.

    Args:
        node: the layer.
        own: the call of the layer's own body.
        parameters: the variables of that body.
        groups: the pixels of an image.
    """
    windows = parameters.windows
    if windows is None or windows.images.batch > 1 or groups[0].tile.optimize == "size":
        return None  # with `--optimize size`, loops over windows are shared anyway
    shared, layer = _shared(node.op.name, parameters, windows)
    call = replace(
        own,
        details={
            **own.details,
            "channels": channels(node).lstrip("_"),
            "columns": f"w{windows.size[1]}",
        },
        parameters=shared,
        operands=(*own.operands[:-1], layer, own.operands[-1]),
    )
    # A body with two loops over windows also computes layers that need only the first one.
    smallest = replace(shared, loops=shared.loops[:1])
    family = replace(call, parameters=smallest, inner=(*own.inner[:3], own.inner[-1])).key
    cost = specialized_cost(groups)
    more = _MORE_PER_CALL + _MORE_PER_GROUP * sum(some.count for some in groups)
    # One byte more for each loop: the body with both loops is then the largest of its family.
    size = _BYTES + len(groups)
    return SharedBody(
        call,
        BodyCost(cost.instructions + more, size + _MORE_BYTES),
        BodyCost(cost.instructions, size),
        family,
    )


def _shared(
    operator: str, own: DspDotParameters, windows: WindowSizes
) -> tuple[DspDotParameters, LayerStruct]:
    """Return the variables of the shared body, and the layer's numbers."""
    end = own.loops[-1].end or own.pixels
    values = own.pixels, end, windows.size[0], windows.before[0], windows.inside[0]
    numbers = dict(zip(_FIELDS, values, strict=True))
    pixels, end, height, above, inside = (
        LayerNumber(number, f"{'(uint32_t)' if name == 'inside' else ''}layer->{name}")
        for name, number in numbers.items()
    )
    shared = replace(
        own,
        title=f"{operator} of the rows in `layer`: {windows.text}",
        pixels=pixels,
        loops=tuple(replace(loop, end=loop.end and end) for loop in own.loops),
        windows=replace(
            windows,
            size=(height, windows.size[1]),
            before=(above, windows.before[1]),
            inside=(inside, windows.inside[1]),
        ),
        shared=True,
    )
    return shared, LayerStruct("layer", "rows", numbers, _FIELDS)
