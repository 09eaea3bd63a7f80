"""Helium kernels, against the reference.

Plain C definitions run on the host under sanitizers. Assembly runs under QEMU, with guard bytes
around all buffers that it writes, and with inputs at the start and at the end of a memory, where
accesses beyond fault.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import pytest

from smelt.codegen.backends.helium import add as helium_add
from smelt.codegen.backends.helium import convolution as helium_convolution
from smelt.codegen.backends.helium import depthwise as helium_depthwise
from smelt.codegen.backends.helium import pool as helium_pool
from smelt.codegen.backends.helium.convolution_plan import SCRATCH_LIMIT
from smelt.codegen.backends.helium.instruction_schedule import scheduled
from smelt.codegen.backends.helium.linear import linear
from smelt.codegen.lower.backend import Backend
from smelt.codegen.lower.kernel import Kernel, KernelCall, Optimize, Refusal, Request, SharedBody
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
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D, Padding2D, Pair
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.pool import Pool2D
from smelt.targets import get
from tests.support.guarded import CORES, Run, said_on
from tests.support.kernels_host import Entry, check_on_host, compile_c, source_of
from tests.support.library_nodes import random_graph
from tests.support.random_runs import runs_of

KERNELS: tuple[Kernel[Any], ...] = (
    *helium_add.KERNELS,
    *helium_depthwise.KERNELS,
    *helium_pool.KERNELS,
    *helium_convolution.KERNELS,
)
M55 = get("cortex-m55")
NONE = ((0, 0), (0, 0))
SAME = ((1, 1), (1, 1))

Shape = tuple[int, int, int, int]


@dataclass(frozen=True)
class Case:
    """A node and its inputs."""

    name: str
    graph: Graph
    inputs: tuple[tuple[Array, ...], ...]

    @property
    def node(self) -> Node:
        return self.graph.nodes[0]

    def call(self, optimize: Optimize = "speed") -> KernelCall:
        """Return the call of the first Helium kernel that serves the node."""
        reasons: list[str] = []
        for kernel in KERNELS:
            if isinstance(self.node.op, kernel.op):
                answer = kernel.offer(self.node, Request(M55, optimize))
                if not isinstance(answer, Refusal):
                    return answer
                reasons.append(answer.reason)
        raise AssertionError(f"{self.name}: {reasons}")

    def expected(self) -> list[Array]:
        return [evaluate(self.graph, sample).outputs[0] for sample in self.inputs]


def _fed(
    shape: tuple[int, ...], count: int, rng: np.random.Generator
) -> Iterator[tuple[Array, ...]]:
    """Return inputs: random, all extreme, or extreme at random elements."""
    yield tuple(rng.integers(-128, 128, shape).astype(np.int8) for _ in range(count))
    yield tuple(np.full(shape, (-128, 127)[i % 2], np.int8) for i in range(count))
    yield tuple(rng.choice(np.asarray([-128, 127], np.int8), shape) for _ in range(count))


class Numbers(TypedDict, total=False):
    """More choices of a convolution or dense layer."""

    activation: Activation
    zero_points: Pair
    scale: float
    extreme: bool
    rounding: Rounding


def products(
    name: str, op: Op, shape: tuple[int, ...], weights: tuple[int, ...], numbers: Numbers
) -> Case:
    """Return a case with constant weights whose outputs exceed their range about `scale` times."""
    rng = np.random.default_rng(len(name) + sum(shape) + sum(weights))
    axis = 3 if isinstance(op, DepthwiseConv2D) else 0
    outputs = weights[axis]
    depth = int(np.prod(weights)) // outputs
    values = rng.integers(-127, 128, weights).astype(np.int8)
    bias = rng.integers(-2000, 2001, outputs).astype(np.int32)
    spread = 74 * 74 * np.sqrt(depth)
    if numbers.get("extreme"):
        values = rng.choice(np.asarray([-128, -127, 127], np.int8), weights)
        bias = rng.choice(np.asarray([-(2**28), 0, 2**28], np.int32), outputs)
        spread = 2.0**28
    scales = numbers.get("scale", 1.0) * 64 / spread * rng.uniform(0.4, 2.5, outputs)
    points = numbers.get("zero_points", (-128, -128))
    x = Value("x", TensorType(shape, DType.INT8, Quant.per_tensor(0.5, points[0])))
    quant = Quant(tuple(float(np.float32(s)) for s in scales), (0,) * outputs, axis)
    w = Value("w", TensorType(weights, DType.INT8, quant), values)
    b = Value("b", TensorType((outputs,), DType.INT32), bias)
    (inferred,) = op.infer([x.type, w.type, b.type])
    y = Value("y", TensorType(inferred.shape, DType.INT8, Quant.per_tensor(0.5, points[1])))
    rounding = numbers.get("rounding", Rounding.TFLM)
    node = Node(op, (x, w, b), (y,), Origin(op.name, 0), rounding)
    graph = verify(Graph("case", (x,), (y,), (node,)), name)
    name = f"{name} {numbers}"
    return Case(name, graph, tuple(_fed(shape, 1, rng)))


def conv(
    size: Shape,
    outputs: int,
    kernel: Pair = (1, 1),
    stride: Pair = (1, 1),
    padding: Padding2D = NONE,
    **numbers: Unpack[Numbers],
) -> Case:
    name = f"conv {size} {outputs} {kernel} {stride} {padding}"
    activation = numbers.get("activation", Activation.RELU)
    op = Conv2D(stride=stride, padding=padding, activation=activation)
    return products(name, op, size, (outputs, *kernel, size[3]), numbers)


def depthwise(
    size: Shape,
    kernel: Pair = (3, 3),
    stride: Pair = (1, 1),
    padding: Padding2D = SAME,
    outputs: int | None = None,
    **numbers: Unpack[Numbers],
) -> Case:
    name = f"depthwise {size} {kernel} {stride} {padding}"
    activation = numbers.get("activation", Activation.RELU)
    op = DepthwiseConv2D(stride=stride, padding=padding, activation=activation)
    return products(name, op, size, (1, *kernel, outputs or size[3]), numbers)


def dense(rows: int, depth: int, outputs: int, **numbers: Unpack[Numbers]) -> Case:
    op = FullyConnected(numbers.get("activation", Activation.NONE))
    name = f"dense {rows} {depth} {outputs}"
    return products(name, op, (rows, depth), (outputs, depth), numbers)


def binary(
    kind: str,
    count: int,
    scales: tuple[float, float, float],
    points: tuple[int, int, int],
    activation: Activation = Activation.NONE,
) -> Case:
    rng = np.random.default_rng(count)
    a, b, y = (
        Value(name, TensorType((1, count), DType.INT8, Quant.per_tensor(scale, point)))
        for name, scale, point in zip("aby", scales, points, strict=True)
    )
    node = Node(Binary(kind, activation), (a, b), (y,), Origin(kind, 0), Rounding.TFLM)
    graph = verify(Graph("case", (a, b), (y,), (node,)), kind)
    return Case(
        f"{kind}-{count}-{points}-{activation.value}", graph, tuple(_fed((1, count), 2, rng))
    )


def average(size: Shape, activation: Activation = Activation.NONE) -> Case:
    rng = np.random.default_rng(sum(size))
    quant = Quant.per_tensor(0.1, 3)
    op = Pool2D("average", size[1:3], size[1:3], activation=activation)
    x = Value("x", TensorType(size, DType.INT8, quant))
    y = Value("y", TensorType((size[0], 1, 1, size[3]), DType.INT8, quant))
    node = Node(op, (x,), (y,), Origin(op.name, 0), Rounding.TFLM)
    graph = verify(Graph("case", (x,), (y,), (node,)), "average")
    return Case(f"average-{size}-{activation.value}", graph, tuple(_fed(size, 1, rng)))


@cache
def cases() -> tuple[Case, ...]:
    """Return cases of shapes, strides, paddings, odd channels, clamps and extremes."""
    plain: Numbers = {"activation": Activation.NONE, "zero_points": (5, -7)}
    wild: Numbers = {**plain, "extreme": True}
    onnx: Numbers = {**plain, "rounding": Rounding.ONNX}
    return (
        *(conv((1, 3, 5, depth), outputs)
          for depth, outputs in ((64, 64), (1, 1), (3, 37), (16, 16), (8, 16), (37, 57), (57, 30),
                                 (106, 22), (128, 8), (40, 100))),
        *(conv((2, 2, 3, depth), 19, **plain) for depth in (15, 48, 80, 130)),
        conv((1, 5, 4, 16), 20, stride=(2, 2), **plain),
        conv((1, 5, 3, 20), 7, stride=(2, 3), padding=((0, 1), (1, 1))),
        conv((2, 4, 5, 3), 8, (3, 3), (2, 2), ((0, 1), (0, 1))),
        conv((1, 6, 5, 16), 16, (3, 3), padding=SAME),
        conv((1, 5, 6, 16), 10, (3, 3), padding=SAME, **plain),
        conv((1, 4, 4, 32), 12, (3, 3), (2, 2), ((0, 1), (0, 1)), **plain),
        conv((1, 12, 10, 1), 24, (10, 4), (2, 2), ((4, 5), (1, 1))),
        conv((1, 3, 3, 5), 6, (2, 3)),
        conv((1, 9, 1, 7), 11, (3, 1), padding=((1, 1), (0, 0)), **plain),
        conv((1, 9, 1, 4), 5, (3, 1), (4, 1)),
        conv((1, 3, 9, 2), 5, (1, 2), (1, 3)),
        conv((1, 9, 2, 3), 5, (2, 2), (3, 1), **plain),
        conv((1, 2, 3, 4), 600),
        conv((1, 4, 3, 16), 500, (3, 3), padding=SAME, **plain),
        conv((1, 3, 150, 12), 6, (3, 3), padding=SAME),
        conv((1, 2, 131, 16), 5, (2, 3), (1, 2), ((1, 0), (0, 1)), **plain),
        conv((1, 5, 3, 7), 20, **onnx),
        conv((1, 5, 3, 16), 20, (3, 3), padding=SAME, rounding=Rounding.ONNX),
        conv((1, 3, 3, 24), 16, **wild),
        conv((1, 3, 3, 24), 16, extreme=True),
        conv((1, 3, 3, 16), 16, activation=Activation.RELU6, zero_points=(0, -20)),
        conv((1, 3, 3, 16), 5, activation=Activation.RELU_N1_TO_1, zero_points=(0, 4)),
        conv((1, 1, 1, 128), 32),
        conv((1, 1, 1, 9), 3, (1, 1), **plain),
        *(dense(1, depth, outputs) for depth, outputs in ((640, 24), (128, 12), (8, 40), (1, 1),
                                                          (100, 3), (96, 33), (112, 17))),
        dense(1, 144, 16, activation=Activation.RELU),
        dense(1, 35, 20, extreme=True, zero_points=(1, 1)),
        dense(3, 35, 20, zero_points=(127, 100)),
        *(depthwise((1, 5, 5, channels)) for channels in (1, 3, 8, 16, 37, 57)),
        *(depthwise((1, 6, 7, channels), stride=(2, 2), padding=((0, 1), (0, 1)), **plain)
          for channels in (16, 22, 13)),
        depthwise((1, 48, 2, 16)),
        depthwise((1, 5, 6, 21), **onnx),
        depthwise((1, 8, 9, 1), (5, 5), (2, 2), ((2, 2), (2, 2)), outputs=9, **plain),
        depthwise((1, 25, 5, 18), **plain),
        depthwise((2, 4, 4, 5), **wild),
        depthwise((1, 4, 4, 18), extreme=True),
        depthwise((1, 5, 1, 17), padding=((1, 1), (1, 1))),
        depthwise((1, 5, 5, 4), (2, 2), (2, 2), NONE, activation=Activation.RELU6,
                  zero_points=(3, -100)),
        depthwise((1, 6, 6, 9), (4, 4), padding=((2, 1), (1, 2))),
        depthwise((1, 6, 6, 9), (3, 3), (1, 2), padding=((2, 2), (2, 2))),
        depthwise((1, 5, 6, 9), (1, 3), (2, 1), padding=((0, 0), (1, 1))),
        *(depthwise((1, rows, 1, 24), (taps, 1), padding=NONE, **plain)
          for rows, taps in ((30, 3), (28, 5), (24, 10), (15, 15), (16, 16), (13, 13))),
        depthwise((1, 1, 11, 6), (1, 5), padding=((0, 0), (2, 2))),
        depthwise((1, 1, 40, 6), (1, 4), (1, 2), padding=((0, 0), (1, 2))),
        depthwise((2, 1, 300, 3), (1, 3), padding=((0, 0), (1, 1))),
        depthwise((1, 1, 8, 2), (1, 3), (1, 3), ((0, 1), (0, 0)), **plain),
        depthwise((1, 1, 8, 5), (1, 3), (2, 3), ((1, 0), (0, 0)), **plain),
        *(binary("add", count, (0.02, 0.03, 0.04), (-128, 4, -128), Activation.RELU)
          for count in (1, 3, 4, 64, 101)),
        binary("add", 33, (0.05, 0.01, 0.02), (3, -100, 17)),
        binary("sub", 33, (0.05, 0.01, 0.03), (3, -100, 17), Activation.RELU6),
        *(average((2, 3, 5, channels)) for channels in (1, 8, 22, 64)),
        average((1, 25, 5, 16), Activation.RELU),
        average((1, 15, 17, 9)),
    )  # fmt: skip


@cache
def served() -> tuple[tuple[Case, KernelCall], ...]:
    """Return the cases with their calls, and with those of bodies that several of them share."""
    groups: dict[Hashable, list[tuple[Case, SharedBody]]] = {}
    for case in cases():
        body = case.call("size").shared
        if body is not None:
            groups.setdefault(body.key, []).append((case, body))
    found = [(case, case.call()) for case in cases()]
    for group in groups.values():
        some, bodies = zip(*group, strict=True)
        found += zip(some, bodies[0].joined(bodies).calls, strict=True)
    found += [(case, call) for case in cases() for call in with_less_scratch(case)]
    return tuple(found)


def runs_served() -> list[Run]:
    """Return the runs of all cases."""
    return [
        Run(case.name, Entry(case.node, call), case.inputs, case.expected())
        for case, call in served()
    ]


def with_less_scratch(case: Case) -> Iterator[KernelCall]:
    """Yield calls with much scratch, little and the least, of kernels that can do with less.

    One of them has a body that layers share.
    """
    limits: tuple[tuple[int, Optimize], ...] = (
        (SCRATCH_LIMIT, "speed"),
        (1400, "size"),
        (0, "speed"),
    )
    for kernel, (limit, optimize) in product(KERNELS, limits):
        if kernel.uses_scratch_limit and isinstance(case.node.op, kernel.op):
            request = Request(M55, optimize, scratch_limit=limit, limited=True)
            call = kernel.offer(case.node, request)
            if not isinstance(call, Refusal):
                yield call if call.shared is None else call.shared.call


def test_host_definitions_equal_the_reference(tmp_path: Path) -> None:
    check_on_host(runs_served(), tmp_path)


def test_comments_have_the_window_and_the_formula_of_the_code() -> None:
    pool, window, strips = (
        source_of([Entry(case.node, case.call())])
        for case in (
            average((2, 3, 5, 8)),
            conv((1, 12, 10, 1), 24, (10, 4), (2, 2), ((4, 5), (1, 1))),
            depthwise((1, 6, 7, 16), stride=(2, 2), padding=((0, 1), (0, 1))),
        )
    )
    formula = re.search(r"Results: \(sum( .*), proved", pool)
    assert formula
    assert f"result = (result{formula[1]};" in pool
    assert "10x4, stride 2x2, padding 4+5 rows, 1+1 columns" in window
    assert "3x3, stride 2x2, padding 0+1 rows, 0+1 columns" in strips


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command",
    [
        ("clang", "-std=c99", "-O1", "-c", "-o", "/dev/null"),
        ("g++", "-xc++", "-std=c++17", "-c", "-o", "/dev/null"),
    ],
    ids=["clang", "g++"],
)
def test_compilers_give_no_warnings(command: tuple[str, ...], tmp_path: Path) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]}")
    (tmp_path / "k.c").write_text(source_of([Entry(c.node, c.call()) for c in cases()]))
    compile_c(tmp_path / "k.c", command)


@pytest.mark.parametrize("slopes", [(0.4, -0.7), (0.5, 0.0625), (0.25, 0.5)])
def test_linear_forms_give_the_requested_outputs(slopes: tuple[float, float]) -> None:
    grid = np.meshgrid(*[np.arange(-128, 128)] * 2)
    a, b = (x.ravel().astype(np.int64) for x in grid)
    wanted = np.clip(np.floor(slopes[0] * a + slopes[1] * b + 0.37), -100, 90).astype(np.int64)
    form = linear((a, b), wanted, slopes, (-100, 90))
    assert form is not None
    total = form.factors[0] * a + form.factors[1] * b + form.offset
    assert np.abs(total).max() < 2**31
    np.testing.assert_array_equal(np.clip(total >> form.shift, -100, 90), wanted)
    # What the vector unit computes: two shifts that round to nearest, saturating.
    first, second = form.narrowing
    halves = (total - form.offset + form.start + (1 << (first - 1))) >> first
    found = (np.clip(halves, -(2**15), 2**15 - 1) + (1 << (second - 1))) >> second
    np.testing.assert_array_equal(np.clip(np.clip(found, -128, 127), -100, 90), wanted)


def test_no_linear_form_is_found_if_none_exists() -> None:
    x = np.arange(-128, 128, dtype=np.int64)
    assert linear((x,), np.where(x == 3, 90, x // 2), (0.5,), (-128, 127)) is None


def test_instructions_wait_for_their_operands() -> None:
    order = scheduled(
        (
            "vldrw.32 q0, [r1], #16",
            "vmladava.s8 r0, q0, q7",
            "vmladava.s8 r2, q0, q6",
            "vldrw.32 q0, [r1], #16",
            "vmladava.s8 r0, q0, q7",
            "vqmovnb.s32 q4, q1",
            "vqmovnt.s32 q4, q2",
            "vstrb.8 q4, [r5], #16",
            "vldrw.32 q4, [r3, #16]",
        )
    )
    loads = [i for i, text in enumerate(order) if text == "vldrw.32 q0, [r1], #16"]
    sums = [i for i, text in enumerate(order) if text.startswith("vmladava.s8 r0")]
    other = order.index("vmladava.s8 r2, q0, q6")
    assert loads[0] < min(sums[0], other)
    assert max(sums[0], other) < loads[1] < sums[1]
    chain = ["vqmovnb.s32 q4, q1", "vqmovnt.s32 q4, q2", "vstrb.8 q4, [r5], #16"]
    assert [order.index(text) for text in chain] == sorted(order.index(text) for text in chain)
    assert order.index("vldrw.32 q4, [r3, #16]") > order.index(chain[2])
    assert len(order) == 9


def test_refusals_are_sentences() -> None:
    dilated = products("dilated", Conv2D(dilation=(2, 2)), (1, 7, 7, 4), (4, 3, 3, 4), {}).node
    enlarging = dense(1, 4, 4, scale=1e6).node
    for node, word in ((dilated, "dilation"), (enlarging, "shifted left")):
        kernel = next(k for k in KERNELS if isinstance(node.op, k.op))
        answer = kernel.offer(node, Request(M55))
        assert isinstance(answer, Refusal)
        assert word in answer.reason


def test_working_memory_is_small() -> None:
    assert all(case.call().scratch_bytes <= SCRATCH_LIMIT for case in cases())
    for case in (conv((1, 6, 48, 3), 8, (3, 3), (2, 2), ((0, 1), (0, 1))), dense(1, 128, 640)):
        assert min(call.scratch_bytes for call in with_less_scratch(case)) <= 256


def test_convolutions_of_different_sizes_share_functions() -> None:
    """`tile` serves all sizes, `dots` equally many input vectors, `rest` equally many last ones."""
    first, second, third, fourth = (
        {inner.stem: inner.key for inner in case.call().inner}
        for case in (
            conv((1, 4, 6, 32), 35),
            conv((1, 9, 6, 25), 18),
            conv((1, 4, 6, 64), 32),
            conv((1, 6, 6, 16), 16, (3, 3), padding=SAME),
        )
    )
    assert list(first) == ["tile_2x4_u8", "dots_2x4_2chunks", "rest1to4x2_u8"]
    assert second == {"copying_tile_2x4_u8": second["copying_tile_2x4_u8"], **first}
    assert list(third) == ["tile_2x4_u8", "dots_2x4_4chunks"]
    assert list(fourth) == ["padded_row_8x16", "tile_2x4_u8", "dots_2x4_image3x3_c16_s1"]
    assert first["tile_2x4_u8"] == third["tile_2x4_u8"] == fourth["tile_2x4_u8"]


def test_depthwise_convolutions_of_different_sizes_share_functions() -> None:
    """All share what goes over strips; others with equal patches and equally many vectors too."""
    first, second, third = (
        depthwise((1, height, width, channels)).call().inner
        for height, width, channels in ((6, 6, 26), (14, 24, 73), (6, 5, 32))
    )
    keys = [inner.key for inner in first]
    assert keys == [inner.key for inner in second]
    assert [inner.stem for inner in first] == [
        *("depthwise", "depthwise_rows", "sums_2x2_a2_left1", "interleave16", "interleave"),
        *("outputs16x2_u8", "outputs9to12x2_u8"),
    ]
    assert [inner.key in keys for inner in third] == [True] * 3 + [False] + [True] * 2 + [False]
    assert [inner.stem for inner in third if inner.key not in keys] == [
        "sums_2x1_a2_once_left3",
        "outputs16x1_u8",
    ]


@pytest.mark.qemu
def test_assembly_equals_the_reference(tmp_path: Path) -> None:
    assert said_on(CORES["m55"], runs_served(), tmp_path) == "passed"


@pytest.mark.thorough
@pytest.mark.qemu
@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3, 4))])
def test_random_nodes(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    graphs = [random_graph(rng) for _ in range(160)]
    runs = runs_of(Backend("helium", KERNELS), "cortex-m55", graphs, rng)
    assert len(runs) > 60
    assert said_on(CORES["m55"], runs, tmp_path) == "passed"
