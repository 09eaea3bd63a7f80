"""Tests of kernels for the DSP extension against the reference.

The plain C definitions run on the host with sanitizers. The assembly runs under QEMU. Guard bytes
surround all buffers that it writes. Inputs are at the end of a memory, so reading too far faults.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.codegen.backends.dsp import add as dsp_add
from smelt.codegen.backends.dsp import convolution as dsp_convolution
from smelt.codegen.backends.dsp import dense as dsp_dense
from smelt.codegen.backends.dsp import depthwise as dsp_depthwise
from smelt.codegen.backends.dsp import winograd as dsp_winograd
from smelt.codegen.backends.dsp.scaling import DspScaling, dsp_scaling
from smelt.codegen.lower.backend import Backend
from smelt.codegen.lower.kernel import KernelCall, Refusal, Request, SharedBody
from smelt.codegen.lower.requantization import Requantization
from smelt.codegen.partition import sharing
from smelt.codegen.schedule.shared_symbols import Functions
from smelt.frontend import Imported
from smelt.ir import Array, DType, Graph, Node, Op, Quant, TensorType, Value, evaluate
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D, Padding2D, Pair
from smelt.ops.core.fully_connected import FullyConnected
from smelt.proof.profile import profile_model
from smelt.samples import Sample
from smelt.targets import Optimize, get
from tests.lower.test_requantization import requantizations
from tests.support.body_costs import check_instructions
from tests.support.guarded import Core, Run, said_on
from tests.support.kernels_host import WARNINGS, Entry, check_on_host, compile_c, source_of
from tests.support.library_nodes import data, graph_of, products, random_graph, samples_of
from tests.support.random_runs import runs_of

KERNELS = (*dsp_add.KERNELS, *dsp_dense.KERNELS, *dsp_depthwise.KERNELS, *dsp_convolution.KERNELS)
DSP = Backend("dsp", KERNELS)
DIRECT = Backend("dsp", (dsp_dense.DspDense(direct=True),))
WINOGRAD = Backend("dsp", dsp_winograd.KERNELS)
ALL = Backend("dsp", (*KERNELS, *dsp_winograd.KERNELS))
M4 = get("cortex-m4")
SCRATCH_LIMIT = 4096
CORE = Core(
    "cortex-m4",
    "mps2-an386",
    (0x0000_0000, 0x10_0000),
    (0x0010_0000, 0x30_0000),
    (0x2000_0000, 0x10_0000),
    (0x2100_0000, 0x2200_0000),
)
DEPTHS = (4, 8, 12, 16, 20, 36, 64, 72, 128)
NONE, SAME, HALF = ((0, 0), (0, 0)), ((1, 1), (1, 1)), ((0, 1), (0, 1))
REMAINDERS = (4, 5, 7, 8, 10, 16, 32)
"""Numbers of pixels that are no multiples of three."""

RELU, FREE, NARROW = Activation.RELU, Activation.NONE, Activation.RELU6


@dataclass(frozen=True)
class Case:
    """A node, its inputs, the goal of optimization, and a limit of scratch if there is one."""

    name: str
    graph: Graph
    samples: Sequence[Sample]
    optimize: Optimize
    backend: Backend = DSP
    limit: int | None = None

    @property
    def node(self) -> Node:
        return self.graph.nodes[0]

    def call(self) -> KernelCall:
        """Return the call of the DSP kernel that serves the node; fail if there is none."""
        request = Request(M4, self.optimize)
        if self.limit is not None:
            request = replace(request, scratch_limit=self.limit, limited=True, little_ram=True)
        call = self.backend.find(self.node, request)
        assert not isinstance(call, Refusal), f"{self.name}: {call}"
        assert call.form.startswith("dsp_"), self.name
        return call

    def expected(self) -> list[Array]:
        return [evaluate(self.graph, sample).outputs[0] for sample in self.samples]


def case(op: Op, shape: tuple[int, ...], weights: tuple[int, ...],
         points: Pair = (-128, -128), *, extreme: bool = False, spread: float = 2.5,
         optimize: Optimize = "speed") -> Case:  # fmt: skip
    """Return a node with constant weights whose outputs fill their range.

    Args:
        op: The operator.
        shape: Shape of the input.
        weights: Shape of the weights.
        points: Zero points of input and output.
        extreme: Weights are -127 or 127, and biases large.
        spread: Largest factor between a channel's scale and the usual one, up or down.
        optimize: Goal of the optimization.
    """
    rng = np.random.default_rng(sum(shape) + sum(weights))
    axis = 3 if isinstance(op, DepthwiseConv2D) else 0
    outputs = weights[axis]
    depth = int(np.prod(weights)) // outputs
    values = rng.triangular(-128, 0, 128, weights).astype(np.int8)
    bias = rng.integers(-3000, 3001, outputs).astype(np.int32)
    size = 74 * 52 * depth**0.5
    if extreme:
        values = rng.choice(np.asarray([-127, 127], np.int8), weights)
        bias = rng.choice(np.asarray([-(2**25), 0, 2**25], np.int32), outputs)
        size = 2.0**25
    scales = 128 / size * rng.uniform(1 / spread, spread, outputs)
    x = Value("x", TensorType(shape, DType.INT8, Quant.per_tensor(0.5, points[0])))
    quant = Quant(tuple(float(np.float32(s)) for s in scales), (0,) * outputs, axis)
    w = Value("w", TensorType(weights, DType.INT8, quant), values)
    b = Value("b", TensorType((outputs,), DType.INT32), bias)
    graph = graph_of(op, [x, w, b], Quant.per_tensor(0.5, points[1]))
    name = f"{op}-{shape}-{weights}-{points}-{extreme}-{optimize}"
    return Case(name, graph, samples_of(graph, rng), optimize)


def conv(size: tuple[int, int, int, int], outputs: int, kernel: Pair = (1, 1),
         stride: Pair = (1, 1), padding: Padding2D = NONE, activation: Activation = RELU,
         points: Pair = (-128, -128), *, extreme: bool = False, spread: float = 2.5,
         optimize: Optimize = "speed") -> Case:  # fmt: skip
    op = Conv2D(stride=stride, padding=padding, activation=activation)
    weights = (outputs, *kernel, size[3])
    return case(op, size, weights, points, extreme=extreme, spread=spread, optimize=optimize)


def depthwise(size: tuple[int, int, int, int], kernel: Pair = (3, 3), stride: Pair = (1, 1),
              padding: Padding2D = SAME, activation: Activation = RELU,
              points: Pair = (-128, -128), *, outputs: int = 0, extreme: bool = False,
              optimize: Optimize = "speed") -> Case:  # fmt: skip
    op = DepthwiseConv2D(stride=stride, padding=padding, activation=activation)
    weights = (1, *kernel, outputs or size[3])
    return case(op, size, weights, points, extreme=extreme, optimize=optimize)


def without_scratch(case: Case) -> Case:
    """Return a case of a dense layer whose kernel widens inputs in registers."""
    return replace(case, name=f"{case.name}-direct", backend=DIRECT)


def dense(rows: int, depth: int, outputs: int, activation: Activation = FREE,
          points: Pair = (3, -20), *, extreme: bool = False,
          optimize: Optimize = "speed") -> Case:  # fmt: skip
    op = FullyConnected(activation)
    # One scale for all channels, as TensorFlow Lite writes it.
    return case(op, (rows, depth), (outputs, depth), points, extreme=extreme, spread=1.0,
                optimize=optimize)  # fmt: skip


def deep(depth: int, outputs: int) -> Case:
    """Return a convolution of two pixels whose many inputs make patch and weights very large."""
    rng = np.random.default_rng(depth)
    x = Value("x", TensorType((1, 1, 2, depth), DType.INT8, Quant.per_tensor(0.5, -128)))
    values = rng.integers(-20, 21, (outputs, 1, 1, depth)).astype(np.int8)
    quant = Quant((float(np.float32(0.0005)),) * outputs, (0,) * outputs, 0)
    w = Value("w", TensorType(values.shape, DType.INT8, quant), values)
    bias = rng.integers(-500, 500, outputs).astype(np.int32)
    b = Value("b", TensorType((outputs,), DType.INT32), bias)
    graph = graph_of(Conv2D(activation=RELU), [x, w, b], Quant.per_tensor(0.5, -128))
    return Case(f"deep-{depth}", graph, samples_of(graph, rng), "speed")


def winograd(size: tuple[int, int, int, int], outputs: int, **more: Any) -> Case:
    return replace(conv(size, outputs, (3, 3), **more), backend=WINOGRAD)


def binary(kind: str, count: int, scales: tuple[float, float, float], points: tuple[int, ...],
           activation: Activation = FREE) -> Case:  # fmt: skip
    rng = np.random.default_rng(count)
    a, b = (
        Value(name, TensorType((1, count), DType.INT8, Quant.per_tensor(scale, point)))
        for name, scale, point in zip("ab", scales, points, strict=False)
    )
    graph = graph_of(Binary(kind, activation), [a, b], Quant.per_tensor(scales[2], points[2]))
    optimize: Optimize = "size" if count % 2 else "speed"
    return Case(f"{kind}-{count}-{points}", graph, samples_of(graph, rng), optimize)


def limited(case: Case, limit: int) -> Case:
    """Return a case whose kernel should not take more than `limit` bytes of scratch."""
    return replace(case, name=f"{case.name}-{limit} bytes", limit=limit)


def depthwise_of_one_body(stride: int) -> tuple[Case, ...]:
    """Return depthwise convolutions of one stride that differ only in sizes.

    They have one group of channels or parts of further groups, odd and even sizes, one row of
    outputs, one column of outputs, or several groups of rows.
    """
    padding = SAME if stride == 1 else HALF
    sizes = ((7, 5, 4), (6, 6, 9), (3, 3, 31), (4, 9, 6), (5, 2, 4), (9, 3, 4), (9, 60, 4))
    return tuple(
        depthwise((1, height + stride - 1, width + stride - 1, channels), (3, 3),
                  (stride, stride), padding)
        for height, width, channels in sizes
    )  # fmt: skip


@cache
def cases() -> tuple[Case, ...]:
    """Return cases of shapes, strides, paddings, odd channels, clamps and extremes."""
    free_conv = partial(conv, activation=FREE, points=(5, -7))
    free_depthwise = partial(depthwise, activation=FREE, points=(5, -7))
    return (
        *(conv((1, 3, 5, depth), outputs)
          for depth, outputs in ((64, 64), (1, 2), (2, 3), (3, 37), (4, 5), (5, 4), (6, 7),
                                 (16, 16), (37, 57), (57, 30), (106, 22), (96, 5), (98, 2))),
        free_conv((2, 2, 2, 15), 19),
        free_conv((2, 1, 1, 40), 3),
        conv((1, 1, 2, 9), 6),
        conv((1, 2, 2, 200), 8, optimize="size"),
        free_conv((1, 2, 2, 300), 9),
        conv((1, 2, 2, 801), 4),
        free_conv((1, 2, 2, 1203), 3),
        *(deep(depth, 5) for depth in (2040, 2046, 2047, 2048)),
        free_conv((1, 5, 4, 16), 20, stride=(2, 2)),
        conv((1, 5, 3, 20), 7, stride=(2, 3), padding=((0, 1), (1, 1))),
        conv((2, 4, 5, 3), 8, (3, 3), (2, 2), HALF),
        conv((1, 6, 5, 16), 16, (3, 3), padding=SAME),
        free_conv((1, 5, 6, 7), 10, (3, 3), padding=SAME),
        conv((1, 6, 6, 6), 4, (3, 3), optimize="size"),
        *(limited(conv((1, 6, 5, 16), 16, (3, 3), padding=SAME), size) for size in (1007, 671, 0)),
        *(limited(conv((1, 3, 5, 64), 64), size) for size in (256, 128)),
        *(limited(depthwise((1, 9, 6, 8)), size) for size in (500, 300, 0)),
        limited(depthwise((1, 9, 7, 5), stride=(2, 2), padding=HALF), 350),
        limited(depthwise((1, 9, 90, 4), (7, 7), (2, 2), ((3, 3), (3, 3))), 9000),
        free_conv((1, 4, 4, 32), 12, (3, 3), (2, 2), HALF),
        conv((1, 12, 10, 1), 24, (10, 4), (2, 2), ((4, 5), (1, 1))),
        conv((1, 4, 4, 5), 6, (2, 3), padding=((3, 2), (4, 3))),
        conv((1, 9, 1, 4), 5, (3, 1), (4, 1)),
        conv((1, 2, 2, 4), 4, (5, 5), padding=((2, 2), (2, 2))),
        conv((1, 1, 7, 3), 4, (3, 3), padding=SAME),
        free_conv((1, 3, 3, 24), 16, extreme=True),
        conv((1, 3, 3, 24), 16, extreme=True),
        *(replace(conv((1, 1, count, 20), 10), limit=SCRATCH_LIMIT) for count in REMAINDERS),
        *(free_conv((2, 1, count, 13), 7, (1, 2)) for count in (6, 8, 11)),
        *(conv((1, 2, count, 12), 9, (3, 3), padding=SAME) for count in (2, 4, 5, 8)),
        free_conv((3, 4, 4, 5), 6, (3, 3), padding=SAME),
        free_conv((1, 5, 1, 70), 3),
        free_conv((1, 4, 4, 40), 6, (3, 3), padding=SAME),
        limited(conv((1, 4, 4, 12), 9, (3, 3), padding=SAME), 400),
        conv((1, 3, 3, 16), 16, activation=NARROW, points=(0, -20)),
        conv((1, 3, 3, 16), 5, activation=Activation.RELU_N1_TO_1, points=(0, 4)),
        conv((1, 3, 2, 8), 8, spread=60.0),
        conv((1, 1, 1, 128), 32),
        conv((1, 3, 4, 5), 6, (3, 4)),
        free_conv((1, 3, 3, 2), 13, (3, 3)),
        *(dense(1, depth, outputs) for depth, outputs in ((640, 24), (128, 12), (8, 40), (1, 4),
                                                          (100, 3), (97, 33), (112, 17), (2, 2))),
        dense(1, 144, 16, RELU, (-128, -128)),
        dense(1, 35, 20, extreme=True),
        dense(1, 300, 7, NARROW, optimize="size"),
        dense(3, 35, 20, points=(127, 100)),
        *(without_scratch(dense(1, depth, outputs))
          for depth, outputs in ((640, 24), (128, 12), (8, 40), (4, 4), (100, 6), (1000, 5))),
        without_scratch(dense(1, 144, 16, RELU, (-128, -128))),
        without_scratch(dense(1, 36, 20, extreme=True)),
        without_scratch(dense(1, 300, 7, NARROW, optimize="size")),
        *(depthwise((1, 5, 5, channels)) for channels in (4, 5, 8, 37)),
        *depthwise_of_one_body(1),
        *depthwise_of_one_body(2),
        *(free_depthwise((1, 6, 7, channels), stride=(2, 2), padding=HALF)
          for channels in (16, 22)),
        depthwise((1, 48, 2, 16)),
        *(limited(depthwise((1, 11, 6, 9), (rows, 3), (stride, 1), ((1, 2), (1, 1))), 660)
          for rows, stride in ((1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (3, 2), (5, 2),
                               (5, 4))),
        free_depthwise((1, 25, 5, 18)),
        free_depthwise((1, 13, 31, 4)),
        depthwise((1, 9, 60, 4)),
        depthwise((1, 9, 60, 4), stride=(2, 2), padding=HALF, optimize="size"),
        free_depthwise((2, 4, 4, 5), extreme=True),
        depthwise((1, 4, 4, 18), extreme=True),
        depthwise((1, 5, 1, 17)),
        depthwise((1, 1, 7, 6)),
        *(depthwise((1, rows, 7, 9), (rows, 3), padding=((above, below), (1, 1)))
          for rows, above, below in ((3, 0, 0), (2, 1, 0), (5, 0, 0))),
        depthwise((1, 3, 3, 260), activation=NARROW, points=(0, -20)),
        depthwise((1, 5, 5, 4), (2, 2), (2, 2), NONE, NARROW, (3, -100)),
        depthwise((1, 6, 6, 9), (4, 4), padding=((2, 1), (1, 2))),
        depthwise((1, 6, 6, 9), (3, 3), (1, 2), ((2, 2), (2, 2))),
        depthwise((1, 9, 6, 9), (5, 3), (4, 1), ((1, 1), (0, 2))),
        depthwise((1, 6, 6, 5), (1, 1), padding=NONE),
        depthwise((1, 5, 6, 9), (1, 3), (2, 1), ((0, 0), (1, 1))),
        *(free_depthwise((1, rows, 1, 12), (taps, 1), padding=NONE)
          for rows, taps in ((30, 3), (28, 5), (24, 10), (15, 15), (16, 15), (16, 6))),
        depthwise((1, 1, 11, 6), (1, 5), padding=((0, 0), (2, 2))),
        depthwise((1, 9, 8, 1), (4, 3), (2, 2), ((1, 1), (1, 1)), outputs=6),
        winograd((1, 6, 8, 16), 16, padding=SAME),
        winograd((2, 5, 9, 4), 6, padding=SAME, activation=FREE, points=(5, -7)),
        winograd((1, 4, 6, 36), 4, padding=HALF, activation=NARROW, points=(9, -20)),
        winograd((1, 8, 7, 32), 10, points=(-128, -128), optimize="size"),
        winograd((1, 5, 3, 64), 4, padding=SAME, activation=FREE, points=(5, -7)),
        winograd((1, 6, 5, 48), 6, extreme=True),
        winograd((1, 4, 6, 8), 6, padding=((2, 2), (2, 1)), extreme=True),
        winograd((1, 4, 5, 128), 4, padding=SAME),
        winograd((1, 3, 3, 64), 4, padding=SAME, extreme=True),
        winograd((1, 6, 130, 4), 32, padding=SAME, activation=FREE, points=(5, -7)),
        *(binary("add", count, (0.02, 0.03, 0.04), (-128, 4, -128), RELU)
          for count in (1, 3, 4, 64, 101)),
        binary("add", 33, (0.0513, 0.0117, 0.0231), (3, -100, 17)),
        binary("sub", 34, (0.0513, 0.0117, 0.0331), (3, -100, 17), NARROW),
    )  # fmt: skip


@cache
def calls() -> tuple[tuple[Case, KernelCall], ...]:
    """Return every case with its own body, and with its shared body if it has one."""
    own = [(case, case.call()) for case in cases()]
    return (*own, *((case, call) for case, call in shared(own)))


def shared(own: Sequence[tuple[Case, KernelCall]]) -> Iterator[tuple[Case, KernelCall]]:
    """Yield the calls of shared bodies; one body of a family computes all its cases."""
    families: dict[Hashable, list[tuple[Case, SharedBody]]] = {}
    for case, call in own:
        if call.shared is not None:
            families.setdefault(call.shared.key, []).append((case, call.shared))
    for family in families.values():
        joint = family[0][1].joined([body for _, body in family])
        yield from zip((case for case, _ in family), joint.calls, strict=True)


@cache
def runs() -> tuple[Run, ...]:
    return tuple(Run(c.name, Entry(c.node, call), c.samples, c.expected()) for c, call in calls())


def outputs(scaling: DspScaling, sums: Array) -> Array:
    """Return the outputs that the assembly computes from sums `[o, n]` without bias."""
    row = scaling.rows[:, :, None]
    a = (sums << scaling.left) + row[:, 0]
    high = (a * row[:, 1] + (1 << 31)) >> 32
    if scaling.signed:
        high += scaling.addend - np.where(a < 0, row[:, 2], 0)
    assert max(np.abs(a).max(), np.abs(high).max()) < 2**31
    return np.clip(np.clip(high >> scaling.right, -128, 127), scaling.low, scaling.high)


@settings(max_examples=60)
@given(requantizations(), st.integers(-(2**20), 2**20))
def test_scaling_equals_the_models_rounding(q: Requantization, start: int) -> None:
    bias = np.full(len(q.lowest), start, np.int64)
    scaling = dsp_scaling(q, bias)
    if scaling is None:
        return
    count = int((q.highest - q.lowest)[0]) + 1
    sums = q.lowest[:, None] + np.arange(count)
    np.testing.assert_array_equal(outputs(scaling, sums - start), q.outputs(sums.T).T)


@pytest.mark.parametrize(("zero_point", "signed"), [(-128, False), (0, True), (37, True)])
@pytest.mark.parametrize("shifts", [(-7, -7), (-6, -9), (-3, -8)])
def test_channels_with_different_shifts_are_scaled_exactly(
    zero_point: int, *, signed: bool, shifts: tuple[int, int]
) -> None:
    multipliers = np.asarray([1_518_500_250, 2_147_000_001], np.int64)
    lowest, highest = np.full(2, -(2**19)), np.full(2, 2**19)
    q = Requantization(
        multipliers=multipliers,
        shifts=np.asarray(shifts, np.int64),
        lowest=lowest,
        highest=highest,
        zero_point=zero_point,
        low=-128,
        high=127,
    )
    scaling = dsp_scaling(q, np.zeros(2, np.int64))
    assert scaling is not None
    assert scaling.signed == signed
    sums = np.arange(-(2**19), 2**19 + 1)
    both = np.stack([sums, sums])
    np.testing.assert_array_equal(outputs(scaling, both), q.outputs(both.T).T)


def test_host_definitions_equal_the_reference(tmp_path: Path) -> None:
    check_on_host(runs(), tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command",
    [
        ("clang", "-std=c99", "-O1", "-c", "-o", "/dev/null"),
        ("g++", "-xc++", "-std=c++17", "-c", "-o", "/dev/null"),
    ],
    ids=["clang", "g++"],
)
def test_other_compilers_give_no_warnings(command: tuple[str, ...], tmp_path: Path) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]}")
    (tmp_path / "k.c").write_text(source_of([Entry(case.node, call) for case, call in calls()]))
    compile_c(tmp_path / "k.c", command)


@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_layers_of_one_window_share_a_body(stride: int) -> None:
    """Only layers whose rows do not fit into scratch at once have another body."""
    *whole, several = depthwise_of_one_body(stride)
    assert len({case.call().key for case in whole}) == 1
    assert several.call().key != whole[0].call().key


SIZES: dict[str, tuple[Case, Case]] = {
    "outputs of a convolution": (conv((1, 5, 5, 4), 6, (3, 3)), conv((1, 5, 5, 4), 10, (3, 3))),
    "outputs of a dense layer": (dense(1, 24, 8), dense(1, 24, 12)),
}


@pytest.mark.parametrize("optimize", ["speed", "size"])
def test_depthwise_layers_of_all_windows_share_the_functions_that_widen(
    optimize: Optimize,
) -> None:
    functions = Functions("net")
    layers = [
        depthwise((1, 9, 9, 8), optimize=optimize),
        depthwise((1, 9, 9, 8), (3, 3), (2, 2), optimize=optimize),
        depthwise((1, 9, 9, 8), (5, 5), (1, 1), ((2, 2), (2, 2)), FREE, (3, -7), optimize=optimize),
    ]
    for layer in layers:
        functions.add(layer.node, layer.call())
    text = "\n".join(function.definition for function in functions.all())
    defined = re.findall(r"^\w.* net_(\w+)\(", text, re.MULTILINE)
    assert sum(name.endswith("_channels") for name in defined) == len(layers)
    for name in ("widen", "edge", "sides", "rows"):
        assert defined.count(f"input_pairs_{name}") == 1


@pytest.mark.parametrize("name", SIZES)
def test_layers_of_different_sizes_share_their_assembly(name: str) -> None:
    first, second = (case.call().inner[1].key for case in SIZES[name])
    assert first == second


def test_additions_of_different_sizes_and_scales_share_a_function() -> None:
    sums = (
        binary("add", 64, (0.02, 0.03, 0.04), (-128, 4, -128), RELU),
        binary("add", 128, (0.021, 0.03, 0.04), (-127, 9, -128), RELU),
    )
    assert len({case.call().key for case in sums}) == 1


def test_scratch_is_within_the_limit() -> None:
    for limited_case, call in calls():
        # With a limit of 0, each kernel takes the least that it can.
        limit = limited_case.limit or SCRATCH_LIMIT
        assert call.scratch_bytes <= limit, limited_case.name


@pytest.mark.qemu
def test_assembly_equals_the_reference(tmp_path: Path) -> None:
    assert said_on(CORE, runs(), tmp_path, WARNINGS) == "passed"


def random_winograd(rng: np.random.Generator) -> Graph:
    """Return a random convolution, of any padding, that minimal filtering may serve."""
    height, width, depth = (int(n) for n in (*rng.integers(3, 10, 2), rng.choice(DEPTHS)))
    padding = ((int(rng.integers(3)), int(rng.integers(3))), (1, int(rng.integers(1, 3))))
    activation = (FREE, RELU, NARROW)[rng.integers(3)]
    outputs = 2 * int(rng.integers(1, 6))
    x = data("x", (int(rng.integers(1, 3)), height, width, depth), rng)
    op = Conv2D(padding=padding, activation=activation)
    return products(op, x, (outputs, 3, 3, depth), 0, rng)


@pytest.mark.thorough
@pytest.mark.qemu
@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3, 4))])
def test_random_nodes_equal_the_reference(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    graphs = [random_graph(rng) for _ in range(120)] + [random_winograd(rng) for _ in range(25)]
    runs = runs_of(ALL, "cortex-m4", graphs, rng)
    assert len(runs) > 60
    assert said_on(CORE, runs, tmp_path) == "passed"


@pytest.mark.parametrize("count", REMAINDERS)
def test_the_last_pixels_are_computed_two_at_a_time(count: int) -> None:
    """No pixel is computed twice if memory is limited, and few are otherwise."""
    served = replace(conv((1, 1, count, 64), 64), limit=SCRATCH_LIMIT)
    call, smaller = served.call(), replace(served, optimize="size").call()
    products = [sum(n for k, n in c.work.items() if "products" in k) for c in (call, smaller)]
    assert products[0] == count * 64 * 64
    assert products[1] == -(-count // 3) * 3 * 64 * 64
    assert call.scratch_bytes == smaller.scratch_bytes == 3 * 128
    unlimited = replace(served, limit=None).call()
    computed = sum(n for k, n in unlimited.work.items() if "products" in k)
    assert computed == products[count % 3 == 0 or count > 10 or count == 8]
    assert call.shared is not None
    assert call.shared.slowdown > (0.2 if count == 4 else 0.01)


def test_few_instructions_do_not_justify_groups_of_two() -> None:
    """With 125 pixels, two functions more would save 0.6 % of the instructions."""
    large, small = (
        replace(conv((1, *size, 64), 64), limit=SCRATCH_LIMIT) for size in ((25, 5), (8, 8))
    )
    assert large.call().summary == "3 pixels x 2 channels"
    assert small.call().summary == "3 and 2 pixels x 2 channels"
    assert replace(small, limit=None).call().summary == "3 pixels x 2 channels"


@pytest.mark.qemu
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(
    "served",
    [
        conv((1, 6, 6, 16), 20),
        conv((1, 5, 4, 23), 7, optimize="size"),
        conv((1, 3, 4, 150), 9, activation=FREE, points=(5, -7)),
        *(conv((1, 1, count, 40), 20) for count in REMAINDERS),
    ],
    ids=["even", "odd, for size", "long, signed", *(f"{count} pixels" for count in REMAINDERS)],
)
def test_instructions_of_bodies_are_counted_correctly(
    served: Case, monkeypatch: pytest.MonkeyPatch, *, alone: bool
) -> None:
    """The counts decide whether layers share a body."""
    options = Options(board="mps2-an386", optimize=served.optimize, backends=("dsp",))
    offered = served.call()
    check_instructions(
        served.graph, served.samples[0], offered, options, monkeypatch, alone=alone, within=0.015
    )


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("served", "within"),
    [
        (conv((1, 8, 9, 16), 16, (3, 3), padding=SAME), 0.004),
        (conv((1, 15, 15, 3), 8, (3, 3), (2, 2), padding=SAME, activation=FREE), 0.01),
        (depthwise((1, 3, 12, 32), padding=((0, 0), (1, 1))), 0.02),
        (depthwise((1, 5, 9, 24), (5, 5), padding=((0, 0), (2, 2))), 0.02),
    ],
    ids=["3x3", "stride 2, signed", "a row of 3x3", "a row of 5x5"],
)
def test_bodies_for_other_numbers_of_rows_are_slower_as_estimated(
    served: Case, within: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = served.call().shared
    assert body is not None
    counts: list[int] = []
    monkeypatch.setattr(sharing, "MOST_SLOWDOWN", 10.0)
    for saved in (0, 1 << 20):
        monkeypatch.setattr(sharing, "saved_bytes", Mock(return_value=saved))
        options = Options(board="mps2-an386", backends=("dsp",))
        artifact = compile_model(Imported(served.graph), options)
        counts.append(profile_model(artifact, served.samples[0]).instructions)
    own, shared = counts
    assert shared > own
    assert shared / own - 1 == pytest.approx(body.slowdown, abs=within)
