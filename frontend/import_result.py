"""What every frontend returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from smelt.ir import Graph, Value


@dataclass(frozen=True)
class Imported:
    """A network read from a file.

    Attributes:
        graph: the verified graph.
        notes: what the user should know about the import, one sentence each.
        tensors: tensor index in the file to the value that stands for it.
    """

    graph: Graph
    notes: tuple[str, ...] = ()
    tensors: Mapping[int, Value] = field(default_factory=dict[int, Value])
