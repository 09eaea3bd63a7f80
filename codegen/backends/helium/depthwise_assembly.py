"""Assembly that interleaves inputs into strips and computes their outputs (see `depthwise`)."""

from __future__ import annotations

from smelt.codegen.backends.helium.assembly import ACCUMULATORS, HeliumAssembly, braces
from smelt.codegen.backends.helium.convolution_plan import Geometry
from smelt.codegen.backends.helium.depthwise_plan import LANES, ROW, Patches
from smelt.codegen.backends.helium.scaling import HeliumScaling, LaneGroup


def interleave_assembly(lanes: int) -> HeliumAssembly:
    """Fills rows of a strip: r0 strip, r1 addresses of four columns, r2 their pitches, r3 rows."""
    asm = HeliumAssembly()
    asm("push {r4-r11, lr}", "ldm r1, {r4-r7}", "ldm r2, {r8-r11}")
    if lanes < LANES:
        asm(f"movs r1, #{lanes}", "vctp.8 r1")
    asm("dls lr, r3", "1:")
    if lanes < LANES:
        asm("vpstttt", *(f"vldrbt.u8 q{i}, [r{4 + i}]" for i in range(4)))
    else:
        asm(*(f"vldrb.8 q{i}, [r{4 + i}]" for i in range(4)))
    for i in range(4):
        asm(f"add r{4 + i}, r{8 + i}")
        asm(f"vst4{i}.8 {{q0, q1, q2, q3}}, [r0]" + ("!" if i == 3 else ""))
    asm("le lr, 1b", "pop {r4-r11, pc}")
    return asm


def strip_assembly(
    g: Geometry, p: Patches, scaling: HeliumScaling, parts: tuple[LaneGroup, ...]
) -> HeliumAssembly:
    """All outputs of a strip.

    Arguments: strip, weights, sums, scales; outputs (one pointer for each column), rows to store.
    """
    asm = HeliumAssembly()
    asm.enter()
    lanes = sum(part.channels for part in parts)
    _dots(asm, p, lanes)
    asm.add("r1", "r7", -4 * lanes * p.sums, "r0")
    asm(f"ldr r3, {asm.argument(3)}")
    asm.note("r3: biases and scales; q3: sums, r11 bytes apart; r5, r7: outputs, r10 bytes apart")
    scaling.prepare(asm)
    pitch = g.channels if p.line else g.output[1] * g.channels
    asm.constant("r10", pitch)
    asm.constant("r11", 4 * p.across)
    asm(f"ldr r8, {asm.argument(4 + p.across)}")
    outputs = ("r5", "r7")[: p.across]
    constants = 0
    for part in parts:
        for i, register in enumerate(outputs):
            asm(f"ldr {register}, {asm.argument(4 + i)}")
            if part.first:
                asm(f"adds {register}, #{part.first}")
        _addresses(asm, p, part)
        asm("dls lr, r8", "1:")
        scaling.group(
            asm,
            part,
            lambda v, i, part=part: _sum_at(p, part, v, i),
            lambda k, base=constants: f"[r3, #{base + 16 * k}]",
            tuple(f"[{register}]" for register in outputs),
        )
        asm("vadd.i32 q3, q3, r11", *(f"add {register}, r10" for register in outputs))
        asm("le lr, 1b")
        constants += 16 * scaling.fields * part.vectors
    asm.leave()
    return asm


def _addresses(asm: HeliumAssembly, p: Patches, part: LaneGroup) -> None:
    """q3: where the first sums of the channels in a vector stand."""
    asm("movs r4, #0", "vidup.u32 q3, r4, #1")
    asm.constant("r4", 4 * p.sums * part.vectors)
    asm("vmul.i32 q3, q3, r4")
    asm.add("r4", "r1", 4 * p.sums * part.first, "r6")
    asm("vadd.i32 q3, q3, r4")


def _sum_at(p: Patches, part: LaneGroup, vector: int, pixel: int) -> str:
    first = int(part.lanes[vector, 0]) - part.first
    return f"vldrw.u32 %s, [q3, #{4 * (p.sums * first + pixel)}]"


def _dots(asm: HeliumAssembly, p: Patches, lanes: int) -> None:
    """Sums of all channels to r7, advanced."""
    step = ROW * p.advance
    asm("mov r3, r1", "mov r7, r2")
    asm.note(
        "q6: where a channel's first patch stands, less a step; r3: weights up to r5; r7: sums"
    )
    asm("movs r4, #0", "vidup.u32 q6, r4, #8", "vshl.i32 q6, q6, #3")
    asm.add("r4", "r0", -step, "r6")
    asm("vadd.i32 q6, q6, r4", "movs r11, #4")
    asm.add("r5", "r3", 4 * p.record * lanes, "r6")
    each = len(ACCUMULATORS) // p.outputs
    turns, left = divmod(p.patches, each)
    asm("3:")
    asm.note("q0 ... q3: weights for each output; q7: the patch before")
    for j, shift in enumerate(p.shifts):
        asm(f"vldrb.8 q{j}, [r3, #{p.lead - shift}]")
    asm(f"adds r3, #{4 * p.record}", "vmov q7, q6", "vadd.i32 q6, q6, r11")
    if turns > 1:
        asm(f"movs r9, #{turns}", "2:")
    if turns:
        _patch_sums(asm, p, each, step)
    if turns > 1:
        asm("subs r9, #1", "bne 2b")
    if left:
        _patch_sums(asm, p, left, step)
    asm("cmp r3, r5", "bne.w 3b")


def _patch_sums(asm: HeliumAssembly, p: Patches, count: int, step: int) -> None:
    used = ACCUMULATORS[: count * p.outputs]
    with asm.overlapping():
        for i in range(count):
            asm(f"vldrw.u32 q{4 + i % 2}, [q7, #{step}]!")
            for j in range(p.outputs):
                asm(f"vmladav.s8 {used[i * p.outputs + j]}, q{j}, q{4 + i % 2}")
    if len(used) == 1:
        asm(f"str {used[0]}, [r7], #4")
    else:
        asm(f"stm r7!, {braces(used)}")
