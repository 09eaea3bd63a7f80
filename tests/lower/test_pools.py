"""Tests that pools in assembly equal the reference.

Their plain C definitions run on the host under sanitizers. Their instructions run under QEMU, with
guard bytes around outputs and scratch, and with inputs at the ends of a memory, beyond which every
access faults.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from smelt.codegen.backends.dsp import pool as dsp_pool
from smelt.codegen.backends.helium import pool as helium_pool
from smelt.codegen.lower.kernel import Kernel, KernelCall, Refusal, Request
from smelt.codegen.lower.plain_pool import PlainPool
from smelt.codegen.lower.pooling import MOST, Pooling, pooling
from smelt.ir import (
    Array,
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
from smelt.ops.core.convolution import NO_PADDING, Padding2D, Pair, same_padding
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.reduce import Reduce
from smelt.samples import Sample
from smelt.targets import get
from tests.support.guarded import CORES, Core, Run, said_on
from tests.support.kernels_host import OUTPUT, Entry, build_programs, compile_c, source_of

KERNELS: dict[str, tuple[Kernel[Any], ...]] = {
    "cortex-m0": (PlainPool(),),
    "cortex-m3": (PlainPool(),),
    "cortex-m7": dsp_pool.KERNELS,
    "cortex-m55": helium_pool.KERNELS,
}
PLAIN = ("mps2-an385", (0, 0x10_0000), (0x0010_0000, 0x30_0000), (0x2000_0000, 0x10_0000))
SIMULATED = {
    "cortex-m0": Core("cortex-m0", *PLAIN, (0x2100_0000, 0x2200_0000)),
    "cortex-m3": Core("cortex-m3", *PLAIN, (0x2100_0000, 0x2200_0000)),
    "cortex-m7": CORES["m7"],
    "cortex-m55": CORES["m55"],
}
AROUND, AFTER = ((1, 1), (1, 1)), ((0, 1), (0, 1))


@dataclass(frozen=True)
class Case:
    """A node with its input samples."""

    name: str
    graph: Graph
    samples: Sequence[Sample]

    @property
    def node(self) -> Node:
        return self.graph.nodes[0]

    def call(self, target: str) -> KernelCall | Refusal:
        """Return the call that the target's kernel offers, or its refusal."""
        kernel = next(k for k in KERNELS[target] if isinstance(self.node.op, k.op))
        return kernel.offer(self.node, Request(get(target)))

    def expected(self) -> list[Array]:
        return [evaluate(self.graph, sample).outputs[0] for sample in self.samples]


def node_case(
    op: Op,
    shape: tuple[int, ...],
    *,
    points: Pair = (3, 3),
    ratio: float = 1.0,
    rounding: Rounding = Rounding.TFLM,
) -> Case:
    """Return a case with random and extreme inputs.

    Args:
        op: the operator.
        shape: of the input.
        points: zero points of input and output.
        ratio: scale of the input divided by the scale of the output.
        rounding: of the node.
    """
    name = f"{op} {shape} {points} {ratio} {rounding.value}"
    rng = np.random.default_rng(crc32(name.encode()))
    x = Value("x", TensorType(shape, DType.INT8, Quant.per_tensor(0.05 * ratio, points[0])))
    (inferred,) = op.infer([x.type])
    y = Value("y", TensorType(inferred.shape, DType.INT8, Quant.per_tensor(0.05, points[1])))
    graph = verify(
        Graph("case", (x,), (y,), (Node(op, (x,), (y,), Origin(op.name, 0), rounding),)), name
    )
    ends = np.array([-128, 127], np.int8)
    inputs = (
        rng.integers(-128, 128, shape).astype(np.int8),
        rng.integers(-4, 5, shape).astype(np.int8),
        *(np.full(shape, end) for end in ends),
        rng.choice(ends, shape),
    )
    return Case(name, graph, [(data,) for data in inputs])


def pools(
    shape: tuple[int, int, int, int],
    window: Pair,
    stride: Pair = (1, 1),
    padding: Padding2D = NO_PADDING,
    activation: Activation = Activation.NONE,
) -> tuple[Case, Case]:
    """Return a case for maxima and one for averages."""
    maxima, averages = (
        Pool2D(kind, window, stride, padding, activation) for kind in ("max", "average")
    )
    return node_case(maxima, shape), node_case(averages, shape)


def every_sum(taps: int, rounding: Rounding = Rounding.TFLM, ratio: float = 1.0) -> Case:
    """Return a case that averages windows of `taps` elements, one for every possible sum."""
    sums = np.arange(-128 * taps, 127 * taps + 1)
    parts = (sums[:, None] + np.arange(taps)) // taps
    op = Pool2D("average", (1, taps), (1, taps))
    case = node_case(op, (1, len(sums), taps, 4), ratio=ratio, rounding=rounding)
    data = np.repeat(parts[None, :, :, None], 4, axis=3).astype(np.int8)
    return Case(f"every sum of {taps} {rounding.value} {ratio}", case.graph, [(data,)])


