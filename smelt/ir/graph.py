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
    """How a node rescales an accumulator to the scale of its output.

    TFLM: gemmlowp's saturating rounding doubling high multiply by a 32-bit multiplier, then a
        rounding shift with ties away from zero (TFLite Micro's reference kernels).
    TFLM16: a multiplier reduced to 16 bits, a 64-bit accumulator, one rounding shift.
    SINGLE: one rounding of the 64-bit product (ruy, XNNPACK).
    ONNX: multiplication by a float scale, rounding half to even.
    """

    TFLM = "tflm"
    TFLM16 = "tflm16"
    SINGLE = "single"
    ONNX = "onnx"


@dataclass(frozen=True)
class Origin:
    """The operator of the model file that a node was made from: kind, index and output name."""

    kind: str
    index: int
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} #{self.index}" + (f" '{self.name}'" if self.name else "")


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor: the result of a node, an input or state of the graph, or a constant.

    A constant has `data`; its array is read-only. Names are unique in a graph.
    """

    name: str
    type: TensorType
    data: Array | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.data is not None:
            self.data.flags.writeable = False

    @property
    def is_constant(self) -> bool:
        """Whether the value's data is known at compile time."""
        return self.data is not None

    @property
    def array(self) -> Array:
        """The constant's array. Raises `ValueError` if the value is not constant."""
        if self.data is None:
            raise ValueError(f"{self.name} is not constant")
        return self.data

    @staticmethod
    def constant(name: str, data: Array, quant: Quant | None = None) -> Value:
        """Return a constant with the array's shape and element type."""
        data = np.asarray(data, order="C")
        return Value(name, TensorType(data.shape, DType.of(data), quant), data)


@dataclass(frozen=True)
class Op(Traits):
    """Base of all operators: a frozen dataclass with the operator's attributes as fields.

    Subclasses register themselves under their class name, which the text format uses. A plugin adds
    an operator by defining a subclass. A class name that begins with `_` marks a base class, which
    is not registered.
    """

    registry: ClassVar[dict[str, type[Op]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not cls.__name__.startswith("_"):
            Op.registry[cls.__name__] = cls

    @property
    def name(self) -> str:
        """The operator's name in reports and messages. The text format uses the class name."""
        return type(self).__name__

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the shapes and element types of the outputs.

        The returned types have no quantization, because that is part of the model and does not
        follow from the operator (see `check`).

        Raises:
            ModelError: the inputs do not fit the operator.
        """
        raise NotImplementedError(f"{self.name}.infer")

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization that every output must have; None if the model chooses it."""
        return None

    def check(self, node: Node) -> None:
        """Raise `ModelError` if the quantization of inputs or outputs breaks the operator's rules.

        By default there are no rules.
        """

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        """Compute the results in numpy, as the node's types and rounding specify."""
        raise NotImplementedError(f"{self.name}.reference")

    def macs(self, node: Node) -> int:
        """Return the number of multiply-accumulates of one evaluation."""
        return 0

    def overhead(self, node: Node) -> int:
        """Return elementary operations of `reference` that `effort` does not count by itself.

        `effort` counts multiply-accumulates and elements of operands and results. Override this if
        the reference loops in Python, or makes arrays larger than its result.
        """
        return 0

    def effort(self, node: Node) -> int | None:
        """Return the elementary operations that `reference` takes (see `smelt.ir.budget`).

        None if the number is only known after running it.
        """
        present = [v for v in (*node.inputs, *node.outputs) if v is not None]
        return sum(v.type.size for v in present) + self.macs(node) + self.overhead(node)

    @property
    def subgraphs(self) -> tuple[Graph, ...]:
        """The graphs among the fields; only control flow has some."""
        found: list[Graph] = []
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Graph):
                found.append(value)
        return tuple(found)

    def forwarded_values(self, node: Node) -> Sequence[tuple[Value, Value]]:
        """Return pairs of values, outside and inside of the operator's graphs, that pass data on.

        Each pair is a value and a value that it may become: operands become inputs of the graphs,
        or results; outputs of the graphs become results, or inputs of the next iteration. The
        output that decides on another iteration becomes nothing. Only operators with graphs
        implement this.
        """
        raise NotImplementedError(f"{self.name}.forwarded_values")


OpT_co = TypeVar("OpT_co", bound=Op, default=Op, covariant=True)
"""The class of a node's operator."""


@dataclass(frozen=True, eq=False)
class Node(Generic[OpT_co]):
    """An operator applied to inputs. An optional input is None if it is absent."""

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
        """Return the input at `index`. Raises `ValueError` if it is absent."""
        value = self.inputs[index]
        if value is None:
            raise ValueError(f"{self.op.name} of {self.origin} has no input {index}")
        return value

    def optional(self, index: int) -> Value | None:
        """Return the input at `index`, or None if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    @property
    def name(self) -> str:
        """The node's name, which is the name of its first output."""
        return self.outputs[0].name

    @property
    def macs(self) -> int:
        """Number of multiply-accumulates of one evaluation."""
        return self.op.macs(self)

    @property
    def effort(self) -> int | None:
        """Elementary operations that the reference takes; None if unknown. See `Op.effort`."""
        own = self.op.effort(self)
        return None if own is None else OPERATOR + own


@dataclass(frozen=True, eq=False)
class State:
    """A tensor that survives from one inference to the next.

    The graph reads `before`, which is `initial` in the first inference. The next inference reads
    `after`. Both are stored in one buffer.
    """

    before: Value
    after: Value
    initial: Array


@dataclass(frozen=True)
class Length:
    """A dimension of inputs with a size that is known only at run time.

    The size is between `minimum` and `maximum`. The types in the graph have the maximum. `axes`
    are pairs of an input's index and an axis.
    """

    name: str
    minimum: int
    maximum: int
    axes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Graph:
    """A pure dataflow graph. `nodes` are in execution order."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    states: tuple[State, ...] = ()
    lengths: tuple[Length, ...] = ()

    @cached_property
    def producer(self) -> Mapping[Value, Node]:
        """The node that computes each value."""
        return {value: node for node in self.nodes for value in node.outputs}

    @property
    def results(self) -> tuple[Value, ...]:
        """Every value that is still needed after the last node: outputs and new states."""
        return (*self.outputs, *(state.after for state in self.states))

    def values(self) -> Iterator[Value]:
        """Yield every value once: inputs, states, then operands and results in execution order."""
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
        """Rebuild the graph node by node.

        `rule` gets each node with its inputs already rewritten. It returns None to keep the node,
        or `(nodes, results)`: the nodes that replace it (possibly none), and the values that
        replace its outputs.
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
        """Number of multiply-accumulates of one inference."""
        return sum(node.macs for node in self.nodes)

    @cached_property
    def effort(self) -> int | None:
        """Elementary operations of one evaluation; None if unknown. See `Op.effort`."""
        total = OPERATOR
        for node in self.nodes:
            own = node.effort
            if own is None:
                return None
            total += own
        return total


Rewrite = tuple[Sequence[Node], Sequence[Value]] | None
"""Result of a rewriting rule: None to keep the node, else its nodes and results instead."""
