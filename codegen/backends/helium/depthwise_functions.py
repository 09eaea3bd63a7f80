"""The functions for strips of depthwise convolutions on Helium, which layers share."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.helium.assembly import PLAIN, AssemblyLines
from smelt.codegen.backends.helium.depthwise_assembly import (
    interleave_assembly,
    outputs_assembly,
    stop_assembly,
    sums_assembly,
)
from smelt.codegen.backends.helium.depthwise_plan import LANES, ROW, Patches
from smelt.codegen.backends.helium.memory import COPY, COPY_PIXELS, FILL
from smelt.codegen.backends.helium.rescale import rescale
from smelt.codegen.backends.helium.scaling import HeliumScaling, LaneGroup, groups, span
from smelt.codegen.lower.kernel import InnerFunction, Parameters
from smelt.codegen.text.expressions import offset
from smelt.codegen.text.helpers import when
from smelt.codegen.text.parameters import NoParameters

STRIP = InnerFunction("backends/helium/strip.j2", "depthwise", NoParameters())
"""The types of a layer's sizes and of a strip's arguments, which all functions here use."""

PADDING = InnerFunction(
    "backends/helium/strip_padding.j2", "strip_padding", NoParameters(), inner=(STRIP, FILL)
)
"""The function that fills rows of a strip outside of the image."""


@dataclass(frozen=True)
class StripLanes:
    """The channels of a strip that a function stores.

    Attributes:
        parts: the groups in which they are stored.
        exact: whether their number is known; otherwise the last part has fewer.
        name: their number, for the name of the function.
        counted: whether the strip's arguments contain the number, and not the layer's sizes.
    """

    parts: tuple[LaneGroup, ...]
    exact: bool
    name: str
    counted: bool = False

    @staticmethod
    def of(lanes: int) -> StripLanes:
        """Return `lanes` channels, in as few vectors as possible."""
        exact = lanes in (4, 8, LANES)
        return StripLanes(groups(lanes), exact, f"{lanes}" if exact else span(lanes))

    @staticmethod
    def up_to(lanes: int) -> StripLanes:
        """Return 1 to 8 or 1 to 16 channels, in one group, which strips of any layer can have."""
        part = LaneGroup(0, 2 if lanes <= LANES // 2 else 4, lanes)
        return StripLanes((part,), exact=False, name=f"1to{4 * part.vectors}", counted=True)


@dataclass(frozen=True)
class InterleaveParameters(Parameters):
    """Variables of `backends/helium/interleave.j2`.

    Attributes:
        whole: whether a strip has 16 channels; otherwise, it has fewer.
        body: the assembly.
    """

    whole: bool
    body: AssemblyLines


@dataclass(frozen=True)
class StripSumsParameters(Parameters):
    """Variables of `backends/helium/sums.j2`.

    Attributes:
        body: the assembly.
        starts: for each output of a patch the offset of its shifted weights, in bytes.
        record: words of a channel's weights.
        unrolled: patches in an iteration of the loop.
        left: patches after the loop.
        outputs: outputs of a patch.
        step: bytes of the strip from one patch to the next.
        order: sentences of the comment: how the assembly goes over patches.
    """

    body: AssemblyLines
    starts: tuple[int, ...]
    record: int
    unrolled: int
    left: int
    outputs: int
    step: int
    order: str


@dataclass(frozen=True)
class StripPart:
    """A group of channels that the plain C form stores together.

    Attributes:
        first: its first channel.
        constants: words of constants before it.
        vectors: its vectors of four channels.
        channels: C text: its number of channels.
    """

    first: int
    constants: int
    vectors: int
    channels: str


@dataclass(frozen=True)
class StripOutputsParameters(Parameters):
    """Variables of `backends/helium/outputs.j2`.

    Attributes:
        body: the assembly.
        across: output columns of a strip.
        narrowing: a sentence of the comment.
        parts: the groups of channels.
    """

    body: AssemblyLines
    across: int
    narrowing: str
    parts: tuple[StripPart, ...]


@dataclass(frozen=True)
class StripPartParameters(Parameters):
    """Variables of `backends/helium/strip_part.j2`.

    Attributes:
        across: output columns of a strip.
        constants: words of constants for four channels.
    """

    across: int
    constants: int


@dataclass(frozen=True)
class StripsParameters(Parameters):
    """Variables of `backends/helium/strips.j2`.

    Attributes:
        copies: whether rows of the image are copied first, so that outputs may overwrite them.
    """

    copies: bool


@dataclass(frozen=True)
class StopParameters(Parameters):
    """Variables of `backends/helium/stop.j2`.

    Attributes:
        body: the assembly.
    """

    body: AssemblyLines


def interleave_function(lanes: int) -> InnerFunction:
    """Return the function that fills rows of a strip with `lanes` channels."""
    whole = lanes == LANES
    parameters = InterleaveParameters(whole, interleave_assembly(whole=whole).body)
    stem = f"interleave{LANES}" if whole else "interleave"
    return InnerFunction(
        "backends/helium/interleave.j2", stem, parameters, {"SMELT_NAKED"}, (STRIP,)
    )


def sums_function(p: Patches) -> InnerFunction:
    """Return the function that computes the sums of a strip."""
    parameters = StripSumsParameters(
        body=sums_assembly(p).body,
        starts=tuple(p.lead - shift for shift in p.shifts),
        record=p.record,
        unrolled=p.unrolled,
        left=p.left,
        outputs=p.outputs,
        step=ROW * p.advance,
        order=_order(p),
    )
    shape = f"line{p.down}_a{p.advance}" if p.line else f"{p.down}x{p.across}_a{p.advance}"
    loop = (f"_by{p.unrolled}" if p.even else "") if p.iterations else "_once"
    left = f"_left{p.left}" if p.left else ""
    stem, template = f"sums_{shape}{loop}{left}", "backends/helium/sums.j2"
    return InnerFunction(template, stem, parameters, {"SMELT_NAKED"}, (STRIP,))


def _order(p: Patches) -> str:
    """Return sentences that explain the numbers in the function's name."""
    rows = f"{p.advance} row{'s' if p.advance > 1 else ''}"
    apart = f"Patches are {rows} of the strip apart (a{p.advance})."
    if not p.iterations:
        patches = "1 patch" if p.left == 1 else f"{p.left} patches"
        unrolled = "the code is unrolled completely (once)"
        return f"{apart} A channel has {patches} (left{p.left}); {unrolled}."
    verb = "is" if p.left == 1 else "are"
    after = f" After it, {p.left} {verb} left (left{p.left})." if p.left else ""
    by = f" (by{p.unrolled})" if p.even else ""
    return f"{apart} An iteration of the loop over patches computes {p.unrolled}{by}.{after}"


