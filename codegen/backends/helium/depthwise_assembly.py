"""Assembly that interleaves inputs into a strip and computes its outputs (see `depthwise`).

Three functions compute a strip: the first interleaves and jumps to the second one, which sums and
jumps to the third, which scales and stores. Only the first one saves registers, and only the third
one restores them. All are given the address of the strip's arguments in r0.
"""

from __future__ import annotations

from smelt.codegen.backends.helium.assembly import ACCUMULATORS, HeliumAssembly, braces
from smelt.codegen.backends.helium.depthwise_plan import ROW, Patches
from smelt.codegen.backends.helium.scaling import (
    CONSTANT,
    HIGH,
    LOW,
    ONE,
    HeliumScaling,
    LaneGroup,
)

SIZES = ("rows", "pitch", "channels", "left", "zero", "low", "high")
"""The first fields of the struct of a layer's sizes; see `backends/helium/strip.j2`."""

_INSIDE, _ITERATIONS, _LANES, _SUMS, _SUM, _STORE, _SCALE = 32, 40, 52, 56, 64, 68, 72
"""Offsets in the struct of a strip's arguments; see `backends/helium/strip.j2`."""


def interleave_assembly(*, whole: bool) -> HeliumAssembly:
    """Return the body of the function that fills rows of a strip, with 16 channels if `whole`."""
    asm = HeliumAssembly()
    asm.enter(arguments=1)
    asm.note("r2: strip; r3: rows; r4-r7: inputs of the columns; r8-r11: bytes from row to row")
    asm("ldm r0, {r4-r11}", f"ldrd r2, r3, [r0, #{_INSIDE}]")
    if not whole:
        asm(f"ldr r1, [r0, #{_LANES}]", "vctp.8 r1")
    asm("wls lr, r3, 2f", "1:")
    if whole:
        asm(*(f"vldrb.8 q{i}, [r{4 + i}]" for i in range(4)))
    else:
        asm("vpstttt", *(f"vldrbt.u8 q{i}, [r{4 + i}]" for i in range(4)))
    for i in range(4):
        asm(f"add r{4 + i}, r{8 + i}")
        asm(f"vst4{i}.8 {{q0, q1, q2, q3}}, [r2]" + ("!" if i == 3 else ""))
    asm("le lr, 1b", "2:", f"ldr pc, [r0, #{_SUM}]")
    return asm


def stop_assembly() -> HeliumAssembly:
    """Return the body of the function that ends after a strip's first rows."""
    asm = HeliumAssembly()
    asm.saved(arguments=1)
    asm.leave()
    return asm


def sums_assembly(p: Patches) -> HeliumAssembly:
    """Return the body of the function that computes the sums of a strip's channels."""
    asm, step = HeliumAssembly(), ROW * p.advance
    asm.saved(arguments=1)
    asm.note(f"q7: addresses of the 4 words of a patch, minus {step}; r3: weights; r5: their end")
    asm.note("r7: sums; r11: bytes from a channel's last patch to the first one of the next")
    if p.iterations:
        asm.note("r1: iterations of the loop over patches; r9: iterations left")
    asm(f"adds r0, #{_ITERATIONS}", "ldm r0, {r1-r4, r7, r11}", f"movs r5, #{4 * p.record}")
    asm("mla r5, r4, r5, r3", "movs r4, #0", "vidup.u32 q7, r4, #8", "vshl.i32 q7, q7, #3")
    asm(f"subs r2, #{step}", "vadd.i32 q7, q7, r2")
    weights = {
        1: "q0: weights",
        2: "q0, q1: weights, shifted for each output",
        4: "q0-q3: weights, shifted for each output",
    }
    asm.note(weights[p.outputs])
    asm("3:")
    with asm.overlapping():
        # Loads overlap with other instructions between them, so r3 advances before several loads.
        advance, ahead = f"adds r3, #{4 * p.record}", 4 * p.record if p.outputs > 1 else 0
        asm(*((advance,) if ahead else ()))
        for j, shift in enumerate(p.shifts):
            asm(f"vldrb.8 q{j}, [r3, #{p.lead - shift - ahead}]")
        asm(*(() if ahead else (advance,)))
        if p.iterations:
            asm("mov r9, r1")
    if p.iterations:
        asm("2:")
        _patch_sums(asm, p, p.unrolled, step, "subs r9, #1")
        asm("bne 2b")
    if p.left:
        _patch_sums(asm, p, p.left, step, "cmp r3, r5")
    asm("vadd.i32 q7, q7, r11", *(() if p.left else ("cmp r3, r5",)), "bne 3b")
    asm(f"ldr r0, {asm.argument(0)}", f"ldr pc, [r0, #{_STORE}]")
    return asm


