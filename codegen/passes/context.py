"""What every pass is given beside the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smelt.ir import Graph, Origin


@dataclass(frozen=True)
class Removal:
    """Channels of a layer's result that are not computed any more."""

    origin: Origin
    channels: int
    constant: int
    unread: int


def _ignore(removals: Sequence[Removal]) -> None: ...


@dataclass(frozen=True)
class PassContext:
    """What is known of the compilation that passes are a part of.

    Attributes:
        granularity: channels of a layer that stay or go together.
        report: is told which channels go.
    """

    granularity: int = 1
    report: Callable[[Sequence[Removal]], None] = _ignore


DEFAULT = PassContext()

Pass = Callable[[Graph, PassContext], Graph]
