"""Kernels for cores without the DSP extension equal the reference: their plain C definitions on the
host, under sanitizers, and their assembly under QEMU, with guard bytes around all that they write
and inputs at the ends of a memory, beside which every access faults."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.codegen.backends.armv6m import convolution as armv6m_convolution
from smelt.codegen.backends.armv6m import dense as armv6m_dense
from smelt.codegen.backends.armv6m import depthwise as armv6m_depthwise
from smelt.codegen.backends.armv7m import convolution as armv7m_convolution
from smelt.codegen.backends.armv7m import depthwise as armv7m_depthwise
from smelt.codegen.lower.backend import Backend
from smelt.codegen.lower.halves_convolution import HalvesConvolution
from smelt.codegen.lower.offer import KernelCall, Refusal, Request
from smelt.codegen.lower.plain_add import PlainAdd
from smelt.codegen.lower.requantization import Requantization
from smelt.codegen.lower.short_scaling import short_scaling
from smelt.codegen.lower.tap_groups import LARGEST_GROUP, grouped
from smelt.ir import Array, DType, Graph, Node, Quant, Rounding, TensorType, Value, evaluate
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D, Padding2D, Pair
from smelt.ops.core.fully_connected import FullyConnected
from smelt.samples import Sample
from smelt.targets import Optimize, get
from tests.support.guarded import Core, said_on
from tests.support.kernels_host import READERS, RELEASED, Entry, Run, check_on_host, check_read_by
from tests.support.library_nodes import graph_of, random_graph, samples_of

NONE, SAME, AFTER = ((0, 0), (0, 0)), ((1, 1), (1, 1)), ((0, 1), (0, 1))
RELU, FREE, NARROW = Activation.RELU, Activation.NONE, Activation.RELU6
BACKENDS = {
    "cortex-m0": Backend(
        "armv6m",
        (
            PlainAdd(),
            *armv6m_convolution.KERNELS,
            *armv6m_dense.KERNELS,
            *armv6m_depthwise.KERNELS,
        ),
    ),
    "cortex-m3": Backend(
        "armv7m",
        (PlainAdd(), HalvesConvolution(armv7m_convolution.CORE), *armv7m_depthwise.KERNELS),
    ),
}
SCRATCH_LIMIT = 4096


def core_of(target: str) -> Core:
    """The board of a Cortex-M3, which executes what a Cortex-M0 does."""
    return Core(
        target,
        "mps2-an385",
        (0x0000_0000, 0x10_0000),
        (0x0010_0000, 0x30_0000),
        (0x2000_0000, 0x10_0000),
        (0x2100_0000, 0x2200_0000),
    )


@dataclass(frozen=True)
class Case:
    """A node, what to feed it, and what is weighed."""

    name: str
    graph: Graph
    samples: Sequence[Sample]
    optimize: Optimize

    @property
    def node(self) -> Node:
        return self.graph.nodes[0]

    def call(self, target: str) -> KernelCall | None:
        """The call of the kernel that serves the node on a target; None for the fallback."""
        call = BACKENDS[target].find(self.node, Request(get(target), self.optimize))
        return None if isinstance(call, Refusal) else call

    def expected(self) -> list[Array]:
        return [evaluate(self.graph, sample).outputs[0] for sample in self.samples]


def node_case(
    op: Conv2D | DepthwiseConv2D | FullyConnected,
    shape: tuple[int, ...],
    weights: tuple[int, ...],
    axis: int | None,
    *,
    points: Pair = (-128, -128),
    extreme: bool = False,
    largest: int = 127,
    steep: float = 1.0,
    rounding: Rounding = Rounding.TFLM,
    optimize: Optimize = "speed",
) -> Case:
    """A case of constant weights.

    Args:
        op: the operator.
        shape: of the input.
        weights: shape of the weights.
        axis: of their scales; None for one scale.
        points: zero points of input and output.
        extreme: whether weights are -127 and 127 only.
        largest: of other weights.
        steep: factor of the scales, whose outputs fill their range a few times.
        rounding: of the model.
        optimize: what is weighed.
    """
    rng = np.random.default_rng(crc32(f"{op} {shape} {weights} {points}".encode()))
    outputs = weights[axis if axis is not None else 0]
    depth = int(np.prod(weights)) // outputs
    values = rng.integers(-largest, largest + 1, weights).astype(np.int8)
    if extreme:
        values = rng.choice(np.array([-127, 127], np.int8), weights)
    spread = largest * 0.6 * depth**0.5
    scales = steep * rng.uniform(0.5, 8, 1 if axis is None else outputs) / spread
    quant = Quant(tuple(float(np.float32(s)) for s in scales), (0,) * len(scales), axis)
    bias = rng.integers(-9000, 9000, outputs).astype(np.int32)
    x = Value("x", TensorType(shape, DType.INT8, Quant.per_tensor(0.5, points[0])))
    graph = graph_of(
        op,
        [
            x,
            Value("w", TensorType(weights, DType.INT8, quant), values),
            Value("b", TensorType((outputs,), DType.INT32), bias),
        ],
        Quant.per_tensor(0.5, points[1]),
        rounding,
    )
    return Case(
        f"{op} {shape} {weights} {points} {optimize}", graph, samples_of(graph, rng), optimize
    )


def convolution(
    shape: tuple[int, int, int, int],
    outputs: int,
    kernel: Pair = (1, 1),
    stride: Pair = (1, 1),
    padding: Padding2D = NONE,
    activation: Activation = RELU,
    dilation: Pair = (1, 1),
    **more: object,
) -> Case:
    op = Conv2D(stride=stride, padding=padding, dilation=dilation, activation=activation)
    return node_case(op, shape, (outputs, *kernel, shape[3]), 0, **more)  # pyright: ignore[reportArgumentType]


def depthwise(
    shape: tuple[int, int, int, int],
    kernel: Pair = (3, 3),
    stride: Pair = (1, 1),
    padding: Padding2D = SAME,
    activation: Activation = RELU,
    multiplier: int = 1,
    **more: object,
) -> Case:
    op = DepthwiseConv2D(stride=stride, padding=padding, activation=activation)
    return node_case(op, shape, (1, *kernel, shape[3] * multiplier), 3, **more)  # pyright: ignore[reportArgumentType]


def dense(
    rows: int, depth: int, outputs: int, activation: Activation = RELU, **more: object
) -> Case:
    op = FullyConnected(activation=activation)
    return node_case(op, (rows, depth), (outputs, depth), None, **more)  # pyright: ignore[reportArgumentType]


def binary(
    kind: str,
    count: int,
    scales: tuple[float, float, float],
    points: tuple[int, int, int],
    activation: Activation = FREE,
) -> Case:
    values: list[Value | None] = [
        Value(name, TensorType((1, count), DType.INT8, Quant.per_tensor(scale, point)))
        for name, scale, point in zip("ab", scales, points, strict=False)
    ]
    graph = graph_of(Binary(kind, activation), values, Quant.per_tensor(scales[2], points[2]))
    rng = np.random.default_rng(count)
    return Case(f"{kind} {scales} {points}", graph, samples_of(graph, rng), "speed")


@cache
def cases() -> tuple[Case, ...]:
    """Shapes around what the kernels do at a time, and the extremes of weights and scales."""
    return (
        *(convolution((1, 3, 5, k), n) for k in (1, 3, 7, 37, 64, 70) for n in (1, 5, 8, 19)),
        *(convolution((1, 1, p, 9), 3, points=(3, -7), activation=FREE) for p in (1, 2, 3, 4, 6)),
        convolution((2, 3, 3, 6), 9, activation=FREE, points=(-3, 100)),
        convolution((1, 4, 4, 130), 300, activation=NARROW),
        convolution((1, 5, 7, 3), 8, (3, 3), (2, 2), AFTER),
        convolution((1, 6, 6, 5), 4, (3, 3), (1, 1), SAME, FREE, points=(9, 4)),
        convolution((1, 9, 6, 1), 7, (4, 3), (2, 1), ((1, 2), (1, 1)), points=(40, -128)),
        convolution((1, 6, 5, 16), 6, (3, 3), (1, 1), SAME, optimize="size"),
        convolution((1, 4, 12, 6), 3, (3, 3), (1, 1), SAME),
        convolution((1, 3, 9, 2), 3, (2, 4), (1, 1), points=(-3, -128)),
        convolution((1, 6, 7, 4), 5, (2, 3), (1, 2), ((2, 1), (0, 2)), NARROW, (2, 2)),
        convolution((1, 4, 3, 64), 8, (3, 3), (1, 1), SAME, FREE, points=(-5, 3), largest=40),
        convolution((1, 3, 3, 200), 130, (3, 1), (1, 1), ((1, 1), (0, 0)), optimize="ram",
                    largest=40),
        convolution((1, 2, 6, 210), 130, (1, 3), (1, 1), ((0, 0), (1, 1)), largest=40),
        convolution((1, 4, 4, 24), 6, extreme=True),
        convolution((1, 4, 4, 24), 6, (3, 3), extreme=True, optimize="size"),
        convolution((1, 4, 4, 12), 6, steep=40.0, activation=FREE, points=(0, 9)),
        convolution((1, 4, 4, 12), 6, steep=0.01),
        convolution((1, 4, 4, 12), 6, rounding=Rounding.ONNX, activation=FREE, points=(0, 9)),
        convolution((1, 7, 9, 5), 6, (3, 3), (1, 1), SAME),
        convolution((1, 8, 6, 3), 4, (3, 3), (2, 2), AFTER, points=(9, -128)),
        convolution((1, 4, 7, 12), 5, activation=FREE, points=(3, -4)),
        convolution((1, 9, 5, 4), 3, (3, 1), (1, 1), ((1, 1), (0, 0)), dilation=(2, 1)),
        convolution((1, 5, 1, 6), 4, (3, 4), (1, 1), ((1, 1), (2, 2)), points=(3, -4)),
        convolution((1, 4, 2, 5), 4, (2, 5), (1, 1), ((0, 1), (2, 2)), FREE, points=(-3, 9)),
        *(depthwise((1, h, w, 3)) for h, w in ((1, 1), (1, 6), (5, 1), (2, 2), (7, 6), (6, 7))),
        *(depthwise((1, h, w, 5), (3, 3), (2, 2), AFTER) for h, w in ((8, 6), (9, 7), (12, 12))),
        depthwise((1, 7, 5, 4), (3, 3), (2, 1), SAME, FREE, points=(7, -20)),
        depthwise((1, 46, 47, 2), points=(5, -128)),
        depthwise((1, 50, 50, 2), (3, 3), (2, 2), AFTER, points=(5, -128)),
        depthwise((1, 28, 1, 4), (3, 1), (1, 1), NONE, FREE, points=(1, -3)),
        depthwise((1, 27, 1, 3), (10, 1), (1, 1), NONE, FREE, points=(1, -3)),
        depthwise((1, 15, 1, 3), (15, 1), (1, 1), NONE, points=(1, -128)),
        depthwise((1, 2, 23, 3), (1, 7), (1, 2), ((0, 0), (3, 3)), NARROW),
        depthwise((2, 5, 5, 3), (5, 5), (3, 2), ((2, 2), (1, 4)), multiplier=2),
        depthwise((1, 4, 5, 3), (2, 2), (1, 1), ((0, 4), (3, 0)), points=(-9, -128)),
        depthwise((1, 6, 6, 4), extreme=True),
        depthwise((1, 6, 6, 4), optimize="size", extreme=True, activation=FREE, points=(2, 4)),
        *(dense(1, k, n) for k in (1, 2, 7, 8, 33, 130) for n in (1, 3, 4, 10)),
        dense(1, 400, 6, FREE, points=(3, 96)),
        dense(1, 64, 12, FREE, points=(-128, 14), optimize="size"),
        dense(1, 96, 5, NARROW, extreme=True),
        dense(3, 20, 9),
        dense(7, 33, 6, FREE, points=(4, -9)),
        binary("add", 101, (0.02, 0.03, 0.04), (-128, 4, -128), RELU),
        binary("add", 33, (0.0513, 0.0117, 0.0231), (3, -100, 17)),
        binary("sub", 34, (0.0513, 0.0117, 0.0331), (3, -100, 17), NARROW),
    )  # fmt: skip


@cache
def entries(target: str) -> tuple[tuple[Case, Entry], ...]:
    """The cases that a target's kernels serve."""
    calls = ((case, case.call(target)) for case in cases())
    return tuple((case, Entry(case.node, call)) for case, call in calls if call is not None)


