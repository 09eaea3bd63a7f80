"""How positive factors of channels go through operators for which f(s · x) = s · f(x).

Channels lie along the last axis. Where a channel of an operand is multiplied by a positive number,
so must be the channels of the result that it is linked to.
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
    """Channels that have the same factor, pair by pair: int64, broadcast against each other.

    Attributes:
        operand: its index.
        source: channels of the operand.
        result: channels of the result.
    """

    operand: int
    source: Array
    result: Array


@dataclass(frozen=True, eq=False)
class Homogeneity:
    """One way in which factors go through a node; all other operands are as they were.

    Attributes:
        links: operands that may have factors.
        fixed: computed operands that must have none.
        scaled: constants that have those of the result.
    """

    links: Sequence[FactorLink]
    fixed: tuple[int, ...] = ()
    scaled: tuple[int, ...] = ()


def in_place(node: Node, operands: Iterable[int] = (0,)) -> tuple[FactorLink, ...]:
    """Links of each channel of operands to that in its place; or to all, where there is but one."""
    result = np.arange(channels(node.output.type))
    return tuple(FactorLink(i, np.arange(channels(node.input(i).type)), result) for i in operands)


def together(node: Node) -> tuple[FactorLink, ...]:
    """Links of all channels of the first operand, and of the result, to each other."""
    count, first = channels(node.input(0).type), np.zeros(1, np.int64)
    result = np.arange(channels(node.output.type))
    return FactorLink(0, np.arange(count), first), FactorLink(0, first, result)