@cache
def cases() -> tuple[Case, ...]:
    """Return cases with many shapes, strides, paddings, channels, activations and roundings."""
    onnx = Rounding.ONNX
    counted = Pool2D("average", (3, 3), (2, 2), AROUND, counts_padding=True)
    return (
        *(case for channels in (1, 3, 4, 5, 8, 13, 16, 22, 37, 64)
          for case in pools((1, 5, 6, channels), (2, 2), (2, 2))),
        *(case for channels in (1, 3, 5, 12, 16, 37)
          for case in pools((1, 5, 7, channels), (3, 3), (1, 1), AROUND)),
        *(case for channels in (4, 20, 37)
          for case in pools((1, 5, 7, channels), (2, 2), (2, 2), AFTER)),
        *(case for stride in ((1, 2), (2, 1), (3, 3))
          for case in pools((1, 8, 9, 12), (3, 2), stride, ((0, 2), (1, 0)))),
        *(case for channels in (3, 8, 19, 64)
          for case in pools((1, 25, 5, channels), (25, 5))),
        *pools((2, 5, 3, 37), (5, 3)),
        *pools((3, 4, 6, 8), (2, 3), (2, 3)),
        *pools((2, 4, 5, 16), (3, 3), (2, 2), AROUND),
        *pools((1, 6, 4, 20), (2, 4), (2, 1)),
        *pools((1, 3, 40, 8), (3, 13), (1, 9)),
        *pools((1, 1, 300, 4), (1, 250)),
        *pools((1, 16, 16, 9), (16, 16)),
        *pools((1, 4, 4, 12), (1, 1), (2, 2)),
        *pools((1, 2, 3, 8), (5, 5), (1, 1), same_padding((2, 3), (5, 5), (1, 1))),
        *pools((1, 3, 3, 260), (2, 2)),
        *pools((1, 2, 2, 1100), (2, 2), (1, 1), AFTER),
        *pools((1, 5, 6, 16), (2, 2), (2, 2), activation=Activation.RELU),
        *pools((1, 5, 6, 13), (3, 3), (2, 2), AROUND, activation=Activation.RELU6),
        *pools((1, 5, 6, 20), (3, 2), activation=Activation.RELU_N1_TO_1),
        node_case(counted, (1, 6, 7, 12)),
        *(node_case(counted, (1, 6, 7, 12), ratio=ratio, points=(-7, 20), rounding=onnx)
          for ratio in (1.0, 0.37)),
        *(node_case(Pool2D("average", (2, 3), (1, 2)), (1, 5, 7, channels), points=points,
                    ratio=ratio, rounding=onnx)
          for channels, points, ratio in ((8, (0, 0), 1.0), (13, (5, -9), 1.9001),
                                          (16, (-128, 7), 0.3), (20, (127, -128), 1.0))),
        *(node_case(Reduce("mean", axes, keep), shape, points=points, ratio=ratio)
          for axes, keep, shape, points, ratio in (
              ((1, 2), False, (1, 7, 7, 24), (4, -6), 0.8),
              ((1, 2), True, (2, 3, 5, 37), (0, 0), 1.3), ((1,), False, (2, 6, 7), (5, 4), 90.0),
              ((1,), False, (3, 9, 2, 5), (-128, -128), 2.7), ((0,), True, (4, 12), (9, 9), 0.1))),
        *(node_case(Reduce("mean", (1, 2)), (1, 7, 7, 24), points=(4, -6), ratio=ratio,
                    rounding=onnx) for ratio in (0.8, 1.4)),
        node_case(Reduce("sum", (2, 1)), (1, 4, 3, 20), points=(2, 100), ratio=0.2),
        node_case(Reduce("max", (1, 2)), (2, 4, 3, 21)),
        *(every_sum(taps) for taps in (1, 2, 4, 9)),
        *(every_sum(6, onnx, ratio) for ratio in (0.7, 0.7003)),
    )  # fmt: skip


def served(target: str) -> list[tuple[Case, KernelCall]]:
    """Return the cases that the target's kernels serve, with their calls."""
    calls = [(case, case.call(target)) for case in cases()]
    return [(case, call) for case, call in calls if not isinstance(call, Refusal)]


