"""int8 depthwise convolutions on Helium, as dot products.

A strip holds 16 channels of four neighboring columns, interleaved (VST4) so that a word holds four
inputs of one channel. A gather load reads four such words, a patch of 4 x 4 inputs, into a
register. The patch contains the windows of several outputs: four for a 3 x 3 window with stride 1.
Each of these outputs is a dot product of the patch with the window's weights, shifted to the
position of the output's window. If the image is one row, a word holds four neighbors of that row,
and a patch holds 16.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.helium.convolution import refuse, scaling_of
from smelt.codegen.backends.helium.convolution_plan import SCRATCH_LIMIT, Geometry
from smelt.codegen.backends.helium.depthwise_functions import (
    STRIP,
    StripLanes,
    driver_function,
    interleave_function,
    outputs_function,
    sums_function,
)
from smelt.codegen.backends.helium.depthwise_layers import shared_body
from smelt.codegen.backends.helium.depthwise_plan import (
    LANES,
    PATCH,
    Patches,
    patches_in_place,
    patches_of,
)
from smelt.codegen.backends.helium.scaling import HeliumScaling, groups
from smelt.codegen.lower.kernel import (
    InnerFunction,
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.lower.window import Window
from smelt.ir import Array, DType, Node
from smelt.ops.core.convolution import DepthwiseConv2D


@dataclass(frozen=True)
class HeliumDepthwiseParameters(Parameters):
    """Variables of `backends/helium/depthwise.j2`.

    Attributes:
        title, summary: texts of the function's comment.
        sizes: the layer's sizes by name, in the order of the struct's fields.
        patches: the sizes of a strip's patches, and of those with one column of outputs.
        sums, interleave, outputs: the places in `inner` of the functions of a layer, None for those
            that it does not need; see `backends/helium/strip.j2` for their order.
    """

    title: str
    summary: str
    sizes: tuple[tuple[str, int], ...]
    patches: tuple[tuple[int, ...], ...]
    sums: tuple[int | None, ...]
    interleave: tuple[int | None, ...]
    outputs: tuple[tuple[int | None, ...], ...]


@dataclass
class _LayerFunctions:
    """The static functions that a layer calls."""

    found: list[InnerFunction]

    def place(self, function: InnerFunction | None) -> int | None:
        """Return the place of a function, which is added; None for None."""
        if function is None:
            return None
        self.found.append(function)
        return len(self.found) - 1


def _parameters(
    node: Node[DepthwiseConv2D], g: Geometry, p: Patches, scaling: HeliumScaling
) -> tuple[HeliumDepthwiseParameters, tuple[InnerFunction, ...]]:
    """Return the template's variables and the static functions."""
    functions = _LayerFunctions([STRIP, driver_function(p)])
    last = p.last if g.output[1] % p.across else None
    whole, left = LANES if g.channels >= LANES else 0, g.channels % LANES

    def outputs(lanes: int) -> tuple[int | None, ...]:
        wanted = [q if lanes else None for q in (p, last)]
        found = (q and outputs_function(q, scaling, StripLanes.of(lanes)) for q in wanted)
        return tuple(map(functions.place, found))

    parameters = HeliumDepthwiseParameters(
        title=Window.of(node).title(node),
        summary=p.summary,
        sizes=tuple(_sizes(node, g, p, scaling).items()),
        patches=tuple((q.iterations, q.next, q.sums) if q else (0, 0, 0) for q in (p, last)),
        sums=tuple(functions.place(q and sums_function(q)) for q in (p, last)),
        interleave=tuple(
            functions.place(interleave_function(lanes) if lanes else None)
            for lanes in (whole, left)
        ),
        outputs=(outputs(whole), outputs(left)),
    )
    return parameters, tuple(functions.found)


def _sizes(
    node: Node[DepthwiseConv2D], g: Geometry, p: Patches, scaling: HeliumScaling
) -> dict[str, int]:
    """Return the sizes of a layer, in the order of the struct in `backends/helium/strip.j2`."""
    return {
        "rows": p.strip_outputs,
        "pitch": g.channels if p.line else g.output[1] * g.channels,
        "channels": g.channels,
        "left": g.channels % LANES,
        "zero": scaling.zero_point,
        "low": scaling.low,
        "high": scaling.high,
        "images": g.images,
        "height": g.size[0],
        "width": g.size[1],
        "output_rows": g.output[0],
        "output_columns": g.output[1],
        "stride_y": g.stride[0],
        "stride_x": g.stride[1],
        "above": g.padding[0][0],
        "before": g.padding[1][0],
        "padding": node.input(0).type.zero_point,
        "strip_rows": p.rows,
        "strip_columns": p.across,
        "weight_words": p.record,
        "constant_words": scaling.fields,
    }


