"""A quantized network as ONNX: float operators between QuantizeLinear and DequantizeLinear.

For other tools. Inputs and outputs are float32; weights are int8 initializers. Results differ from
the quantized network's where a tool rounds in another way.
May import `ops` and `ir`; `cli` and `bench` may import it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.errors import UnsupportedError
from smelt.ir import Graph, Op
from smelt.ops.core.table import Table
from smelt.quant.qdq import data_movement, elementwise, matmul, recurrence, reductions
from smelt.quant.qdq.graph import Emitter, Exporter
from smelt.quant.qdq.table_functions import functions_of

_FAMILIES = (elementwise, data_movement, matmul, recurrence, reductions)

EMITTERS: Mapping[type[Op], Emitter] = {
    op: emitter for family in _FAMILIES for op, emitter in family.EMITTERS.items()
}
"""How each operator is written."""


def export(graph: Graph, original: Graph, results: Sequence[str] | None = None) -> bytes:
    """A quantized network as an ONNX file.

    Args:
        graph: the quantized network.
        original: the float network that it was made of, by whose values' names the functions are
            found again that tables stand for.
        results: names of the outputs; those in the graph where None.

    Raises:
        UnsupportedError: an operator has no form in ONNX here.
    """
    if graph.states:
        raise UnsupportedError(
            f"'{graph.name}' keeps state from one inference to the next, which ONNX cannot express"
        )
    tables = [node for node in graph.nodes if isinstance(node.op, Table)]
    names = [value.name for value in graph.outputs] if results is None else results
    exporter = Exporter(graph, EMITTERS, functions_of(tables, original), names)
    for value in graph.inputs:
        exporter.finish(value, value.name)
    for node in graph.nodes:
        exporter.emit_node(node)
    return exporter.model(graph).SerializeToString()
