"""Assembly that computes tiles (see `tiles`), and scales and stores their sums."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.backends.helium.assembly import ACCUMULATORS, HeliumAssembly, braces
from smelt.codegen.backends.helium.scaling import HeliumScaling, LaneGroup
from smelt.codegen.backends.helium.tiles import CHUNK, ROWS, Tiles

_TURN = 4
"""Chunks in one turn of a loop over more than are written out."""
_INPUTS = ("r11", "r9")
_ALL = braces(ACCUMULATORS)


def tile_assembly(t: Tiles, scaling: HeliumScaling) -> HeliumAssembly:
    """The function's body: for each group of pixels sums of all outputs, then scaling.

    Arguments: inputs (of an image the addresses of its rows), outputs, weights, sums, scales,
    groups; of an image the offset into its rows.
    """
    asm = HeliumAssembly()
    asm.enter()
    if t.source == "row":
        asm("mov r11, r0")
    asm("5:")
    _find(t, asm)
    asm(f"ldrd r3, r7, {asm.argument(2)}")
    _dots(t, asm)
    _scale(t, asm, scaling)
    asm.note("the next pixels")
    if t.source == "row":
        asm.add("r11", "r11", t.step, "r0")
    else:
        asm(f"ldr r0, {asm.argument(6)}")
        asm.add("r0", "r0", t.step, "r2")
        asm(f"str r0, {asm.argument(6)}")
    asm(f"ldr r0, {asm.argument(1)}", f"ldr r4, {asm.argument(5)}")
    asm.add("r0", "r0", t.output_step, "r2")
    asm("subs r4, #1", f"str r0, {asm.argument(1)}", f"str r4, {asm.argument(5)}", "bne.w 5b")
    asm.leave()
    return asm


def _find(t: Tiles, asm: HeliumAssembly) -> None:
    """The addresses of the inputs into registers."""
    if t.source == "image":
        asm(f"ldr r0, {asm.argument(0)}", f"ldr r2, {asm.argument(6)}")
        for y in range(t.kernel[0]):
            asm(f"ldr {ROWS[y]}, [r0, #{4 * y}]", f"add {ROWS[y]}, r2")
    elif t.pixels == 2:
        asm.add("r9", "r11", t.pitch, "r0")


def _dots(t: Tiles, asm: HeliumAssembly) -> None:
    asm.note("r11, r9, r1: inputs; r3: weights, up to r5; r7: sums; even registers add up")
    for (p, c), q in t.resident.items():
        asm(f"vldrb.8 {q}, [{_INPUTS[p]}, #{CHUNK * c}]")
    run = 2 if t.snakes and t.count > 1 else 1
    left = t.count % run
    asm.add("r5", "r3", 4 * t.words // t.count * (t.count - left), "r0")
    if t.looped:
        asm.add("r1", "r11", CHUNK * t.chunks, "r0")
    held: dict[str, tuple[int, int]] = {}
    if t.snakes:
        for p in range(t.pixels):
            first = next(c for c in range(t.chunks) if (p, c) not in t.resident)
            _input(t, asm, p, first, held)
    asm.note(f"tiles of {t.pixels} x {t.outputs} sums over {t.chunks} chunks of {CHUNK} inputs")
    asm("1:")
    for tile in range(run):
        _tile(t, asm, tile, held)
    if t.count > run:
        asm("cmp r3, r5", "bne.w 1b")
    if left:
        _tile(t, asm, 0, held)


def _tile(t: Tiles, asm: HeliumAssembly, tile: int, held: dict[str, tuple[int, int]]) -> None:
    if t.looped:
        _long(t, asm)
    elif t.source == "image":
        _image(t, asm)
    else:
        free = ("q7",) if t.snakes else ("q6", "q7")
        for i, c in enumerate(t.order(tile)):
            inputs = [_input(t, asm, p, c, held) for p in range(t.pixels)]
            _products(t, asm, inputs, free, first=i == 0)
    asm(f"stm r7!, {_ALL}")
    if t.looped:
        for p in range(t.pixels):
            asm.add(_INPUTS[p], _INPUTS[p], -CHUNK * t.chunks, "r0")


def _input(t: Tiles, asm: HeliumAssembly, p: int, c: int, held: dict[str, tuple[int, int]]) -> str:
    """The register that holds a pixel's chunk, loaded if need be."""
    if (p, c) in t.resident:
        return t.resident[p, c]
    register = f"q{5 + p}" if t.pixels == 2 else "q6"
    if held.get(register) != (p, c):
        asm(f"vldrb.8 {register}, [{_INPUTS[p]}, #{CHUNK * c}]")
        held[register] = p, c
    return register