@pytest.mark.quick(target=("cortex-m0", "cortex-m55"))
@pytest.mark.parametrize("target", KERNELS)
def test_host_definitions_equal_the_reference(target: str, tmp_path: Path) -> None:
    runs = served(target)
    entries = [Entry(case.node, call) for case, call in runs]
    for (case, _), program in zip(runs, build_programs(entries, tmp_path), strict=True):
        for (x,) in case.samples:
            program.write(0, 0, x)
            program.call()
            program.read(OUTPUT, 0, case.node.output.type.size)
        for found, expected in zip(program.run(), case.expected(), strict=True):
            np.testing.assert_array_equal(found, expected.ravel(), case.name)


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["cortex-m0", "cortex-m7", "cortex-m55"])
@pytest.mark.parametrize(
    "command",
    [
        ("clang", "-std=c99", "-O1", "-c", "-o", "/dev/null"),
        ("g++", "-xc++", "-std=c++17", "-c", "-o", "/dev/null"),
    ],
    ids=["clang", "g++"],
)
def test_compilers_give_no_warnings(target: str, command: tuple[str, ...], tmp_path: Path) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]}")
    entries = [Entry(case.node, call) for case, call in served(target)]
    (tmp_path / "k.c").write_text(source_of(entries))
    compile_c(tmp_path / "k.c", command)


@pytest.mark.quick(target=("cortex-m0", "cortex-m55"))
@pytest.mark.qemu
@pytest.mark.parametrize("target", KERNELS)
def test_instructions_equal_the_reference(target: str, tmp_path: Path) -> None:
    runs = [
        Run(case.name, Entry(case.node, call), case.samples, case.expected())
        for case, call in served(target)
    ]
    assert said_on(SIMULATED[target], runs, tmp_path) == "passed"


def pooled(case: Case) -> Pooling:
    found = pooling(case.node)
    assert isinstance(found, Pooling)
    return found


@pytest.mark.parametrize("taps", [1, 2, 3, 4, 25, 64])
@pytest.mark.parametrize(("rounding", "ratio"), [(Rounding.TFLM, 1.0), (Rounding.ONNX, 0.83)])
def test_outputs_of_every_sum_equal_the_reference(
    taps: int, rounding: Rounding, ratio: float
) -> None:
    case = every_sum(taps, rounding, ratio)
    (expected,) = case.expected()
    sums = np.arange(-128 * taps, 127 * taps + 1, dtype=np.int64)
    found = pooled(case).outputs(sums, taps)
    np.testing.assert_array_equal(found, expected[0, :, 0, 0])


@pytest.mark.parametrize("taps", [*range(1, 20), 49, 64, 125, 255, MOST])
def test_multiply_and_shift_gives_the_average_of_every_sum(taps: int) -> None:
    p = pooled(node_case(Pool2D("average", (1, taps)), (1, 1, taps, 8)))
    sums = np.arange(-128 * taps, 127 * taps + 1, dtype=np.int64)
    expected = p.outputs(sums, taps)
    dsp = p.quotients((32, 30, 29), unit=1 << 16)
    assert dsp is not None
    assert not dsp.saturates
    # The instruction SMLAWB, then a shift.
    halves = (sums * dsp.factors[0] >> 16) + dsp.addends[0]
    assert np.abs(halves).max() < 2**31
    np.testing.assert_array_equal(halves >> (dsp.shift - 16), expected)
    plain = p.quotients((24,), start=128, wraps=True)
    assert plain is not None
    words = (sums + 128 * taps) * plain.factors[0] + plain.addends[0]
    np.testing.assert_array_equal(((words & 0xFFFFFFFF) >> 24).astype(np.int8), expected)


def test_refusals_are_sentences() -> None:
    dilated = node_case(Pool2D("max", (2, 2), dilation=(2, 2)), (1, 5, 5, 8))
    large = node_case(Pool2D("average", (17, 17)), (1, 17, 17, 8))
    narrow = node_case(Pool2D("average", (2, 2)), (1, 5, 5, 3))
    odd = node_case(Pool2D("average", (2, 2)), (1, 5, 5, 6))
    apart = node_case(Reduce("mean", (1, 3)), (1, 5, 5, 8))
    last = node_case(Reduce("mean", (3,)), (1, 5, 5, 8))
    for case, target, word in (
        *((dilated, target, "dilation") for target in KERNELS),
        *((large, target, "256 elements") for target in KERNELS),
        *((narrow, target, "four channels") for target in ("cortex-m0", "cortex-m3", "cortex-m7")),
        *((case, target, "adjacent axes") for target in KERNELS for case in (apart, last)),
        (odd, "cortex-m0", "multiple of four"),
    ):
        answer = case.call(target)
        assert isinstance(answer, Refusal)
        assert word in answer.reason
        assert answer.reason.endswith(".")
    assert not isinstance(odd.call("cortex-m3"), Refusal)


def test_most_cases_are_served() -> None:
    counts = {target: len(served(target)) for target in KERNELS}
    # Ties to even cannot be computed by one multiply-add.
    assert counts["cortex-m55"] == len(cases()) - 2
    assert counts["cortex-m7"] > 0.9 * len(cases())
    assert counts["cortex-m3"] > counts["cortex-m0"] > 20