def _patch_sums(asm: HeliumAssembly, p: Patches, count: int, step: int, compare: str) -> None:
    """Compute and store the sums of `count` patches that are `step` bytes apart, and `compare`."""
    used = ACCUMULATORS[: count * p.outputs]
    with asm.overlapping():
        for i in range(count):
            asm(f"vldrw.u32 q{4 + i % 2}, [q7, #{step}]!")
            for j in range(p.outputs):
                asm(f"vmladav.s8 {used[i * p.outputs + j]}, q{j}, q{4 + i % 2}")
        asm(compare)
    if len(used) == 1:
        asm(f"str {used[0]}, [r7], #4")
    else:
        asm(f"stm r7!, {braces(used)}")


def outputs_assembly(
    across: int, scaling: HeliumScaling, parts: tuple[LaneGroup, ...], *, exact: bool, counted: bool
) -> HeliumAssembly:
    """Return the body of the function that scales and stores the sums of a strip.

    If the channels are not `exact`, the last part has as many as the layer's sizes say, or the
    strip's arguments if it is `counted`.
    """
    asm = HeliumAssembly()
    asm.saved(arguments=1)
    asm.note("r3: biases and scales; q3: addresses of sums; r11: bytes to the next row's sums")
    outputs, constant = ("r5", "r7")[:across], "128" if scaling.unsigned else "zero point"
    asm.note(f"{', '.join(outputs)}: outputs; r10: bytes to the next row; {CONSTANT}: {constant}")
    asm(f"adds r0, #{_SCALE}", "ldm r0, {r3-r5, r11}", f"ldr r6, [r0, #{_SUMS - _SCALE}]")
    if counted:
        asm.note("r1: number of channels")
        asm(f"ldr r1, [r0, #{_LANES - _SCALE}]")
    asm(f"mov {ONE}, #1", f"ldr r10, {_size('pitch')}")
    asm(f"mov {CONSTANT}, #128" if scaling.unsigned else f"ldr {CONSTANT}, {_size('zero')}")
    for clamped, register, name in zip(scaling.clamps, (LOW, HIGH), ("low", "high"), strict=True):
        if clamped:
            asm(f"ldr {register}, {_size(name)}")
    for i, part in enumerate(parts):
        if i:
            before = 16 * scaling.fields * parts[i - 1].vectors
            asm(
                f"ldr r6, {asm.argument(0)}", f"add r3, #{before}", f"ldr r11, [r6, #{_SCALE + 12}]"
            )
            asm(f"ldrd r4, r5, [r6, #{_SCALE + 4}]", f"ldr r6, [r6, #{_SUMS}]")
        predicated = not exact and part is parts[-1]
        _start(asm, across, part, left=predicated and not counted)
        if counted:
            asm(f"vctp.{part.size} r1")
        _rows(asm, scaling, part, outputs, predicated=predicated, counted=counted)
    asm.leave()
    return asm


def _size(name: str) -> str:
    """Return the address operand of a field of the layer's sizes; r11 points to them."""
    at = 4 * SIZES.index(name)
    return f"[r11, #{at}]" if at else "[r11]"


