"""Armv6-M assembly: all output channels of a block of packed pixels (`halfword_convolution`)."""

from __future__ import annotations

from smelt.codegen.backends.armv6m.assembly import load_row, requantize
from smelt.codegen.backends.armv6m.instructions import SAVED_BYTES, Armv6m
from smelt.codegen.lower.assembly_builder import Label
from smelt.codegen.lower.halfword_pointwise import BlockCost
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
    R11,
    R12,
    SP,
    Low,
)
from smelt.codegen.lower.requantization_32bit import ShortScaling
from smelt.codegen.lower.tap_groups import LAYER_NUMBERS, STATE_BYTES, BlockSums

_PATCH, _DISTANCE, _ROW, _CHANNEL, _TOTALS, _ROOM = 16, 20, 24, 28, 32, 36
"""Offsets on the stack, after the addresses of the pixels' outputs."""

_LAYER = {field: _TOTALS + 4 * i for i, field in enumerate(LAYER_NUMBERS)}
"""Offsets on the stack of copied fields of the struct; such functions have no earlier totals."""

_LAYER_ROOM = _TOTALS + 4 * len(LAYER_NUMBERS)
"""Bytes on the stack with these fields."""

_COPIED = (R0, R1, R2, R5)
"""Registers through which the fields are copied."""

_ONCE = 28
"""Instructions for each block of pixels."""

_REGISTERS = """\
r0: next inputs; r1: distance from r0 to the next weight; r2: weight; r4, r5: inputs
r6, r7: sums of a group of taps; r8, r9: totals of words
r3, r11: totals of upper halves; r12: 2^15 (rounding); lr: end of the loop over taps
Stack: addresses of the pixels' outputs, `patch`, distance to the channel's weights,
next row of constants, channel%s"""


def block_cost(sums: BlockSums) -> BlockCost:
    """Return the cost of the function for a window in one slice."""
    a, once, each = block(sums), 0, 0
    for group_loop in sums.taps.group_loops:
        groups = len(group_loop.groups) * group_instructions(group_loop.groups[0], sums.words)
        once += groups
        each += groups * group_loop.iterations + 3 * (group_loop.iterations - 1)
    block_end = Armv6m().constant(R3, (sums.taps.length - 1) * 8).count + 1
    channel = a.count - once - _ONCE - unexecuted(sums.scaling) - block_end + each
    return BlockCost(_ONCE, channel, a.size)


def unexecuted(s: ShortScaling) -> int:
    """Return the instructions that a channel's outputs in a block skip, unless they saturate."""
    return 4 * (2 if s.span == 255 else 4)


def group_instructions(size: int, words: int) -> int:
    """Return the instructions for a group of taps."""
    return 6 * size + 5 if words == 2 else 4 * size + 2


def block(sums: BlockSums) -> Armv6m:
    """Return the code of the function."""
    taps, words, outputs, state = sums.taps, sums.words, sums.outputs, sums.state
    a, four, weight_stride = Armv6m(), words == 2, 4 * words
    a.describe(_REGISTERS % (", address of the totals of earlier slices" if state else ""))
    with a.function(_LAYER_ROOM if sums.layered else _ROOM, arguments=int(sums.layered)):
        if sums.ends:
            pixels = (R4, R5, R6, R7)[: 2 * words]
            a.ldmia(R3, pixels)
            for number, pixel in enumerate(pixels):
                a.str_(pixel, SP, 4 * number)
        a.subs(R1, R1, R0).movs(R3, 0)
        for number, at in ((R0, _PATCH), (R1, _DISTANCE), (R2, _ROW), (R3, _CHANNEL)):
            a.str_(number, SP, at)
        if sums.layered:
            _copy_numbers(a)
        if state:
            a.constant(R2, STATE_BYTES * outputs).subs(R0, R0, R2)
            a.str_(R0, SP, _TOTALS)
        if four:
            a.constant(R2, 1 << 15).mov(R12, R2)
        rounding = " r9 starts at -(rounding constant * groups), which cancels the roundings."
        a.comment(f"Next channel.{rounding if four else ''}")
        channel, last, same_block = a.here(1), Label(5), Label(4)
        a.ldr(R0, SP, _PATCH)
        a.ldr(R1, SP, _DISTANCE)
        if four:
            _number(a, sums, R2, "roundings")
        if state:
            a.ldr(R4, SP, _TOTALS)
            a.ldmia(R4, [R3, R5, R6, R7]).mov(R8, R5).mov(R11, R6).subs(R7, R7, R2)
            a.mov(R9, R7)
        else:
            a.movs(R3, 0).mov(R8, R3)
            if four:
                a.mov(R11, R3).negs(R2, R2).mov(R9, R2)
        _products(a, sums)
        if sums.ends:
            _outputs(a, sums)
        if sums.ends and state:
            a.ldr(R4, SP, _TOTALS).adds(R4, STATE_BYTES).str_(R4, SP, _TOTALS)
        if not sums.ends:
            a.ldr(R4, SP, _TOTALS).mov(R5, R8).mov(R6, R11).mov(R7, R9)
            a.stmia(R4, [R3, R5, R6, R7])
            a.str_(R4, SP, _TOTALS)
            a.ldr(R1, SP, _CHANNEL)
        a.adds(R1, 1).str_(R1, SP, _CHANNEL)
        a.ldr(R0, SP, _DISTANCE).adds(R0, 1)
        a.lsls(R3, R1, 33 - weight_stride.bit_length())  # 0 if a block of weights ends
        a.b(same_block, "ne")
        if sums.layered:
            a.ldr(R3, SP, _LAYER["length"]).subs(R3, weight_stride).adds(R0, R0, R3)
        else:
            a.constant(R3, (taps.length - 1) * weight_stride).adds(R0, R0, R3)
        a.place(same_block)
        a.str_(R0, SP, _DISTANCE)
        _number(a, sums, R2, "outputs")
        a.cmp(R1, R2).b(last, "eq")
        a.bl(channel, "a jump: the range of b is too short, and lr is free")
        a.place(last)
    return a


