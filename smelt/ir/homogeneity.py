"""How positive factors per channel propagate through operators with f(s * x) = s * f(x).

Channels are indices of the last axis. If a channel of an operand is multiplied by a positive
number, the channels of the result that are linked to it must be multiplied by the same number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smelt.ir.channels import channels
from smelt.ir.types import Array

if TYPE_CHECKING:
    from smelt.ir.graph import Node


@dataclass(frozen=True, eq=False)
class FactorLink:
    """Pairs of channels that must have the same factor: int64 arrays, broadcast to each other.

    Attributes:
        operand: index of the operand.
        source: channels of the operand.
        result: channels of the result.
    """

    operand: int
    source: Array
    result: Array


@dataclass(frozen=True, eq=False)
class Homogeneity:
    """One way in which factors propagate through a node. Operands not mentioned stay unchanged.

    Attributes:
        links: operands that may have factors.
        fixed: computed operands that must have no factors.
        scaled: constant operands that must be multiplied by the factors of the result.
    """

    links: Sequence[FactorLink]
    fixed: tuple[int, ...] = ()
    scaled: tuple[int, ...] = ()


def in_place(node: Node, operands: Iterable[int] = (0,)) -> tuple[FactorLink, ...]:
    """Link each channel of the operands to the same channel of the result.

    An operand with one channel is linked to all channels of the result.
    """
    result = np.arange(channels(node.output.type))
    return tuple(FactorLink(i, np.arange(channels(node.input(i).type)), result) for i in operands)


def together(node: Node) -> tuple[FactorLink, ...]:
    """Link all channels of the first operand and of the result to each other."""
    count, first = channels(node.input(0).type), np.zeros(1, np.int64)
    result = np.arange(channels(node.output.type))
    return FactorLink(0, np.arange(count), first), FactorLink(0, first, result)
