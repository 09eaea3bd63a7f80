"""The right outputs of a quantized ONNX network: onnxruntime's integers, where they are defined.

onnxruntime computes with real numbers between DequantizeLinear and QuantizeLinear, so that its
rounding errors decide near the middle of two integers. If scales are powers of two and no operator
rounds, there are no such errors, and every element must be equal. Otherwise each operator is
compared alone, on the integers of Smelt's reference: its results must be at most one step from
onnxruntime's. The outputs of the reference are then the truth for generated code, which must equal
them in every element.

Generated code also computes operators without an integer form with real numbers. Results behind
them may differ only by the effect of rounding errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from smelt.codegen.passes.quantized.integer_arithmetic import use_integer_arithmetic
from smelt.frontend import Imported, load
from smelt.ir import Array, DType, Graph, evaluate
from smelt.ir.evaluate import compute
from smelt.ops.core.quantize import Dequantize
from smelt.samples import Sample
from tests.differential.onnx_builder import run_nodes
from tests.differential.onnx_quantized import Quantized
from tests.differential.oracles import Truth, difference, onnxruntime_truth
from tests.differential.program import Outputs
from tests.differential.recipe import Network

_RUNS = 12
_NOISE = 2.0**-21
"""Relative to the largest number of a tensor: the effect of summing in another order."""


def quantized_truth(network: Network, imported: Imported) -> Truth | str:
    """Return the right outputs, or describe how the import differs from onnxruntime."""
    details = network.details
    assert isinstance(details, Quantized)
    theirs = onnxruntime_truth(network)
    theirs = Truth(theirs.outputs, theirs.engine)  # integers have no tolerance
    graph = use_integer_arithmetic(imported.graph)
    ours = [evaluate(graph, sample).outputs for sample in network.samples]
    bounds = _bounds(graph, ours, network.samples) if _has_reals(graph) else None
    departs = _unequal(ours, theirs)
    if not departs:
        return replace(theirs, bounds=bounds)
    if details.exact:
        return f"the import departs from onnxruntime, which has no rounding errors here: {departs}"
    wrong = _wrong_piece(network, details)
    return wrong or Truth(ours, "onnxruntime, operator by operator", bounds=bounds)


def _has_reals(graph: Graph) -> bool:
    """Return whether any operator computes with real numbers."""
    return any(
        value.type.dtype is DType.FLOAT32 and not isinstance(node.op, Dequantize)
        for node in graph.nodes
        for value in node.outputs
    )


def _bounds(
    graph: Graph, base: Outputs, samples: Sequence[Sample]
) -> Callable[[], tuple[Outputs, Outputs]]:
    """Return the smallest and largest value of each element under noise like rounding errors."""

    @cache
    def found() -> tuple[Outputs, Outputs]:
        rng = np.random.default_rng(0)
        runs = [base, *([_noisy(graph, s, rng) for s in samples] for _ in range(_RUNS))]
        by_output = [
            [np.stack(arrays) for arrays in zip(*(run[i] for run in runs), strict=True)]
            for i in range(len(samples))
        ]
        low = [tuple(a.min(axis=0) for a in arrays) for arrays in by_output]
        return low, [tuple(a.max(axis=0) for a in arrays) for arrays in by_output]

    return found


def _noisy(graph: Graph, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
    values = dict(zip(graph.inputs, sample, strict=True))
    values |= {value: value.data for value in graph.values() if value.data is not None}
    for node in graph.nodes:
        results = compute(node, [None if v is None else values[v] for v in node.inputs])
        for value, array in zip(node.outputs, results, strict=True):
            if array.dtype == np.float32 and not isinstance(node.op, Dequantize):
                noise = rng.uniform(-_NOISE, _NOISE, array.shape) * np.abs(array).max(initial=0)
                array = (array + noise).astype(np.float32)
            values[value] = array
    return tuple(values[value] for value in graph.outputs)


def _unequal(ours: Outputs, theirs: Truth) -> str:
    """Describe how outputs differ, whose real numbers are dequantized integers; empty if equal."""
    if all(
        np.array_equal(a, b)
        for found, wanted in zip(ours, theirs.outputs, strict=True)
        for a, b in zip(found, wanted, strict=True)
    ):
        return ""
    return difference(ours, theirs) or "by rounding errors of its outputs"


def _wrong_piece(network: Network, details: Quantized) -> str:
    """Describe the first operator more than one step from onnxruntime; empty if there is none."""
    whole = load(details.whole, "whole").graph
    graph = use_integer_arithmetic(whole)
    names = [name for piece in details.pieces for name in piece.makes]
    known = {name: list(details.shapes[name]) for name in details.shapes}
    for i, sample in enumerate(network.samples):
        for name, array in zip(names, evaluate(graph, sample).outputs, strict=True):
            known[name][i] = array
    for piece in details.pieces:
        results = run_nodes(piece.nodes, details.constants, known, piece.makes)
        for name, arrays in zip(piece.makes, results, strict=True):
            apart = max(
                int(np.abs(a.astype(np.int32) - b.astype(np.int32)).max(initial=0))
                for a, b in zip(known[name], arrays, strict=True)
            )
            if apart > 1:
                kinds = ", ".join(n.op_type for n in piece.nodes if "Linear" not in n.op_type)
                return f"{kinds} makes '{name}' up to {apart} steps from onnxruntime's"
    return ""
