"""Template variables of the functions that compute tiles or copy windows on Helium."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.helium.assembly import PLAIN, AssemblyLines, HeliumAssembly, braces
from smelt.codegen.backends.helium.convolution_plan import TilePlan
from smelt.codegen.backends.helium.memory import COPY
from smelt.codegen.backends.helium.rescale import rescale
from smelt.codegen.backends.helium.scaling import (
    CONSTANT,
    HIGH,
    LOW,
    HeliumScaling,
    groups,
    span,
)
from smelt.codegen.backends.helium.tile_assembly import (
    BACK,
    JUMP,
    SIZES,
    dots_assembly,
    rest_assembly,
    tile_assembly,
)
from smelt.codegen.backends.helium.tiles import CHUNK, Tiles
from smelt.codegen.lower.kernel import InnerFunction
from smelt.codegen.text.expressions import offset
from smelt.codegen.text.parameters import Parameters


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
class DotsParameters(Parameters):
    """Variables of `backends/helium/dots.j2`.

    Attributes:
        body: the assembly.
        pixels: pixels of a group.
        outputs: output channels of a tile.
        chunks: chunks of a tile; None if the layer's sizes contain it.
        before: chunks before the loop over chunks; None if there is no loop.
        image: positions of chunks in an image; None for inputs in one row.
        unrolled: whether the assembly has no loop over chunks, and inputs are in one row.
        back: offset on the stack of the address to which the assembly jumps.
    """

    body: AssemblyLines
    pixels: int
    outputs: int
    chunks: int | None
    before: int | None
    image: ImageChunks | None
    unrolled: bool
    back: int


@dataclass(frozen=True)
class GroupParameters(Parameters):
    """Variables of `backends/helium/group.j2`.

    Attributes:
        pixels: pixels of a group.
        constants: words of constants for four channels.
    """

    pixels: int
    constants: int


@dataclass(frozen=True)
class HeliumTileParameters(Parameters):
    """Variables of `backends/helium/tile.j2`.

    Attributes:
        body: the assembly.
        pixels: pixels of a group.
        narrowing: a sentence of the comment.
        sums: words of sums for 16 channels.
        constants: words of constants for 16 channels.
        bytes: bytes of the struct of a layer's sizes, for assembly.
    """

    body: AssemblyLines
    pixels: int
    narrowing: str
    sums: int
    constants: int
    bytes: int


@dataclass(frozen=True)
class RestPart:
    """Channels that are stored together, in plain C.

    Attributes:
        sums: words of sums before it.
        constants: words of constants before it.
        first: its first channel.
        vectors: its vectors.
        channels: C text: its number of channels.
    """

    sums: int
    constants: int
    first: int
    vectors: int
    channels: str


@dataclass(frozen=True)
class RestParameters(Parameters):
    """Variables of `backends/helium/rest.j2`.

    Attributes:
        body: the assembly.
        parts: the groups of channels.
        registers: further registers that the assembly reads, for the comment.
        jump: offset on the stack of the address to which the assembly jumps.
    """

    body: AssemblyLines
    parts: tuple[RestPart, ...]
    registers: str
    jump: int


@dataclass(frozen=True)
class CopiesParameters(Parameters):
    """Variables of `backends/helium/copies.j2`.

    Attributes:
        pixels: pixels of a group.
    """

    pixels: int


def tile_functions(t: Tiles, scaling: HeliumScaling) -> tuple[InnerFunction, ...]:
    """Return the functions `tile`, `dots` and, if needed, `rest` of a layer.

    Layers of other sizes can share them.
    """
    fields = scaling.fields - 1
    group = InnerFunction(
        "backends/helium/group.j2",
        f"group{t.pixels}_{scaling.kind}",
        GroupParameters(t.pixels, 4 * fields),
        inner=(rescale(scaling),),
        condition=PLAIN,
    )
    tile = HeliumTileParameters(
        body=tile_assembly(t.pixels, scaling).body,
        pixels=t.pixels,
        narrowing=scaling.narrowing,
        sums=16 * t.pixels,
        constants=16 * fields,
        bytes=4 * len(SIZES),
    )
    stem = f"tile_{t.pixels}x{t.outputs}_{scaling.kind}"
    found = InnerFunction("backends/helium/tile.j2", stem, tile, {"SMELT_NAKED"}, (group,))
    rest = _rest(t, scaling, group)
    return (found, _dots(t), *((rest,) if rest else ()))


def _rest(t: Tiles, scaling: HeliumScaling, group: InnerFunction) -> InnerFunction | None:
    """Return the function that scales the last channels; None if 16 divides their number."""
    left = t.channels % CHUNK
    if not left:
        return None
    parts, before, found = groups(left), 0, list[RestPart]()
    for part in parts:
        channels = offset("channels", -part.first)
        if part is not parts[-1]:
            channels = str(part.channels)
        constants = 4 * (scaling.fields - 1) * before
        sums = 4 * t.pixels * before
        found.append(RestPart(sums, constants, part.first, part.vectors, channels))
        before += part.vectors
    body = rest_assembly(parts, t.pixels, scaling).body
    read = [(CONSTANT, "128" if scaling.unsigned else "zero point")]
    read += [
        (register, name)
        for clamped, register, name in zip(
            scaling.clamps, (LOW, HIGH), ("lowest output", "highest output"), strict=True
        )
        if clamped
    ]
    registers = "".join(f"; {register}: {name}" for register, name in read)
    parameters = RestParameters(body, tuple(found), registers, JUMP)
    stem = f"rest{span(left)}x{t.pixels}_{scaling.kind}"
    return InnerFunction("backends/helium/rest.j2", stem, parameters, {"SMELT_NAKED"}, (group,))


def _dots(t: Tiles) -> InnerFunction:
    """Return the function that computes the sums of a group of pixels."""
    image = None
    if t.source == "image":
        image = ImageChunks(t.kernel[1], t.across, t.row_chunks, t.depth)
    dots = DotsParameters(
        body=dots_assembly(t).body,
        pixels=t.pixels,
        outputs=t.outputs,
        chunks=None if t.looped else t.chunks,
        before=t.before if t.looped else None,
        image=image,
        unrolled=not t.looped and image is None,
        back=BACK,
    )
    return InnerFunction("backends/helium/dots.j2", _dots_stem(t), dots, {"SMELT_NAKED"})


def _dots_stem(t: Tiles) -> str:
    """Return the name of the function `dots`: what differs between such functions."""
    stem = f"dots_{t.pixels}x{t.outputs}"
    if t.source == "image":
        height, width = t.kernel
        return f"{stem}_image{height}x{width}_c{t.depth}_s{t.pitch // t.depth}"
    if t.looped:
        return f"{stem}_loop{t.before}"
    return f"{stem}_{t.chunks}chunk{'s' if t.chunks > 1 else ''}" + "_twice" * (t.tiles_at_once - 1)


def copying_function(t: Tiles, tile: InnerFunction) -> InnerFunction:
    """Return the function that copies the tensor's last inputs, and computes groups of pixels."""
    parameters = CopiesParameters(t.pixels)
    inner = tile, COPY
    return InnerFunction(
        "backends/helium/copies.j2", f"copying_{tile.stem}", parameters, inner=inner
    )


def tile_sizes(t: Tiles, scaling: HeliumScaling) -> tuple[tuple[str, int], ...]:
    """Return the numbers of a layer's sizes by name, in the order of `SIZES`."""
    sizes = {
        "pitch": t.pitch,
        "step": t.step,
        "weights": 4 * t.words,
        "chunks": t.chunks,
        "tiles": t.count,
        "channels": t.channels,
        "whole": t.channels // CHUNK,
        "left": t.channels % CHUNK,
        "output_pitch": t.output_pitch,
        "zero": scaling.zero_point,
        "low": scaling.low,
        "high": scaling.high,
        "inputs": t.inputs if t.copies else 0,
    }
    return tuple((name, sizes[name]) for name in SIZES[2:])


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
        constants = 4 * (scaling.fields - 1) * sum(part.vectors for part in t.parts)
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
