"""Functions that compute a channel's plane of a depthwise convolution (`halfword_depthwise`).

The distances between outputs depend on the number of channels. In a layer's own function they are
constants. In a shared function they are arguments; layers with planes of equal size can call it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from smelt.codegen.lower.assembly_builder import Assembler
from smelt.codegen.lower.depthwise_plane import Plane
from smelt.codegen.lower.kernel import (
    BodyCost,
    InnerFunction,
    KernelCall,
    Parameters,
    SharedBody,
)
from smelt.codegen.lower.requantization_32bit import ShortScaling
from smelt.codegen.lower.shared_functions import SharedFunctions
from smelt.codegen.lower.stored_output import stored_output
from smelt.codegen.text.expressions import times


def chunks_of(taps: int, largest: int) -> tuple[int, ...]:
    """Split taps into chunks of one size; the last one may be smaller."""
    whole, rest = divmod(taps, largest)
    return (largest,) * whole + ((rest,) if rest else ())


_PACKED, _PACKED_STRIDED = 7, 11
"""Instructions of the C that packs a word, as gcc compiles it, with and without stride 1."""


@dataclass(frozen=True)
class PairsWithDistances:
    """The assembly of functions with distances between outputs as arguments.

    Attributes:
        pairs: Returns the assembly; see `DepthwiseCore.pairs`.
        executed: Returns the instructions for a number of rows of pairs, with distances as
            arguments or as constants.
    """

    pairs: Callable[[Plane, ShortScaling, tuple[int, ...]], Assembler]
    executed: Callable[[Plane, ShortScaling, tuple[int, ...], int, bool], int]


@dataclass(frozen=True)
class DepthwiseCore:
    """The differences between the supported cores.

    Attributes:
        condition: The preprocessor condition for the assembly.
        pairs: Returns the assembly for a channel of a plane, with taps summed in these chunks.
        form: The name in the price tables.
        by_line: Whether a chunk ends at the end of its line.
        saturates: Whether the core has an instruction that saturates signed numbers to 8 bits.
        shared: The assembly of functions that layers share, if there is any.
    """

    condition: str
    pairs: Callable[[Plane, ShortScaling, tuple[int, ...]], Assembler]
    form: str
    by_line: bool
    saturates: bool
    shared: PairsWithDistances | None = None

    def chunks(self, plane: Plane, largest: int) -> tuple[int, ...]:
        """Split a window's taps into chunks of at most `largest`."""
        if self.by_line:
            return chunks_of(plane.run, largest) * plane.lines
        return chunks_of(plane.run * plane.lines, largest)


@dataclass(frozen=True)
class TapOfPlane:
    """A tap in C.

    Attributes:
        place: The position in words, relative to the first tap of the window.
        adds: The operator that adds its product to the sum: `=` or `+=`.
        flushes: Whether the sum is added to the totals after this tap.
    """

    place: int
    adds: str
    flushes: bool


@dataclass(frozen=True)
class PairsParameters(Parameters):
    """Variables of `lower/halfword_pairs.j2`; u is the axis of pairs, v the other one.

    Attributes:
        condition: The preprocessor condition for the assembly.
        assembly: C lines of its statement.
        name: The name of axis u: `rows` or `columns`.
        largest: The largest number of taps in a chunk.
        taps: The taps in C.
        constants: The index of the requantization constants in a row, after the weights.
        outputs: Outputs along v.
        odd: Whether the last output along u has no partner.
        step: Words from an output to the next along u and v.
        shared: Whether the elements from an output to the next along u and v are arguments.
        partner: C of the offset of the next output along u.
        place: C of the offset of output (u, v).
    """

    condition: str
    assembly: str
    name: str
    largest: int
    taps: tuple[TapOfPlane, ...]
    constants: int
    outputs: int
    odd: bool
    step: tuple[int, int]
    shared: bool
    partner: str
    place: str


