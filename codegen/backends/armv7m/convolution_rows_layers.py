"""A body for convolutions over widened rows (`convolution_rows`) of any sizes, for small code.

Layers share the C code around the assembly. Each has its own function for a row of outputs, because
distances between inputs in its inner loop are immediates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from smelt.codegen.backends.armv7m.convolution_rows_parameters import (
    RowsOfPairsParameters,
)
from smelt.codegen.lower.function_table import (
    ROW,
    ROW_MEANING,
    FunctionTableParameters,
    TableBody,
)
from smelt.codegen.lower.image_product import ImageProduct
from smelt.codegen.lower.kernel import (
    Input,
    KernelCall,
    LayerStruct,
    Packed,
)

_MEANINGS = {
    "height": "of the input",
    "width": "of the input",
    "depth": "channels of the input",
    "rows": "of the output",
    "columns": "of the output",
    "outputs": "channels of the output",
    "slab": "rows of the output whose inputs are widened at a time",
    "stride": "of the window",
    "above": "rows of padding",
    "before": "columns of padding",
    ROW: ROW_MEANING,
}
_UNREAD = np.zeros(1, np.int8)
"""The padding of a layer without padding."""

_BYTES = (470, 4, 330)
"""Measured bytes of C of a shared body, of a row of its table, and of C of a layer's own."""


@dataclass(frozen=True, kw_only=True)
class RowsLayersParameters(FunctionTableParameters):
    """Variables of `backends/armv7m/convolution_rows_layers.j2`.

    Attributes:
        rows: rows of the window.
        pairs: words in flash, for each four channels, that are expanded to two words.
    """

    rows: int
    pairs: int


def shared_rows(
    own: KernelCall, product: ImageProduct, parameters: RowsOfPairsParameters, slab: int
) -> TableBody | None:
    """Return the body that a layer can share, or None if no such body can compute it.

    Args:
        own: the call of its own body, which expands weights to words in scratch.
        product: the layer.
        parameters: the variables of its own body.
        slab: rows of outputs whose inputs are widened at a time.
    """
    window, frame = product.window, product.frame
    (rows, columns), (down, across) = window.kernel, window.stride
    if window.depth % 4 or frame.width % 4 or frame.batch > 1 or down != across:
        return None
    (above, _), (before, _) = window.padding
    sizes = (*window.size, window.depth, frame.height, frame.width, window.outputs, slab)
    numbers = dict(zip(_MEANINGS, (*sizes, down, above, before, 0), strict=True))
    call = replace(
        own,
        template="backends/armv7m/convolution_rows_layers.j2",
        parameters=RowsLayersParameters(table=(), rows=rows, pairs=rows * columns),
        operands=(
            Input(0, "input"),
            *(product.padding(1) or (Packed("padding", _UNREAD),)),
            *own.operands[-5:-3],
            LayerStruct("layer", "rows", numbers, _MEANINGS),
            *own.operands[-3:],
        ),
        uses={"SMELT_NOINLINE", "string.h"},
        inner=(),
    )
    return TableBody.of(call, (), own.inner[:1], _BYTES)
