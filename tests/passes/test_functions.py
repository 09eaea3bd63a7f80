"""Chains of functions of 8-bit tensors are merged or removed without changing any bit."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.codegen.passes import run_passes
from smelt.codegen.passes.channels.removal_report import RemovalReport
from smelt.codegen.passes.quantized.function_chains import merge_functions
from smelt.ir import (
    DType,
    Graph,
    Node,
    Op,
    Origin,
    Quant,
    Rounding,
    TensorType,
    Value,
    evaluate,
    verify,
)
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.binary import Binary
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.quantize import Dequantize, Quantize
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.reshape import Reshape
from tests.support.graphs import compile_graph

SHAPE = (1, 4, 4, 16)
IN, OUT = Quant.per_tensor(0.05, -3), Quant.per_tensor(0.031, 11)


class Chain:
    """A chain of operators, with all 256 stored numbers as input."""

    def __init__(self, dtype: DType = DType.INT8, quant: Quant | None = IN) -> None:
        self.x = Value("x", TensorType(SHAPE, dtype, quant))
        self.last = self.x
        self.nodes: list[Node] = []

    def add(self, op: Op, quant: Quant | None, *constants: Value) -> Chain:
        inputs = (self.last, *constants)
        (type_,) = op.infer([v.type for v in inputs])
        index = len(self.nodes)
        self.last = Value(f"v{index}", TensorType(type_.shape, type_.dtype, quant))
        origin = Origin("OP", index)
        rounding = None if quant is None else Rounding.TFLM
        self.nodes.append(Node(op, inputs, (self.last,), origin, rounding))
        return self

    def graph(self) -> Graph:
        """Return the chain followed by a reshape, because nodes that compute outputs are kept."""
        shaped = Reshape((1, 256))
        y = Value("y", TensorType((1, 256), self.last.type.dtype, self.last.type.quant))
        last = Node(shaped, (self.last,), (y,), Origin("OP", len(self.nodes)))
        return verify(Graph("chain", (self.x,), (y,), (*self.nodes, last)), "building")


def merged(graph: Graph) -> list[str]:
    """Return the operators after `merge_functions`; assert that all results are equal."""
    (x,) = graph.inputs
    low, high = x.type.dtype.limits
    sample = (np.arange(low, high + 1).astype(x.type.dtype.numpy).reshape(SHAPE),)
    after = verify(merge_functions(graph), "merge_functions")
    (expected,), (found,) = evaluate(graph, sample).outputs, evaluate(after, sample).outputs
    np.testing.assert_array_equal(found, expected)
    return [node.op.name for node in after.nodes if not isinstance(node.op, Reshape)]


def test_consecutive_requantizations_become_a_table() -> None:
    chain = Chain().add(Quantize(DType.INT8), OUT).add(Quantize(DType.INT8), IN)
    assert merged(chain.graph()) == ["Table"]


def test_functions_of_dequantized_numbers_become_a_table() -> None:
    chain = Chain().add(Dequantize(), None).add(Unary("exp"), None)
    assert merged(chain.add(Quantize(DType.INT8), OUT).graph()) == ["Table"]


def test_chains_through_int16_become_a_table() -> None:
    wide = Quant.per_tensor(0.001, 0)
    chain = Chain().add(Quantize(DType.INT16), wide).add(Quantize(DType.INT8), OUT)
    assert merged(chain.graph()) == ["Table"]


def test_dequantizing_and_quantizing_is_removed() -> None:
    chain = Chain().add(Dequantize(), None).add(Quantize(DType.INT8), IN)
    assert merged(chain.graph()) == []


def test_changing_the_sign_of_the_type_and_back_is_removed() -> None:
    up = Quant.per_tensor(IN.scale[0], IN.zero_point[0] + 128)
    chain = Chain().add(Quantize(DType.UINT8), up).add(Quantize(DType.INT8), IN)
    assert merged(chain.graph()) == []


def test_requantizations_that_lose_numbers_become_a_table() -> None:
    """A coarser scale between two equal ones does not return every number."""
    coarse = Quant.per_tensor(0.2, -3)
    chain = Chain().add(Quantize(DType.INT8), coarse).add(Quantize(DType.INT8), IN)
    assert merged(chain.graph()) == ["Table"]


def test_consecutive_clamps_become_a_table() -> None:
    chain = Chain().add(Unary("relu"), IN).add(Unary("relu6"), IN).add(Unary("relu"), IN)
    assert merged(chain.graph()) == ["Table"]


def test_functions_with_constant_operands_become_a_table() -> None:
    k = Value.constant("k", np.array([[7]], np.int8), Quant.per_tensor(0.1, 2))
    chain = (
        Chain().add(Binary("add"), OUT, k).add(Unary("logistic"), Quant.per_tensor(1 / 256, -128))
    )
    assert merged(chain.graph()) == ["Table"]


def test_a_single_function_stays() -> None:
    assert merged(Chain().add(Unary("relu"), IN).graph()) == ["Unary(relu)"]


def test_a_chain_that_changes_only_the_largest_number_becomes_a_table() -> None:
    """The pool clamps at 6, stored as 117, which the other zero point would map to 128."""
    pool = Pool2D("max", (2, 2), (1, 1), ((0, 1), (0, 1)), Activation.RELU6)
    moved = Quant.per_tensor(0.05, 8)
    chain = Chain().add(pool, IN).add(Quantize(DType.INT8), moved).add(Quantize(DType.INT8), IN)
    assert merged(chain.graph()) == ["Pool2D(max)", "Table"]


def test_a_clamp_without_effect_is_removed() -> None:
    """A pool that clamps at zero has no negative outputs."""
    pool = Pool2D("max", (2, 2), (1, 1), ((0, 1), (0, 1)), Activation.RELU)
    chain = Chain().add(pool, IN).add(Unary("relu"), IN)
    assert merged(chain.graph()) == ["Pool2D(max)"]


def test_a_value_with_other_readers_stays() -> None:
    """The chain after it starts from this value."""
    chain = Chain().add(Quantize(DType.INT8), OUT)
    shared = chain.last
    graph = chain.add(Unary("relu"), OUT).graph()
    both = verify(Graph("both", graph.inputs, (*graph.outputs, shared), graph.nodes), "building")
    sample = (np.arange(-128, 128).astype(np.int8).reshape(SHAPE),)
    after = merge_functions(both)
    for found, expected in zip(
        evaluate(after, sample).outputs, evaluate(both, sample).outputs, strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    assert [n.op.name for n in after.nodes][:2] == ["Quantize", "Unary(relu)"]


@pytest.mark.parametrize("kind", ["max", "average"])
def test_pools_of_single_elements_are_removed(kind: str) -> None:
    chain = Chain().add(Pool2D(kind, (1, 1)), IN).add(Unary("relu"), IN)
    removals = RemovalReport(chain.graph(), None)
    after = run_passes(chain.graph(), observe=removals)
    assert "Pool2D" not in str([n.op.name for n in after.nodes])
    gone = {(g.operator, g.by) for g in removals.operators}
    assert (f"Pool2D({kind})", "drop_identities") in gone


def test_the_report_names_removed_operators_and_reasons() -> None:
    chain = Chain().add(Dequantize(), None).add(Unary("tanh"), None).add(Quantize(DType.INT8), OUT)
    report = compile_graph(chain.graph()).report
    removed = report["removed"]
    assert isinstance(removed, dict)
    found = [(g["origin"], g["pass"]) for g in removed["operators"]]
    assert found[:2] == [("OP #0", "merge_functions"), ("OP #1", "merge_functions")]
    assert "table" in removed["operators"][0]["why"]
