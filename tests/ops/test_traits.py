"""Traits of operators about factors of channels, compared with their references.

Factors are powers of two, which change only the exponents of numbers.
"""

from __future__ import annotations

import numpy as np
import pytest

from smelt.ir import Activation, Array, DType, Node
from smelt.ir.channels import channels
from smelt.ir.homogeneity import Homogeneity
from smelt.ir.weights import weights_rule
from smelt.ops import all_cases
from smelt.ops.case import Case, build, random_array

Operands = list[Array | None]


def _node(case: Case) -> tuple[Node, Operands]:
    """Return a case's only node in float32, and operands for it."""
    graph = build(case, DType.FLOAT32)
    rng = np.random.default_rng(3)
    inputs = [random_array(value.type, rng) for value in graph.inputs]
    given = dict(zip(graph.inputs, inputs, strict=True))
    (node,) = graph.nodes
    return node, [None if v is None else v.data if v.is_constant else given[v] for v in node.inputs]


_FLOAT = [case for case in all_cases() if DType.FLOAT32 in case.dtypes]
_SCALED = [case for case in _FLOAT if (node := _node(case)[0]).op.homogeneity(node)]
_WEIGHTED = [case for case in _FLOAT if case.op.weights_rule is not None]


def _factors(node: Node, way: Homogeneity, rng: np.random.Generator) -> tuple[Operands, Array]:
    """Return a factor for each channel of the linked operands (None for others) and of the result.

    Channels that `way` links get the same factor.
    """
    own = {i: np.zeros(channels(node.input(i).type), np.int64) for i in _linked(way)}
    result = np.arange(1, channels(node.output.type) + 1)
    labels: list[list[int]] = []
    while labels != (now := [found.tolist() for found in (*own.values(), result)]):
        labels = now
        for link in way.links:
            source, target = np.broadcast_arrays(link.source, link.result)
            most = np.maximum(own[link.operand][source], result[target])
            np.maximum.at(own[link.operand], source, most)
            np.maximum.at(result, target, most)
    exponents = rng.permutation(np.arange(max(map(np.max, (*own.values(), result))) + 1) % 9 - 4)
    factors: Operands = [
        2.0 ** exponents[own[i]] if i in own else None for i in range(len(node.inputs))
    ]
    return factors, 2.0 ** exponents[result]


def _linked(way: Homogeneity) -> set[int]:
    return {link.operand for link in way.links}


@pytest.mark.parametrize("case", _SCALED, ids=str)
def test_factors_of_operands_become_factors_of_the_result(case: Case) -> None:
    node, operands = _node(case)
    rng = np.random.default_rng(1)
    (expected,) = node.op.reference(node, operands)
    for way in node.op.homogeneity(node):
        factors, result = _factors(node, way, rng)
        scaled = [
            x if x is None else x * result if i in way.scaled else x if f is None else x * f
            for i, (x, f) in enumerate(zip(operands, factors, strict=True))
        ]
        single = [
            x if x is None or before is None else x.astype(before.dtype)
            for x, before in zip(scaled, operands, strict=True)
        ]
        (found,) = node.op.reference(node, single)
        np.testing.assert_array_equal(found, expected * result)


@pytest.mark.parametrize("case", _WEIGHTED, ids=str)
def test_dividing_weights_cancels_factors_of_input_channels(case: Case) -> None:
    node, (x, weights, *bias) = _node(case)
    rule = weights_rule(node.op)
    assert x is not None
    assert weights is not None
    factors = 2.0 ** np.random.default_rng(1).integers(-4, 5, channels(node.input(0).type))
    undone = (weights / factors[rule.input_channels(node)]).astype(np.float32)
    scaled = (x * factors).astype(np.float32)
    (expected,) = node.op.reference(node, [x, weights, *bias])
    (found,) = node.op.reference(node, [scaled, undone, *bias])
    assert np.array_equal(found, expected) == rule.keeps_channels(node)


@pytest.mark.parametrize("case", [c for c in _WEIGHTED if c.op.quantized_weights], ids=str)
def test_windows_times_weights_equal_the_reference(case: Case) -> None:
    node, (x, weights, *_) = _node(case)
    op = node.op.with_activation(Activation.NONE)
    rule, groups = weights_rule(op), weights_rule(op).groups(node)
    assert x is not None
    assert weights is not None
    rows = np.moveaxis(weights, rule.output_axis(node.input(1).type), 0)
    windows = rule.windows(node, x)
    pixels, taps, depth = windows.shape
    parts = windows.reshape(pixels, taps, groups, depth // groups)
    matrices = rows.reshape(groups, -1, taps, depth // groups)
    found = np.einsum("ptgd,gotd->pgo", parts, matrices, dtype=np.float64)
    (expected,) = op.reference(node, [x, weights])
    np.testing.assert_allclose(found.ravel(), expected.ravel(), atol=1e-5)


@pytest.mark.parametrize("case", [c for c in _FLOAT if c.op.fused_activation], ids=str)
def test_a_fused_activation_clamps(case: Case) -> None:
    node, operands = _node(case)
    plain, clamped = map(node.op.with_activation, (Activation.NONE, Activation.RELU_N1_TO_1))
    assert clamped.fused_activation is Activation.RELU_N1_TO_1
    with np.errstate(all="ignore"):
        (before,), (after,) = (op.reference(node, operands) for op in (plain, clamped))
    np.testing.assert_array_equal(after, np.clip(before, -1, 1))
