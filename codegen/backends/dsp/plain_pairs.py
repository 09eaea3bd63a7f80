"""The plain C that computes the same as the assembly for pairs of channels (see `tile`).

It is compiled if the assembly is not: for other processors, and by compilers without GNU C.
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.kernel import InnerFunction, Parameters


@dataclass(frozen=True)
class PlainPairsParameters(Parameters):
    """Variables of these templates: none, all sizes are arguments in C."""


PLAIN_PAIRS = InnerFunction(
    template="backends/dsp/plain_pairs.j2",
    stem="paired",
    parameters=PlainPairsParameters(),
    uses={"SMELT_DSP"},
)
"""C functions that widen the inputs of a pixel, and that sum and requantize two channels."""

PLAIN_OUTPUTS = InnerFunction(
    template="backends/dsp/plain_outputs.j2",
    stem="paired_outputs",
    parameters=PlainPairsParameters(),
    uses={"SMELT_DSP", "SMELT_ARRAY"},
    inner=(PLAIN_PAIRS,),
)
"""A C function that computes the outputs of two channels of a pixel."""

PLAIN_TILE = InnerFunction(
    template="backends/dsp/plain_tile.j2",
    stem="paired_tile",
    parameters=PlainPairsParameters(),
    uses={"SMELT_DSP"},
    inner=(PLAIN_PAIRS, PLAIN_OUTPUTS),
)
"""A C function that computes all channels of a tile."""
