"""Functions that compute a channel's plane of a depthwise convolution (`halfword_depthwise`).

In a layer's own function, the distances by which it advances over the plane are constants. A shared
function reads them from the layer's struct (`depthwise_walk`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from smelt.codegen.lower.depthwise_plane import Plane
from smelt.codegen.lower.depthwise_walk import ANY_PLANE, LAYERS, OWN, PlaneWalk, WalkCode
from smelt.codegen.lower.kernel import InnerFunction, Parameters
from smelt.codegen.lower.nested_loops import total
from smelt.codegen.lower.requantization_32bit import ShortScaling
from smelt.codegen.lower.stored_output import stored_output
from smelt.codegen.text.expressions import offset, times


def groups_of(taps: int, largest: int) -> tuple[int, ...]:
    """Split taps into groups of one size; the last one may be smaller."""
    whole, rest = divmod(taps, largest)
    return (largest,) * whole + ((rest,) if rest else ())


@dataclass(frozen=True)
class PackingCost:
    """Instructions of the C that packs words, as gcc compiles it.

    Attributes:
        word: Instructions for a word at stride 1, in functions for one plane or for equal planes.
        strided: Instructions for a word at other strides, in these functions.
        any_word: Instructions for a word, in functions for any planes.
        any_line: Additional instructions for each sequence of words, in functions for any planes.
    """

    word: int
    strided: int
    any_word: int
    any_line: int


@dataclass(frozen=True)
class DepthwiseCore:
    """What differs between the cores that these kernels support.

    Attributes:
        condition: The preprocessor condition for the assembly.
        pairs: Returns the assembly for a walk over a plane, with taps summed in these groups.
        packing: The cost of packing inputs.
        form: The name in the price tables.
        by_line: Whether a group must end where its line of taps ends.
        saturates: Whether the core has an instruction that saturates signed numbers to 8 bits.
    """

    condition: str
    pairs: Callable[[PlaneWalk, ShortScaling, tuple[int, ...]], WalkCode]
    packing: PackingCost
    form: str
    by_line: bool
    saturates: bool

    def groups(self, plane: Plane, largest: int) -> tuple[int, ...]:
        """Split a window's taps into groups of at most `largest`."""
        if self.by_line:
            return groups_of(plane.run, largest) * plane.lines
        return groups_of(plane.run * plane.lines, largest)


@dataclass(frozen=True)
class TapOfPlane:
    """A tap in C.

    Attributes:
        place: C of the position in words, relative to the first tap of the window.
        adds: The operator that adds its product to the sum: `=` or `+=`.
        flushes: Whether the sum is added to the totals after this tap.
    """

    place: str
    adds: str
    flushes: bool


@dataclass(frozen=True)
class PairsParameters(Parameters):
    """Variables of `lower/halfword_pairs.j2`; u is the axis of pairs, v the other one.

    Attributes:
        condition: The preprocessor condition for the assembly.
        assembly: C lines of its statement.
        name: The name of axis u: `rows` or `columns`.
        largest: The largest number of taps in a group.
        taps: The taps in C.
        constants: The index of the requantization constants in a row, after the weights.
        any_plane: Whether the function reads all numbers of the walk.
        outputs: C of the outputs along v.
        odd: Whether the last output along u may have no partner.
        window: With `any_plane`, C of the words from a window's first tap to the end of its last.
        word: C of the offset of the window of output (u, v).
        shared: Whether the function reads numbers of the walk.
        partner: C of the offset of the next output along u.
        place: C of the offset of output (u, v).
    """

    condition: str
    assembly: str
    name: str
    largest: int
    taps: tuple[TapOfPlane, ...]
    constants: int
    any_plane: bool
    outputs: str
    odd: bool
    window: str
    word: str
    shared: bool
    partner: str
    place: str


def pairs_function(
    core: DepthwiseCore, walk: PlaneWalk, scaling: ShortScaling, largest: int
) -> InnerFunction:
    """Return the function for channels with at most `largest` taps in a group."""
    plane, any_plane = walk.plane, walk.read == ANY_PLANE
    groups = core.groups(plane, largest)
    height, width = plane.taps if plane.axis == 0 else plane.taps[::-1]
    strided = f"_s{plane.stride[0]}" if plane.stride != (1, 1) else ""
    along, pitch = plane.outputs[1], plane.pitch[1 - plane.inner]
    of_plane = "" if any_plane else f"_of_{along}"
    v = "0" if along == 1 and not any_plane else "v"
    step = plane.stride[0] * plane.pitch[0], plane.stride[1] * plane.pitch[1]
    word, place = (
        total(times(*part) for part in zip(("u", v), by, strict=True))
        for by in (step, plane.target)
    )
    return InnerFunction(
        template="lower/halfword_pairs.j2",
        stem=f"depthwise_{height}x{width}{'' if any_plane else strided}_pairs{largest}{of_plane}",
        details={
            "step": f"step{plane.target[1]}" if walk.read == OWN else "any_step",
            "line": f"line{plane.target[0]}" if walk.read == OWN else "",
            "last": "odd" if walk.odd else "even",
            "pitch": "" if any_plane else f"pitch{max(plane.pitch)}",
            **scaling.details,
        },
        parameters=PairsParameters(
            condition=core.condition,
            assembly=core.pairs(walk, scaling, groups).assembly.text,
            name=plane.name if walk.read < ANY_PLANE else "lines",
            largest=largest,
            taps=_taps(plane, groups, "pitch" if any_plane else pitch),
            constants=plane.run * plane.lines,
            any_plane=any_plane,
            outputs="outputs" if any_plane else str(along),
            odd=walk.odd,
            window=f"{times('pitch', plane.lines - 1)} + {plane.run}" if any_plane else "",
            word="u / 2 * lines + v * step" if any_plane else word,
            shared=walk.read > OWN,
            partner=str(plane.target[0]) if walk.read == OWN else "across",
            place=place if walk.read == OWN else total(("u * across", times(v, "along"))),
        ),
        uses={"SMELT_NAKED"},
        inner=(stored_output(scaling.steps, core.condition),),
        layer=LAYERS[walk.read],
    )


def _taps(plane: Plane, groups: tuple[int, ...], pitch: int | str) -> tuple[TapOfPlane, ...]:
    """Return the taps of a window, line by line; the distance of lines is `pitch` words."""
    within = [i for size in groups for i in range(size)]
    return tuple(
        TapOfPlane(_place(*divmod(tap, plane.run), pitch), "+=" if i else "=", ends == 0)
        for tap, (i, ends) in enumerate(zip(within, [*within[1:], 0], strict=True))
    )


def _place(line: int, tap: int, pitch: int | str) -> str:
    """Return C of the position of a tap in a line."""
    if isinstance(pitch, int) or line == 0:
        return str(line * pitch + tap if isinstance(pitch, int) else tap)
    return offset(pitch if line == 1 else f"{line} * {pitch}", tap)
