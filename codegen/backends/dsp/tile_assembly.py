"""Assembly of tiles (see `tile`), and of the function that widens their inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from smelt.codegen.backends.dsp.assembly import (
    add,
    for_each,
    next_words,
    paired_products,
    repeated,
    span,
)
from smelt.codegen.backends.dsp.plain_pairs import PLAIN_PAIRS, PLAIN_TILE
from smelt.codegen.backends.dsp.scaling import ScalingStruct
from smelt.codegen.backends.dsp.tile import DspTile
from smelt.codegen.lower.kernel import InnerFunction, Parameters


@dataclass(frozen=True)
class TileParameters(Parameters):
    """Variables of `backends/dsp/tile.j2`: the function that computes a tile's channels.

    The function gets the sizes of weights and patch as pointers to their ends, so that layers with
    different numbers of channels, or of iterations of the loop over a sum, share it.

    Attributes:
        pixels: Pixels of the tile.
        words: Words of a pixel's inputs; 0 if the function has a loop over them.
        lower: Registers of the sums of the pair's first channel.
        upper: Registers of the sums of the first channel plus 256 times those of the second.
        inputs: Registers of a word of inputs of each pixel.
        sums: Instructions up to the sums of a pair.
        finish: Instructions from the sums to the stored outputs.
        overlapping: Instructions that begin the last pair of an odd number of channels; else empty.
        leave: Instructions that return.
        scaling: The struct from which plain C requantizes.
    """

    pixels: int
    words: int
    lower: str
    upper: str
    inputs: str
    sums: tuple[str, ...]
    finish: tuple[str, ...]
    overlapping: tuple[str, ...]
    leave: tuple[str, ...]
    scaling: ScalingStruct

    @staticmethod
    def of(tile: DspTile) -> TileParameters:
        """Return the parameters for a tile."""
        n, signed = tile.pixels, tile.scaling.signed
        lower, upper, inputs = (span(first, n) for first in (0, 3, 6))
        return TileParameters(
            pixels=n,
            words=0 if tile.iterations else tile.words,
            lower=lower,
            upper=upper,
            inputs=inputs,
            sums=(*_enter(tile), "1:", *_sums(tile)),
            finish=tuple(_finish(tile)),
            overlapping=tuple(_overlapping(tile)) if tile.odd else (),
            leave=(f"add sp, sp, #{_frame(tile)}", "pop {r4-r11, pc}"),
            scaling=replace(tile.scaling.struct, addend="weights[0]" if signed else "0"),
        )


def tile_function(tile: DspTile) -> InnerFunction:
    """Return the function that computes the channels of a group of pixels."""
    return InnerFunction(
        template="backends/dsp/tile.j2",
        stem=(f"tile_{tile.pixels}" if tile.iterations else f"tile_{tile.pixels}x{tile.words}")
        + ("_signed" if tile.scaling.signed else ""),
        details={
            "odd": "odd" if tile.odd else "even",
            **tile.scaling.details,
            "first": f"first{tile.first}",
        },
        parameters=TileParameters.of(tile),
        uses={"SMELT_DSP"},
        inner=(PLAIN_PAIRS, PLAIN_TILE),
    )


_END, _ADDEND, _ALL_END = 16, 20, 24
"""Offsets on the stack, behind the addresses of three pixels' outputs and of the patch."""

_SAVED = 36
"""Bytes of the registers that functions save; the fifth C argument follows them."""


def _frame(t: DspTile) -> int:
    """Return the bytes of variables on the stack, which is a multiple of 8 with those saved."""
    return 28 if t.scaling.signed or t.odd else 20


def _enter(t: DspTile) -> list[str]:
    """Return instructions that move the C arguments to their registers and stack slots."""
    second, third = (4 if t.pixels > 1 else 0), (8 if t.pixels > 2 else 0)
    lines = ["push {r4-r11, lr}", f"sub sp, sp, #{_frame(t)}", "mov r11, r0", "mov r10, r1"]
    lines += ["ldr r6, [r2]", f"ldr r7, [r2, #{second}]", f"ldr r8, [r2, #{third}]"]
    lines.append("stm sp, {r6-r8, r11}")
    if t.scaling.signed:
        lines += ["ldr r0, [r10], #4", f"str r0, [sp, #{_ADDEND}]"]
    if t.odd:
        lines += [f"str r3, [sp, #{_ALL_END}]", *add("r3", -t.pair_bytes)]
    return [*lines, f"str r3, [sp, #{_END}]"]


