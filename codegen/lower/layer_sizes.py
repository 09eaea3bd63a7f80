"""The numbers of layers with images in a struct, for bodies that several layers share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from smelt.codegen.lower.image_loops import Frame, PixelStrides
from smelt.codegen.lower.input_pixel import input_pixel
from smelt.codegen.lower.kernel import (
    BodyCost,
    InnerFunction,
    KernelCall,
    LayerStruct,
    Parameters,
    SharedBody,
)
from smelt.codegen.lower.output_stage import OutputStage
from smelt.codegen.lower.window import Window
from smelt.codegen.text.layer_number import LayerNumber
from smelt.ir import DType, Node

_SIZES = {
    "height": "of the input",
    "width": "of the input",
    "depth": "channels of the input",
    "rows": "of the output",
    "columns": "of the output",
    "outputs": "channels of the output",
}
_MEANINGS = {
    **_SIZES,
    "bias": "of all channels",
    "multiplier": "of sums, in fixed point",
    "high": "word of a number that is added to products",
    "low": "word of that number",
    "shift": "of products",
    "zero_point": "of the output, as the body adds it",
}

_SLOWER = 1.12
"""Assumed instructions of a shared body, relative to those of a layer's own body.

Measured for all layers of MLPerf Tiny's vww together on Cortex-M3; layers differ, 1.08 to 1.31.
"""

_BYTES = 20
"""Additional bytes of code of a shared body, on Cortex-M0 and M3."""


@dataclass(frozen=True)
class LayerSizes:
    """A layer's numbers as fields of its struct.

    Attributes:
        window: The window; stride, padding and dilation are literals.
        frame: The images; their number is a literal.
        own: The output stage of the layer's own body.
        finish: The output stage, with numbers in the struct if it has any.
        struct: The operand with the sizes and these numbers.
    """

    window: Window
    frame: Frame
    own: OutputStage
    finish: OutputStage
    struct: LayerStruct

    @staticmethod
    def of(window: Window, frame: Frame, finish: OutputStage) -> LayerSizes:
        """Return the numbers of a layer whose images have no gaps in memory."""
        shared = finish.shared or finish
        sizes = (*window.size, frame.source.pixel, frame.height, frame.width, window.outputs)
        numbers = dict(zip(_SIZES, sizes, strict=True))
        height, width, depth, rows, columns, outputs = (
            LayerNumber(number, f"layer->{field}") for field, number in numbers.items()
        )
        kind = "_".join(("image", *shared.numbers))
        return LayerSizes(
            replace(
                window,
                size=(height, width),
                depth=depth if window.depth == depth else window.depth,
                outputs=outputs,
            ),
            replace(
                frame,
                source=PixelStrides(width * depth, depth),
                target=PixelStrides(columns * outputs, outputs),
                height=rows,
                width=columns,
            ),
            finish,
            shared,
            LayerStruct("layer", kind, {**numbers, **shared.numbers}, _MEANINGS),
        )

    def title(self, node: Node) -> str:
        """Return the description of a function that computes layers of several sizes."""
        return f"{node.op.name} of the sizes in `{self.struct.name}`"

    def input_pixel(self, dtype: DType, *, padded: bool) -> InnerFunction:
        """Return the function that finds an input pixel; see `input_pixel`."""
        size, kind = self.window.size, self.struct.kind
        return input_pixel(size, self.frame.source, padded=padded, dtype=dtype, layer=kind)

    def shared(
        self,
        own: KernelCall,
        parameters: Parameters,
        cost: BodyCost,
        family: Parameters,
        inner: tuple[InnerFunction, ...] = (),
    ) -> SharedBody:
        """Return the body that reads the layer's numbers.

        Args:
            own: The call of the layer's own body.
            parameters: The variables of the shared body.
            cost: The cost of the layer's own body.
            family: The variables of the smallest body of the same family. It lacks the code for
                channels after the whole blocks, and the first inner function is all that it calls.
            inner: The static functions that the shared body calls.
        """
        call = replace(
            own,
            details={**own.details, **self.finish.details},
            parameters=parameters,
            operands=(*own.operands[:-1], self.struct, own.operands[-1]),
            uses=(own.uses - self.own.uses) | self.finish.uses,
            inner=inner,
        )
        slower = BodyCost(round(cost.instructions * _SLOWER), cost.bytes + _BYTES)
        smallest = replace(call, parameters=family, inner=call.inner[:1])
        return SharedBody(call, slower, cost, smallest.key)