def _copy_numbers(a: Armv6m) -> None:
    """Copy fields of the struct to the stack."""
    a.ldr(R4, SP, _LAYER_ROOM + SAVED_BYTES)
    a.ldmia(R4, _COPIED)
    for register, at in zip(_COPIED, _LAYER.values(), strict=True):
        a.str_(register, SP, at)


def _number(a: Armv6m, sums: BlockSums, register: Low, field: str) -> None:
    """Load a number of the sums."""
    if sums.layered:
        a.ldr(register, SP, _LAYER[field])
    else:
        a.constant(register, sums.numbers[field])


def _products(a: Armv6m, sums: BlockSums) -> None:
    """Add the sums of all groups to the totals."""
    words = sums.words
    for group_loop in sums.taps.group_loops:
        loop, done = Label(2), Label(3)
        if group_loop.iterations > 1:
            if sums.layered:
                a.ldr(R2, SP, _LAYER["length"])
            else:
                a.constant(R2, group_loop.taps * group_loop.iterations * 4 * words)
            a.add(R2, R0).mov(LR, R2)
            a.place(loop)
        with a.repeat(len(group_loop.groups)):
            group(a, group_loop.groups[0], words)
        if group_loop.iterations > 1:
            a.cmp(R0, LR).b(done, "eq")
            a.b(loop)
            a.place(done)


def group(a: Armv6m, size: int, words: int) -> None:
    """Sum a group of taps in r6 and r7, and add that to the totals."""
    sums = (R6, R7)[:words]
    for tap in range(size):
        a.ldrsb(R2, R1, R0)
        products = (R4, R5)[:words] if tap else sums
        a.ldmia(R0, products)
        for total, product in zip(sums, products, strict=True):
            a.muls(product, R2)
            if tap:
                a.adds(total, total, product)
        if not tap and words == 2:
            a.add(R7, R12)
    a.add(R8, R6).asrs(R6, R6, 16).adcs(R3, R6)
    if words == 2:
        a.add(R9, R7).asrs(R7, R7, 16).add(R11, R7)


def _outputs(a: Armv6m, block: BlockSums) -> None:
    """Store the outputs of the channel; leaves the channel's index in r1."""
    s, words = block.scaling, block.words
    sums = (R4, R8, R9, R11)[: 2 * words]
    a.comment(f"Sums of the pixels: {', '.join(map(str, sums))}.")
    a.lsls(R2, R3, 16).mov(R4, R8).subs(R4, R4, R2).mov(R8, R3)
    if words == 2:
        a.mov(R3, R11).lsls(R2, R3, 16).mov(R5, R9).subs(R5, R5, R2).mov(R9, R5)
    a.ldr(R2, SP, _ROW)
    load_row(a, s, sums[1:], lift=_LAYER["lift"] if block.layered else None)
    a.str_(R2, SP, _ROW)
    a.ldr(R1, SP, _CHANNEL)
    for pixel, total in enumerate(sums):
        if pixel:
            a.mov(R4, total)
        requantize(a, s)
        a.ldr(R2, SP, 4 * pixel).strb(R3, R2, R1)
