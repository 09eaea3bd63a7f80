"""The graph: values, nodes, state, and the base class of operators.

Everything is frozen. A pass builds a new `Graph`; values are compared by identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cached_property
from typing import ClassVar, Generic

import numpy as np
from typing_extensions import TypeVar  # with a default, which typing's has from Python 3.13 on

from smelt.ir.budget import OPERATOR
from smelt.ir.traits import Traits
from smelt.ir.types import Array, DType, Quant, TensorType


class Rounding(Enum):
    """How a node brings an accumulator to the scale of its output.

    TFLM: gemmlowp's saturating rounding doubling high multiply by a 32-bit multiplier, then a
        rounding shift with ties away from zero (TFLite Micro's reference kernels).
    TFLM16: multiplier reduced to 16 bits, 64-bit accumulator, one rounding shift.
    SINGLE: one rounding of the 64-bit product (ruy, XNNPACK).
    ONNX: multiplication by a float scale, rounding half to even.
    """

    TFLM = "tflm"
    TFLM16 = "tflm16"
    SINGLE = "single"
    ONNX = "onnx"


@dataclass(frozen=True)
class Origin:
    """The operator of the model file that a node came from: its kind, index and output name."""

    kind: str
    index: int
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} #{self.index}" + (f" '{self.name}'" if self.name else "")


@dataclass(frozen=True, eq=False)
class Value:
    """One tensor: produced by a node, fed from outside, or constant (`data` is not None).

    Names are unique in a graph. Constant arrays are read-only.
    """

    name: str
    type: TensorType
    data: Array | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.data is not None:
            self.data.flags.writeable = False

    @property
    def is_constant(self) -> bool:
        """Whether the value is known at compile time."""
        return self.data is not None

    @property
    def array(self) -> Array:
        """The constant's array; `ValueError` on a value that is not constant."""
        if self.data is None:
            raise ValueError(f"{self.name} is not constant")
        return self.data

    @staticmethod
    def constant(name: str, data: Array, quant: Quant | None = None) -> Value:
        """A constant of the array's own shape and element type."""
        data = np.asarray(data, order="C")
        return Value(name, TensorType(data.shape, DType.of(data), quant), data)


@dataclass(frozen=True)
class Op(Traits):
    """Base of all operators: a frozen dataclass whose fields are the operator's attributes.

    Subclasses register themselves under their class name, so that the text form can name them;
    a plugin adds an operator by defining one. A name that begins with `_` is that of a base.
    """

    registry: ClassVar[dict[str, type[Op]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not cls.__name__.startswith("_"):
            Op.registry[cls.__name__] = cls

    @property
    def name(self) -> str:
        """The operator's name in reports and messages; the text form has that of the class."""
        return type(self).__name__

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Output shapes and element types from the inputs' types.

        The result carries no quantization: that is the model's choice, not the operator's
        (see `check`). Raises `ModelError` if the inputs do not fit the operator.
        """
        raise NotImplementedError(f"{self.name}.infer")

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """The quantization that every output must have, or None where its range decides."""
        return None

    def check(self, node: Node) -> None:
        """Constraints on quantization; raises `ModelError`. Nothing to check by default."""

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        """What the operator computes, in numpy, by the node's types and rounding."""
        raise NotImplementedError(f"{self.name}.reference")

    def macs(self, node: Node) -> int:
        """Multiply-accumulates of one evaluation."""
        return 0

    def overhead(self, node: Node) -> int:
        """What `reference` does besides; see `effort`.

        Products, elements read and elements made are counted without it. An operator says so here
        whose reference runs a loop in Python, or makes something larger than its result.
        """
        return 0

    def effort(self, node: Node) -> int | None:
        """What `reference` takes, as elementary operations: see `smelt.ir.budget`.

        None where only running it tells.
        """
        present = [v for v in (*node.inputs, *node.outputs) if v is not None]
        return sum(v.type.size for v in present) + self.macs(node) + self.overhead(node)

    @property
    def subgraphs(self) -> tuple[Graph, ...]:
        """Graphs held in fields (control flow)."""
        found: list[Graph] = []
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Graph):
                found.append(value)
        return tuple(found)

    def handed_over(self, node: Node) -> Sequence[tuple[Value, Value]]:
        """Of an operator that holds graphs, every value and one that it may become.

        Operands become inputs of the graphs or results, outputs of the graphs become results or
        inputs of the next turn. What tells whether there is another turn becomes nothing.
        """
        raise NotImplementedError(f"{self.name}.handed_over")


OpT_co = TypeVar("OpT_co", bound=Op, default=Op, covariant=True)
"""The class of a node's operator."""


@dataclass(frozen=True, eq=False)
class Node(Generic[OpT_co]):
    """One application of an operator. An optional input that is absent is None."""

    op: OpT_co
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    origin: Origin
    rounding: Rounding | None = None

    @property
    def output(self) -> Value:
        """The only output."""
        (value,) = self.outputs
        return value

    def input(self, index: int) -> Value:
        """The input at `index`, which must be present."""
        value = self.inputs[index]
        if value is None:
            raise ValueError(f"{self.op.name} of {self.origin} has no input {index}")
        return value

    def optional(self, index: int) -> Value | None:
        """The input at `index`, or None where it is absent or left off."""
        return self.inputs[index] if index < len(self.inputs) else None

    @property
    def name(self) -> str:
        """Name of the node: that of its first output."""
        return self.outputs[0].name

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one evaluation."""
        return self.op.macs(self)

    @property
    def effort(self) -> int | None:
        """What computing the reference takes; see `Op.effort`."""
        own = self.op.effort(self)
        return None if own is None else OPERATOR + own


@dataclass(frozen=True, eq=False)
class State:
    """A tensor that survives from one inference to the next.

    `before` is read by the graph and starts as `initial`; `after` is what the next inference
    reads. Both share one buffer, so that order is dataflow.
    """

    before: Value
    after: Value
    initial: Array


@dataclass(frozen=True)
class Length:
    """A dimension of inputs whose size, from `minimum` to `maximum`, is known at run time.

    The types of the graph's values have the largest size. `axes` are `(input, axis)` indices.
    """

    name: str
    minimum: int
    maximum: int
    axes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Graph:
    """A pure dataflow graph; `nodes` stand in execution order."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    states: tuple[State, ...] = ()
    lengths: tuple[Length, ...] = ()

    @cached_property
    def producer(self) -> Mapping[Value, Node]:
        """The node that computes a value."""
        return {value: node for node in self.nodes for value in node.outputs}

    @property
    def results(self) -> tuple[Value, ...]:
        """Every value that must outlive the last node: outputs and new states."""
        return (*self.outputs, *(state.after for state in self.states))

    def values(self) -> Iterator[Value]:
        """Every value once: inputs, states, then operands and results in execution order."""
        seen: set[Value] = set()
        everything = [*self.inputs, *(state.before for state in self.states)]
        for node in self.nodes:
            everything += [v for v in node.inputs if v is not None]
            everything += node.outputs
        everything += self.results
        for value in everything:
            if value not in seen:
                seen.add(value)
                yield value

    def rewrite(self, rule: Callable[[Node], Rewrite]) -> Graph:
        """Rebuild node by node: `rule` sees each node with its inputs already rewritten.

        It returns None to keep the node, or `(nodes, results)`: the nodes to put in its place
        (possibly none) and the values that stand for its outputs from here on.
        """
        renamed: dict[Value, Value] = {}
        nodes: list[Node] = []
        for node in self.nodes:
            inputs = tuple(None if v is None else renamed.get(v, v) for v in node.inputs)
            if inputs != node.inputs:
                node = replace(node, inputs=inputs)
            result = rule(node)
            if result is None:
                nodes.append(node)
                continue
            replacement, values = result
            nodes += replacement
            renamed.update(zip(node.outputs, values, strict=True))
        return replace(
            self,
            nodes=tuple(nodes),
            outputs=tuple(renamed.get(v, v) for v in self.outputs),
            states=tuple(replace(s, after=renamed.get(s.after, s.after)) for s in self.states),
        )

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return sum(node.macs for node in self.nodes)

    @cached_property
    def effort(self) -> int | None:
        """What one evaluation takes; see `Op.effort`."""
        total = OPERATOR
        for node in self.nodes:
            own = node.effort
            if own is None:
                return None
            total += own
        return total


Rewrite = tuple[Sequence[Node], Sequence[Value]] | None
"""What a rewriting rule returns: None to keep the node, or its replacement."""
