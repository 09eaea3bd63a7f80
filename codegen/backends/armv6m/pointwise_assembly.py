"""Armv6-M assembly: a block of pixels of any 1x1 convolution (`halfword_pointwise`)."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.armv6m.assembly import clamp, load_row, scale
from smelt.codegen.backends.armv6m.convolution_assembly import (
    block_cost,
    group,
    group_instructions,
    unexecuted,
)
from smelt.codegen.backends.armv6m.instructions import Armv6m
from smelt.codegen.lower.assembly_builder import Label
from smelt.codegen.lower.halfword_pointwise import (
    BlockCost,
    Chain,
    PointwiseBlock,
    PointwiseSums,
)
from smelt.codegen.lower.registers import (
    PC,
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
)
from smelt.codegen.lower.requantization_32bit import ShortScaling
from smelt.codegen.lower.tap_groups import BlockSums

_PATCH, _DISTANCE, _ROW, _CHANNEL, _LAYER = 16, 20, 24, 28, 32
"""Offsets on the stack, after the addresses of the pixels' outputs."""

_OUTPUTS, _START, _STEP, _DROP, _SHIFT, _END, _JUMPS = (_LAYER + 4 * i for i in range(7))
"""Offsets of the copied fields of the struct."""

_MOST_CHAINS = 6
_FRAME = _JUMPS + 4 * _MOST_CHAINS

_SAVED, _AHEAD, _APART = 36, 4, 8
"""Bytes of saved registers; of pc ahead of an instruction; from one weight to the next."""

_COPIED = (R0, R1, R2, R5, R6, R7)
"""Registers through which the struct is copied."""

_BLOCK_END = 2
"""Instructions after each eighth channel only."""

_REGISTERS = """\
r0: next inputs; r1: distance from r0 to the next weight; r2: weight; r4, r5: inputs
r6, r7: sums of a group of taps; r8, r9: totals of words
r3, r11: totals of upper halves; r12: 2^15 (rounding)
Stack: addresses of the pixels' outputs, `patch`, distance to the channel's weights,
next row of constants, channel; of `layer`: from `outputs` on"""


@dataclass(frozen=True)
class _CodeOffsets:
    """Positions in the code.

    Attributes:
        first: The first chain.
        links: The jump into the first chain, and those behind all chains but the last.
        ends: The ends of the groups of each chain.
        outputs: The requantization.
        last: The return.
    """

    first: int
    links: tuple[int, ...]
    ends: tuple[int, ...]
    outputs: int
    last: int


