"""int8 convolutions and dense layers on Helium, as dot products (see `tiles`).

If the window has one row and no padding, the inputs of a pixel are contiguous and are read in
place. Otherwise scratch holds the image rows under the window, padded. If the depth is a multiple
of 16 and the window is small, chunks of 16 channels are read from these rows; otherwise each window
is first copied into one contiguous run. To limit scratch, wide images are cut into strips of
columns, and output channels into blocks. If strips or blocks do not divide evenly, the last one
overlaps the one before; so does the last group of pixels, unless inputs are read in place.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.helium.convolution_layers import shared_body
from smelt.codegen.backends.helium.convolution_parameters import rows_parameters, windows_parameters
from smelt.codegen.backends.helium.convolution_plan import (
    Geometry,
    TilePlan,
    plan_of,
    scratch_limit,
    smallest_plan,
)
from smelt.codegen.backends.helium.padded_rows import copied_windows, padded_row
from smelt.codegen.backends.helium.scaling import HeliumScaling
from smelt.codegen.backends.helium.tile_functions import copying_function, tile_functions
from smelt.codegen.lower.kernel import (
    InnerFunction,
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Refusal,
    Request,
)
from smelt.codegen.lower.quantized_products import (
    bias_with_zero_point,
    can_fold_zero_point,
    refuse_products,
    sums,
)
from smelt.codegen.lower.requantization import Requantization
from smelt.codegen.text.helpers import when
from smelt.ir import DType, Node, Rounding
from smelt.ops.arithmetic.fixed_point import convolution_scales
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.fully_connected import FullyConnected, fully_connected_scales
from smelt.targets import Target


def refuse(node: Node, target: Target, channel_axis: int) -> Refusal | None:
    """Return why Helium cannot compute a node's products; None if it can."""
    if node.rounding is Rounding.ONNX and "mve_float" not in target.features:
        return Refusal(f"ONNX's rounding needs Helium with floats, which {target.name} lacks.")
    if refusal := refuse_products(node, channel_axis):
        return refusal
    if node.output.type.dtype is not DType.INT8 or not can_fold_zero_point(node):
        return Refusal(
            f"{node.op.name} has a Helium kernel only for i8 with constant, symmetric weights."
        )
    return None


def scaling_of(
    node: Node[Conv2D | DepthwiseConv2D | FullyConnected], channel_axis: int
) -> HeliumScaling | Refusal:
    """Return how the node's sums are scaled, or why Helium cannot scale them."""
    op, x, weights, y = node.op, node.input(0).type, node.input(1).type, node.output.type
    scales = fully_connected_scales if isinstance(op, FullyConnected) else convolution_scales
    real = scales(x, weights, y, node.rounding)
    requantization = Requantization.of(node, real, op.activation, sums(node, channel_axis))
    bias = bias_with_zero_point(node, channel_axis)
    if bias is None:
        return Refusal(f"{op.name} has no quantized input.")
    return HeliumScaling.of(requantization, bias) or Refusal(
        f"{op.name}: a scale is so large that sums would have to be shifted left."
    )


class HeliumProducts(Kernel[Conv2D | FullyConnected | DepthwiseConv2D]):
    """Dot products of rows of bytes.

    A depthwise convolution is served only with one input channel: it then equals a convolution.
    """

    op = Conv2D | FullyConnected | DepthwiseConv2D
    uses_scratch_limit = True

    @override
    def offer(
        self, node: Node[Conv2D | FullyConnected | DepthwiseConv2D], request: Request
    ) -> KernelCall | Refusal:
        op, name, axis = node.op, node.op.name, 0
        if isinstance(op, DepthwiseConv2D):
            if node.input(0).type.shape[3] > 1:
                return Refusal(f"{name} equals a convolution only if it has one input channel.")
            axis = 3
        refusal = refuse(node, request.target, axis)
        if refusal is not None:
            return refusal
        if isinstance(op, Conv2D) and op.groups > 1:
            return Refusal(f"{name} has no Helium kernel for groups.")
        if isinstance(op, Conv2D | DepthwiseConv2D) and op.dilation != (1, 1):
            return Refusal(f"{name} has no Helium kernel for dilation.")
        scaling = scaling_of(node, axis)
        if isinstance(scaling, Refusal):
            return scaling
        most, g = scratch_limit(node), Geometry.of(node)
        limit = min(most, request.scratch_limit) if request.limited else most
        plan = plan_of(g, limit) or smallest_plan(g)
        if plan is None or plan.scratch_bytes > most:
            return Refusal(f"{name} would need more than {most} bytes of scratch on Helium.")
        call = _call(node, plan, scaling, axis)
        if request.optimize != "size":
            return call
        return replace(call, shared=shared_body(call, plan, scaling))


