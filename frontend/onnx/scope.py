"""What operators of an ONNX graph know of the graph that they stand in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import onnx

from smelt.ir import Array, DType, Graph, Node, Origin, TensorType, Value


@dataclass(frozen=True)
class TensorSequence:
    """A sequence in ONNX's sense: tensors of one element type, their number and shapes known.

    It exists while the network is imported and leaves nothing in the graph.
    """

    dtype: DType
    items: tuple[Value, ...]


OnnxValue = Value | TensorSequence


class Scope(Protocol):
    """What an operation asks of the graph that it stands in.

    `nodes` are those made so far; `captures` is None unless the graph is a closed one, which takes
    what it uses from outside as inputs.
    """

    nodes: list[Node]
    captures: dict[Value, Value] | None

    def lookup(self, name: str) -> OnnxValue:
        """What a name stands for, in this graph or one around it."""
        ...

    def unique(self, name: str) -> str:
        """A value name that nothing in the graph has yet."""
        ...

    def add(self, node: Node) -> None:
        """Append a node."""
        ...

    def subgraph(
        self, graph: onnx.GraphProto, inputs: Sequence[TensorType | Value]
    ) -> tuple[Graph, tuple[Value, ...]]:
        """A graph as a closed one, whose last inputs are the outer values that come second."""
        ...

    def inline(self, graph: onnx.GraphProto, inputs: Sequence[OnnxValue]) -> tuple[OnnxValue, ...]:
        """Convert a graph in place, and return what its outputs stand for."""
        ...

    def apply(
        self, node: onnx.NodeProto, inputs: Sequence[Value | None], version: int, origin: Origin
    ) -> tuple[Value, ...]:
        """Convert an operator of that version of its operator set, which the file does not hold."""
        ...

    def element_type(self, name: str) -> int:
        """ONNX's code of a tensor's element type in the file; 0 where it is not known."""
        ...

    def known(self, value: Value) -> Array | None:
        """The array of a constant, stored as integers or not; None for any other value."""
        ...

    def sources(self, value: Value) -> tuple[Value, ...]:
        """The network's inputs that a value is computed from."""
        ...
