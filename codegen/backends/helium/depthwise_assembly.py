"""Assembly that interleaves inputs into a strip and computes its outputs (see `depthwise`)."""

from __future__ import annotations

from smelt.codegen.backends.helium.assembly import ACCUMULATORS, HeliumAssembly, braces
from smelt.codegen.backends.helium.depthwise_plan import LANES, ROW, Patches
from smelt.codegen.backends.helium.scaling import HeliumScaling, LaneGroup


def interleave_assembly(lanes: int) -> HeliumAssembly:
    """Return the body of the function that fills rows of a strip with `lanes` channels.

    Registers: r0: strip; r1: addresses of four columns; r2: bytes from row to row in each column;
    r3: number of rows; then r4-r7: inputs of the columns; r8-r11: bytes from row to row.
    """
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
    p: Patches, scaling: HeliumScaling, parts: tuple[LaneGroup, ...]
) -> HeliumAssembly:
    """Return the body of the function that computes all outputs of a strip.

    The function's arguments: strip, weights, sums (scratch), biases and scales, one pointer to the
    outputs for each column, number of rows to store, bytes from one row of outputs to the next.
    """
    asm = HeliumAssembly()
    asm.enter(arguments=True)
    lanes = sum(part.channels for part in parts)
    _dot_products(asm, p, lanes)
    asm.add("r1", "r7", -4 * lanes * p.sums, "r0")
    asm(f"ldr r3, {asm.argument(3)}")
    outputs = ("r5", "r7")[: p.across]
    asm.note("r3: biases and scales; q3: addresses of sums; r11: bytes to the next row's sums")
    asm.note(f"{', '.join(outputs)}: outputs; r10: bytes to the next outputs; r8: rows to store")
    scaling.prepare(asm)
    asm(f"ldr r10, {asm.argument(5 + p.across)}")
    asm.constant("r11", 4 * p.across)
    asm(f"ldr r8, {asm.argument(4 + p.across)}")
    constants = 0
    for part in parts:
        for i, register in enumerate(outputs):
            asm(f"ldr {register}, {asm.argument(4 + i)}")
            if part.first:
                asm(f"adds {register}, #{part.first}")
        _load_sum_addresses(asm, p, part)
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


def _load_sum_addresses(asm: HeliumAssembly, p: Patches, part: LaneGroup) -> None:
    """Load the addresses of the first sums of a group's channels into q3.

    Lane l gets the address for channel `part.first + l * part.vectors`.
    """
    asm("movs r4, #0", "vidup.u32 q3, r4, #1")
    asm.constant("r4", 4 * p.sums * part.vectors)
    asm("vmul.i32 q3, q3, r4")
    asm.add("r4", "r1", 4 * p.sums * part.first, "r6")
    asm("vadd.i32 q3, q3, r4")


def _sum_at(p: Patches, part: LaneGroup, vector: int, pixel: int) -> str:
    """Return the gather load of a vector's sums for output column `pixel`."""
    first = int(part.lanes[vector, 0]) - part.first
    return f"vldrw.u32 %s, [q3, #{4 * (p.sums * first + pixel)}]"


def _dot_products(asm: HeliumAssembly, p: Patches, lanes: int) -> None:
    """Store the sums of all channels at r7 and advance it to their end."""
    step = ROW * p.advance
    asm("mov r3, r1", "mov r7, r2")
    asm.note(f"q6: addresses of the 4 words of a channel's first patch, minus {step}")
    asm.note("r3: weights; r5: their end; r7: sums in scratch; r11: bytes to the next channel")
    asm("movs r4, #0", "vidup.u32 q6, r4, #8", "vshl.i32 q6, q6, #3")
    asm.add("r4", "r0", -step, "r6")
    asm("vadd.i32 q6, q6, r4", "movs r11, #4")
    asm.add("r5", "r3", 4 * p.record * lanes, "r6")
    unrolled = len(ACCUMULATORS) // p.outputs
    iterations, left = divmod(p.patches, unrolled)
    asm("3:")
    weights = {
        1: "q0: weights",
        2: "q0, q1: weights, shifted for each output",
        4: "q0-q3: weights, shifted for each output",
    }
    asm.note(f"{weights[p.outputs]}; q7: addresses of the previous patch")
    for j, shift in enumerate(p.shifts):
        asm(f"vldrb.8 q{j}, [r3, #{p.lead - shift}]")
    asm(f"adds r3, #{4 * p.record}", "vmov q7, q6", "vadd.i32 q6, q6, r11")
    if iterations > 1:
        asm(f"movs r9, #{iterations}", "2:")
    if iterations:
        _patch_sums(asm, p, unrolled, step)
    if iterations > 1:
        asm("subs r9, #1", "bne 2b")
    if left:
        _patch_sums(asm, p, left, step)
    asm("cmp r3, r5", "bne.w 3b")


def _patch_sums(asm: HeliumAssembly, p: Patches, count: int, step: int) -> None:
    """Compute and store the sums of `count` patches that are `step` bytes apart."""
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
