"""The plain C that computes the same as the assembly for pairs of channels (see `tile`).

It is compiled if the assembly is not: for other processors, and by compilers without GNU C.
"""

from __future__ import annotations

from smelt.codegen.lower.kernel import InnerFunction
from smelt.codegen.text.parameters import NoParameters

PLAIN_PAIRS = InnerFunction(
    template="backends/dsp/plain_pairs.j2",
    stem="paired",
    parameters=NoParameters(),
    uses={"SMELT_DSP"},
    condition="!SMELT_HAS_DSP",
)
"""C functions that widen the inputs of a pixel, and that sum and requantize two channels."""

PLAIN_OUTPUTS = InnerFunction(
    template="backends/dsp/plain_outputs.j2",
    stem="paired_outputs",
    parameters=NoParameters(),
    uses={"SMELT_DSP", "SMELT_ARRAY"},
    condition="!SMELT_HAS_DSP",
    inner=(PLAIN_PAIRS,),
)
"""A C function that computes the outputs of two channels of a pixel."""

PLAIN_TILE = InnerFunction(
    template="backends/dsp/plain_tile.j2",
    stem="paired_tile",
    parameters=NoParameters(),
    uses={"SMELT_DSP"},
    condition="!SMELT_HAS_DSP",
    inner=(PLAIN_PAIRS, PLAIN_OUTPUTS),
)
"""A C function that computes all channels of a tile."""
