"""Assembly of the functions that compute tiles (see `tiles`), and scale and store their sums.

`tile` goes over the groups of pixels. For each group it jumps to `dots`, which stores the sums of
all its outputs and jumps back. Then `tile` scales them, 16 channels at a time, and calls `rest` for
the last channels. These calls do not follow the procedure call standard: `dots` finds its operands
on the stack of `tile` (`DOTS`), `rest` in registers, and both change registers without saving them.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.backends.helium.assembly import ACCUMULATORS, HeliumAssembly, braces
from smelt.codegen.backends.helium.scaling import CONSTANT, HIGH, LOW, HeliumScaling, LaneGroup
from smelt.codegen.backends.helium.tiles import CHUNK, LOOP_CHUNKS, ROWS, Tiles

_INPUTS = ("r11", "r9")
"""Registers that point to the inputs of the first and the second pixel, if they are in one row."""
_WEIGHTS = ("q4", "q5", "q6", "q7")
"""Registers of weights where inputs stay in no register."""

SIZES = (
    "dots",
    "rest",
    "pitch",
    "step",
    "weights",
    "chunks",
    "tiles",
    "channels",
    "whole",
    "left",
    "output_pitch",
    "zero",
    "low",
    "high",
    "inputs",
)
"""The fields of the struct of a layer's sizes; see `backends/helium/tile.j2`."""

DOTS = ("r1", "r3", "r5", "r7")
"""Registers that `dots` loads from the start of the stack: the bytes from pixel to pixel (for an
image: the address of the distances of its rows), weights, their end, sums."""
_BACK, _CHUNK_BYTES, _FIRST, _JUMP, _SCALED = 16, 20, 20, 24, 28
"""Offsets on the stack: where `dots` returns to; bytes of a pixel's chunks, or for an image the
address of the first row; address of `dots`; what is loaded to scale."""


def dots_assembly(t: Tiles) -> HeliumAssembly:
    """Return the body of the function that computes the sums of a group of pixels.

    r11 holds the address of the inputs (for an image: in its first row); it is advanced to the next
    group.
    """
    asm = HeliumAssembly()
    asm(f"ldm sp, {braces(DOTS)}")
    if t.source == "image":
        asm(f"str r11, [sp, #{_FIRST}]")
        for y, row in enumerate(ROWS[1 : t.kernel[0]]):
            asm(f"ldr {row}, [r1, #{4 * y}]" if y else f"ldr {row}, [r1]")
        asm(*(f"add {row}, r11" for row in ROWS[1 : t.kernel[0]]))
    else:
        if t.pixels == 2:
            asm("add r9, r11, r1")
        if t.looped:
            asm(f"ldr r0, [sp, #{_CHUNK_BYTES}]", "add r1, r11, r0")
    asm.note(f"{_input_registers(t)}; r3: weights; r5: their end")
    asm.note("r7: sums in scratch; r0, r2, r4, r6, r8, r10, r12, lr: sums of a tile")
    for (p, c), q in t.resident.items():
        asm(f"vldrb.8 {q}, [{_INPUTS[p]}, #{CHUNK * c}]")
    chunks = "all" if t.looped else str(t.chunks)
    asm.note(f"tiles of {t.pixels} x {t.outputs} sums over {chunks} chunks of {CHUNK} inputs")
    asm("1:")
    for _ in range(t.tiles_at_once):
        _tile(t, asm)
    asm("cmp r3, r5", "bne.w 1b")
    if t.source == "image":
        asm(f"ldr r11, [sp, #{_FIRST}]")
        asm.add("r11", "r11", t.step, "r0")
    else:
        if t.looped:
            asm("ldr r1, [sp]")
        asm(f"add r11, {_INPUTS[t.pixels - 1]}, r1")
    asm(f"ldr pc, [sp, #{_BACK}]")
    return asm


def _input_registers(t: Tiles) -> str:
    """Return the part of the register list that describes the inputs."""
    if t.source == "image":
        rows = ROWS[: t.kernel[0]]
        return f"{', '.join(rows)}: row{'s' if len(rows) > 1 else ''} of the image"
    inputs = "r11: inputs" if t.pixels == 1 else "r11, r9: inputs of pixel 0, pixel 1"
    return f"{inputs}; r1: end of r11's inputs" if t.looped else inputs


