"""Armv7-M assembly: all output channels of a block of packed pixels (`halfword_convolution`)."""

from __future__ import annotations

from itertools import accumulate

from smelt.codegen.backends.armv7m.assembly import load_row, requantize
from smelt.codegen.backends.armv7m.instructions import Armv7m, asr, lsl
from smelt.codegen.lower.registers import (
    LR,
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
    R11,
    R12,
    SP,
)
from smelt.codegen.lower.tap_groups import STATE_BYTES, BlockSums, GroupLoop

_PATCH, _ROW, _CHANNEL, _TOTALS, _ENDS = 16, 20, 24, 28, 32
"""Offsets on the stack, after the addresses of the pixels' outputs."""

_REGISTERS = """\
r0: next inputs; r1: next weight; r2-r5: inputs; r6: weight
r7, r8: sums of a group of taps; r9, r10: totals of words
r11, r12: totals of upper halves; lr: 2^15 (rounding)
Stack: addresses of the pixels' outputs, `patch`, next row of constants, channel,
%s, ends of the loops over taps"""


def block(sums: BlockSums) -> Armv7m:
    """Return the code of the function."""
    a, four, state, taps = Armv7m(), sums.words == 2, sums.state, sums.taps
    ends = accumulate(s.taps * s.iterations * 4 * sums.words for s in taps.group_loops)
    loops = [end for end, s in zip(ends, taps.group_loops, strict=True) if s.iterations > 1]
    parts = [part << 15 for part in (taps.groups & 255, taps.groups & ~255) if part]
    fresh = not state and taps.group_loops[0].iterations == 1
    a.describe(_REGISTERS % ("address of the totals of earlier slices" if state else "unused"))
    with a.function(36 + 4 * (len(loops) // 2 * 2)):
        if sums.ends:
            pixels = (R4, R5, R6, R7)[: 2 * sums.words]
            a.ldm(R3, pixels)
            a.stm(SP, pixels)
        a.movs(R3, 0)
        for number, at in ((R0, _PATCH), (R2, _ROW), (R3, _CHANNEL)):
            a.str_(number, SP, at)
        for i, end in enumerate(loops):
            a.movw(R4, end).add(R4, R4, R0).str_(R4, SP, _ENDS + 4 * i)
        if state:
            a.sub(R4, R0, STATE_BYTES * sums.outputs).str_(R4, SP, _TOTALS)
        a.mov(LR, 1 << 15)
        a.comment("Next channel. Totals of words: the roundings of all groups are subtracted.")
        channel = a.here(1)
        a.ldr(R0, SP, _PATCH)
        if state:
            a.ldr(R2, SP, _TOTALS)
            a.ldm(R2, [R9, R10, R11, R12])
        elif not fresh:
            for total in (R9, R11, R10, R12) if four else (R9, R11):
                a.mov(total, 0)
        _products(a, sums, parts[0] if fresh else 0)
        for part in parts[1 if fresh else 0 :]:
            for total in (R9, R10) if four else (R9,):
                a.sub(total, total, part)
        if sums.ends:
            _outputs(a, sums)
        else:
            a.ldr(R2, SP, _TOTALS)
            a.stm(R2, [R9, R10, R11, R12])
            a.ldr(R0, SP, _CHANNEL)
        if state:
            a.ldr(R2, SP, _TOTALS).adds(R2, STATE_BYTES).str_(R2, SP, _TOTALS)
        a.adds(R0, 1).str_(R0, SP, _CHANNEL)
        if sums.outputs < 256:
            a.cmp(R0, sums.outputs)
        else:
            a.movw(R2, sums.outputs).cmp(R0, R2)
        a.b(channel, "ne")
    return a


def _products(a: Armv7m, sums: BlockSums, rounding: int) -> None:
    """Add the sums of all groups to the totals.

    If `rounding` is not 0, the first group sets the totals instead, with `rounding` subtracted.
    """
    at = _ENDS
    for i, group_loop in enumerate(sums.taps.group_loops):
        if group_loop.iterations == 1:
            _append_groups(a, group_loop, sums.words, 0 if i else rounding)
            continue
        iteration = a.here(2)
        _append_groups(a, group_loop, sums.words, 0)
        a.ldr(R6, SP, at)
        at += 4
        a.cmp(R0, R6).b(iteration, "ne")


def _append_groups(a: Armv7m, group_loop: GroupLoop, words: int, rounding: int) -> None:
    """Append one iteration of a loop, in periods of whole loads of inputs."""
    loaded, size = 4 // words, group_loop.groups[0]
    period, periods = group_loop.period(loaded), group_loop.periods(loaded)
    # A first group that sets the totals differs from the others, so its period is not repeated.
    separate = period if rounding and periods else 0
    repeated = periods - 1 if separate else periods
    for i in range(separate):
        _group(a, i * size, size, period * size, words, 0 if i else rounding)
    if repeated:
        with a.repeat(repeated):
            for i in range(period):
                _group(a, i * size, size, period * size, words, 0)
    for i in range(separate + repeated * period, len(group_loop.groups)):
        _group(a, i * size, size, group_loop.taps, words, 0 if i else rounding)


def _group(a: Armv7m, first: int, size: int, last: int, words: int, rounding: int) -> None:
    """Sum a group of taps in r7 and r8 and add that to the totals; with `rounding`, set them."""
    loads, sums = 4 // words, (R7, R8)[:words]
    for tap in range(first, first + size):
        at = tap % loads
        if not at:
            a.ldmia(R0, (R2, R3, R4, R5)[: words * min(last - tap, loads)])
        a.ldrsb_then(R6, R1, 1)
        for total, x in zip(sums, (R2, R3, R4, R5)[at * words :], strict=False):
            a.mla(total, x, R6, LR if tap == first else total)
    for total, word, upper in zip(sums, (R9, R10), (R11, R12), strict=False):
        if rounding:
            a.sub(word, total, rounding).asr(upper, total, 16)
        else:
            a.add(word, word, total).add(upper, upper, asr(total, 16))


def _outputs(a: Armv7m, sums: BlockSums) -> None:
    """Store the outputs of the channel; leaves the channel's index in r0."""
    s, totals = sums.scaling, (R9, R11, R10, R12)[: 2 * sums.words]
    a.comment(f"Sums of the pixels: {', '.join(map(str, totals))}.")
    for word, upper in ((R9, R11), (R10, R12))[: sums.words]:
        a.sub(word, word, lsl(upper, 16))
    a.ldr(R2, SP, _ROW)
    a.ldr(R0, SP, _CHANNEL)
    load_row(a, s, sorted(totals, key=lambda register: register.number))
    a.str_(R2, SP, _ROW)
    for pixel, total in enumerate(totals):
        requantize(a, s, total)
        a.ldr(R2, SP, 4 * pixel).strb(R3, R2, R0)
