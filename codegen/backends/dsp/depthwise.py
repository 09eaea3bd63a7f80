"""int8 depthwise convolutions on cores with the DSP extension.

Four channels at a time are widened into scratch: a word contains the inputs of a column in two
rows. Then one function in assembly computes the outputs of each channel (see `depthwise_assembly`).
Layers with equal window, stride, shifts and limits share these functions, which read the sizes of a
layer from a struct.

All inputs of four channels are widened before the outputs of these channels overwrite them. So the
output may have the address of the input.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.dsp.assembly import assembled
from smelt.codegen.backends.dsp.convolution import products
from smelt.codegen.backends.dsp.depthwise_channels import channel_outputs, kept_rows
from smelt.codegen.backends.dsp.depthwise_inputs import FIELDS, LAYER
from smelt.codegen.backends.dsp.depthwise_plan import DepthwisePlan
from smelt.codegen.backends.dsp.depthwise_products import OutputBlock
from smelt.codegen.lower.function_names import steps
from smelt.codegen.lower.image_loops import Frame, ImageLoop
from smelt.codegen.lower.kernel import (
    BodyCost,
    InnerFunction,
    Input,
    Kernel,
    KernelCall,
    LayerStruct,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
    Scratch,
    SharedBody,
)
from smelt.codegen.text.expressions import in_parentheses, offset, times
from smelt.ir import DType, Node
from smelt.ops.core.convolution import DepthwiseConv2D

_BYTES = 200
"""Bytes of a layer's function without those that it calls."""


@dataclass(frozen=True)
class DspDepthwiseParameters(Parameters):
    """Variables of `backends/dsp/depthwise.j2`.

    Attributes:
        window: text of the function's comment: size and stride of the window.
        note: text of the function's comment: rounding.
        images: the loop over images.
        vertical: whether the image has one column; see `ChannelCode`.
        strip: output rows that are computed together, 1 or 2.
        stride: input rows from one output row to the next.
        pairs_read: C expression of the rows of pairs that `rows` output rows read.
        kept: rows of pairs that are read again by the strips after those in scratch.
        channel_words: words of a channel's constants and weights.
    """

    window: str
    note: str
    images: ImageLoop
    vertical: bool
    strip: int
    stride: int
    pairs_read: str
    kept: int
    channel_words: int


def _parameters(node: Node[DepthwiseConv2D], plan: DepthwisePlan) -> DspDepthwiseParameters:
    code, block = plan.code, plan.code.block
    return DspDepthwiseParameters(
        window=f"{block.kernel[0]}x{block.kernel[1]}, stride {block.stride[0]}",
        note=code.scaling.note,
        images=Frame.of(node).images,
        vertical=plan.vertical,
        strip=plan.rows,
        stride=block.stride[0],
        pairs_read=str(block.pairs) if plan.rows == 1 else _pairs_read(block),
        kept=plan.kept,
        channel_words=code.constants + len(block.weights),
    )


def _pairs_read(block: OutputBlock) -> str:
    """Return the C expression of the rows of pairs that `rows` rows of outputs read."""
    stride, more = block.stride[0], block.kernel[0] + 1 - block.stride[0]
    if stride % 2 == 0:
        return offset(times("rows", stride // 2), more // 2)
    return f"{in_parentheses(offset('rows', more))} / 2"


class DspDepthwise(Kernel[DepthwiseConv2D]):
    """Depthwise convolutions of at least four channels, with a depth multiplier of 1."""

    op = DepthwiseConv2D
    uses_scratch_limit = True

    @override
    def offer(self, node: Node[DepthwiseConv2D], request: Request) -> KernelCall | Refusal:
        name, x, output = node.op.name, node.input(0).type, node.output.type
        found = products(node)
        if isinstance(found, Refusal):
            return found
        w = found.window
        if x.shape[3] != w.outputs:
            return Refusal(f"{name} in pairs of rows supports only a depth multiplier of 1.")
        if w.outputs < 4:
            return Refusal(f"{name} in pairs of rows needs at least four channels.")
        if w.dilation != (1, 1):
            return Refusal(f"{name} in pairs of rows does not support dilation.")
        if w.stride[0] % 2 and w.stride[0] > 1 and output.shape[1] > 1:
            return Refusal(
                f"{name} in pairs of rows supports only vertical strides that are 1 or even, "
                f"not {w.stride[0]}."
            )
        plan = DepthwisePlan.of(found, x, output, request)
        if not plan.fits:
            return Refusal(
                f"{name} has rows or windows too large to widen into {4 * plan.most} bytes."
            )
        stem = f"depthwise_{w.kernel[0]}x{w.kernel[1]}"
        call = _call(node, plan, stem)
        if plan.rows > 1 or (w.stride[0] % 2 and w.stride[0] > 1):
            return call
        pairs = replace(plan, paired=True)
        if not pairs.fits or pairs.vertical or pairs.plane != plan.plane:
            return call
        # Other calls of a segment compute more rows of the layer, with the same packed weights.
        of_two = _call(node, pairs, stem)
        costs = _cost(node, pairs, of_two), _cost(node, plan, call)
        return replace(call, shared=SharedBody(of_two, *costs))


def _call(node: Node[DepthwiseConv2D], plan: DepthwisePlan, stem: str) -> KernelCall:
    """Return the call of a function whose name starts with `stem`."""
    scaling, output = plan.found.scaling, node.output.type
    return KernelCall(
        template="backends/dsp/depthwise.j2",
        stem=stem,
        details={
            "rows": "row" if output.shape[1] == 1 else "rows",
            "kept": f"keeps{plan.kept}",
            **scaling.details,
        },
        in_place=((0, 0),) if plan.in_place else (),
        parameters=_parameters(node, plan),
        operands=(
            Input(0, "input"),
            Packed("weights", plan.packed),
            LayerStruct("layer", LAYER, plan.numbers, FIELDS),
            Scratch("pairs", DType.INT16, 8 * plan.plane),
            Output(0, "output"),
        ),
        summary="pairs of rows, 2 x 2 outputs at a time",
        form="dsp_depthwise" + ("_signed" if scaling.signed else ""),
        work={"estimate": _instructions(node, plan), "calls": 1},
        inner=_functions(node, plan, stem),
    )


def _functions(
    node: Node[DepthwiseConv2D], plan: DepthwisePlan, stem: str
) -> tuple[InnerFunction, ...]:
    """Return the inner functions: those that widen inputs, compute outputs and keep rows."""
    kept = (kept_rows(plan.kept),) if plan.kept else ()
    return (plan.inputs, channel_outputs(plan.code, stem + steps(node)), *kept)


def _cost(node: Node[DepthwiseConv2D], plan: DepthwisePlan, call: KernelCall) -> BodyCost:
    """Return the cost of a call; the function that both bodies use to widen does not count."""
    outputs = call.inner[1]
    inner = {outputs.key: 4 * assembled(plan.code.lines)}
    return BodyCost(_instructions(node, plan), _BYTES + sum(inner.values()), inner)


def _instructions(node: Node[DepthwiseConv2D], plan: DepthwisePlan) -> int:
    shape = node.output.type.shape
    return int(np.int64(plan.cost) * shape[3] * shape[0])


KERNELS = (DspDepthwise(),)
