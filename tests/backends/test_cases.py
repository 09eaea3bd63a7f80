"""Every case of every operator on every core: generated code equals the numpy reference.

Many cases are compiled into one firmware, and each case's outputs are compared separately. Every
case runs on the host. Cores and the GPU run the operators for which they have kernels. An M55, for
which compilers vectorize loops, also runs one case of every other operator. The rest are slow
tests. In the quick tier a GPU runs one case of every kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from bench.cores import CORES
from smelt.codegen.lower.backend import backend
from smelt.codegen.lower.kernel import Refusal, Request
from smelt.ir import Array, DType, TensorType, evaluate
from smelt.ops import all_cases
from smelt.ops.case import Case, Data, build, sample_limits, sample_of
from smelt.samples import Sample
from smelt.targets import get
from tests.support.graphs import (
    OWN_KERNELS,
    SETUPS,
    SIMULATED,
    TWINS,
    Member,
    assert_same,
    run_together,
)
from tests.support.vulkan_tools import requires_vulkan

SHARDS = 6
_FAMILIES = {name for core in OWN_KERNELS for name in get(CORES[core][1]).backends} - {"c"}
OWN = tuple({kernel.op for family in _FAMILIES for kernel in backend(family).kernels})
"""Operators with kernels for particular cores; others compile to the same C for all cores."""

EVERYWHERE = [
    "host",
    *(pytest.param(s, marks=[pytest.mark.qemu, pytest.mark.slow]) for s in SIMULATED),
    pytest.param("vulkan", marks=[requires_vulkan, pytest.mark.slow]),
]
ON_GPU = {
    "ArgReduce": "f32 i8 u8 i32 u32",
    "Binary": "f32 i8 u8 i32 u32 bool",
    "BitCast": "f32 f64 i32 u8",
    "Cast": "f32 i8 bool",
    "Concat": "f32 i8",
    "Conv2D": "f32 i8",
    "ConvTranspose": "f32 i8",
    "Copy": "f32 i8",
    "DepthwiseConv2D": "f32 i8",
    "Dequantize": "i8",
    "FullyConnected": "f32 i8",
    "Gather": "f32 i8",
    "GatherElements": "f32 i8",
    "GatherND": "f32 i8",
    "L2Normalization": "f32 i8",
    "LocalResponse": "f32",
    "LogSoftmax": "f32 i8",
    "MatMul": "f32 i8 i32",
    "Normalization": "f32",
    "PRelu": "f32 i8",
    "Pad": "f32 i8",
    "Pool2D": "f32 i8",
    "Quantize": "f32 i8 u8",
    "Reduce": "f32 i8 u8 i32 u32 bool",
    "Resample": "f32 i64 i8 u8 bool",
    "Resize": "f32 i8",
    "Select": "f32 i8 u8 i32 u32 bool",
    "Slice": "f32 i8",
    "Softmax": "f32 i8",
    "Table": "i8 u8",
    "Tile": "f32 i8",
    "Transpose": "f32 i8",
    "Unary": "f32 i8 u8 i32 u32 bool",
}
"""Operators that a GPU must compute, with the element types that it must support."""
PATTERNS = {"least": (0,), "greatest": (1,), "alternating": (0, 1), "zero": (None,)}
"""Patterns of smallest and largest elements, repeated; None is the real number zero."""


def pairs() -> list[tuple[Case, DType]]:
    return [(case, dtype) for case in all_cases() for dtype in case.dtypes]


def member_of(case: Case, dtype: DType) -> Member:
    """Return the one-node graph of a case, with a random sample and one for each pattern."""
    graph = build(case, dtype)
    ranges = [a for a in case.arguments if isinstance(a, Data)]
    rng = np.random.default_rng(11)
    inputs = list(zip([v.type for v in graph.inputs], ranges, strict=True))
    random = tuple(sample_of(range_, type_, rng) for type_, range_ in inputs)
    return Member(graph, [random, *_extremes(inputs)])


def _extremes(inputs: list[tuple[TensorType, Data]]) -> Iterator[Sample]:
    for pattern in PATTERNS.values():
        arrays: list[Array] = []
        for type_, range_ in inputs:
            low, high = sample_limits(range_, type_)
            zero = type_.zero_point if type_.is_quantized else min(max(0.0, low), high)
            values = [zero if p is None else high if p else low for p in pattern]
            flat = np.resize(np.array(values, type_.dtype.numpy), type_.size)
            arrays.append(flat.reshape(type_.shape))
        yield tuple(arrays)


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("setup", EVERYWHERE)
def test_every_case(setup: str, shard: int) -> None:
    check(setup, pairs()[shard::SHARDS])


@pytest.mark.quick(setup=("m0", "m4", "m55"))
@pytest.mark.parametrize(
    "setup", [*(pytest.param(s, marks=pytest.mark.qemu) for s in OWN_KERNELS), *TWINS]
)
def test_cases_with_kernels_for_a_core(setup: str) -> None:
    check(setup, [(c, d) for c, d in pairs() if d is DType.INT8 and isinstance(c.op, OWN)])


@pytest.mark.quick(setup=("vulkan",))
@pytest.mark.parametrize("shard", range(2))
@pytest.mark.parametrize(
    "setup",
    [
        pytest.param("m55", marks=pytest.mark.qemu),
        pytest.param("vulkan", marks=requires_vulkan),
    ],
)
def test_one_case_of_every_kind(setup: str, shard: int) -> None:
    """The first case of each operator, function and element type."""
    first: dict[tuple[object, ...], tuple[Case, DType]] = {}
    for case, dtype in pairs():
        first.setdefault((type(case.op), getattr(case.op, "kind", None), dtype), (case, dtype))
    chosen = [pair for pair in first.values() if setup == "m55" or serves(*pair)]
    check(setup, chosen[shard::2])


@pytest.mark.thorough
def test_cases_without_long_multiplications() -> None:
    """The generated C computes the same on the host without long multiplications."""
    check(
        "host as m0", [(c, d) for c, d in pairs() if d is DType.INT8 and not isinstance(c.op, OWN)]
    )


@pytest.mark.thorough
@requires_vulkan
@pytest.mark.parametrize("shard", range(SHARDS))
def test_cases_on_a_gpu(shard: int) -> None:
    """Floats, quantized data and booleans; other integers are slow tests."""
    quick = DType.FLOAT32, DType.BOOL
    chosen = [(c, d) for c, d in pairs() if d in quick or not c.plain]
    check("vulkan", [pair for pair in chosen if serves(*pair)][shard::SHARDS])


def test_operators_of_the_gpu() -> None:
    served: dict[str, set[str]] = {}
    for case, dtype in pairs():
        if serves(case, dtype):
            served.setdefault(type(case.op).__name__, set()).add(dtype.value)
    missing = {name: set(types.split()) - served.get(name, set()) for name, types in ON_GPU.items()}
    assert not any(missing.values()), missing


def serves(case: Case, dtype: DType) -> bool:
    """Return whether a GPU computes a case."""
    (node,) = build(case, dtype).nodes
    return not isinstance(backend("vulkan").find(node, Request(get("vulkan"))), Refusal)


def check(setup: str, chosen: Sequence[tuple[Case, DType]]) -> None:
    """Fail unless cases compute what the reference does; name all cases that do not."""
    members = [member_of(case, dtype) for case, dtype in chosen]
    found = run_together(members, (SETUPS | TWINS)[setup])
    wrong: list[str] = []
    for (case, dtype), member, outputs in zip(chosen, members, found, strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        try:
            assert_same(outputs, expected, f"{case}-{dtype.value} on {setup}")
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)
