"""What templates have of the functions that compute tiles on Helium, and of what copies windows."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.helium.assembly import AssemblyLines, HeliumAssembly, braces
from smelt.codegen.backends.helium.convolution_plan import TilePlan
from smelt.codegen.backends.helium.scaling import GroupRun, HeliumScaling, ScaledDefinition
from smelt.codegen.backends.helium.tile_assembly import tile_assembly
from smelt.codegen.backends.helium.tiles import CHUNK, Tiles


@dataclass(frozen=True)
class ImageChunks:
    """Where the chunks of a window lie in rows of an image.

    Attributes:
        columns: of a window.
        across: chunks of a tap.
        chunks: of a row.
        depth: bytes of a tap.
    """

    columns: int
    across: int
    chunks: int
    depth: int


@dataclass(frozen=True)
class TilesFunction:
    """All outputs of one pixel or two, as assembly and as plain C.

    Attributes:
        body: the assembly.
        parameters: of the function in C.
        pixels, outputs: of a tile.
        step, output_step: bytes from the inputs (outputs) of one group of pixels to the next.
        second: bytes from the inputs and the outputs of the first pixel to those of the second.
        count: tiles.
        chunks: of a tile.
        chunk: C of the chunk of step `i` in a row.
        image: of chunks in an image; None for those of a row.
        channels: of the outputs.
        runs: how they are stored.
        constants, sums: words of constants and of sums of four channels.
        scaled: how sums become outputs.
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
        """The function for tiles."""
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
            chunk=f"tile % 2 ? {t.chunks - 1} - i : i" if t.snakes else "i",
            image=ImageChunks(t.kernel[1], t.across, t.row_chunks, t.depth) if image else None,
            channels=t.channels,
            runs=t.runs,
            constants=4 * scaling.fields,
            sums=4 * t.pixels,
            scaled=scaling.definition,
        )


@dataclass(frozen=True)
class TileBlocks:
    """Blocks of output channels for which the tile function is called in turn.

    Attributes:
        starts: the first channel of each.
        weights, constants: words of a block.
    """

    starts: tuple[int, ...]
    weights: int
    constants: int

    @staticmethod
    def of(plan: TilePlan, scaling: HeliumScaling) -> TileBlocks | None:
        """Those of a plan; None where all channels are one block."""
        if len(plan.blocks) == 1:
            return None
        t = plan.tiles
        constants = 4 * scaling.fields * sum(part.vectors for part in t.parts)
        return TileBlocks(plan.blocks, t.words, constants)


_POINTERS = ("r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12")


def windows_assembly(plan: TilePlan) -> HeliumAssembly:
    """Copies the windows of a row of outputs: r0 to, r1 addresses of rows, r2 how many."""
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
