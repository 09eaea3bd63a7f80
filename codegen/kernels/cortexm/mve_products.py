"""int8 convolutions and dense layers on Helium, as dot products (see `mve_tiles`).

Where the inputs of a pixel stand in a row - a window of one row, without padding - they are read
where they are. Otherwise the rows of the image under the window are kept in working memory, padded.
Chunks of sixteen channels are read from there; other windows are copied, each into one row. Images
too wide for that are cut into strips, many output channels into blocks; where neither comes out
even, the last one overlaps the one before.
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
)
from smelt.codegen.kernels.c.products import (
    bias_with_zero_point,
    folds,
    refuse_products,
    sums,
)
from smelt.codegen.kernels.c.requantization import Requantization
from smelt.codegen.kernels.c.store import offset
from smelt.codegen.kernels.cortexm.cores import HeliumKernel
from smelt.codegen.kernels.cortexm.mve_assembly import HeliumAssembly, braces
from smelt.codegen.kernels.cortexm.mve_dots import tile_assembly
from smelt.codegen.kernels.cortexm.mve_plan import Geometry, TilePlan, plan_of, scratch_limit
from smelt.codegen.kernels.cortexm.mve_scaling import HeliumScaling
from smelt.codegen.kernels.cortexm.mve_tiles import CHUNK
from smelt.ir import DType, Node, Rounding
from smelt.ops.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.fixed_point import convolution_scales
from smelt.ops.fully_connected import FullyConnected, fully_connected_scales
from smelt.targets import Target


def refuse(node: Node, target: Target, channel_axis: int) -> Refusal | None:
    """None where a node's products can be computed on Helium, else why not."""
    if node.rounding is Rounding.ONNX and "mve_float" not in target.features:
        return Refusal(f"{target.name} has no Helium for floats, which ONNX's rounding needs.")
    reason = refuse_products(node, channel_axis)
    if reason is not None:
        return Refusal(reason)
    if node.output.type.dtype is not DType.INT8 or not folds(node):
        return Refusal(
            f"{node.op.name} has a Helium kernel for i8 and constant, symmetric weights only."
        )
    return None


def scaling_of(
    node: Node[Conv2D | DepthwiseConv2D | FullyConnected], channel_axis: int
) -> HeliumScaling | Refusal:
    """How the node's sums are scaled, or why they cannot be."""
    op, x, weights, y = node.op, node.input(0).type, node.input(1).type, node.output.type
    scales = fully_connected_scales if isinstance(op, FullyConnected) else convolution_scales
    real = scales(x, weights, y, node.rounding)
    requantization = Requantization.of(node, real, op.activation, sums(node, channel_axis))
    bias = bias_with_zero_point(node, channel_axis)
    if bias is None:
        return Refusal(f"{op.name} has no quantized input.")
    found = HeliumScaling.of(requantization, bias)
    return Refusal(f"{op.name}: {found}") if isinstance(found, str) else found


_POINTERS = ("r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12")


def _windows(plan: TilePlan) -> HeliumAssembly:
    """Copies the windows of a row of outputs: r0 to, r1 addresses of rows, r2 how many."""
    g, asm = plan.geometry, HeliumAssembly()
    pitch, rest = g.pitch, plan.tiles.length - g.kernel[0] * g.segment
    if g.segment <= CHUNK and pitch < 128 and g.kernel[0] <= len(_POINTERS) and rest < 112:
        rows = _POINTERS[: g.kernel[0]]
        asm("push {r4-r11, lr}", f"ldm r1, {braces(rows)}", "dls lr, r2", "1:")
        for y, row in enumerate(rows):
            step = g.segment + (rest if y == g.kernel[0] - 1 else 0)
            asm(f"vldrb.8 q0, [{row}], #{pitch}", f"vstrb.8 q0, [r0], #{step}")
        asm("le lr, 1b", "pop {r4-r11, pc}")
        return asm
    asm("mov r12, #0", "1:")
    for y in range(g.kernel[0]):
        asm(f"ldr r3, [r1, #{4 * y}]", "add r3, r12")
        for start in range(0, g.segment, CHUNK):
            step = min(CHUNK, g.segment - start)
            asm("vldrb.8 q0, [r3], #16", f"vstrb.8 q0, [r0], #{step}")
    if rest:
        asm.add("r0", "r0", rest, "r3")
    asm.add("r12", "r12", pitch, "r3")
    asm("subs r2, #1", "bne.w 1b", "bx lr")
    return asm


