"""Armv6-M assembly: one channel's plane of a depthwise convolution (`halfword_depthwise`)."""

from __future__ import annotations

from smelt.codegen.backends.armv6m.assembly import load_row, requantize
from smelt.codegen.backends.armv6m.instructions import SAVED_BYTES, Armv6m
from smelt.codegen.lower.assembly_builder import Label
from smelt.codegen.lower.content_cache import cached_by_content
from smelt.codegen.lower.depthwise_walk import PlaneWalk, WalkCode
from smelt.codegen.lower.registers import R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R11, R12, SP, Low
from smelt.codegen.lower.requantization_32bit import ShortScaling

_PAIRS, _APART, _LOWER, _OUTPUTS, _WALK = range(0, 20, 4)
"""Offsets on the stack."""

_REGISTERS = """\
r0: words under the window; r1: weights, then requantization constants
r2-r4: words, products; r5-r7: weights
r8: total of words; r9: total of upper halves; r11: outputs; r12: 2^15 (rounding)
Stack: pairs of outputs left in this row, %s,
outputs left along the other axis%s"""


@cached_by_content
def pairs(walk: PlaneWalk, s: ShortScaling, groups: tuple[int, ...]) -> WalkCode:
    """Return the code of the function; `groups` are the sizes of the groups of taps, by line."""
    a, p = Armv6m(), walk.plane
    code, line = WalkCode(a, walk), groups[: len(groups) // p.lines]
    odd = "distance between the outputs of a pair (0 for a last single one), lower sum"
    a.describe(
        _REGISTERS
        % (odd if walk.odd else "2 unused words", ", numbers of `layer`" if walk.read else "")
    )
    with a.function(_WALK + 4 * walk.read, arguments=1 if walk.read else 0):
        a.str_(R3, SP, _OUTPUTS)
        a.mov(R11, R2)
        if walk.read:
            _copy_numbers(a, walk.read)
        a.constant(R2, 1 << 15).mov(R12, R2)
        code.count()
        row, no_more_rows = a.here(1), Label(4)
        if walk.odd:
            _check_partner(a, walk)
        _load(a, walk, R2, "outputs")
        a.str_(R2, SP, _PAIRS)
        a.comment("Next pair of outputs.")
        code.count()
        pair, no_more_pairs = a.here(2), Label(3)
        for number in range(p.lines):
            if number:
                _advance(a, walk, R0, "to_taps", R2)
            for i, count in enumerate(line):
                _group(a, count, first=number == i == 0)
        _sums(a, s, len(groups))
        a.advance(R1, -4 * p.taps[0] * p.taps[1], R2)
        _outputs(a, walk, s)
        _advance(a, walk, R2, "along", R3)
        a.mov(R11, R2)
        if s.nudges is not None:
            a.mov(R0, R8)
        _advance(a, walk, R0, "to_window", R2)
        a.ldr(R2, SP, _PAIRS).subs(R2, 1).str_(R2, SP, _PAIRS)
        a.b(no_more_pairs, "eq")
        a.b(pair)
        code.count()
        a.place(no_more_pairs)
        _advance(a, walk, R0, "to_windows", R2)
        a.mov(R2, R11)
        _advance(a, walk, R2, "to_outputs", R3)
        a.mov(R11, R2)
        a.ldr(R2, SP, _OUTPUTS).subs(R2, 2).str_(R2, SP, _OUTPUTS)
        a.b(no_more_rows, "le")
        a.b(row)
        code.count()
        a.place(no_more_rows)
    code.count()
    return code


def _copy_numbers(a: Armv6m, count: int) -> None:
    """Copy the first numbers of the struct to the stack."""
    registers = (R2, R3, R5, R6)
    a.ldr(R4, SP, _WALK + 4 * count + SAVED_BYTES).mov(R7, SP).adds(R7, _WALK)
    for begin in range(0, count, len(registers)):
        some = registers[: count - begin]
        a.ldmia(R4, some).stmia(R7, some)


def _check_partner(a: Armv6m, walk: PlaneWalk) -> None:
    """Store the distance between the outputs of the row's pairs, or 0 if there is one output."""
    two = Label(6)
    _load(a, walk, R4, "across")
    a.ldr(R2, SP, _OUTPUTS).cmp(R2, 1).b(two, "ne")
    a.movs(R4, 0)
    a.place(two)
    a.str_(R4, SP, _APART)


def _load(a: Armv6m, walk: PlaneWalk, d: Low, name: str) -> None:
    """Load a number of the walk."""
    at = walk.at(name)
    if at is None:
        a.constant(d, walk.numbers[name])
    else:
        a.ldr(d, SP, _WALK + at)


def _advance(a: Armv6m, walk: PlaneWalk, d: Low, name: str, spare: Low) -> None:
    """Advance an address by a number of the walk; `spare` may change."""
    if walk.at(name) is None:
        a.advance(d, walk.numbers[name], spare)
    else:
        _load(a, walk, spare, name)
        a.adds(d, d, spare)


def _group(a: Armv6m, count: int, *, first: bool) -> None:
    """Sum the products of adjacent taps and add that to the totals; the `first` sets them."""
    words, weights = (R2, R3, R4)[:count], (R5, R6, R7)[:count]
    a.ldmia(R0, words)
    a.ldmia(R1, weights)
    for word, weight in zip(words, weights, strict=True):
        a.muls(word, weight)
    for word in words[1:]:
        a.adds(R2, R2, word)
    a.add(R2, R12)
    to_total = a.mov if first else a.add
    to_total(R8, R2)
    a.asrs(R2, R2, 16)
    to_total(R9, R2)


def _sums(a: Armv6m, s: ShortScaling, groups: int) -> None:
    """Compute the sums of both outputs, without the roundings, and load their constants."""
    a.comment("r4, r9: sums of the two outputs.")
    a.mov(R2, R9).adds(R2, (groups + 1) // 2).lsls(R2, R2, 16).mov(R4, R8)
    a.subs(R4, R4, R2)
    if groups % 2:
        a.add(R4, R12)
    if s.nudges is not None:
        a.mov(R8, R0)
    a.movs(R2, R1)
    load_row(a, s, [R9])


def _outputs(a: Armv6m, walk: PlaneWalk, s: ShortScaling) -> None:
    """Store both outputs; leaves the address of the first one in r2.

    If the last output can be single, the second output of a pair is stored first: for a single
    output, both have the same address.
    """
    if walk.odd:
        a.str_(R4, SP, _LOWER)
        a.mov(R4, R9)
        requantize(a, s)
        a.mov(R2, R11)
        a.ldr(R4, SP, _APART).strb(R3, R2, R4)
        a.ldr(R4, SP, _LOWER)
    requantize(a, s)
    a.mov(R2, R11).strb(R3, R2)
    if not walk.odd:
        a.mov(R4, R9)
        requantize(a, s)
        _load(a, walk, R4, "across")
        a.mov(R2, R11).strb(R3, R2, R4)
