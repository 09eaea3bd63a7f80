"""Export of a quantized network as ONNX with QuantizeLinear and DequantizeLinear (QDQ).

The file is for other tools. Inputs and outputs are float32, weights are int8 initializers. Results
may differ from those of the quantized network if a tool rounds differently.
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
"""Function that emits each operator."""


def export(graph: Graph, original: Graph, results: Sequence[str] | None = None) -> bytes:
    """Return a quantized network as the bytes of an ONNX file.

    Args:
        graph: the quantized network.
        original: the float network it was made from. The functions behind tables are looked up in
            it by the names of values.
        results: names of the outputs; None uses the names in the graph.

    Raises:
        UnsupportedError: an operator cannot be exported.
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
