"""Assembly that computes tiles (see `tiles`), and scales and stores their sums."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.backends.helium.assembly import ACCUMULATORS, HeliumAssembly, braces
from smelt.codegen.backends.helium.scaling import HeliumScaling, LaneGroup
from smelt.codegen.backends.helium.tiles import CHUNK, ROWS, Tiles

_LOOP_CHUNKS = 4
"""Chunks that one iteration of the loop over chunks reads."""
_INPUTS = ("r11", "r9")
"""Registers that point to the inputs of the first and the second pixel, if they are in one row."""
_ALL = braces(ACCUMULATORS)


def tile_assembly(t: Tiles, scaling: HeliumScaling) -> HeliumAssembly:
    """Return the body of the tile function: it sums, then scales, all outputs of each group.

    The function's arguments: inputs (for an image: addresses of its rows), outputs, weights, sums
    (scratch), biases and scales, number of groups, and for an image the offset into its rows.
    """
    asm = HeliumAssembly()
    asm.enter()
    if t.source == "row":
        asm("mov r11, r0")
    asm("5:")
    _load_input_addresses(t, asm)
    asm(f"ldrd r3, r7, {asm.argument(2)}")
    _dot_products(t, asm)
    _scale(t, asm, scaling)
    asm.note("advance to the next group of pixels")
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


def _load_input_addresses(t: Tiles, asm: HeliumAssembly) -> None:
    """Load the addresses of the inputs of a group's pixels."""
    if t.source == "image":
        asm(f"ldr r0, {asm.argument(0)}", f"ldr r2, {asm.argument(6)}")
        for y in range(t.kernel[0]):
            asm(f"ldr {ROWS[y]}, [r0, #{4 * y}]", f"add {ROWS[y]}, r2")
    elif t.pixels == 2:
        asm.add("r9", "r11", t.pitch, "r0")


def _input_registers(t: Tiles) -> str:
    """Return the part of the register list that describes the inputs."""
    if t.source == "image":
        rows = ROWS[: t.kernel[0]]
        return f"{', '.join(rows)}: row{'s' if len(rows) > 1 else ''} of the image"
    inputs = "r11: inputs" if t.pixels == 1 else "r11, r9: inputs of pixel 0, pixel 1"
    return f"{inputs}; r1: end of r11's inputs" if t.looped else inputs


def _dot_products(t: Tiles, asm: HeliumAssembly) -> None:
    """Compute the sums of a group's outputs and store them in scratch."""
    asm.note(f"{_input_registers(t)}; r3: weights; r5: end of the loop's weights")
    asm.note("r7: sums in scratch; r0, r2, r4, r6, r8, r10, r12, lr: sums of a tile")
    for (p, c), q in t.resident.items():
        asm(f"vldrb.8 {q}, [{_INPUTS[p]}, #{CHUNK * c}]")
    run = 2 if t.alternates and t.count > 1 else 1
    left = t.count % run
    asm.add("r5", "r3", 4 * t.words // t.count * (t.count - left), "r0")
    if t.looped:
        asm.add("r1", "r11", CHUNK * t.chunks, "r0")
    held: dict[str, tuple[int, int]] = {}
    if t.alternates:
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
    """Compute and store the sums of a tile.

    Args:
        t: the split into tiles and chunks.
        asm: the assembly to append to.
        tile: 0 to read the chunks forwards, 1 to read them backwards if tiles alternate.
        held: the (pixel, chunk) that each temporary register holds; updated.
    """
    if t.looped:
        _looped_chunks(t, asm)
    elif t.source == "image":
        _image_chunks(t, asm)
    else:
        free = ("q7",) if t.alternates else ("q6", "q7")
        for i, c in enumerate(t.order(tile)):
            inputs = [_input(t, asm, p, c, held) for p in range(t.pixels)]
            _products(t, asm, inputs, free, first=i == 0)
    asm(f"stm r7!, {_ALL}")
    if t.looped:
        for p in range(t.pixels):
            asm.add(_INPUTS[p], _INPUTS[p], -CHUNK * t.chunks, "r0")


def _input(t: Tiles, asm: HeliumAssembly, p: int, c: int, held: dict[str, tuple[int, int]]) -> str:
    """Return the register that holds a pixel's chunk; load the chunk if no register holds it."""
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
    """Add the products of a chunk to the sums; the `first` chunk sets the sums instead."""
    name = "vmladav" if first else "vmladava"
    for j in range(t.outputs):
        w = weights[j % len(weights)]
        asm(f"vldrw.32 {w}, [r3], #16")
        for p, q in enumerate(inputs):
            asm(f"{name}.s8 {ACCUMULATORS[p * t.outputs + j]}, {w}, {q}")


def _looped_chunks(t: Tiles, asm: HeliumAssembly) -> None:
    """Sum all chunks of a tile, most of them in a loop; no chunk stays in a register."""
    before = t.chunks % _LOOP_CHUNKS or _LOOP_CHUNKS
    for c in range(before):
        _next_chunk(t, asm, c, first=c == 0)
    asm("2:")
    for c in range(_LOOP_CHUNKS):
        _next_chunk(t, asm, c, first=False)
    asm("cmp r11, r1", "bne.w 2b")


def _next_chunk(t: Tiles, asm: HeliumAssembly, c: int, *, first: bool) -> None:
    """Load the next chunk of each pixel and add its products; registers alternate with `c`."""
    register = 2 * (c % 2)
    inputs = [f"q{register + p}" for p in range(t.pixels)]
    for p, q in enumerate(inputs):
        asm(f"vldrb.8 {q}, [{_INPUTS[p]}], #16")
    _products(t, asm, inputs, ("q4", "q5", "q6", "q7"), first=first)


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
                first = y == c == x == 0
                _products(t, asm, inputs, ("q4", "q5", "q6", "q7"), first=first)


def _scale(t: Tiles, asm: HeliumAssembly, scaling: HeliumScaling) -> None:
    """Scale the sums of a group of pixels and store the outputs."""
    outputs = "r5, r7: outputs of pixel 0, pixel 1" if t.pixels == 2 else "r5: outputs"
    asm.note(f"r1: sums; r3: biases and scales; {outputs}")
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
    """Scale and store all groups of channels.

    r1 points to the sums, 16 bytes for each vector and pixel; r3 points to the constants.
    """
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
