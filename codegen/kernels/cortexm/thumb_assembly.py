"""The numbers of halves of words as instructions of Armv6-M and Armv7-M."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.codegen.kernels.cortexm.thumb_groups import Taps

STATE_BYTES = 16
"""Totals of a channel whose window is summed in slices."""


def constant(register: str, value: int) -> tuple[str, ...]:
    """Armv6-M instructions that put a number of 0 or more into a low register."""
    digits = [value >> shift & 255 for shift in (24, 16, 8, 0)]
    while len(digits) > 1 and not digits[0]:
        digits = digits[1:]
    lines = [f"movs {register}, #{digits[0]}"]
    shift = 0
    for digit in digits[1:]:
        shift += 8
        if digit:
            lines += [f"lsls {register}, {register}, #{shift}", f"adds {register}, #{digit}"]
            shift = 0
    return (*lines, *((f"lsls {register}, {register}, #{shift}",) if shift else ()))


@dataclass(frozen=True)
class Assembly:
    """The numbers of a convolution in the assembly.

    Attributes:
        rounding: instructions that put the roundings of all groups, 2^15 each, into r2.
        skip: into r3: bytes from the last channel of a block of weights to the next block.
        outputs: into r2: channels.
        ends: into r2: bytes of packed inputs that each stretch covers.
        half: into r2: 2^15.
        state: into r2: bytes from the first channel's totals so far to the packed inputs.
        roundings: what the first makes, in summands that an instruction of Armv7-M holds.
        reaches: bytes from the first packed input to the end of each stretch that is a loop.
        before: what `state` makes.
    """

    rounding: tuple[str, ...]
    skip: tuple[str, ...]
    outputs: tuple[str, ...]
    ends: tuple[tuple[str, ...], ...]
    half: tuple[str, ...]
    state: tuple[str, ...]
    roundings: tuple[int, ...]
    reaches: tuple[int, ...]
    before: int


def assembly(taps: Taps, words: int, apart: int, outputs: int) -> Assembly:
    """The numbers of a convolution, or of a slice of it."""
    bytes_ = [s.taps * s.turns * 4 * words for s in taps.stretches]
    ends = np.cumsum(bytes_).tolist()
    low, high = taps.groups & 255, taps.groups & ~255
    return Assembly(
        constant("r2", taps.groups << 15),
        constant("r3", (taps.length - 1) * apart),
        constant("r2", outputs),
        tuple(constant("r2", size) for size in bytes_),
        constant("r2", 1 << 15),
        constant("r2", STATE_BYTES * outputs),
        tuple(part << 15 for part in (low, high) if part),
        tuple(end for end, s in zip(ends, taps.stretches, strict=True) if s.turns > 1),
        STATE_BYTES * outputs,
    )