def _sums(t: DspTile) -> list[str]:
    """Return the instructions that sum the products of a pair of channels."""
    three = accumulated(t, 3)
    lines = [*accumulated(t, t.first, first=True), *repeated(t.repeats, three)]
    if t.iterations:
        iteration = repeated(t.unrolled, three) if t.unrolled > 1 else three
        lines += ["2:", *iteration, f"ldr r9, [sp, #{_frame(t) + _SAVED}]", "cmp r11, r9", "bne 2b"]
    return lines


def accumulated(t: DspTile, count: int, *, first: bool = False) -> list[str]:
    """Return the instructions that load `count` words of weights and add their products."""
    weights = ["r9", "r12", "lr"][:count]
    lower, upper, inputs = ([f"r{i + p}" for p in range(t.pixels)] for i in (0, 3, 6))
    lines = [next_words(", ".join(weights), "r10")]
    load = next_words(span(6, t.pixels), "r11")
    if first:
        lines += [load, *paired_products(weights.pop(0), inputs, upper, lower, first=True)]
    further = [load, *paired_products("\\w", inputs, upper, lower, first=False)]
    return [*lines, *for_each("w", weights, further)]


def _finish(t: DspTile) -> list[str]:
    """Return the instructions that requantize a pair of channels and store the outputs."""
    lines = [*scaled_pair(t, _ADDEND), "ldm sp, {r6-r8, r11}"]
    for p in range(t.pixels):
        lines += [f"strb r{p}, [r{6 + p}], #1", f"strb r{3 + p}, [r{6 + p}], #1"]
    return [*lines, "stm sp, {r6-r8}", f"ldr r9, [sp, #{_END}]", "cmp r10, r9", "bne 1b"]


def scaled_pair(t: DspTile, addend: int) -> list[str]:
    """Return the instructions that requantize the sums of a pair of channels, in their registers.

    The signed form's addend is on the stack, at offset `addend`.
    """
    lines = [f"sub r{3 + p}, r{3 + p}, r{p}" for p in range(t.pixels)]
    left = t.scaling.left
    if t.scaling.signed:
        load = "ldm r10!, {r6-r8}"
        lines += [f"ldr r12, [sp, #{addend}]", load, *_scaled(t, 0, left, "r6", "r7")]
        return [*lines, load, *_scaled(t, 3, left - 8, "r6", "r7")]
    lines += ["ldm r10!, {r6-r9}", *_scaled(t, 0, left, "r6", "r7")]
    return [*lines, *_scaled(t, 3, left - 8, "r8", "r9")]


def _scaled(t: DspTile, first: int, left: int, bias: str, multiplier: str) -> list[str]:
    """Return the instructions that requantize a channel's sums, in registers from `first` on."""
    found = [f"r{first + p}" for p in range(t.pixels)]
    lines = [f"add {r}, {bias}, {r}{shifted(left)}" for r in found]
    for r in found:
        lines += t.scaling.product(r, multiplier, "r8", "r9", "r12")
    for r in found:
        lines += t.scaling.saturated(r)
    return lines


def shifted(left: int) -> str:
    """Return the suffix that shifts an instruction's last operand left (negative: right)."""
    return f", lsl #{left}" if left > 0 else f", asr #{-left}" if left else ""


def _overlapping(t: DspTile) -> list[str]:
    """Return the instructions that go back once, for the last pair of channels."""
    lines = [f"ldr r0, [sp, #{_ALL_END}]", "cmp r10, r0", "beq 3f", f"str r0, [sp, #{_END}]"]
    lines += [f"sub r{6 + p}, r{6 + p}, #1" for p in range(t.pixels)]
    return [*lines, "stm sp, {r6-r8}", "b 1b", "3:"]


