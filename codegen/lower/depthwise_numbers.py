"""The numbers of a depthwise convolution (`halfword_depthwise`): constants, or fields of a struct.

In a layer's own function all numbers are constants. A function for layers with planes of equal size
reads those that depend on the channels from a struct, a function for any layers reads all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.codegen.lower.depthwise_plane import Plane
from smelt.codegen.lower.depthwise_walk import ANY_PLANE, LAYERS, OWN, WALK, PlaneWalk
from smelt.codegen.lower.kernel import LayerStruct
from smelt.ir import Node
from smelt.ops.core.convolution import DepthwiseConv2D

_OF_CHANNELS = {
    "planes": "channels of the output",
    "outside": "value of inputs outside of the image",
    "source": "elements from an input to the same one in the next line",
    "column": "elements from an input to the next in its line",
}
_OF_PLANES = {
    "stride": "lines of the image from one line of outputs to the next",
    "pitch": "words from one line of words to the next",
    "size": "lines of the image",
    "filled": "words of a line that contain the image",
    "begin": "words before the first of these",
    "lines": "of outputs",
    "lines_at_once": "lines of outputs at a time",
    "before": "lines of padding before the image",
    "scratch": "words of scratch",
}


@dataclass(frozen=True)
class LayerNumbers:
    """The numbers of a layer, for a function that reads some of them from a struct.

    Attributes:
        walk: The function's walk over a plane.
        numbers: All numbers by name.
    """

    walk: PlaneWalk
    numbers: dict[str, int]

    @staticmethod
    def of(node: Node[DepthwiseConv2D], plane: Plane, read: int) -> LayerNumbers:
        """Return the numbers of a node; a struct contains the first `read` of `WALK`."""
        walk = PlaneWalk(plane, read)
        rest = (
            node.output.type.shape[3],
            node.input(0).type.zero_point,
            *plane.source,
            plane.stride[0],
            plane.pitch[1 - plane.inner],
            plane.size[0],
            plane.filled,
            plane.begin * plane.pitch[1],
            plane.outputs[0],
            2 * plane.pairs,
            plane.before[0],
            plane.words,
        )
        names = (*_OF_CHANNELS, *_OF_PLANES)
        return LayerNumbers(walk, walk.numbers | dict(zip(names, rest, strict=True)))

    @property
    def meanings(self) -> dict[str, str]:
        """The fields of the struct in order, and their meanings."""
        read = self.walk.read
        if read == OWN:
            return {}
        fields = dict(list(WALK.items())[:read]) | _OF_CHANNELS
        return fields | _OF_PLANES if read == ANY_PLANE else fields

    @property
    def struct(self) -> tuple[LayerStruct, ...]:
        """The struct; none for a layer's own function."""
        meanings = self.meanings
        if not meanings:
            return ()
        numbers = {name: self.numbers[name] for name in meanings}
        return (LayerStruct("layer", LAYERS[self.walk.read], numbers, meanings),)

    def text(self, name: str) -> int | str:
        """Return a constant, or the name of a field."""
        return name if name in self.meanings else self.numbers[name]

    def loaded(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return those of the numbers that are fields."""
        return tuple(name for name in names if name in self.meanings)