def runs_of(target: str) -> list[Run]:
    """A run of each case that a target's kernels serve."""
    return [Run(c.name, e, c.samples, c.expected()) for c, e in entries(target)]


@pytest.mark.parametrize("target", BACKENDS)
def test_most_cases_are_served(target: str) -> None:
    served = {case.name for case, _ in entries(target)}
    missing = [
        case.name
        for case in cases()
        if case.name not in served and not (target == "cortex-m3" and "Fully" in case.name)
    ]
    assert len(missing) <= 1, missing


@pytest.mark.parametrize("target", BACKENDS)
def test_working_memory_is_small(target: str) -> None:
    for case, entry in entries(target):
        assert entry.call.scratch_bytes <= SCRATCH_LIMIT, case.name


@pytest.mark.quick(target=("cortex-m0",))
@pytest.mark.parametrize("target", BACKENDS)
def test_host_definitions_equal_the_reference(target: str, tmp_path: Path) -> None:
    check_on_host(runs_of(target), tmp_path)


@pytest.mark.parametrize("target", BACKENDS)
@pytest.mark.slow
def test_host_definitions_as_released_equal_the_reference(target: str, tmp_path: Path) -> None:
    check_on_host(runs_of(target), tmp_path, RELEASED, "gcc")


@pytest.mark.thorough
@pytest.mark.parametrize("target", BACKENDS)
@pytest.mark.parametrize("compiler", READERS)
def test_compilers_have_nothing_to_say(compiler: str, target: str, tmp_path: Path) -> None:
    check_read_by(compiler, [entry for _, entry in entries(target)], tmp_path)


