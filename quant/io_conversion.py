"""Float interface of a quantized network: conversions as nodes of its graph."""

from __future__ import annotations

from dataclasses import replace

from smelt.ir import DType, Graph, Node, Origin, TensorType, Value
from smelt.ops.core.quantize import Dequantize, Quantize


def float_interface(graph: Graph) -> Graph:
    """Return the network with float32 inputs and outputs in place of int8 and int16.

    The float values keep the names; the integer values are renamed to `NAME:quantized`.
    """
    inputs: list[Value] = []
    nodes: list[Node] = []
    renamed: dict[Value, Value] = {}
    for index, value in enumerate(graph.inputs):
        if value.type.quant is None:
            inputs.append(value)
            continue
        real = Value(value.name, TensorType(value.type.shape, DType.FLOAT32))
        renamed[value] = replace(value, name=f"{value.name}:quantized")
        origin = Origin("input", index, value.name)
        nodes.append(Node(Quantize(value.type.dtype), (real,), (renamed[value],), origin))
        inputs.append(real)
    results = {value for value in graph.outputs if value.type.quant is not None}
    computed = {value for node in graph.nodes for value in node.outputs}
    for value in results & computed:
        renamed[value] = replace(value, name=f"{value.name}:quantized")
    for node in graph.nodes:
        nodes.append(
            replace(
                node,
                inputs=tuple(None if v is None else renamed.get(v, v) for v in node.inputs),
                outputs=tuple(renamed.get(v, v) for v in node.outputs),
            )
        )
    operands = {v for node in nodes for v in node.inputs if v is not None}
    taken = {v.name for v in (*inputs, *operands, *results - computed)}
    taken |= {v.name for node in nodes for v in node.outputs}
    outputs: list[Value] = []
    for index, value in enumerate(graph.outputs):
        if value not in results:
            outputs.append(value)
            continue
        name = value.name
        while name in taken:
            name = f"{name}:real"
        taken.add(name)
        real = Value(name, TensorType(value.type.shape, DType.FLOAT32))
        origin = Origin("output", index, value.name)
        nodes.append(Node(Dequantize(), (renamed.get(value, value),), (real,), origin))
        outputs.append(real)
    states = tuple(replace(s, after=renamed.get(s.after, s.after)) for s in graph.states)
    return replace(
        graph, inputs=tuple(inputs), outputs=tuple(outputs), nodes=tuple(nodes), states=states
    )
