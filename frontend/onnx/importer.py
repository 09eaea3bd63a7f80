"""Importer of ONNX graphs: converts operators, expands functions, builds the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import onnx
from typing_extensions import override

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.import_result import Imported
from smelt.frontend.onnx import expansion
from smelt.frontend.onnx.checks import require_known_attributes, require_size
from smelt.frontend.onnx.converters import CONVERTERS
from smelt.frontend.onnx.file import OnnxFile
from smelt.frontend.onnx.half_precision import ElementTypes
from smelt.frontend.onnx.import_notes import import_notes
from smelt.frontend.onnx.inputs import Inputs
from smelt.frontend.onnx.operation import Declared, Operation
from smelt.frontend.onnx.options import InputOptions
from smelt.frontend.onnx.quantize_linear import label_inputs
from smelt.frontend.onnx.run_time_lengths import checked
from smelt.frontend.onnx.scope import OnnxValue, Scope, TensorSequence
from smelt.frontend.onnx.supported import (
    converter_key,
    domain_of,
    needed_operators,
    operator_name,
    refuse_unsupported,
    remedy,
)
from smelt.frontend.onnx.tensors import array_of, dense_array_of
from smelt.frontend.unique_names import UniqueNames
from smelt.ir import Array, Graph, Node, Origin, TensorType, Value, verify
from smelt.ir.budget import spend
from smelt.ir.evaluate import compute
from smelt.ops.core.quantize import Dequantize
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.transpose import Transpose

T = TypeVar("T")


_EACH_ITEM = 16
"""Elementary operations counted for each element of a sequence, whatever its size."""


def load(model: OnnxFile, name: str, options: InputOptions) -> Imported:
    """Return the network as a graph called `name`.

    Dimensions with a size known only at run time have their largest size in the graph. The file is
    imported at other sizes too, to check that the network is the same.

    Raises:
        ModelError: the file contradicts itself.
        UnsupportedError: the network needs something that Smelt does not support.
        ConfigError: `options` do not fit the network's inputs.
    """
    imported = _load(model, name, options)
    return replace(
        imported,
        graph=checked(imported.graph, lambda sizes: _load(model, name, options.at(sizes)).graph),
    )


def _load(model: OnnxFile, name: str, options: InputOptions) -> Imported:
    inputs = Inputs(model.graph, options)
    if not inputs.tensors:
        raise UnsupportedError(
            "the network has no inputs that change: its outputs are constants, so there is nothing "
            "to compute on a device"
        )
    shared = _Shared(UniqueNames(), model.opsets)
    scope = _GraphScope(shared, model.graph)
    values: list[Value] = []
    for tensor in inputs.tensors:
        value = Value(shared.names.take(tensor.name), tensor.type)
        values.append(value)
        scope.bind(tensor.name, value)
        if tensor.permutation is not None:
            origin = Origin("INPUT", len(values) - 1, tensor.name)
            scope.bind(tensor.name, scope.transposed(value, tensor.permutation, origin))
    for name_, array in inputs.constants.items():
        scope.bind(name_, Value.constant(shared.names.take(name_), array))
    scope.convert(model.graph)
    outputs = scope.results(model.graph)
    graph = Graph(name, tuple(values), outputs, tuple(scope.nodes), lengths=inputs.lengths)
    notes = tuple(import_notes(model.graph, inputs, outputs))
    return Imported(verify(label_inputs(graph), "the ONNX import"), notes)


@dataclass
class _Shared:
    """State that all graphs of one file share.

    Attributes:
        names: unique names of values.
        opsets: versions of operator sets, by domain.
        converted: number of operators converted so far.
        added: number of nodes added so far.
    """

    names: UniqueNames
    opsets: Mapping[str, int]
    converted: int = 0
    added: int = 0


class _GraphScope(Scope):
    """A graph during conversion: its tensors by name, and its nodes so far.

    `outer` is the graph around it. A closed graph (`captures` is a dict) takes outer values as
    additional inputs; any other graph uses them directly.
    """

    def __init__(
        self,
        shared: _Shared,
        graph: onnx.GraphProto,
        outer: _GraphScope | None = None,
        *,
        closed: bool = False,
    ) -> None:
        self._shared = shared
        self._outer = outer
        self._values: dict[str, OnnxValue] = {}
        self._stored = {tensor.name: tensor for tensor in graph.initializer}
        self._sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer}
        self._types = ElementTypes(graph, None if outer is None else outer._types)
        self.captures: dict[Value, Value] | None = {} if closed else None
        self.nodes: list[Node] = [] if closed or outer is None else outer.nodes

    def bind(self, name: str, value: OnnxValue) -> None:
        """Set the value of a tensor or sequence of the file."""
        if isinstance(value, TensorSequence):
            # Each step that extends a sequence copies it.
            spend(f"sequence '{name}'", _EACH_ITEM * len(value.items))
        self._values[name] = value

    @override
    def lookup(self, name: str) -> OnnxValue:
        found = self._find(name)
        if found is None:
            raise ModelError(
                f"tensor '{name}' is used, but no operator computes it: the file is damaged"
            )
        return found

    def _find(self, name: str) -> OnnxValue | None:
        if name in self._values:
            return self._values[name]
        if name in self._stored:
            array = array_of(self._stored[name], f"constant '{name}'")
            # An unrolled loop has its constants once for each iteration.
            spend(f"constant '{name}'", array.size)
            self._values[name] = Value.constant(self.unique(name), array)
            return self._values[name]
        if name in self._sparse:
            array = dense_array_of(self._sparse[name], f"constant '{name}'")
            self._values[name] = Value.constant(self.unique(name), array)
            return self._values[name]
        found = None if self._outer is None else self._outer._find(name)
        return None if found is None else _mapped(found, self._captured)

    def _captured(self, found: Value) -> Value:
        if self.captures is None or found.is_constant:
            return found
        if found not in self.captures:
            self.captures[found] = Value(self.unique(found.name), found.type)
        return self.captures[found]

    def _tensor(self, name: str) -> Value:
        """Return the value of an output. Raises `UnsupportedError` for a sequence."""
        found = self.lookup(name)
        if isinstance(found, TensorSequence):
            raise UnsupportedError(
                f"output '{name}' is a sequence, but Smelt's graphs have only tensors; let the "
                "network select its elements (SequenceAt) or join them (ConcatFromSequence)"
            )
        return found

    @override
    def unique(self, name: str) -> str:
        return self._shared.names.take(name)

    @override
    def add(self, node: Node) -> None:
        self._shared.added += 1
        require_size(self._shared.added)
        self.nodes.append(node)

    def transposed(self, value: Value, permutation: Sequence[int], origin: Origin) -> Value:
        """Return the value with its axes permuted."""
        op = Transpose(tuple(permutation))
        (type_,) = op.infer([value.type])
        result = Value(self.unique(value.name), replace(type_, quant=value.type.quant))
        self.add(Node(op, (value,), (result,), origin))
        return result

    @override
    def subgraph(
        self, graph: onnx.GraphProto, inputs: Sequence[TensorType | Value]
    ) -> tuple[Graph, tuple[Value, ...]]:
        inner = _GraphScope(self._shared, graph, self, closed=True)
        own: list[Value] = []
        for tensor, given in _pairs(graph, inputs):
            value = given if isinstance(given, Value) else Value(self.unique(tensor.name), given)
            inner.bind(tensor.name, value)
            if value is not given:
                own.append(value)
        inner.convert(graph)
        outputs = inner.results(graph)
        captures = inner.captures or {}
        closed = Graph(
            graph.name or "graph", (*own, *captures.values()), outputs, tuple(inner.nodes)
        )
        return closed, tuple(captures)

    @override
    def inline(self, graph: onnx.GraphProto, inputs: Sequence[OnnxValue]) -> tuple[OnnxValue, ...]:
        inner = _GraphScope(self._shared, graph, self)
        for tensor, value in _pairs(graph, inputs):
            inner.bind(tensor.name, value)
        inner.convert(graph)
        return tuple(inner.lookup(output.name) for output in graph.output)

    @override
    def apply(
        self, node: onnx.NodeProto, inputs: Sequence[Value | None], version: int, origin: Origin
    ) -> tuple[Value, ...]:
        # An unknown attribute that is passed on would have no effect.
        require_known_attributes(node, "", version, str(origin))
        inner = _GraphScope(self._shared, onnx.GraphProto(), self)
        for index, value in enumerate(inputs):
            name = "" if value is None else f"operand {index}"
            node.input.append(name)
            if value is not None:
                inner.bind(name, value)
        inner._operator(node, origin, {**self._shared.opsets, "": version})
        return tuple(inner._tensor(name) for name in node.output)

    @override
    def element_type(self, name: str) -> int:
        return self._types.code(name)

    @override
    def known(self, value: Value) -> Array | None:
        if value.data is not None:
            return value.data
        maker = next((node for node in reversed(self.nodes) if value in node.outputs), None)
        if maker is None:
            return None if self._outer is None else self._outer.known(value)
        if not isinstance(maker.op, Dequantize | Reshape | Transpose):
            return None
        array = self.known(maker.input(0))
        return None if array is None else compute(maker, [array])[0]

    @override
    def sources(self, value: Value) -> tuple[Value, ...]:
        if self._outer is not None and self.captures is None:
            return self._outer.sources(value)
        makers = {made: node for node in self.nodes for made in node.outputs}
        outside = {inner: outer for outer, inner in (self.captures or {}).items()}
        found: dict[Value, None] = {}
        seen, waiting = {value}, [value]
        while waiting:
            current = waiting.pop()
            if current in makers:
                used = {v for v in makers[current].inputs if v is not None} - seen
                seen |= used
                waiting += used
            elif self._outer is None and not current.is_constant:
                found[current] = None
            elif self._outer is not None and current in outside:
                found |= dict.fromkeys(self._outer.sources(outside[current]))
        return tuple(sorted(found, key=lambda source: source.name))

    def results(self, graph: onnx.GraphProto) -> tuple[Value, ...]:
        """Return the values of a graph's outputs; each is a separate value with its own name."""
        outputs: list[Value] = []
        made = {value for node in self.nodes for value in node.outputs}
        for index, output in enumerate(graph.output):
            value = self._tensor(output.name)
            if value.name != output.name or value not in made or value in outputs:
                origin = Origin("OUTPUT", index, output.name)
                result = Value(self._output_name(output.name, value), value.type)
                self.add(Node(Reshape(value.type.shape), (value,), (result,), origin))
                value = result
            outputs.append(value)
        return tuple(outputs)

    def _output_name(self, name: str, value: Value) -> str:
        return self.unique(name if value.name != name else f"{name}:output")

    # Operators

    def convert(self, graph: onnx.GraphProto) -> None:
        """Convert the operators that the graph's outputs depend on."""
        needed = needed_operators(graph)
        require_size(len(needed))
        refuse_unsupported(needed, self._is_fed)
        opsets = self._shared.opsets
        for index, node in needed:
            name = node.name or next((o for o in node.output if o), "")
            origin, domain = Origin(node.op_type, index, name), domain_of(node)
            converter = CONVERTERS.get(converter_key(node))
            declared = converter.attributes if isinstance(converter, Declared) else None
            require_known_attributes(node, domain, opsets.get(domain, 1), str(origin), declared)
            self._operator(node, origin, opsets)

    def _operator(self, node: onnx.NodeProto, origin: Origin, opsets: Mapping[str, int]) -> None:
        self._shared.converted += 1
        require_size(max(self._shared.converted, len(node.input), len(node.output)))
        self._types.infer(node)
        operation = Operation(
            attributes={attribute.name: attribute for attribute in node.attribute},
            kind=node.op_type,
            version=opsets.get(domain_of(node), 1),
            origin=origin,
            operands=tuple(self.lookup(name) if name else None for name in node.input),
            outputs=tuple(node.output),
            proto=node,
            scope=self,
        )
        converter = CONVERTERS.get(converter_key(node))
        if converter is None:
            self._expand(node, operation, opsets)
            return
        start = len(self.nodes)
        found = converter(operation)
        if found is None:
            self._expand(node, operation, opsets)
            return
        results = (found,) if isinstance(found, OnnxValue) else tuple(found)
        wanted = [name for name in node.output if name]
        if len(results) < len(node.output):
            raise operation.refuse(
                f"Smelt computes only the first {len(results)} of its outputs, but the network "
                f"uses {', '.join(wanted)}"
            )
        pairs = [(n, v) for n, v in zip(node.output, results, strict=False) if n]
        for name, value in zip([n for n, _ in pairs], self._renamed(pairs, start), strict=True):
            self.bind(name, value)

    def _renamed(self, results: Sequence[tuple[str, OnnxValue]], start: int) -> list[OnnxValue]:
        """Return the values, renamed to the file's names if nodes from `start` on made them."""
        made = {value for node in self.nodes[start:] for value in node.outputs}
        renamed: dict[Value, Value] = {}
        for name, value in results:
            if isinstance(value, TensorSequence):
                continue
            if value in made and value not in renamed and value.name != name:
                free = name not in self._shared.names
                renamed[value] = Value(self.unique(name) if free else value.name, value.type)
        if renamed:
            self.nodes[start:] = [
                replace(
                    node,
                    inputs=tuple(None if v is None else renamed.get(v, v) for v in node.inputs),
                    outputs=tuple(renamed.get(v, v) for v in node.outputs),
                )
                for node in self.nodes[start:]
            ]
        return [_mapped(value, lambda v: renamed.get(v, v)) for _, value in results]

    def _expand(
        self, node: onnx.NodeProto, operation: Operation, opsets: Mapping[str, int]
    ) -> None:
        """Convert an operator without a converter: compute it, or replace it by its function."""
        constant = all(
            v is None or (isinstance(v, Value) and v.is_constant) for v in operation.operands
        )
        if constant and expansion.is_computable(node):
            arrays = expansion.computed(node, operation)
            for name, array in zip(node.output, arrays, strict=False):
                if name:
                    self.bind(name, Value.constant(self.unique(name), array))
            return
        body = expansion.body(node, operation)
        if body is None:
            raise operation.refuse(
                f"operator {operator_name(node)} is supported only on constants, but its operands "
                f"are computed at run time. `smelt ops` lists the supported operators; "
                f"{remedy(node)}"
            )
        inner = _GraphScope(self._shared, onnx.GraphProto(), self)
        for name, value, given in zip(body.inputs, operation.operands, node.input, strict=False):
            if value is not None:
                inner.bind(name, value)
                inner._types.bind(name, self._types.code(given))
        for step in body.nodes:
            inner._operator(step, operation.origin, {**opsets, **body.opsets})
        for name, result in zip(node.output, body.outputs, strict=False):
            if name:
                self.bind(name, inner.lookup(result))

    def _is_fed(self, name: str) -> bool:
        found = self._find(name)
        return isinstance(found, TensorSequence) or (found is not None and not found.is_constant)


def _mapped(operand: OnnxValue, change: Callable[[Value], Value]) -> OnnxValue:
    """Apply `change` to a value, or to each value of a sequence."""
    if isinstance(operand, Value):
        return change(operand)
    return replace(operand, items=tuple(map(change, operand.items)))


def _pairs(graph: onnx.GraphProto, given: Sequence[T]) -> Iterable[tuple[onnx.ValueInfoProto, T]]:
    if len(graph.input) != len(given):
        raise ModelError(
            f"graph '{graph.name}' takes {len(graph.input)} inputs, but gets {len(given)}"
        )
    return zip(graph.input, given, strict=True)
