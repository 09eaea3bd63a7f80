"""Armv6-M assembly: a dense layer with four weights in a word (`dense`)."""

from __future__ import annotations

from smelt.codegen.backends.armv6m.assembly import load_row, requantize
from smelt.codegen.backends.armv6m.instructions import SAVED_BYTES, Armv6m
from smelt.codegen.lower.assembly_builder import Label
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
    Low,
)
from smelt.codegen.lower.requantization_32bit import ShortScaling

_INPUTS, _OUTPUT, _LEFT, _START, _ROOM = 0, 4, 8, 12, 16
"""Offsets on the stack."""


def dense(s: ShortScaling, outputs: int, depth: int, unrolled: int, *, widened: bool) -> Armv6m:
    """Return the code of the function.

    Args:
        s: The requantization.
        outputs: Outputs of the layer.
        depth: Its inputs; a multiple of four if they are not widened.
        unrolled: Inputs of an iteration: an even number, or a multiple of four if not `widened`.
        widened: Whether the inputs are words, behind the start of the sums. Otherwise they are
            bytes, and the start is an argument.
    """
    a = Armv6m()
    products, at_once, size = (_products, 2, 4) if widened else (_byte_products, 4, 1)
    iterations = depth // unrolled if unrolled else 0
    looped, rest = iterations * unrolled, outputs % 4
    with a.function(_ROOM, arguments=0 if widened else 1):
        a.mov(R12, R2)
        if widened:
            a.ldmia(R0, [R4])
        else:
            a.ldr(R4, SP, _ROOM + SAVED_BYTES)
        a.str_(R0, SP, _INPUTS)
        a.str_(R3, SP, _OUTPUT)
        a.constant(R2, -(-outputs // 4)).str_(R2, SP, _LEFT)
        a.str_(R4, SP, _START)
        a.comment("Next four outputs.")
        four, end = a.here(1), Label(5)
        a.ldr(R0, SP, _INPUTS)
        a.ldr(R2, SP, _START).mov(R9, R2).movs(R2, 0)
        for total in (R8, R10, R11):
            a.mov(total, R2)
        loop = Label(2)
        if iterations > 1:
            a.constant(R2, size * looped).add(R2, R0).mov(LR, R2)
            a.place(loop)
        if iterations:
            with a.repeat(unrolled // at_once):
                products(a, at_once)
        if iterations > 1:
            a.cmp(R0, LR).b(loop, "ne")
        for first in range(looped, depth, at_once):
            products(a, min(at_once, depth - first))
        _sums(a)
        for number, total in enumerate((R4, R8, R9, R11)):
            if number:
                a.mov(R4, total)
            a.mov(R2, R12)
            load_row(a, s, [])
            a.mov(R12, R2)
            requantize(a, s)
            a.ldr(R2, SP, _OUTPUT).strb(R3, R2, number)
            if rest == number + 1:
                a.ldr(R2, SP, _LEFT).cmp(R2, 1).b(end, "eq")
        a.adds(R2, 4).str_(R2, SP, _OUTPUT)
        a.ldr(R2, SP, _LEFT).subs(R2, 1).str_(R2, SP, _LEFT)
        a.b(end, "eq")
        a.b(four)
        a.place(end)
    return a


def _products(a: Armv6m, count: int) -> None:
    """Add the products of one or two inputs to the sums A, A + 2^8 B + 2^16 CD, C and CD.

    A to D are the sums of the four outputs; CD is C + 2^8 D.
    """
    inputs, words = (R4, R5)[:count], (R6, R7)[:count]
    a.ldmia(R0, inputs)
    a.ldmia(R1, words)
    for x, word in zip(inputs, words, strict=True):
        _product(a, x, word)


def _byte_products(a: Armv6m, count: int) -> None:
    """Add the products of `count` inputs, the bytes of a word; `count` is four."""
    a.ldmia(R0, [R4])
    for i in range(count):
        word = (R6, R7)[i % 2]
        if i % 2 == 0:
            a.ldmia(R1, (R6, R7))
        if i < count - 1:
            a.sxtb(R5, R4).asrs(R4, R4, 8)
        _product(a, R5 if i < count - 1 else R4, word)


def _product(a: Armv6m, x: Low, word: Low) -> None:
    """Add the products of an input and a word of weights."""
    a.sxtb(R2, word).muls(R2, x).add(R8, R2).asrs(R3, word, 16).muls(word, x)
    a.add(R9, word).sxtb(R2, R3).muls(R2, x).add(R10, R2).muls(R3, x)
    a.add(R11, R3)


def _sums(a: Armv6m) -> None:
    """Separate the sums of the four outputs."""
    a.comment("r4, r8, r9, r11: sums A, B, C, D.")
    a.mov(R3, R11).mov(R4, R10).subs(R5, R3, R4).asrs(R5, R5, 8).mov(R11, R5)
    a.lsls(R3, R3, 16).mov(R2, R9).subs(R2, R2, R3).mov(R9, R4).mov(R4, R8)
    a.subs(R2, R2, R4).asrs(R2, R2, 8).mov(R8, R2)