def _tile(t: Tiles, asm: HeliumAssembly) -> None:
    """Compute and store the sums of a tile, beginning with the biases."""
    each = [ACCUMULATORS[p * t.outputs : (p + 1) * t.outputs] for p in range(t.pixels)]
    asm(*(f"ldm r3, {braces(registers)}" for registers in each[:-1]))
    asm(f"ldm r3!, {braces(each[-1])}")
    if t.looped:
        _looped_chunks(t, asm)
    elif t.source == "image":
        _image_chunks(t, asm)
    else:
        whole = len(t.resident) == t.pixels * t.chunks
        for c in range(t.chunks):
            inputs = [_input(t, asm, p, c) for p in range(t.pixels)]
            _products(t, asm, inputs, ("q6", "q7") if whole else ("q7",))
    asm(f"stm r7!, {braces(ACCUMULATORS)}")
    if t.looped:
        asm(f"ldr r0, [sp, #{_CHUNK_BYTES}]")
        asm(*(f"sub {register}, r0" for register in _INPUTS[: t.pixels]))


def _input(t: Tiles, asm: HeliumAssembly, p: int, c: int) -> str:
    """Return the register that holds a pixel's chunk; load the chunk if none does."""
    if (p, c) in t.resident:
        return t.resident[p, c]
    register = f"q{5 + p}" if t.pixels == 2 else "q6"
    asm(f"vldrb.8 {register}, [{_INPUTS[p]}, #{CHUNK * c}]")
    return register


def _products(t: Tiles, asm: HeliumAssembly, inputs: Sequence[str], weights: Sequence[str]) -> None:
    """Add the products of a chunk to the sums."""
    for j in range(t.outputs):
        w = weights[j % len(weights)]
        asm(f"vldrw.32 {w}, [r3], #16")
        for p, q in enumerate(inputs):
            asm(f"vmladava.s8 {ACCUMULATORS[p * t.outputs + j]}, {w}, {q}")


def _looped_chunks(t: Tiles, asm: HeliumAssembly) -> None:
    """Sum all chunks of a tile, most of them in a loop; no chunk stays in a register."""
    for c in range(t.before):
        _next_chunk(t, asm, c)
    asm("2:")
    for c in range(LOOP_CHUNKS):
        _next_chunk(t, asm, c)
    asm("cmp r11, r1", "bne.w 2b")


def _next_chunk(t: Tiles, asm: HeliumAssembly, c: int) -> None:
    """Load the next chunk of each pixel and add its products; registers alternate with `c`."""
    register = 2 * (c % 2)
    inputs = [f"q{register + p}" for p in range(t.pixels)]
    for p, q in enumerate(inputs):
        asm(f"vldrb.8 {q}, [{_INPUTS[p]}], #16")
    _products(t, asm, inputs, _WEIGHTS)


def _image_chunks(t: Tiles, asm: HeliumAssembly) -> None:
    """Sum all chunks of a tile from an image; q0-q3 hold chunks of up to four image columns."""
    height, width = t.kernel
    stride = t.pitch // t.depth
    for y in range(height):
        for c in range(t.across):
            held: dict[int, str] = {}
            free = ["q0", "q1", "q2", "q3"]
            for x in range(width):
                columns = [x, x + stride]
                later = {i + p for i in range(x, width) for p in (0, stride)}
                for old in [column for column in held if column not in later]:
                    free.append(held.pop(old))
                for column in columns:
                    if column not in held:
                        if not free:
                            free.append(held.pop(max(set(held) - set(columns))))
                        held[column] = free.pop(0)
                        offset = column * t.depth + CHUNK * c
                        asm(f"vldrw.32 {held[column]}, [{ROWS[y]}, #{offset}]")
                inputs = [held[i] for i in columns]
                _products(t, asm, inputs, _WEIGHTS)


def tile_assembly(pixels: int, scaling: HeliumScaling) -> HeliumAssembly:
    """Return the body of the function that computes the outputs of groups of pixels.

    Its arguments: inputs (for an image: in its first row), outputs, number of groups, sizes,
    weights, sums (scratch), constants of the scaling, and for an image the distances of its other
    rows from the first, else 0.
    """
    asm = HeliumAssembly()
    loaded = _scaled_registers(scaling)
    _prologue(asm, scaling, loaded)
    asm.note("dots: compute the sums of a group")
    asm("7:", f"ldr pc, [sp, #{_JUMP}]")
    asm.note("r1: sums - 16; r3: constants - 16; r4: groups of 16 channels; r5, r7: outputs")
    asm.note(f"r6: rest; r8: end of r11; r12: channels left; {CONSTANT}: 128 or zero point")
    asm("8:", f"add r0, sp, #{_SCALED}", f"ldm r0, {braces(loaded)}")
    if pixels == 2:
        asm("add r7, r5, r10")
    asm(f"add lr, {'r7' if pixels == 2 else 'r5'}, r10")
    asm(f"str lr, [sp, #{_SCALED + 4 * loaded.index('r5')}]", "wls lr, r4, 2f", "1:")
    _scaled_group(asm, scaling, 4, pixels, whole=True)
    asm("le lr, 1b", "2:", "blx r6", "6:", "cmp r11, r8", "bne.w 7b", f"add sp, #{asm.below}")
    asm.leave()
    return asm


