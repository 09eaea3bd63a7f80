"""The packing of a channel's plane into words, two inputs in each (`halfword_depthwise`)."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.depthwise_numbers import LayerNumbers
from smelt.codegen.lower.depthwise_walk import LAYERS
from smelt.codegen.lower.kernel import InnerFunction, Parameters
from smelt.codegen.text.expressions import times


@dataclass(frozen=True)
class PlanePacking(Parameters):
    """The packing of a channel's inputs into words; u is the axis of pairs, v the other one.

    Variables of `lower/halfword_depthwise_pack.j2`.

    Numbers are constants, or C of the names of fields in the layer's struct.

    Attributes:
        name: The name of axis u: `rows` or `columns`.
        loaded: The numbers that are fields.
        stride: Stride along u.
        size: Size of the image along u.
        inside: `size` minus `stride`.
        source: Element offsets of the inputs 0, 1, … positions further along u.
        pitch: Word offsets 0, 1, … positions further along u.
        apart: Elements between the two inputs of a word.
        source_v: Elements from one v of the input to the next.
        pitch_v: Words from one v to the next.
        filled: Words along v that contain the image.
        begin: Offset of the first of these words.
        outside: The value of inputs outside of the image.
        outside_upper: The same value in the upper half of a word.
        outside_both: The same value in both halves.
        twos: Whether the inputs of two words are loaded together.
        fours: Whether the inputs of four words are loaded together, for stride 2.
    """

    name: str
    loaded: tuple[str, ...]
    stride: int
    size: int
    inside: int
    source: tuple[int | str, ...]
    pitch: tuple[int, ...]
    apart: int | str
    source_v: int | str
    pitch_v: int
    filled: int
    begin: int
    outside: int | str
    outside_upper: int | str
    outside_both: int | str
    twos: bool
    fours: bool

    @staticmethod
    def of(numbers: LayerNumbers) -> PlanePacking:
        """Return the packing of a plane."""
        p = numbers.walk.plane
        source, outside = numbers.text("source"), numbers.text("outside")
        return PlanePacking(
            name=p.name,
            loaded=numbers.loaded(("outside", "source", *(("column",) if p.filled > 1 else ()))),
            stride=p.stride[0],
            size=p.size[0],
            inside=p.size[0] - p.stride[0],
            source=tuple(_multiple(i, source) for i in range(5)),
            pitch=tuple(i * p.pitch[0] for i in range(5)),
            apart=_multiple(p.stride[0], source),
            source_v=numbers.text("column"),
            pitch_v=p.pitch[1],
            filled=p.filled,
            begin=p.begin * p.pitch[1],
            outside=outside,
            outside_upper=_multiple(65536, outside),
            outside_both=_multiple(65537, outside),
            twos=p.stride[0] == 1,
            fours=p.stride[0] == 2 and p.taps[0] == 3,
        )


def pack_function(numbers: LayerNumbers) -> InnerFunction:
    """Return the function that packs a channel's inputs."""
    p, read = numbers.walk.plane, numbers.walk.read
    height, width = p.taps if p.axis == 0 else reversed(p.taps)
    return InnerFunction(
        template="lower/halfword_depthwise_pack.j2",
        stem=f"depthwise_{height}x{width}_pack",
        details={
            "size": "x".join(map(str, p.size)),
            "by": p.name,
            "pitch": f"pitch{max(p.pitch)}",
            "channels": "" if read else f"step{p.source[1]}",
        },
        parameters=PlanePacking.of(numbers),
        layer=LAYERS[read],
    )


def _multiple(count: int, number: int | str) -> int | str:
    """Return C of a multiple of a number."""
    return times(number, count) if isinstance(number, str) else count * number