def _call(
    node: Node[Conv2D | FullyConnected | DepthwiseConv2D],
    plan: TilePlan,
    scaling: HeliumScaling,
    axis: int,
) -> KernelCall:
    g, t = plan.geometry, plan.tiles
    weights = np.zeros((g.channels, t.length), np.int8)
    plain = np.moveaxis(node.input(1).array, axis, 0).reshape(g.channels, -1)
    weights[:, : plain.shape[1]] = plain
    stem = "fully_connected"
    if not isinstance(node.op, FullyConnected):
        kind = "depthwise" if isinstance(node.op, DepthwiseConv2D) else "conv"
        stem = "{}_{}x{}".format(kind, *node.input(1).type.shape[1:3])
    starts = plan.blocks
    ends = [o + t.channels for o in starts]
    scalings = [scaling.part(o, end) for o, end in zip(starts, ends, strict=True)]
    packed = [
        t.packed(weights[o : o + t.channels], s.biases)
        for o, s in zip(starts, scalings, strict=True)
    ]
    scales = [s.constants(t.parts, biased=False) for s in scalings]
    return KernelCall(
        template=f"backends/helium/{'windows' if plan.padded else 'rows'}.j2",
        stem=stem,
        details=scaling.details,
        in_place=((0, 0),) if plan.in_place else (),
        parameters=(windows_parameters if plan.padded else rows_parameters)(node, plan, scaling),
        operands=(
            Input(0, "input"),
            Packed("weights", np.concatenate(packed)),
            Packed("channels", np.concatenate(scales)),
            *plan.scratch,
            Output(0, "output"),
        ),
        summary=f"{t.pixels} pixel{'s' if t.pixels > 1 else ''} x {t.outputs} channels, "
        f"inputs from {_FROM[plan.form]}",
        form=f"helium_{plan.form}_{t.pixels}x{t.outputs}",
        work=plan.work,
        uses=_uses(plan),
        inner=_inner(node, plan, scaling),
    )


def _uses(plan: TilePlan) -> frozenset[str]:
    """Return what the text of a plan's function uses."""
    copied = plan.copied_rows > 0
    rows = plan.padded and (copied or plan.geometry.kernel[0] > 1)
    return when(rows, "SMELT_ARRAY")


def _inner(
    node: Node[Conv2D | FullyConnected | DepthwiseConv2D], plan: TilePlan, scaling: HeliumScaling
) -> tuple[InnerFunction, ...]:
    """Return the static functions of a plan: those of tiles, after those that move inputs."""
    functions = tile_functions(plan.tiles, scaling)
    if plan.padded:
        windows = (copied_windows(plan),) if plan.copied_rows else ()
        return (padded_row(plan, node.input(0).type.zero_point), *windows, *functions)
    if plan.tiles.copies:
        return (copying_function(plan.tiles, functions[0]), *functions)
    return functions


_FROM = {
    "row": "the tensor itself",
    "window": "copies of windows",
    "image": "a few padded rows",
}
"""Source of the inputs for the summary, by the plan's form."""


KERNELS = (HeliumProducts(),)
