"""Armv6-M assembly: one channel's plane of a depthwise convolution (`halfword_depthwise`)."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.armv6m.assembly import load_row, requantize
from smelt.codegen.backends.armv6m.instructions import SAVED_BYTES, Armv6m
from smelt.codegen.lower.assembly_builder import Label
from smelt.codegen.lower.depthwise_plane import Plane
from smelt.codegen.lower.registers import R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R11, R12, SP
from smelt.codegen.lower.requantization_32bit import ShortScaling

_PAIRS, _APART, _LOWER, _OUTPUTS, _NEXT, _ROOM = range(0, 24, 4)
_ACROSS, _ALONG = _ROOM + SAVED_BYTES, _ROOM + SAVED_BYTES + 4
"""Offsets on the stack."""

_REGISTERS = """\
r0: words under the window; r1: weights, then requantization constants
r2-r4: words, products; r5-r7: weights
r8: total of words; r9: total of upper halves; r11: outputs; r12: 2^15 (rounding)
Stack: pairs of outputs left in this row, %s,
outputs left along the other axis%s"""


@dataclass
class _MarkedCode:
    """The code of a function, and the instructions before a row, a pair, their ends, and in all."""

    a: Armv6m
    marks: list[int]

    def mark(self) -> None:
        self.marks.append(len(self.a.instructions))


def pairs(p: Plane, s: ShortScaling, chunks: tuple[int, ...]) -> Armv6m:
    """Return the code of the function; `chunks` are the sizes of the groups of taps, by line."""
    return _code(p, s, chunks, shared=False).a


def pairs_with_arguments(p: Plane, s: ShortScaling, chunks: tuple[int, ...]) -> Armv6m:
    """Return the same with two more arguments: the elements between outputs along each axis."""
    return _code(p, s, chunks, shared=True).a


def executed(p: Plane, s: ShortScaling, chunks: tuple[int, ...], rows: int, shared: bool) -> int:
    """Return the instructions of one of these functions for a number of rows of pairs."""
    code = _code(p, s, chunks, shared=shared)
    row, pair, end_of_pair, end_of_row, end = code.marks
    in_row = end_of_row - row + (p.outputs[1] - 1) * (end_of_pair - pair)
    return row + end - end_of_row + rows * in_row


def _code(p: Plane, s: ShortScaling, chunks: tuple[int, ...], *, shared: bool) -> _MarkedCode:
    a, line = Armv6m(), chunks[: len(chunks) // p.lines]
    code = _MarkedCode(a, [])
    odd = "distance between the outputs of a pair (0 for a last single one), lower sum"
    arguments = ", distance to the next\nrow of pairs, `across`, `along`" if shared else ""
    a.describe(_REGISTERS % (odd if p.odd else "2 unused words", arguments))
    with a.function(_ROOM, arguments=2 * shared):
        a.str_(R3, SP, _OUTPUTS)
        a.mov(R11, R2)
        if shared:
            a.ldr(R2, SP, _ACROSS).lsls(R2, R2, 1)
            a.ldr(R3, SP, _ALONG).constant(R4, p.outputs[1]).muls(R3, R4)
            a.subs(R2, R2, R3).str_(R2, SP, _NEXT)
        a.constant(R2, 1 << 15).mov(R12, R2)
        code.mark()
        row, no_more_rows = a.here(1), Label(4)
        if p.odd:
            _check_partner(a, p, shared=shared)
        a.constant(R2, p.outputs[1]).str_(R2, SP, _PAIRS)
        a.comment("Next pair of outputs.")
        code.mark()
        pair, no_more_pairs = a.here(2), Label(3)
        for number in range(p.lines):
            if number:
                a.advance(R0, p.to_next_line, R2)
            for i, count in enumerate(line):
                _chunk(a, count, first=number == i == 0)
        _sums(a, s, len(chunks))
        a.advance(R1, -4 * p.taps[0] * p.taps[1], R2)
        _outputs(a, p, s, shared=shared)
        _advance_outputs(a, p.target[1], _ALONG if shared else None)
        if s.nudges is not None:
            a.mov(R0, R8)
        a.advance(R0, p.to_next_pair, R2)
        a.ldr(R2, SP, _PAIRS).subs(R2, 1).str_(R2, SP, _PAIRS)
        a.b(no_more_pairs, "eq")
        a.b(pair)
        code.mark()
        a.place(no_more_pairs)
        a.advance(R0, p.to_next_row, R2)
        a.mov(R2, R11)
        _advance_outputs(a, p.to_next_outputs, _NEXT if shared else None)
        a.ldr(R2, SP, _OUTPUTS).subs(R2, 2).str_(R2, SP, _OUTPUTS)
        a.b(no_more_rows, "le")
        a.b(row)
        code.mark()
        a.place(no_more_rows)
    code.mark()
    return code


def _check_partner(a: Armv6m, p: Plane, *, shared: bool) -> None:
    """Store the distance between the outputs of the row's pairs, or 0 if there is one output."""
    two = Label(6)
    _load_across(a, p, shared=shared)
    a.ldr(R2, SP, _OUTPUTS).cmp(R2, 1).b(two, "ne")
    a.movs(R4, 0)
    a.place(two)
    a.str_(R4, SP, _APART)


def _advance_outputs(a: Armv6m, distance: int, at: int | None) -> None:
    """Advance the address of outputs in r2 by a distance, or by a number on the stack."""
    if at is None:
        a.advance(R2, distance, R3)
    else:
        a.ldr(R3, SP, at).adds(R2, R2, R3)
    a.mov(R11, R2)


def _load_across(a: Armv6m, p: Plane, *, shared: bool) -> None:
    """Load the distance to the next output along the axis of pairs to r4."""
    if shared:
        a.ldr(R4, SP, _ACROSS)
    else:
        a.constant(R4, p.target[0])


def _chunk(a: Armv6m, count: int, *, first: bool) -> None:
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


def _sums(a: Armv6m, s: ShortScaling, chunks: int) -> None:
    """Compute the sums of both outputs, without the roundings, and load their constants."""
    a.comment("r4, r9: sums of the two outputs.")
    a.mov(R2, R9).adds(R2, (chunks + 1) // 2).lsls(R2, R2, 16).mov(R4, R8)
    a.subs(R4, R4, R2)
    if chunks % 2:
        a.add(R4, R12)
    if s.nudges is not None:
        a.mov(R8, R0)
    a.movs(R2, R1)
    load_row(a, s, [R9])


def _outputs(a: Armv6m, p: Plane, s: ShortScaling, *, shared: bool) -> None:
    """Store both outputs; leaves the address of the first one in r2.

    If the last output can be single, the second output of a pair is stored first: for a single
    output, both have the same address.
    """
    if p.odd:
        a.str_(R4, SP, _LOWER)
        a.mov(R4, R9)
        requantize(a, s)
        a.mov(R2, R11)
        a.ldr(R4, SP, _APART).strb(R3, R2, R4)
        a.ldr(R4, SP, _LOWER)
    requantize(a, s)
    a.mov(R2, R11).strb(R3, R2)
    if not p.odd:
        a.mov(R4, R9)
        requantize(a, s)
        _load_across(a, p, shared=shared)
        a.mov(R2, R11).strb(R3, R2, R4)
