"""Template variables of the functions that compute tiles or copy windows on Helium."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.helium.assembly import AssemblyLines, HeliumAssembly, braces
from smelt.codegen.backends.helium.convolution_plan import TilePlan
from smelt.codegen.backends.helium.scaling import GroupRun, HeliumScaling, ScaledDefinition
from smelt.codegen.backends.helium.tile_assembly import tile_assembly
from smelt.codegen.backends.helium.tiles import CHUNK, Tiles


@dataclass(frozen=True)
class ImageChunks:
    """The positions of a window's chunks in rows of an image.

    Attributes:
        columns: columns of a window.
        across: chunks of a tap.
        chunks: chunks of a row of the window.
        depth: bytes of a tap.
    """

    columns: int
    across: int
    chunks: int
    depth: int


@dataclass(frozen=True)
class TilesFunction:
    """The function that computes all outputs of groups of one or two pixels.

    Attributes:
        body: the assembly.
        parameters: parameters of the C function.
        pixels: pixels of a group.
        outputs: output channels of a tile.
        step: bytes from one group's inputs to the next group's.
        output_step: bytes from one group's outputs to the next group's.
        second: bytes from the first to the second pixel's inputs and outputs; None for one pixel.
        count: tiles of a group.
        chunks: chunks of a tile.
        chunk: C text: index of the chunk that step `i` of a tile reads, for inputs in one row.
        image: positions of chunks in an image; None for inputs in one row.
        channels: output channels.
        runs: how the outputs are stored.
        constants: words of constants for four channels.
        sums: words of sums for four channels.
        scaled: the function that turns a sum into an output.
    """

    body: AssemblyLines
    parameters: tuple[str, ...]
    pixels: int
    outputs: int
    step: int
    output_step: int
    second: tuple[int, int] | None
    count: int
    chunks: int
    chunk: str
    image: ImageChunks | None
    channels: int
    runs: tuple[GroupRun, ...]
    constants: int
    sums: int
    scaled: ScaledDefinition

    @staticmethod
    def of(t: Tiles, scaling: HeliumScaling) -> TilesFunction:
        """Return the function for these tiles."""
        image = t.source == "image"
        return TilesFunction(
            body=tile_assembly(t, scaling).body,
            parameters=t.parameters,
            pixels=t.pixels,
            outputs=t.outputs,
            step=t.step,
            output_step=t.output_step,
            second=(t.pitch, t.output_pitch) if t.pixels == 2 else None,
            count=t.count,
            chunks=t.chunks,
            chunk=f"tile % 2 ? {t.chunks - 1} - i : i" if t.alternates else "i",
            image=ImageChunks(t.kernel[1], t.across, t.row_chunks, t.depth) if image else None,
            channels=t.channels,
            runs=t.runs,
            constants=4 * scaling.fields,
            sums=4 * t.pixels,
            scaled=scaling.definition,
        )


@dataclass(frozen=True)
class TileBlocks:
    """Blocks of output channels; the tile function is called for one block after another.

    Attributes:
        starts: the first channel of each block.
        weights: words of a block's weights.
        constants: words of a block's biases and scales.
    """

    starts: tuple[int, ...]
    weights: int
    constants: int

    @staticmethod
    def of(plan: TilePlan, scaling: HeliumScaling) -> TileBlocks | None:
        """Return the blocks of a plan; None if all channels are one block."""
        if len(plan.blocks) == 1:
            return None
        t = plan.tiles
        constants = 4 * scaling.fields * sum(part.vectors for part in t.parts)
        return TileBlocks(plan.blocks, t.words, constants)


_POINTERS = ("r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12")
"""Registers for pointers to the rows of a window."""


def windows_assembly(plan: TilePlan) -> HeliumAssembly:
    """Return the body of the function that copies the windows of a row of outputs.

    Registers: r0: destination; r1: addresses of rows; r2: number of windows. A row is copied in
    whole vectors, so up to 15 more bytes are read and written; later rows overwrite them.
    """
    g, asm = plan.geometry, HeliumAssembly()
    pitch, rest = g.pitch, plan.tiles.length - g.kernel[0] * g.segment
    if g.segment <= CHUNK and pitch < 128 and g.kernel[0] <= len(_POINTERS) and rest < 112:
        rows = _POINTERS[: g.kernel[0]]
        asm("push {r4-r11, lr}", f"ldm r1, {braces(rows)}", "dls lr, r2", "1:")
        for y, row in enumerate(rows):
            step = g.segment + (rest if y == g.kernel[0] - 1 else 0)
            asm(f"vldrb.8 q0, [{row}], #{pitch}", f"vstrb.8 q0, [r0], #{step}")
        asm("le lr, 1b", "pop {r4-r11, pc}")
        return asm
    asm("mov r12, #0", "1:")
    for y in range(g.kernel[0]):
        asm(f"ldr r3, [r1, #{4 * y}]", "add r3, r12")
        for start in range(0, g.segment, CHUNK):
            step = min(CHUNK, g.segment - start)
            asm("vldrb.8 q0, [r3], #16", f"vstrb.8 q0, [r0], #{step}")
    if rest:
        asm.add("r0", "r0", rest, "r3")
    asm.add("r12", "r12", pitch, "r3")
    asm("subs r2, #1", "bne.w 1b", "bx lr")
    return asm