def _start(asm: HeliumAssembly, across: int, part: LaneGroup, *, left: bool) -> None:
    """Load the registers of a group of channels, and their number if the layer's sizes contain it.

    Before, r4 is the number of a channel's sums, and r6 points to all sums. Then q3 holds the
    addresses of the first sums: lane l that of channel `part.first + l * part.vectors`. See `_at`
    for r4, r6 and r8.
    """
    if part.first:
        asm(f"adds r5, #{part.first}")
    if across == 2:
        asm(f"ldr r7, {_size('channels')}", "add r7, r5")
    asm(f"ldr lr, {_size('rows')}")
    if left:
        asm.note("r1: number of channels")
        asm(f"ldr r1, {_size('left')}", *((f"subs r1, #{part.first}",) if part.first else ()))
    asm("lsls r4, #2")
    if part.first:
        asm(f"mov r8, #{part.first}", "mla r6, r4, r8, r6")
    asm("mov r8, #0", "vidup.u32 q3, r8, #1")
    factor = "r4" if part.vectors == 1 else "r8"
    if part.vectors > 1:
        asm(f"lsl r8, r4, #{part.vectors // 2}")
    asm(f"vmul.i32 q3, q3, {factor}", "vadd.i32 q3, q3, r6")
    if part.vectors == 4:
        asm("mov r8, r4", "lsls r4, #1", "adds r6, r4, #4" if across == 2 else "add r6, r4, r8")
    elif part.vectors == 2 == across:
        asm("adds r6, r4, #4")
    asm("rsb r11, r8, #8" if across == 2 and part.vectors == 4 else f"movs r11, #{4 * across}")


def _at(across: int, part: LaneGroup, v: int, p: int) -> str:
    """Return the address operand of the sums of vector `v` and column `p`.

    For two vectors, r4 is the distance of the second, and r6 that of its second column. For four
    vectors of one column, r4, r8 and r6 are the distances of the others. For four vectors of two
    columns, q3 advances by r8 after two; r4 and r6 are as for two.
    """
    if part.vectors == 4 and across == 1:
        distance = ("", "r4", "r8", "r6")[v]
    else:
        distance = ("", "r6" if p else "r4")[v % 2]
    if distance:
        return f"[{distance}, q3]"
    return f"[q3, #{4 * p}]" if p else "[q3]"


def _rows(
    asm: HeliumAssembly,
    scaling: HeliumScaling,
    part: LaneGroup,
    outputs: tuple[str, ...],
    *,
    predicated: bool,
    counted: bool,
) -> None:
    """Scale and store a group's rows of outputs; if `counted`, the predicate is set already."""
    count = len(outputs)

    def load(v: int, p: int) -> str:
        if v == 2 == count and not p:
            asm("vadd.i32 q3, q3, r8")
        return f"vldrw.u32 %s, {_at(count, part, v, p)}"

    def constants(k: int) -> str:
        return f"[r3, #{16 * k}]" if k else "[r3]"

    asm("dls lr, lr", "1:")
    with asm.overlapping():
        results = scaling.outputs(asm, part.vectors, load, constants, count, "q2")
        asm("vadd.i32 q3, q3, r11")
        if not predicated:
            _store(asm, part, results, outputs, "")
    if predicated:
        asm(*(() if counted else (f"vctp.{part.size} r1",)), "vps" + "t" * count)
        _store(asm, part, results, outputs, "t")
    asm("le lr, 1b")


def _store(
    asm: HeliumAssembly,
    part: LaneGroup,
    results: tuple[str, ...],
    outputs: tuple[str, ...],
    then: str,
) -> None:
    """Store the outputs of a row, and advance to the next; `then` is "t" if predicated."""
    asm(*(f"vstrb{then}.{part.size} {q}, [{r}]" for q, r in zip(results, outputs, strict=True)))
    asm(*(f"add {register}, r10" for register in outputs))
