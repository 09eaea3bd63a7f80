"""Assembly of the functions that compute tiles (see `tiles`), and scale and store their sums.

`tile` goes over the groups of pixels. For each group, `dots` stores the sums of all its outputs and
jumps to `tile`, which scales them, 16 channels at a time. Then `tile` jumps to `rest` for the last
channels, if there are any, and that to `dots` for the next group. These jumps do not follow the
procedure call standard: the functions find their operands in registers and on the stack of `tile`,
and change registers without saving them.
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

_OPERANDS, _POINTERS, _CONSTANT, _OUTPUTS, _END, JUMP, _PITCH, BACK, _LIMITS = range(0, 72, 8)
"""Offsets on the stack, of pairs of words: weights, sums; sums - 16, constants - 16; 128 or zero
point, groups of 16 channels; outputs, bytes from pixel to pixel; end of the inputs, channels left;
addresses that `rest` and `tile` jump to; bytes of inputs from pixel to pixel and of a pixel's
chunks (for an image: the addresses of the distances of its rows and of the first row); the address
that `dots` jumps to (one word); limits."""


def dots_assembly(t: Tiles) -> HeliumAssembly:
    """Return the body of the function that computes the sums of a group of pixels.

    r11 holds the address of the inputs (for an image: in its first row); it is advanced to the next
    group. r5 holds the end of the weights, and r1 the bytes from pixel to pixel, unless the inputs
    are in an image or the chunks in a loop: then it is changed.
    """
    asm = HeliumAssembly()
    asm.note(f"{_input_registers(t)}; r3: weights; r5: their end")
    asm.note("r7: sums in scratch; r0, r2, r4, r6, r8, r10, r12, lr: sums of a tile")
    with asm.overlapping():
        asm(f"ldrd r3, r7, [sp, #{_OPERANDS}]")
        _load_pointers(t, asm)
        for (p, c), q in t.resident.items():
            asm(f"vldrb.8 {q}, [{_INPUTS[p]}, #{CHUNK * c}]")
    chunks = "all chunks" if t.looped else f"{t.chunks} chunk{'s' if t.chunks > 1 else ''}"
    asm.note(f"tiles of {t.pixels} x {t.outputs} sums over {chunks} of {CHUNK} inputs")
    asm("1:")
    if t.looped:
        _looped_tile(t, asm)
    else:
        with asm.overlapping():
            for _ in range(t.tiles_at_once):
                _tile(t, asm)
            asm("cmp r3, r5")
    asm("bne 1b")
    if t.source == "image":
        asm(f"ldr r11, [sp, #{_PITCH + 4}]")
        asm.add("r11", "r11", t.step, "r0")
    else:
        if t.looped:
            asm(f"ldr r1, [sp, #{_PITCH}]")
        asm(f"add r11, {_INPUTS[t.pixels - 1]}, r1")
    asm(f"ldr pc, [sp, #{BACK}]")
    return asm


def _load_pointers(t: Tiles, asm: HeliumAssembly) -> None:
    """Load the pointers to the inputs besides r11."""
    if t.source == "image":
        rows = ROWS[1 : t.kernel[0]]
        asm(f"str r11, [sp, #{_PITCH + 4}]", f"ldr r1, [sp, #{_PITCH}]")
        if rows:
            asm(f"ldr{'d' if len(rows) > 1 else ''} {', '.join(rows)}, [r1]")
        asm(*(f"add {row}, r11" for row in rows))
        return
    if t.looped:
        asm(f"ldrd r1, r0, [sp, #{_PITCH}]")
    if t.pixels == 2:
        asm("add r9, r11, r1")
    if t.looped:
        asm("add r1, r11, r0")


def _input_registers(t: Tiles) -> str:
    """Return the part of the register list that describes the inputs."""
    if t.source == "image":
        rows = ROWS[: t.kernel[0]]
        return f"{', '.join(rows)}: row{'s' if len(rows) > 1 else ''} of the image"
    inputs = "r11: inputs" if t.pixels == 1 else "r11, r9: inputs of pixel 0, pixel 1"
    return f"{inputs}; r1: end of r11's inputs" if t.looped else inputs


def _biases(t: Tiles, asm: HeliumAssembly) -> None:
    """Set the sums of a tile to the biases."""
    each = [ACCUMULATORS[p * t.outputs : (p + 1) * t.outputs] for p in range(t.pixels)]
    asm(*(f"ldm r3, {braces(registers)}" for registers in each[:-1]))
    asm(f"ldm r3!, {braces(each[-1])}")


def _tile(t: Tiles, asm: HeliumAssembly) -> None:
    """Compute and store the sums of a tile, beginning with the biases; chunks are unrolled."""
    _biases(t, asm)
    if t.source == "image":
        _image_chunks(t, asm)
    else:
        whole = len(t.resident) == t.pixels * t.chunks
        for c in range(t.chunks):
            inputs = [_input(t, asm, p, c) for p in range(t.pixels)]
            _products(t, asm, inputs, ("q6", "q7") if whole else ("q7",))
    asm(f"stm r7!, {braces(ACCUMULATORS)}")


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


def _looped_tile(t: Tiles, asm: HeliumAssembly) -> None:
    """Compute the sums of a tile, most of its chunks in a loop; no chunk stays in a register."""
    with asm.overlapping():
        _biases(t, asm)
        for c in range(t.before):
            _next_chunk(t, asm, c)
    asm("2:")
    with asm.overlapping():
        for c in range(LOOP_CHUNKS):
            _next_chunk(t, asm, c)
        asm("cmp r11, r1")
    asm("bne 2b", f"stm r7!, {braces(ACCUMULATORS)}", f"ldr r0, [sp, #{_PITCH + 4}]")
    asm(*(f"sub {register}, r0" for register in _INPUTS[: t.pixels]), "cmp r3, r5")


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
    _prologue(asm, scaling)
    asm.note("dots: compute the sums of a group, and jump to 8")
    asm("bx r6")
    asm.note("r8: sums - 16; r10: constants - 16; r4, r6: outputs; lr: groups of 16 channels")
    asm.note("r3: end address of the inputs in r11; r12: channels left")
    asm.note(f"{CONSTANT}: 128 or zero point")
    asm("8:", f"ldrd r8, r10, [sp, #{_POINTERS}]", f"ldrd {CONSTANT}, lr, [sp, #{_CONSTANT}]")
    asm(f"ldrd r4, r7, [sp, #{_OUTPUTS}]", f"ldrd r3, r12, [sp, #{_END}]")
    match scaling.clamps:
        case (True, True):
            asm(f"ldrd {LOW}, {HIGH}, [sp, #{_LIMITS}]")
        case (True, False):
            asm(f"ldr {LOW}, [sp, #{_LIMITS}]")
        case (False, True):
            asm(f"ldr {HIGH}, [sp, #{_LIMITS + 4}]")
        case _:
            pass
    if pixels == 2:
        asm("adds r6, r4, r7")
    asm(f"add r7, {'r6' if pixels == 2 else 'r4'}", f"str r7, [sp, #{_OUTPUTS}]")
    asm("wls lr, lr, 2f", "1:")
    _scaled_group(asm, scaling, 4, pixels, whole=True)
    asm("le lr, 1b", "2:", "cmp r11, r3", "beq 6f", f"ldr pc, [sp, #{JUMP + 4}]")
    asm.note("the last group: rest jumps to 5, if there are channels left")
    asm("6:", "adr.w r7, 5f", "adds r7, #1", f"str r7, [sp, #{JUMP}]", "cmp r12, #0")
    asm("it ne", f"ldrne pc, [sp, #{JUMP + 4}]", "5:", f"add sp, #{asm.below}")
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
    asm(f"ldr pc, [sp, #{JUMP}]")
    return asm


def _prologue(asm: HeliumAssembly, scaling: HeliumScaling) -> None:
    """Store on the stack what all groups load, and set r1, r5, r6 (dots) and r11."""

    def field(name: str) -> str:
        return f"[r3, #{4 * SIZES.index(name)}]"

    # ADR counts words from an aligned address, so the function must be aligned.
    asm(".balign 4")
    asm.enter()
    asm.below = _LIMITS + (8 if any(scaling.clamps) else 0)
    asm(f"sub sp, #{asm.below}")
    for offset, words in (
        (_OPERANDS, "weights, sums"),
        (_POINTERS, "sums - 16, constants - 16"),
        (_CONSTANT, "128 or zero point, whole"),
        (_OUTPUTS, "outputs, output_pitch"),
        (_END, "end of the inputs, left"),
        (JUMP, "addresses that rest, tile jump to"),
        (_PITCH, "pitch or rows, bytes of chunks or inputs"),
        (BACK, "address that dots jumps to"),
    ):
        asm.note(f"[sp, #{offset}]: {words}")
    if any(scaling.clamps):
        asm.note(f"[sp, #{_LIMITS}]: low, high")
    asm.note("r4, r5: pitch, step; r6: bytes of weights; r7: chunks; r8: weights")
    asm(f"ldrd r4, r5, {field('pitch')}", f"ldrd r6, r7, {field('weights')}", "mov r11, r0")
    asm("mla r9, r2, r5, r11", f"ldr r10, {field('left')}", f"strd r9, r10, [sp, #{_END}]")
    asm(f"ldr r8, {asm.argument(4)}", f"ldrd r9, r10, {asm.argument(5)}")
    asm(f"strd r8, r9, [sp, #{_OPERANDS}]", "add r5, r8, r6", "sub r9, #16", "sub r10, #16")
    asm(f"strd r9, r10, [sp, #{_POINTERS}]", f"ldr r9, {field('output_pitch')}")
    asm(f"strd r1, r9, [sp, #{_OUTPUTS}]", f"ldr r9, {field('whole')}")
    asm("movs r1, #128" if scaling.unsigned else f"ldr r1, {field('zero')}")
    asm(f"strd r1, r9, [sp, #{_CONSTANT}]", "mov r1, r4", f"ldr r0, {asm.argument(7)}")
    asm("cmp r0, #0", "it ne", "movne r4, r0", "lsls r7, #4", f"strd r4, r7, [sp, #{_PITCH}]")
    asm(f"ldrd r6, r7, {field('dots')}", "cmp r7, #0", "it eq", "moveq r7, r6")
    asm(f"strd r6, r7, [sp, #{JUMP}]", "adr.w r4, 8f", "adds r4, #1", f"str r4, [sp, #{BACK}]")
    if any(scaling.clamps):
        asm(f"ldrd r4, r7, {field('low')}", f"strd r4, r7, [sp, #{_LIMITS}]")


def _scaled_group(
    asm: HeliumAssembly, scaling: HeliumScaling, vectors: int, pixels: int, *, whole: bool = False
) -> None:
    """Scale and store a group of channels, and advance to the next.

    r8 points 16 bytes before the sums, 16 bytes for each vector and pixel; r10 points 16 bytes
    before the constants; r4 and r6 point to the outputs. If the group is not `whole`, r12 is the
    number of channels.
    """
    fields = scaling.fields - 1

    def load(v: int, p: int) -> str:
        i = v * pixels + p + 1
        return f"vldrw.32 %s, [r8, #{16 * i}]" + ("!" if i == vectors * pixels else "")

    def constants(k: int) -> str:
        return f"[r10, #{16 * (k + 1)}]" + ("!" if k + 1 == vectors * fields else "")

    size = 32 // vectors
    with asm.overlapping():
        results = scaling.outputs(asm, vectors, load, constants, pixels, "q3", biased=False)
        pairs = tuple(zip(results, ("r4", "r6"), strict=False))
        if whole:
            asm(*(f"vstrb.{size} {q}, [{r}], #{4 * vectors}" for q, r in pairs))
    if not whole:
        asm(f"vctp.{size} r12", "vps" + "t" * pixels)
        asm(*(f"vstrbt.{size} {q}, [{r}], #{4 * vectors}" for q, r in pairs))
