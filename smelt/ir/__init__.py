"""The intermediate representation: frozen, typed, pure dataflow.

May import nothing else of Smelt but `errors` and `formatting`; everything may import it.
"""

from smelt.ir.activation import Activation
from smelt.ir.evaluate import Evaluation, evaluate
from smelt.ir.graph import Graph, Length, Node, Op, Origin, Rewrite, Rounding, State, Value
from smelt.ir.types import Array, DType, Quant, Shape, TensorType
from smelt.ir.verify import verify

__all__ = [
    "Activation",
    "Array",
    "DType",
    "Evaluation",
    "Graph",
    "Length",
    "Node",
    "Op",
    "Origin",
    "Quant",
    "Rewrite",
    "Rounding",
    "Shape",
    "State",
    "TensorType",
    "Value",
    "evaluate",
    "verify",
]
