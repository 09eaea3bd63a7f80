"""The context that every pass takes beside the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smelt.ir import Graph, Origin


@dataclass(frozen=True)
class Removal:
    """Channels of one layer's result that are no longer computed.

    Attributes:
        origin: The layer.
        channels: The number of channels that the layer had.
        constant: How many were removed because they are constant.
        unread: How many were removed because nothing reads them.
    """

    origin: Origin
    channels: int
    constant: int
    unread: int


def _ignore(removals: Sequence[Removal]) -> None: ...


@dataclass(frozen=True)
class PassContext:
    """Settings of the compilation that passes depend on.

    Attributes:
        granularity: The number of channels of a layer is kept a multiple of this.
        report: Called with the channels that are removed.
    """

    granularity: int = 1
    report: Callable[[Sequence[Removal]], None] = _ignore


DEFAULT = PassContext()

Pass = Callable[[Graph, PassContext], Graph]