class HeliumProducts(HeliumKernel[Conv2D | FullyConnected | DepthwiseConv2D]):
    """Dot products of rows of bytes.

    A depthwise convolution is one where all outputs see its only input channel.
    """

    op = Conv2D | FullyConnected | DepthwiseConv2D

    @override
    def offer(
        self, node: Node[Conv2D | FullyConnected | DepthwiseConv2D], request: Request
    ) -> KernelCall | Refusal:
        op, name, axis = node.op, node.op.name, 0
        if isinstance(op, DepthwiseConv2D):
            if node.input(0).type.shape[3] > 1:
                return Refusal(f"{name} is a convolution for one channel only.")
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
        limit = scratch_limit(node)
        plan = plan_of(Geometry.of(node), limit)
        if plan is None:
            return Refusal(
                f"{name} would need more than {limit} bytes of working memory on Helium."
            )
        return _call(node, plan, scaling, axis)


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
    row = g.stride[0] * g.size[1] * g.depth
    parameters: dict[str, object] = {
        "title": f"{node.op.name}: {node.input(0).type} -> {node.output.type}",
        "g": g,
        "plan": plan,
        "t": t,
        "scaling": scaling,
        "asm": tile_assembly(t, scaling),
        "block_scales": 4 * scaling.fields * sum(part.vectors for part in t.parts),
        "input_size": node.input(0).type.size,
        "image_size": g.size[0] * g.size[1] * g.depth,
        "input_row": row,
        "output_row": g.output[1] * g.channels,
    }
    if plan.padded:
        parameters |= {
            "zero": node.input(0).type.zero_point,
            "output_size": g.output[0] * g.output[1] * g.channels,
            "width": g.width(plan.columns),
            "windows": _windows(plan) if plan.rows else None,
            "top": offset("ready", -g.padding[0][0]),
            "side": offset(f"strips[s] * {g.stride[1]}", -g.padding[1][0]),
        }
    else:
        parameters["rows"] = g.images * g.output[0]
    stem = "fully_connected"
    if not isinstance(node.op, FullyConnected):
        kind = "depthwise" if isinstance(node.op, DepthwiseConv2D) else "conv"
        stem = "{}_{}x{}".format(kind, *node.input(1).type.shape[1:3])
    starts = plan.blocks
    packed = [t.packed(weights[o : o + t.channels]) for o in starts]
    scales = [scaling.part(o, o + t.channels).constants(t.parts) for o in starts]
    return KernelCall(
        template=f"cortexm/mve_{'windows' if plan.padded else 'rows'}.j2",
        stem=stem,
        parameters=parameters,
        operands=(
            Input(0, "input"),
            Packed("weights", np.concatenate(packed)),
            Packed("channels", np.concatenate(scales)),
            *plan.scratch,
            Output(0, "output"),
        ),
        summary=f"{t.pixels} pixel{'s' if t.pixels > 1 else ''} x {t.outputs} channels, "
        f"inputs from {_FROM[plan.form]}",
        form=f"mve_{plan.form}_{t.pixels}x{t.outputs}",
        work=plan.work,
        helpers=scaling.helpers,
    )


_FROM = {
    "row": "where they are",
    "window": "copies of windows",
    "image": "a few padded rows",
}


KERNELS = (HeliumProducts(),)