def _products(
    t: Tiles, asm: HeliumAssembly, inputs: Sequence[str], weights: Sequence[str], *, first: bool
) -> None:
    """Products of a chunk, that begin the sums if they are the first."""
    name = "vmladav" if first else "vmladava"
    for j in range(t.outputs):
        w = weights[j % len(weights)]
        asm(f"vldrw.32 {w}, [r3], #16")
        for p, q in enumerate(inputs):
            asm(f"{name}.s8 {ACCUMULATORS[p * t.outputs + j]}, {w}, {q}")


def _long(t: Tiles, asm: HeliumAssembly) -> None:
    """All chunks of a tile, most of them in a loop; nothing stays in registers."""
    before = t.chunks % _TURN or _TURN
    for c in range(before):
        _next(t, asm, c, first=c == 0)
    asm("2:")
    for c in range(_TURN):
        _next(t, asm, c, first=False)
    asm("cmp r11, r1", "bne.w 2b")


def _next(t: Tiles, asm: HeliumAssembly, turn: int, *, first: bool) -> None:
    register = 2 * (turn % 2)
    inputs = [f"q{register + p}" for p in range(t.pixels)]
    for p, q in enumerate(inputs):
        asm(f"vldrb.8 {q}, [{_INPUTS[p]}], #16")
    _products(t, asm, inputs, ("q4", "q5", "q6", "q7"), first=first)


def _image(t: Tiles, asm: HeliumAssembly) -> None:
    """All chunks of a tile; q0 ... q3 hold columns of the image."""
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
                first = y == c == x == 0
                _products(t, asm, inputs, ("q4", "q5", "q6", "q7"), first=first)


def _scale(t: Tiles, asm: HeliumAssembly, scaling: HeliumScaling) -> None:
    asm.note("r1: sums; r3: biases and scales; r5, r7: outputs")
    asm.note("r9: zero point; r12: one; r0, r2: limits, where the clamp has any")
    asm(f"ldr r1, {asm.argument(3)}", f"ldr r3, {asm.argument(4)}")
    asm(f"ldr r5, {asm.argument(1)}")
    if t.pixels == 2:
        asm.add("r7", "r5", t.output_pitch, "r0")
    scaling.prepare(asm)
    _scale_groups(asm, scaling, t.parts, ("r5", "r7")[: t.pixels])


def _scale_groups(
    asm: HeliumAssembly,
    scaling: HeliumScaling,
    parts: tuple[LaneGroup, ...],
    outputs: tuple[str, ...],
) -> None:
    """Scale and store all groups; sums stand at r1 by vector and pixel, constants at r3."""
    whole = sum(part.channels == CHUNK for part in parts)
    looped = whole if whole > 1 else 0
    pixels = len(outputs)
    if looped:
        asm.constant("r4", looped)
        asm("dls lr, r4", "1:")
    for i, part in enumerate(parts):
        if not 0 < i < looped:
            scaling.group(
                asm,
                part,
                lambda v, p: f"vldrw.32 %s, [r1, #{16 * (v * pixels + p)}]",
                lambda k: f"[r3, #{16 * k}]",
                tuple(f"[{r}], #{4 * part.vectors}" for r in outputs),
                "q3",
            )
            if i < len(parts) - 1:
                asm(
                    f"adds r1, #{16 * part.vectors * pixels}",
                    f"adds r3, #{16 * scaling.fields * part.vectors}",
                )
        if looped and i == 0:
            asm("le lr, 1b")
