"""int8 averages over whole images on Helium."""

from __future__ import annotations

import numpy as np

from smelt.codegen.kernels.base import Input, KernelCall, Output, Request
from smelt.codegen.kernels.cortexm.cores import HeliumKernel
from smelt.codegen.kernels.cortexm.mve_assembly import Assembly
from smelt.codegen.kernels.cortexm.mve_linear import Linear, clamp, linear
from smelt.ir import DType, Node, Rounding
from smelt.ops.fixed_point import clamp_limits
from smelt.ops.pool import Pool2D
from smelt.targets import Target

_MOST = 255
"""Pixels whose sum surely fits into 16 bits."""


def _form(node: Node, op: Pool2D) -> Linear | None:
    """The average as one multiply-add of the sum, equal to the operator's for all sums."""
    count, limits = op.window[0] * op.window[1], clamp_limits(op.activation, node.output.type)
    sums = np.arange(-128 * count, 127 * count + 1, dtype=np.int64)
    averages = np.sign(sums) * ((np.abs(sums) + count // 2) // count)
    return linear((sums,), np.clip(averages, *limits), (1.0 / count,), limits)


class AverageKernel(HeliumKernel):
    """Eight channels at a time."""

    op = Pool2D

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        op, x = node.op, node.input(0).type
        if not isinstance(op, Pool2D):
            raise TypeError(f"{op.name} is no Pool2D")
        del target
        served = op.kind == "average" and x.dtype is DType.INT8 and x.quant is not None
        if not served or node.rounding is not Rounding.TFLM:
            return f"{op.name} has a Helium kernel for averages of quantized i8 only."
        whole = op.window == x.shape[1:3] and node.output.type.shape[1:3] == (1, 1)
        if not whole or any(map(any, op.padding)) or op.window[0] * op.window[1] > _MOST:
            return f"{op.name} has a Helium kernel for whole images of {_MOST} pixels at most."
        if _form(node, op) is None:
            return f"{op.name} is not one exact multiply-add of the sum."
        return None

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        del request
        op, x, y = node.op, node.input(0).type, node.output.type
        form = _form(node, op) if isinstance(op, Pool2D) else None
        if form is None or not isinstance(op, Pool2D):
            raise TypeError(f"{node.origin} has no linear form")
        low, high = clamp_limits(op.activation, y)
        pixels = op.window[0] * op.window[1]
        return KernelCall(
            template="cortexm/mve_pool.j2",
            stem=f"average_pool_{op.window[0]}x{op.window[1]}",
            parameters={
                "title": f"{op.name}: {x} -> {y}",
                "form": form,
                "low": low,
                "high": high,
                "images": x.shape[0],
                "pixels": pixels,
                "channels": x.shape[3],
                "asm": _assembly(form, (low, high), pixels, x.shape[3]),
            },
            operands=(Input(0, "input"), Output(0, "output")),
            summary="8 channels at a time, the quotient by one multiply-add",
            form="mve_average",
            work={"inputs": x.size, "outputs": y.size, "calls": 1},
        )


def _assembly(form: Linear, limits: tuple[int, int], pixels: int, channels: int) -> Assembly:
    """The function's body: r0 input, r1 output."""
    asm = Assembly()
    asm("push {r4, r5, r6, lr}")
    asm.constant("r3", form.factors[0])
    asm("vdup.32 q3, r3")
    asm.constant("r3", form.start)
    asm.constant("r2", channels)
    whole, left = divmod(channels, 8)
    if whole > 1:
        asm.constant("r6", whole)
        asm("dls lr, r6", "1:")
    if whole:
        _eight(asm, form, limits, pixels, 8)
    if whole > 1:
        asm("le lr, 1b")
    if left:
        _eight(asm, form, limits, pixels, left)
    asm("pop {r4, r5, r6, pc}")
    return asm


def _eight(
    asm: Assembly, form: Linear, limits: tuple[int, int], pixels: int, channels: int
) -> None:
    """Averages of up to eight channels."""
    asm("mov r4, r0", f"movs r5, #{pixels}", "vmov.i16 q0, #0")
    if channels < 8:
        asm(f"movs r6, #{channels}", "vctp.16 r6")
    asm("2:", *(("vpst", "vldrbt.s16 q1, [r4]") if channels < 8 else ("vldrb.s16 q1, [r4]",)))
    asm("add r4, r2", "vadd.i16 q0, q0, q1", "subs r5, #1", "bne 2b")
    asm("vmovlb.s16 q1, q0", "vmovlt.s16 q2, q0")
    asm("vmlas.s32 q1, q3, r3", "vmlas.s32 q2, q3, r3")
    first, second = form.narrowing
    asm(f"vqrshrnb.s32 q0, q1, #{first}", f"vqrshrnt.s32 q0, q2, #{first}")
    asm(f"vqrshrnb.s16 q0, q0, #{second}")
    clamp(asm, limits, "q0", "r12", "q1")
    if channels < 8:
        asm("vpst", "vstrbt.16 q0, [r1]")
    else:
        asm("vstrb.16 q0, [r1], #8", "adds r0, #8")


KERNELS = (AverageKernel(),)
