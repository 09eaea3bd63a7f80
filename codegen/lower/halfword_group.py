"""The function that sums a group of taps in plain C definitions of assembly (`tap_groups`)."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.kernel import InnerFunction, Parameters


@dataclass(frozen=True)
class SumGroupParameters(Parameters):
    """Variables of `lower/halfword_group.j2`.

    Attributes:
        words: Words of packed inputs per tap.
        weight_stride: Bytes from one weight of a channel to the next.
    """

    words: int
    weight_stride: int


def sum_group(condition: str, words: int, weight_stride: int) -> InnerFunction:
    """Return the function; see `SumGroupParameters`. `condition` is that of the assembly."""
    return InnerFunction(
        template="lower/halfword_group.j2",
        stem=f"sum_group_of_{2 * words}",
        details={"weight_stride": f"stride{weight_stride}"},
        parameters=SumGroupParameters(words, weight_stride),
        uses={"SMELT_ARRAY"},
        condition=f"!({condition})",
    )
