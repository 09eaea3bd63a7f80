"""Interface of the importer for converters of ONNX operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import onnx

from smelt.ir import Array, DType, Graph, Node, Origin, TensorType, Value


@dataclass(frozen=True)
class TensorSequence:
    """A sequence as ONNX defines it: tensors of one element type; number and shapes are known.

    It exists only during the import; graphs have no sequences.
    """

    dtype: DType
    items: tuple[Value, ...]


OnnxValue = Value | TensorSequence


class Scope(Protocol):
    """The graph that an operation is converted in.

    `nodes` are those added so far. `captures` is None unless the graph is closed; a closed graph
    takes the outer values that it uses as inputs.
    """

    nodes: list[Node]
    captures: dict[Value, Value] | None

    def lookup(self, name: str) -> OnnxValue:
        """Return the value with a name, in this graph or one around it."""
        ...

    def unique(self, name: str) -> str:
        """Return a name for a value that is not yet taken."""
        ...

    def add(self, node: Node) -> None:
        """Append a node."""
        ...

    def subgraph(
        self, graph: onnx.GraphProto, inputs: Sequence[TensorType | Value]
    ) -> tuple[Graph, tuple[Value, ...]]:
        """Return a graph as a closed graph, and the outer values that are its last inputs."""
        ...

    def inline(self, graph: onnx.GraphProto, inputs: Sequence[OnnxValue]) -> tuple[OnnxValue, ...]:
        """Convert a graph in place, and return the values of its outputs."""
        ...

    def apply(
        self, node: onnx.NodeProto, inputs: Sequence[Value | None], version: int, origin: Origin
    ) -> tuple[Value, ...]:
        """Convert an operator that is not in the file, of a version of its operator set."""
        ...

    def element_type(self, name: str) -> int:
        """Return ONNX's code of a tensor's element type in the file; 0 if it is unknown."""
        ...

    def known(self, value: Value) -> Array | None:
        """Return the array of a constant, dequantized if need be; None for any other value."""
        ...

    def sources(self, value: Value) -> tuple[Value, ...]:
        """Return the network's inputs that a value is computed from."""
        ...