def pointwise(sums: PointwiseSums, groups: tuple[int, ...], own: BlockSums) -> PointwiseBlock:
    """Return the function for `sums`, and the numbers and costs of a layer."""
    a, offsets = _code(sums)
    numbers = {
        "start": -(sum(groups) << 15),
        "step": _APART * (own.taps.length - 1),
        "drop": own.scaling.drop,
        "shift": own.scaling.shift,
        "end": _APART * sums.chains[0].size * groups[0],
    }
    numbers |= {f"jump{i}": jump for i, jump in enumerate(_jumps(sums, groups, offsets))}
    once = (offsets.first - 2 + a.size - offsets.last) // 2
    channel = (offsets.last - offsets.outputs) // 2 - unexecuted(own.scaling) - _BLOCK_END
    for i, (n, chain) in enumerate(zip(groups, sums.chains, strict=True)):
        iterations = -(-n // chain.length) if chain.looped else 0
        linked = n > 0 and i + 1 < len(sums.chains)
        channel += n * group_instructions(chain.size, 2) + 2 * linked + 4 * iterations
    return PointwiseBlock(a.text, numbers, BlockCost(once, channel, a.size), block_cost(own))


def _jumps(sums: PointwiseSums, groups: tuple[int, ...], offsets: _CodeOffsets) -> list[int]:
    """Return the distance of each jump, 0 for those that are not reached."""
    jumps, link = [0] * _MOST_CHAINS, 0
    for i, (n, chain) in enumerate(zip(groups, sums.chains, strict=True)):
        if n:
            entered = (n - 1) % chain.length + 1
            entry = offsets.ends[i] - entered * 2 * group_instructions(chain.size, 2)
            jumps[link] = entry - offsets.links[link] - _AHEAD
            link = i + 1
    if link < len(sums.chains):
        jumps[link] = offsets.outputs - offsets.links[link] - _AHEAD
    return jumps


def _code(sums: PointwiseSums) -> tuple[Armv6m, _CodeOffsets]:
    """Return the code of the function."""
    a, links, ends = Armv6m(), list[int](), list[int]()
    channel, last, same_block = Label(1), Label(5), Label(4)
    a.describe(_REGISTERS)
    with a.function(_FRAME):
        _prologue(a, sums)
        a.bl(channel, "a jump: the range of b is too short, and lr is free")
        first = a.size
        for i, chain in enumerate(sums.chains):
            ends.append(_chain(a, chain))
            if i + 1 < len(sums.chains):
                links.append(_jump(a, i + 1))
        outputs = a.size
        _outputs(a, sums.scaling)
        a.adds(R1, 1).str_(R1, SP, _CHANNEL)
        a.ldr(R2, SP, _OUTPUTS).cmp(R1, R2).b(last, "eq")
        a.lsls(R3, R1, 29)  # 0 if a block of eight channels' weights ends
        a.ldr(R1, SP, _DISTANCE).b(same_block, "ne")
        a.ldr(R3, SP, _STEP).adds(R1, R1, R3)
        a.place(same_block)
        a.adds(R1, 1).str_(R1, SP, _DISTANCE)
        a.comment(
            "Next channel. r9 starts at -(rounding constant * groups), which cancels the roundings."
        )
        a.place(channel)
        a.ldr(R0, SP, _PATCH)
        a.ldr(R2, SP, _START).mov(R9, R2)
        a.movs(R3, 0).mov(R8, R3).mov(R11, R3)
        links.insert(0, _jump(a, 0))
        a.place(last)
        end = a.size
    return a, _CodeOffsets(first, tuple(links), tuple(ends), outputs, end)


def _prologue(a: Armv6m, sums: PointwiseSums) -> None:
    """Store arguments and the struct on the stack; leaves the distance to the weights in r1."""
    a.subs(R1, R1, R0).movs(R5, 0)
    for number, at in ((R0, _PATCH), (R1, _DISTANCE), (R2, _ROW), (R5, _CHANNEL)):
        a.str_(number, SP, at)
    a.mov(R4, SP).adds(R4, _FRAME + _SAVED).ldr(R4, R4, 0)
    a.adds(R4, 4 * sums.first_field).ldr(R5, R4, 0)
    for pixel in range(4):
        if pixel:
            a.adds(R3, R3, R5)
        a.str_(R3, SP, 4 * pixel)
    a.mov(R3, SP).adds(R3, _LAYER)
    for _ in range((_FRAME - _LAYER) // 4 // len(_COPIED)):
        a.ldmia(R4, _COPIED).stmia(R3, _COPIED)
    if sums.chains[0].looped:
        a.ldr(R0, SP, _PATCH).ldr(R2, SP, _END).adds(R0, R0, R2).str_(R0, SP, _END)
    a.constant(R2, 1 << 15).mov(R12, R2).ldr(R1, SP, _DISTANCE)


def _chain(a: Armv6m, chain: Chain) -> int:
    """Add the products of a chain; returns where its groups end."""
    loop, done = a.here(2), Label(3)
    with a.repeat(chain.length):
        group(a, chain.size, 2)
    end = a.size
    if chain.looped:
        a.ldr(R2, SP, _END).cmp(R0, R2).b(done, "eq")
        a.b(loop)
        a.place(done)
    return end


def _jump(a: Armv6m, number: int) -> int:
    """Append a jump by the distance that field `number` contains; return where the jump is."""
    a.ldr(R2, SP, _JUMPS + 4 * number)
    at = a.size
    a.add(PC, R2)
    return at


def _outputs(a: Armv6m, s: ShortScaling) -> None:
    """Store the outputs of the channel; leaves the channel's index in r1."""
    a.comment("Sums of the first two pixels: r4, r8. r0, r6: shifts.")
    a.lsls(R2, R3, 16).mov(R4, R8).subs(R4, R4, R2).mov(R8, R3)
    a.ldr(R2, SP, _ROW)
    load_row(a, s, ())
    a.str_(R2, SP, _ROW)
    a.ldr(R0, SP, _SHIFT).ldr(R1, SP, _CHANNEL)
    if s.count > 1:
        a.ldr(R6, SP, _DROP)
    _store(a, s, 0)
    a.mov(R4, R8)
    _store(a, s, 1)
    a.mov(R3, R11).lsls(R2, R3, 16).mov(R4, R9).subs(R4, R4, R2)
    _store(a, s, 2)
    a.mov(R4, R11)
    _store(a, s, 3)


def _store(a: Armv6m, s: ShortScaling, pixel: int) -> None:
    """Store the output of the sum in r4."""
    scale(a, s, R6)
    a.asrs(R4, R0)
    clamp(a, s, R4)
    a.ldr(R2, SP, 4 * pixel).strb(R4, R2, R1)