def pairs_function(
    core: DepthwiseCore, plane: Plane, scaling: ShortScaling, largest: int, *, shared: bool
) -> InnerFunction:
    """Return the function for channels with at most `largest` taps in a chunk."""
    chunks = core.chunks(plane, largest)
    height, width = plane.taps if plane.axis == 0 else plane.taps[::-1]
    along = plane.outputs[1]
    strided = f"_s{plane.stride[0]}" if plane.stride != (1, 1) else ""
    assembly = core.shared.pairs if shared and core.shared else core.pairs
    u, v = (times(*part) for part in zip("uv", plane.target, strict=True))
    return InnerFunction(
        template="lower/halfword_pairs.j2",
        stem=f"depthwise_{height}x{width}{strided}_pairs{largest}_of_{along}",
        details={
            "step": "any_step" if shared else f"step{plane.target[1]}",
            "last": "odd" if plane.odd else "even",
            "pitch": f"pitch{max(plane.pitch)}",
            **scaling.details,
        },
        parameters=PairsParameters(
            condition=core.condition,
            assembly=assembly(plane, scaling, chunks).text,
            name="columns" if plane.axis else "rows",
            largest=largest,
            taps=_taps(plane, chunks),
            constants=plane.run * plane.lines,
            outputs=along,
            odd=plane.odd,
            step=(plane.stride[0] * plane.pitch[0], plane.stride[1] * plane.pitch[1]),
            shared=shared,
            partner="across" if shared else str(plane.target[0]),
            place="u * across + v * along" if shared else f"{u} + {v}",
        ),
        uses={"SMELT_NAKED"},
        inner=(stored_output(scaling.steps, core.condition),),
    )


@dataclass(frozen=True)
class PlaneWork:
    """What the functions of a layer compute.

    Attributes:
        plane: A channel's plane.
        scaling: The requantization.
        channels: The channels of each function, by its largest number of taps in a chunk.
        images: The number of images.
    """

    plane: Plane
    scaling: ShortScaling
    channels: Mapping[int, int]
    images: int

    def cost(self, core: DepthwiseCore, assembly: PairsWithDistances, *, shared: bool) -> BodyCost:
        """Return the instructions of the layer, and the bytes of the functions."""
        plane, pairs = self.plane, -(-self.plane.outputs[0] // 2)
        bands = -(-pairs // plane.pairs)
        word = _PACKED if plane.stride[0] == 1 else _PACKED_STRIDED
        instructions = size = 0
        for largest, count in self.channels.items():
            chunks = core.chunks(plane, largest)
            rows = -(-pairs // bands)
            called = assembly.executed(plane, self.scaling, chunks, rows, shared)
            instructions += count * bands * (called + word * plane.filled * plane.rows)
            code = assembly.pairs if shared else core.pairs
            size += code(plane, self.scaling, chunks).size
        return BodyCost(instructions * self.images, size)


def shared_pairs(
    core: DepthwiseCore, own: KernelCall, shared: KernelCall, work: PlaneWork
) -> SharedBody | None:
    """Return the functions that a layer can share, or None if the core has none.

    Args:
        core: The core.
        own: The call with the layer's own functions.
        shared: The call with shared functions.
        work: What these functions compute.
    """
    assembly = core.shared
    if assembly is None:
        return None
    costs = (work.cost(core, assembly, shared=is_shared) for is_shared in (True, False))
    return SharedFunctions.of(own, shared, *costs)


def _taps(plane: Plane, chunks: tuple[int, ...]) -> tuple[TapOfPlane, ...]:
    """Return the taps of a window, line by line."""
    within = [i for size in chunks for i in range(size)]
    return tuple(
        TapOfPlane(
            tap // plane.run * plane.pitch[1 - plane.inner] + tap % plane.run,
            "+=" if i else "=",
            [*within, 0][tap + 1] == 0,
        )
        for tap, i in enumerate(within)
    )