@pytest.mark.quick(target=("cortex-m0",))
@pytest.mark.parametrize("target", BACKENDS)
@pytest.mark.skipif(shutil.which("qemu-system-arm") is None, reason="no qemu-system-arm")
def test_assembly_equals_the_reference(target: str, tmp_path: Path) -> None:
    assert said_on(core_of(target), runs_of(target), tmp_path) == "passed"


@pytest.mark.thorough
@pytest.mark.parametrize("target", BACKENDS)
@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3, 4))])
@pytest.mark.skipif(shutil.which("qemu-system-arm") is None, reason="no qemu-system-arm")
def test_random_nodes(seed: int, target: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    runs: list[Run] = []
    for i in range(120):
        graph = random_graph(rng)
        case = Case(f"{i}: {graph.nodes[0].op}", graph, samples_of(graph, rng), "speed")
        call = case.call(target)
        if call is not None:
            runs.append(Run(case.name, Entry(case.node, call), case.samples, case.expected()))
    assert len(runs) > 20
    assert said_on(core_of(target), runs, tmp_path) == "passed"


@st.composite
def requantizations(draw: st.DrawFn) -> Requantization:
    """Up to four channels with ranges short enough to try every sum."""
    channels = draw(st.integers(1, 4))
    base = draw(st.integers(1, 12))

    def each(strategy: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(strategy, min_size=channels, max_size=channels))

    lowest = np.asarray(each(st.integers(-(2**20), 2**10)), np.int64)
    zero_point = draw(st.integers(-128, 127))
    low = draw(st.sampled_from((-128, zero_point)))
    return Requantization(
        np.asarray(each(st.integers(2**30, 2**31 - 1) | st.just(0)), np.int64),
        -np.asarray(each(st.integers(base, base + 4)), np.int64),
        lowest,
        lowest + draw(st.integers(0, 40_000)),
        zero_point,
        low,
        draw(st.integers(low, 127)),
    )


@given(requantizations(), st.integers(-(2**18), 2**18))
def test_short_multiplications_equal_two_roundings(r: Requantization, bias: int) -> None:
    biases = np.full(len(r.multipliers), bias)
    scaling = short_scaling(r, biases)
    if scaling is None:
        return
    count = int((r.highest - r.lowest)[0]) + 1
    sums = r.lowest + np.arange(count)[:, None]
    for form in (scaling, scaling.signed):
        assert (np.abs(form.parts) < 2**31).all()
        assert (np.abs(form.offsets) < 2**31).all()
        np.testing.assert_array_equal(form.outputs((sums - bias).T).T, r.outputs(sums))


@pytest.mark.parametrize("shifts", [(-7, -7), (-6, -9), (-8, -3)])
@pytest.mark.parametrize("zero_point", [-128, 3])
def test_usual_scales_are_served(shifts: Pair, zero_point: int) -> None:
    limit = np.full(2, 2**18)
    r = Requantization(
        np.asarray([1_518_500_250, 2_147_000_001]), np.asarray(shifts), -limit, limit,
        zero_point, -128, 127,
    )  # fmt: skip
    assert short_scaling(r, np.asarray([700, -300])) is not None


@given(st.integers(0, 2**32 - 1), st.integers(1, 90), st.sampled_from(("speed", "size")))
def test_groups_hold_each_tap_once_and_stay_small(
    seed: int, length: int, optimize: Optimize
) -> None:
    weights = np.random.default_rng(seed).integers(-128, 128, (3, length))
    taps = grouped(weights, optimize)
    assert sorted(taps.order) == list(range(length))
    begin = 0
    for stretch in taps.stretches:
        for size in stretch.groups * stretch.turns:
            group = np.abs(weights[:, list(taps.order[begin : begin + size])])
            assert group.sum(axis=1).max() <= LARGEST_GROUP
            begin += size
    assert begin == length