def outputs_function(p: Patches, scaling: HeliumScaling, lanes: StripLanes) -> InnerFunction:
    """Return the function that scales and stores the sums of some channels of a strip."""
    words, before, found = 4 * scaling.fields, 0, list[StripPart]()
    left = "t->lanes" if lanes.counted else "t->s->left"
    for part in lanes.parts:
        dynamic = not lanes.exact and part is lanes.parts[-1]
        channels = offset(left, -part.first) if dynamic else str(part.channels)
        found.append(StripPart(part.first, words * before, part.vectors, channels))
        before += part.vectors
    assembly = outputs_assembly(
        p.across, scaling, lanes.parts, exact=lanes.exact, counted=lanes.counted
    )
    group = InnerFunction(
        "backends/helium/strip_part.j2",
        f"strip_part{p.across}_{scaling.kind}",
        StripPartParameters(p.across, words),
        inner=(STRIP, rescale(scaling)),
        condition=PLAIN,
    )
    return InnerFunction(
        "backends/helium/outputs.j2",
        f"outputs{lanes.name}x{p.across}_{scaling.kind}",
        StripOutputsParameters(assembly.body, p.across, scaling.narrowing, tuple(found)),
        {"SMELT_NAKED"},
        (STRIP, group),
    )


def driver_function(p: Patches) -> InnerFunction:
    """Return the function that goes over the strips of a layer."""
    if not p.line:
        copies = p.copied > 0
        return InnerFunction(
            "backends/helium/strips.j2",
            "depthwise_in_place" if copies else "depthwise_rows",
            StripsParameters(copies),
            when(copies, "SMELT_ARRAY"),
            (STRIP, PADDING, *((COPY, COPY_PIXELS) if copies else ())),
        )
    stop = InnerFunction(
        "backends/helium/stop.j2",
        "stop",
        StopParameters(stop_assembly().body),
        {"SMELT_NAKED"},
        (STRIP,),
    )
    inner = STRIP, stop
    return InnerFunction("backends/helium/line.j2", "depthwise_line", NoParameters(), inner=inner)
