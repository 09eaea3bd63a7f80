"""Result of every frontend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from smelt.ir import Graph, Value


@dataclass(frozen=True)
class Imported:
    """A network that was read from a file.

    Attributes:
        graph: the verified graph.
        notes: sentences for the user about the import.
        tensors: for TFLite, the value of each imported tensor, by the tensor's index in the file.
    """

    graph: Graph
    notes: tuple[str, ...] = ()
    tensors: Mapping[int, Value] = field(default_factory=dict[int, Value])
