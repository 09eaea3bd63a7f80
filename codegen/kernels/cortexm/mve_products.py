"""int8 convolutions and dense layers on Helium, as dot products (see `mve_tiles`).

Where the inputs of a pixel stand in a row - a window of one row, without padding - they are read
where they are. Otherwise the rows of the image under the window are kept in working memory, padded.
Chunks of sixteen channels are read from there; other windows are copied, each into one row. Images
too wide for that are cut into strips, many output channels into blocks; where neither comes out
even, the last one overlaps the one before.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from smelt.codegen.kernels.base import (
    Input,
    KernelCall,
    Output,
    Packed,
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
from smelt.codegen.kernels.cortexm.mve_assembly import Assembly, braces
from smelt.codegen.kernels.cortexm.mve_dots import tile_assembly
from smelt.codegen.kernels.cortexm.mve_plan import Geometry, Plan, plan_of, scratch_limit
from smelt.codegen.kernels.cortexm.mve_scaling import Scaling
from smelt.codegen.kernels.cortexm.mve_tiles import CHUNK
from smelt.ir import DType, Node, Rounding
from smelt.ops.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.fixed_point import convolution_scales
from smelt.ops.fully_connected import FullyConnected, fully_connected_scales
from smelt.targets import Target


def refuse(node: Node, target: Target, channel_axis: int) -> str | None:
    """None where a node's products can be computed on Helium, else one sentence saying why not."""
    if node.rounding is Rounding.ONNX and "mve_float" not in target.features:
        return f"{target.name} has no Helium for floats, which ONNX's rounding needs."
    reason = refuse_products(node, channel_axis)
    if reason is not None:
        return reason
    if node.output.type.dtype is not DType.INT8 or not folds(node):
        return f"{node.op.name} has a Helium kernel for i8 and constant, symmetric weights only."
    return None


def scaling_of(node: Node, channel_axis: int) -> Scaling | str:
    """How the node's sums are scaled, or one sentence saying why they cannot be."""
    op, x, weights, y = node.op, node.input(0).type, node.input(1).type, node.output.type
    scales = fully_connected_scales if isinstance(op, FullyConnected) else convolution_scales
    if not isinstance(op, Conv2D | DepthwiseConv2D | FullyConnected):
        raise TypeError(f"{op.name} has no sums of products")
    real = scales(x, weights, y, node.rounding)
    requantization = Requantization.of(node, real, op.activation, sums(node, channel_axis))
    bias = bias_with_zero_point(node, channel_axis)
    if bias is None:
        raise TypeError(f"{node.origin} is not quantized")
    found = Scaling.of(requantization, bias)
    return f"{node.op.name}: {found}" if isinstance(found, str) else found


_POINTERS = ("r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12")


def _windows(plan: Plan) -> Assembly:
    """Copies the windows of a row of outputs: r0 to, r1 addresses of rows, r2 how many."""
    g, asm = plan.geometry, Assembly()
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


class _Products(HeliumKernel):
    """Dot products of rows of bytes."""

    channel_axis: ClassVar[int] = 0
    stem: ClassVar[str] = "conv"

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        reason = refuse(node, target, self.channel_axis)
        if reason is not None:
            return reason
        name = node.op.name
        if isinstance(node.op, Conv2D) and node.op.groups > 1:
            return f"{name} has no Helium kernel for groups."
        if isinstance(node.op, Conv2D | DepthwiseConv2D) and node.op.dilation != (1, 1):
            return f"{name} has no Helium kernel for dilation."
        scaling = scaling_of(node, self.channel_axis)
        if isinstance(scaling, str):
            return scaling
        if plan_of(Geometry.of(node), scratch_limit(node)) is None:
            return (
                f"{name} would need more than {scratch_limit(node)} bytes of working memory "
                "on Helium."
            )
        return None

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        axis = self.channel_axis
        scaling = scaling_of(node, axis)
        plan = plan_of(Geometry.of(node), scratch_limit(node))
        if isinstance(scaling, str) or plan is None:
            raise TypeError(f"{node.origin}: {scaling}")
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
            stem = "{}_{}x{}".format(self.stem, *node.input(1).type.shape[1:3])
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


class Conv2DKernel(_Products):
    """Convolutions."""

    op = Conv2D


class FullyConnectedKernel(_Products):
    """Dense layers."""

    op = FullyConnected


class OneChannelKernel(_Products):
    """Depthwise convolutions of one channel: every output sees it, as in a convolution."""

    op = DepthwiseConv2D
    channel_axis = 3
    stem = "depthwise"

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        if node.input(0).type.shape[3] > 1:
            return f"{node.op.name} is a convolution for one channel only."
        return super().supports(node, target)


KERNELS = (Conv2DKernel(), FullyConnectedKernel(), OneChannelKernel())