@dataclass(frozen=True)
class WideningParameters(Parameters):
    """Variables of `backends/dsp/widen.j2`: the function that widens inputs of a few pixels.

    Attributes:
        inputs: C names of the inputs, one for each pixel.
        parameters: C parameters of the function.
        registers: registers of the addresses of inputs.
        patch: register of the address of the widened inputs.
        iterations: register of the number of iterations left.
        lines: instructions of the function.
        iteration: inputs of a pixel in an iteration of the loop; 0 without a loop.
        tail: inputs of a pixel after the loop.
        count: C expression of the number of inputs of a pixel.
    """

    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    registers: tuple[str, ...]
    patch: str
    iterations: str
    lines: tuple[str, ...]
    iteration: int
    tail: int
    count: str

    @staticmethod
    def of(tile: DspTile) -> WideningParameters:
        """Return the variables for a tile; tiles with runs of other lengths may have the same."""
        n, loops = tile.pixels, tile.quads > 0
        names, saved = ("a", "b", "c")[:n], span(4, 2 * n)
        pointers = (*(f"const int8_t *{name}" for name in names), "int32_t *patch")
        return WideningParameters(
            inputs=names,
            parameters=(*pointers, "int32_t iterations"),
            registers=tuple(f"r{p}" for p in range(n)),
            patch=f"r{n}",
            iterations=_iterations(n),
            lines=(f"push {{{saved}, lr}}", *_widen(tile), f"pop {{{saved}, pc}}"),
            iteration=4 * tile.widen_unrolled,
            tail=tile.tail,
            count=" + ".join(
                [f"{4 * tile.widen_unrolled} * iterations"] * loops
                + [str(tile.tail)] * (tile.tail > 0)
            ),
        )


def widening(tile: DspTile) -> InnerFunction:
    """Return the function that widens one run of each pixel of a tile."""
    return InnerFunction(
        template="backends/dsp/widen.j2",
        stem=f"widen_{tile.pixels}x{4 * tile.widen_unrolled or tile.tail}"
        + (f"_and_{tile.tail}" if tile.quads and tile.tail else ""),
        parameters=WideningParameters.of(tile),
        uses={"SMELT_DSP"},
        inner=(PLAIN_PAIRS,),
    )


def _iterations(pixels: int) -> str:
    """Return the register of the iterations left while `pixels` pixels are widened."""
    return "r12" if pixels == 3 else f"r{pixels + 1}"


def _widen(t: DspTile) -> list[str]:
    """Return the instructions that widen a run of each pixel."""
    n, lines = t.pixels, list[str]()
    lower, upper = [f"r{4 + p}" for p in range(n)], [f"r{4 + n + p}" for p in range(n)]
    if t.quads:
        iteration = [f"ldr {b}, [r{p}], #4" for p, b in enumerate(upper)]
        iteration += [f"sxtb16 {a}, {b}" for a, b in zip(lower, upper, strict=True)]
        iteration += [f"sxtb16 {b}, {b}, ror #8" for b in upper]
        iteration.append(f"stm r{n}!, {{r4-{upper[-1]}}}")
        counter = _iterations(n)
        lines = ["ldr r12, [sp, #28]"] if n == 3 else []
        lines += ["1:", *repeated(t.widen_unrolled, iteration)]
        lines += [f"subs {counter}, {counter}, #1", "bne 1b"]
    if t.tail:
        for p, (a, b) in enumerate(zip(lower, upper, strict=True)):
            lines.append(f"ldrsb {a}, [r{p}]")
            if t.tail > 1:
                lines.append(f"ldrsb r12, [r{p}, #{t.tail - 1}]")
                lines.append(f"pkhbt {a}, {a}, r12, lsl #16")
            if t.tail > 2:
                lines.append(f"ldrsb {b}, [r{p}, #1]")
        last = (upper if t.tail > 2 else lower)[-1]
        lines.append("str r4, [r1]" if last == "r4" else f"stm r{n}!, {{r4-{last}}}")
    return lines
