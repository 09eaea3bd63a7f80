"""int8 depthwise convolutions on Helium, as dot products.

Sixteen channels of four neighbouring columns are interleaved (VST4) into a strip: a word of it
holds four inputs of one channel. A gather load brings four such words, a patch of 4 x 4 inputs,
into a register; its dot products with the window's weights, shifted once for each output, are all
the outputs whose windows lie within the patch: four for a window of 3 x 3 and stride 1. For an
image of one row a word holds four neighbours of that row, and a patch sixteen.
"""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from smelt.codegen.kernels.base import (
    Input,
    KernelCall,
    Output,
    Packed,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.kernels.c.store import offset
from smelt.codegen.kernels.cortexm.cores import HeliumKernel
from smelt.codegen.kernels.cortexm.mve_patches import LANES, PATCH, ROW, Patches, patches_of
from smelt.codegen.kernels.cortexm.mve_plan import Geometry
from smelt.codegen.kernels.cortexm.mve_products import refuse, scaling_of
from smelt.codegen.kernels.cortexm.mve_scaling import HeliumScaling, groups, runs
from smelt.codegen.kernels.cortexm.mve_strips import interleave_assembly, strip_assembly
from smelt.ir import Array, DType, Node
from smelt.ops.convolution import DepthwiseConv2D


class DepthwiseKernel(HeliumKernel[DepthwiseConv2D]):
    """Dot products of patches of one channel each."""

    op = DepthwiseConv2D

    @override
    def offer(self, node: Node[DepthwiseConv2D], request: Request) -> KernelCall | Refusal:
        refusal = refuse(node, request.target, channel_axis=3)
        if refusal is not None:
            return refusal
        op, name = node.op, node.op.name
        if node.input(0).type.shape[3] != node.output.type.shape[3]:
            return Refusal(f"{name} has a Helium kernel for one output of each channel only.")
        if op.dilation != (1, 1):
            return Refusal(f"{name} has no Helium kernel for dilation.")
        scaling = scaling_of(node, 3)
        if isinstance(scaling, Refusal):
            return scaling
        g = Geometry.of(node)
        p = patches_of(g)
        if p is None:
            height, width = node.input(1).type.shape[1:3]
            return Refusal(
                f"{name} has no Helium kernel for a window of {height}x{width} at this stride."
            )
        return _call(node, g, p, scaling)


def _call(
    node: Node[DepthwiseConv2D], g: Geometry, p: Patches, scaling: HeliumScaling
) -> KernelCall:
    x = node.input(0).type
    sizes = sorted({min(LANES, g.channels - c) for c in range(0, g.channels, LANES)})[::-1]
    weights = np.moveaxis(node.input(1).array[0], 2, 0).reshape(g.channels, *g.kernel)
    parts = groups(g.channels)
    widths = (p, p.last) if g.output[1] % p.across else (p,)
    strips = -(-g.output[1] // p.across) if not p.line else 1
    outputs = g.images * len(p.starts) * strips * g.channels * p.sums
    shape = "16 neighbours" if p.line else "4x4 inputs"
    summary = f"patches of {shape}, {p.outputs} outputs each"
    return KernelCall(
        template="cortexm/mve_depthwise.j2",
        stem="depthwise_{}x{}".format(*node.input(1).type.shape[1:3]),
        parameters={
            "title": f"{node.op.name}: {x} -> {node.output.type}",
            "g": g,
            "p": p,
            "scaling": scaling,
            "zero": x.zero_point,
            "input_size": g.size[0] * g.size[1] * g.depth,
            "output_size": g.output[0] * g.output[1] * g.channels,
            "pitch": g.channels if p.line else g.output[1] * g.channels,
            "row_pitch": g.size[1] * g.channels,
            "word_pitch": 4 * g.channels,
            "output_row": g.output[1] * g.channels,
            "step": p.across * g.channels,
            "top": _origin("y", g.stride[0], g.padding[0][0]),
            "side": _origin("x", g.stride[1], g.padding[1][0]),
            "summary": summary,
            "parts": [
                {
                    "lanes": size,
                    "interleave": interleave_assembly(size),
                    "runs": runs(groups(size)),
                    "strips": [
                        {
                            "suffix": "" if q is p else "_last",
                            "p": q,
                            "asm": strip_assembly(g, q, scaling, groups(size)),
                        }
                        for q in widths
                    ],
                }
                for size in sizes
            ],
        },
        operands=(
            Input(0, "input"),
            Packed("padding", np.full(LANES, x.zero_point, np.int8)),
            Packed("weights", _packed(p, weights)),
            Packed("channels", scaling.constants(parts)),
            Scratch("strip", DType.INT8, p.rows * ROW),
            Scratch("sums", DType.INT32, LANES * p.sums),
            Output(0, "output"),
        ),
        summary=summary,
        form="mve_patches",
        helpers=scaling.helpers,
        work={
            "patches": outputs // p.outputs,
            "outputs": outputs,
            "calls": g.images * len(p.starts) * strips * -(-g.channels // LANES),
            "rows": g.images * len(p.starts) * strips * -(-g.channels // LANES) * p.rows,
        },
    )


def _origin(output: str, stride: int, before: int) -> str:
    """The C expression of the first row or column under the window of an output."""
    return offset(output if stride == 1 else f"{output} * {stride}", -before)


def _packed(p: Patches, weights: Array) -> Array:
    """int32 `[o, record]`: of each channel its patch of weights behind zeros."""
    channels, height, width = weights.shape
    rows = np.zeros((channels, 4 * p.record), np.int8)
    patch = np.zeros((channels, PATCH), np.int8)
    if p.line:
        patch[:, :width] = weights[:, 0]
    else:
        patch.reshape(channels, 4, 4)[:, :height, :width] = weights
    rows[:, p.lead : p.lead + PATCH] = patch
    return rows.view(np.int32)


KERNELS = (DepthwiseKernel(),)