def rest_assembly(
    parts: tuple[LaneGroup, ...], pixels: int, scaling: HeliumScaling
) -> HeliumAssembly:
    """Return the body of the function that scales the last channels, fewer than 16."""
    asm = HeliumAssembly()
    for i, part in enumerate(parts):
        _scaled_group(asm, scaling, part.vectors, pixels, whole=i < len(parts) - 1)
        if i < len(parts) - 1:
            asm(f"subs r12, #{part.channels}")
    asm("bx lr")
    return asm


def _scaled_registers(scaling: HeliumScaling) -> tuple[str, ...]:
    """Return the registers that are loaded from the stack before sums are scaled."""
    limits = {LOW: scaling.clamps[0], HIGH: scaling.clamps[1]}
    order = (LOW, "r1", HIGH, "r3", "r4", "r5", "r6", "r8", CONSTANT, "r10", "r12")
    return tuple(register for register in order if limits.get(register, True))


def _prologue(asm: HeliumAssembly, scaling: HeliumScaling, loaded: tuple[str, ...]) -> None:
    """Store on the stack what `dots` and the scaling load."""

    def field(name: str) -> str:
        return f"[r3, #{4 * SIZES.index(name)}]"

    # ADR counts words from an aligned address, so the function must be aligned.
    asm(".balign 4")
    asm.enter()
    asm.below = _SCALED + 4 * len(loaded)
    asm(f"sub sp, #{asm.below}")
    asm.note("r4, r5: pitch, step; r6: bytes of weights; r10: weights")
    asm(f"ldrd r4, r5, {field('pitch')}", f"ldrd r6, r7, {field('weights')}")
    asm("mov r11, r0", "mla r8, r2, r5, r11", f"ldr r0, {asm.argument(7)}", "cmp r0, #0")
    asm("it ne", "movne r4, r0", f"ldr r10, {asm.argument(4)}", "strd r4, r10, [sp]")
    asm("lsls r7, #4", "ldr r4, [r3]", f"strd r7, r4, [sp, #{_CHUNK_BYTES}]")
    asm("add r6, r10", f"ldrd r9, r7, {asm.argument(5)}")
    asm("strd r6, r9, [sp, #8]", "adr.w r4, 8f", "add r4, #1", f"str r4, [sp, #{_BACK}]")
    asm("mov r5, r1", "sub r1, r9, #16", f"ldrd r4, r12, {field('whole')}")
    asm(f"ldr r6, {field('rest')}", f"ldr r10, {field('output_pitch')}", "cmp r6, #0")
    asm("itt eq", "adreq.w r6, 6f", "addeq r6, #1")
    if scaling.unsigned:
        asm(f"mov {CONSTANT}, #128")
    else:
        asm(f"ldr {CONSTANT}, {field('zero')}")
    for register, name in ((LOW, "low"), (HIGH, "high")):
        if register in loaded:
            asm(f"ldr {register}, {field(name)}")
    asm("sub r3, r7, #16", f"add lr, sp, #{_SCALED}", f"stm lr, {braces(loaded)}")


def _scaled_group(
    asm: HeliumAssembly, scaling: HeliumScaling, vectors: int, pixels: int, *, whole: bool = False
) -> None:
    """Scale and store a group of channels, and advance to the next.

    r1 points 16 bytes before the sums, 16 bytes for each vector and pixel; r3 points 16 bytes
    before the constants; r5 and r7 point to the outputs. If the group is not `whole`, r12 is the
    number of channels.
    """
    fields = scaling.fields - 1

    def load(v: int, p: int) -> str:
        i = v * pixels + p + 1
        return f"vldrw.32 %s, [r1, #{16 * i}]" + ("!" if i == vectors * pixels else "")

    def constants(k: int) -> str:
        return f"[r3, #{16 * (k + 1)}]" + ("!" if k + 1 == vectors * fields else "")

    results = scaling.outputs(asm, vectors, load, constants, pixels, "q3", biased=False)
    size, then = 32 // vectors, "" if whole else "t"
    if not whole:
        asm(f"vctp.{size} r12", "vps" + "t" * pixels)
    for q, r in zip(results, ("r5", "r7"), strict=False):
        asm(f"vstrb{then}.{size} {q}, [{r}], #{4 * vectors}")