class DepthwiseKernel(Kernel[DepthwiseConv2D]):
    """Dot products of patches, each of one channel."""

    op = DepthwiseConv2D

    @override
    def offer(self, node: Node[DepthwiseConv2D], request: Request) -> KernelCall | Refusal:
        return _offer(node, request, patches_of(Geometry.of(node)))


class DepthwiseInPlaceKernel(Kernel[DepthwiseConv2D]):
    """As `DepthwiseKernel`, but rows are copied first, so that outputs may overwrite inputs."""

    op = DepthwiseConv2D
    uses_scratch_limit = True

    @override
    def offer(self, node: Node[DepthwiseConv2D], request: Request) -> KernelCall | Refusal:
        limit = SCRATCH_LIMIT
        if request.limited:
            limit = min(limit, request.scratch_limit)
        return _offer(node, request, patches_in_place(Geometry.of(node), limit))


def _offer(
    node: Node[DepthwiseConv2D], request: Request, p: Patches | None
) -> KernelCall | Refusal:
    """Return the call that computes a node in patches, or why there is none."""
    refusal = refuse(node, request.target, channel_axis=3)
    if refusal is not None:
        return refusal
    name = node.op.name
    if node.input(0).type.shape[3] != node.output.type.shape[3]:
        return Refusal(f"{name} has a Helium kernel only for a depth multiplier of 1.")
    if node.op.dilation != (1, 1):
        return Refusal(f"{name} has no Helium kernel for dilation.")
    scaling = scaling_of(node, 3)
    if isinstance(scaling, Refusal):
        return scaling
    if p is None:
        height, width = node.input(1).type.shape[1:3]
        return Refusal(
            f"{name} has no Helium kernel for a {height}x{width} window with this stride."
        )
    g = Geometry.of(node)
    call = _call(node, g, p, scaling)
    if request.optimize != "size":
        return call
    padding = node.input(0).type.zero_point
    return replace(call, shared=shared_body(call, g, p, scaling, padding))


def _call(
    node: Node[DepthwiseConv2D], g: Geometry, p: Patches, scaling: HeliumScaling
) -> KernelCall:
    x = node.input(0).type
    weights = np.moveaxis(node.input(1).array[0], 2, 0).reshape(g.channels, *g.kernel)
    parameters, functions = _parameters(node, g, p, scaling)
    strips = -(-g.output[1] // p.across) if not p.line else 1
    passes = g.images * len(p.starts) * -(-g.channels // LANES)
    outputs = g.images * len(p.starts) * strips * g.channels * p.sums
    copies = {"pixels": passes * p.rows * p.copied} if p.copied else {}
    return KernelCall(
        template="backends/helium/depthwise.j2",
        stem="depthwise_{}x{}".format(*node.input(1).type.shape[1:3]),
        details={**scaling.details, **({"rows": "copied"} if p.copied else {})},
        in_place=((0, 0),) if p.copied else (),
        parameters=parameters,
        operands=(
            Input(0, "input"),
            Packed("padding", np.full(LANES, x.zero_point, np.int8)),
            Packed("weights", _packed(p, weights)),
            Packed("channels", scaling.constants(groups(g.channels))),
            Scratch("strip", DType.INT8, p.strip_bytes),
            Scratch("sums", DType.INT32, LANES * p.sums),
            Output(0, "output"),
        ),
        summary=p.summary,
        form="helium_patches_in_place" if p.copied else "helium_patches",
        inner=functions,
        work={
            "patches": outputs // p.outputs,
            "outputs": outputs,
            "calls": passes * strips,
            "rows": passes * strips * p.rows,
            **copies,
        },
    )


def _packed(p: Patches, weights: Array) -> Array:
    """Return int32 `[o, record]`: each channel's patch of weights, with zeros before and after."""
    channels, height, width = weights.shape
    rows = np.zeros((channels, 4 * p.record), np.int8)
    patch = np.zeros((channels, PATCH), np.int8)
    if p.line:
        patch[:, :width] = weights[:, 0]
    else:
        patch.reshape(channels, 4, 4)[:, :height, :width] = weights
    rows[:, p.lead : p.lead + PATCH] = patch
    return rows.view(np.int32)


KERNELS = (DepthwiseKernel(), DepthwiseInPlaceKernel())
