"""Functions for lines of outputs of a channel (`depthwise_3x3`), which layers can share.

The distance between outputs depends on the number of channels. In a layer's own function it is a
constant. In a shared function it is an argument, which takes four more instructions for three
outputs; other layers with lines of the same length can then call the function too. With `--optimize
size` the length is an argument too, which takes two more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.codegen.backends.armv7m.depthwise_3x3_assembly import SlidingLines, executed, lines
from smelt.codegen.backends.armv7m.instructions import CONDITION
from smelt.codegen.backends.armv7m.plain_functions import UPPER_HALF
from smelt.codegen.lower.kernel import (
    BodyCost,
    InnerFunction,
    KernelCall,
    Parameters,
    SharedBody,
)
from smelt.codegen.lower.shared_functions import SharedFunctions
from smelt.codegen.lower.stored_output import stored_output
from smelt.codegen.text.expressions import offset, times

_PACK, _CALL = 9, 30
"""Instructions of the driver in C to pack two words, and for the lines of a channel otherwise."""


@dataclass(frozen=True)
class LinesParameters(Parameters):
    """Variables of `backends/armv7m/depthwise_lines.j2`.

    Attributes:
        condition: preprocessor condition for the assembly.
        assembly: C lines of its statement.
        repairs: index of the repairs behind the weights; None if the function adds no repairs.
        own: C texts of a channel's requantization constants.
        pitch: C text: words of a line.
        outputs: C text: outputs of a line.
        walk: whether the arguments are in an array, with the groups of three outputs of a line.
        place: C text: offset of output `v` of a line.
        line_step: C text: elements from one line of outputs to the next.
    """

    condition: str
    assembly: str
    repairs: int | None
    own: tuple[str, ...]
    pitch: str
    outputs: str
    walk: bool
    place: str
    line_step: str


def lines_function(p: SlidingLines) -> InnerFunction:
    """Return the function for lines."""
    constants, biased = p.constants, p.scaling.biases is not None
    rest, passed = p.outputs % 3, "3 * groups" if p.any_length else str(p.passed)
    threes = f"threes_and_{rest}" if rest else "threes"
    length = threes if p.any_length else str(p.outputs)
    return InnerFunction(
        template="backends/armv7m/depthwise_lines.j2",
        stem=f"depthwise_3x3_lines_of_{length}{'_repaired' if p.repaired else ''}",
        details={
            "step": "any_step" if p.step is None else f"step{p.step}",
            "line": "" if p.line_step is None else f"line{p.line_step}",
            **p.scaling.details,
        },
        parameters=LinesParameters(
            condition=CONDITION,
            assembly=lines(p).text,
            repairs=constants if p.repaired else None,
            own=tuple(f"held[{(i - biased) % constants}]" for i in range(constants)),
            pitch="pitch" if p.any_length else str(p.pitch),
            outputs=offset("3 * groups", rest) if p.any_length else str(p.outputs),
            walk=p.any_length,
            place="v * step" if p.step is None else times("v", p.step),
            line_step=(f"back + {passed} * step" if p.line_step is None else str(p.line_step)),
        ),
        uses={"SMELT_ARRAY", "SMELT_NAKED"},
        inner=(stored_output(p.scaling.steps, CONDITION), UPPER_HALF),
    )


def shared_lines(
    own: KernelCall,
    shared: KernelCall,
    functions: Sequence[SlidingLines],
    shared_functions: Sequence[SlidingLines],
    channels: Sequence[int],
    count: int,
    slabs: int,
) -> SharedBody:
    """Return the functions for lines that a layer can share.

    Args:
        own: the call with the layer's own functions.
        shared: the call with shared functions.
        functions: the sums of each of the layer's own functions.
        shared_functions: the same of the shared functions.
        channels: the channels that each of them computes, of all images.
        count: lines of outputs of a channel.
        slabs: slabs into which these lines are divided.
    """
    cost = _cost(shared_functions, channels, count, slabs)
    return SharedFunctions.of(own, shared, cost, _cost(functions, channels, count, slabs))


def _cost(
    functions: Sequence[SlidingLines], channels: Sequence[int], count: int, slabs: int
) -> BodyCost:
    """Return the cost: instructions of the whole layer, and bytes of the functions for lines."""
    instructions = 0
    for p, n in zip(functions, channels, strict=True):
        packed = _PACK * p.pitch * (count + slabs) // 2
        instructions += n * (executed(p, count) + packed + _CALL * slabs)
    return BodyCost(instructions, sum(lines(p).size for p in functions))
