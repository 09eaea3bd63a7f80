"""Tests of requantization by one multiply-add and shift, and of scales that are far apart."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.codegen.lower.requantization import Requantization
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
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.prelu import PRelu
from smelt.ops.core.quantize import Quantize
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.unary import Unary
from tests.support.graphs import SETUPS, Member, assert_same, combine, compile_graph, run_together
from tests.support.sanitized import run_sanitized
from tests.support.vulkan_tools import requires_vulkan


@st.composite
def requantizations(draw: st.DrawFn) -> Requantization:
    """Draw up to four channels with ranges that are short enough to try every sum."""
    channels = draw(st.integers(1, 4))
    base = draw(st.integers(-2, 22))

    def each(strategy: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(strategy, min_size=channels, max_size=channels))

    lowest = np.asarray(each(st.integers(-(2**22), 2**10)), np.int64)
    zero_point = draw(st.integers(-128, 127))
    low = draw(st.sampled_from((-128, zero_point)))
    return Requantization(
        multipliers=np.asarray(each(st.integers(2**30, 2**31 - 1) | st.just(0)), np.int64),
        shifts=-np.asarray(each(st.integers(base, base + 4)), np.int64),
        lowest=lowest,
        highest=lowest + draw(st.integers(0, 40_000)),
        zero_point=zero_point,
        low=low,
        high=draw(st.integers(low, 127)),
    )


@given(requantizations())
def test_scaling_equals_two_roundings(requantization: Requantization) -> None:
    scaling = requantization.scaling
    if scaling is None:
        return
    assert (scaling.multipliers < 2**31).all()
    count = int((requantization.highest - requantization.lowest)[0]) + 1
    sums = requantization.lowest + np.arange(count)[:, None]
    found = (sums * scaling.multipliers + scaling.offsets) >> scaling.shift
    found = np.clip(found, requantization.low, requantization.high)
    np.testing.assert_array_equal(found, requantization.outputs(sums))


def test_sums_that_wrap_have_no_scaling() -> None:
    """The lowest and highest sum of a channel wrap to the same output, but others differ."""
    requantization = Requantization(
        np.asarray([1_477_904_782, 1_873_306_103], np.int64),
        np.asarray([-7, 22], np.int64),
        np.asarray([-3492, -668], np.int64),
        np.asarray([2267, 4538], np.int64),
        zero_point=-12,
        low=-128,
        high=127,
    )
    sums = np.arange(-668, 4539)[:, None] * np.asarray([0, 1])
    found = requantization.outputs(sums)[:, 1]
    assert found[0] == found[-1]
    assert np.unique(found).size > 1
    assert requantization.scaling is None


@pytest.mark.parametrize("shifts", [(-7, -7), (-6, -9), (-3, -8)])
def test_channels_with_relu_have_a_scaling_for_any_shift(shifts: tuple[int, int]) -> None:
    multipliers = np.asarray([1_518_500_250, 2_147_000_001], np.int64)
    lowest, highest = np.full(2, -(2**20)), np.full(2, 2**20)
    requantization = Requantization(
        multipliers=multipliers,
        shifts=np.asarray(shifts, np.int64),
        lowest=lowest,
        highest=highest,
        zero_point=-128,
        low=-128,
        high=127,
    )
    assert requantization.scaling is not None


def test_rounding_away_from_zero_on_both_sides_has_no_scaling() -> None:
    """Ties round up at positive outputs and down at negative ones: one addition cannot do both."""
    multipliers, shifts = np.asarray([1_518_500_250]), np.asarray([-7])
    lowest, highest = np.asarray([-(2**15)]), np.asarray([2**15])
    requantization = Requantization(
        multipliers=multipliers,
        shifts=shifts,
        lowest=lowest,
        highest=highest,
        zero_point=0,
        low=-128,
        high=127,
    )
    assert requantization.scaling is None


def _far_apart(op: Op, x: TensorType, y: TensorType, *constants: Value) -> Graph:
    data, output = Value("x", x), Value("y", y)
    node = Node(op, (data, *constants), (output,), Origin(op.name, 0), Rounding.TFLM)
    return verify(Graph("far_apart", (data,), (output,), (node,)), "building a test")


def _int8(shape: tuple[int, ...], scale: float, zero_point: int = 0) -> TensorType:
    quant = Quant.per_tensor(float(np.float32(scale)), zero_point)
    return TensorType(shape, DType.INT8, quant)


def far_apart() -> list[Member]:
    """Return nodes whose left shifts overflow 32 bits, and some that shift by 32 bits or more."""
    rng, graphs, one = np.random.default_rng(5), list[Graph](), Quant.per_tensor(1.0, 0)

    def constant(shape: tuple[int, ...]) -> Value:
        return Value.constant("k", rng.integers(-128, 128, shape).astype(np.int8), one)

    def mixed(shape: tuple[int, ...], axis: int, largest: int) -> Value:
        """Return weights of which only the last channel is shifted far to the left."""
        scales = tuple(float(np.float32(0.75 * 2.0**e)) for e in (-8, -7, -8, largest))
        data = rng.integers(-127, 128, shape).astype(np.int8)
        return Value.constant("k", data, Quant(scales, (0,) * 4, axis))

    for largest in (12, 20, 24, 28, 31):
        row, same = _int8((1, 2, 3, 4), 1.0, 3), _int8((1, 2, 3, 4), 1.0, 5)
        dense, rows = _int8((6, 4), 1.0, 3), _int8((6, 4), 1.0, 5)
        graphs += [
            _far_apart(Conv2D(), row, same, mixed((4, 1, 1, 4), 0, largest)),
            _far_apart(DepthwiseConv2D(), row, same, mixed((1, 1, 1, 4), 3, largest)),
            _far_apart(FullyConnected(), dense, rows, mixed((4, 4), 0, largest)),
        ]

    for exponent in (30, 31, 32, 36):
        scale, row = 0.75 * 2.0**-exponent, _int8((1, 2, 3, 4), 1.0, 3)
        same = _int8(row.shape, scale, 5)
        graphs += [
            _far_apart(Reduce("sum", (3,), keep_dims=True), row, _int8((1, 2, 3, 1), scale, 5)),
            _far_apart(Quantize(DType.INT8), row, same),
            _far_apart(Binary("mul"), row, same, constant((1, 1, 1, 4))),
            _far_apart(PRelu(), row, same, constant((1, 1, 4))),
            _far_apart(Conv2D(), row, _int8((1, 1, 2, 5), scale, 5), constant((5, 2, 2, 4))),
            _far_apart(
                FullyConnected(), _int8((6, 4), 1.0), _int8((6, 5), scale), constant((5, 4))
            ),
        ]
    shapes = [graph.inputs[0].type.shape for graph in graphs]
    return [
        Member(g, [(rng.integers(-128, 128, shape).astype(np.int8),) for _ in range(2)])
        for g, shape in zip(graphs, shapes, strict=True)
    ]


@pytest.mark.quick(setup=("m0", "m4"))
@pytest.mark.parametrize(
    "setup",
    [
        pytest.param("vulkan", marks=requires_vulkan),
        *(pytest.param(core, marks=pytest.mark.qemu) for core in ("m0", "m3", "m4", "m55")),
    ],
)
def test_scales_far_apart(setup: str) -> None:
    members = far_apart()
    for member, found in zip(members, run_together(members, SETUPS[setup]), strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        assert_same(found, expected, repr(member))


@pytest.mark.thorough
def test_scales_far_apart_are_clean_under_sanitizers(tmp_path: Path) -> None:
    members = far_apart()
    graph = combine("far_apart", [member.graph for member in members])
    samples = [tuple(member.samples[i][0] for member in members) for i in range(2)]
    found = run_sanitized(compile_graph(graph), samples, tmp_path / "project")
    assert_same(found, [evaluate(graph, sample).outputs for sample in samples], "far apart")


def test_quotients_and_means_saturate_at_scales_far_apart() -> None:
    """Neither shifts int32 numbers as far to the left as its multiplier says."""
    a, b, y = _int8((4,), 1.0), _int8((4,), 1.0), _int8((4,), 0.75 * 2.0**-32)
    values = (Value("a", a), Value("b", b), Value("y", y))
    node = Node(Binary("div"), values[:2], values[2:], Origin("DIV", 0), Rounding.TFLM)
    graph = verify(Graph("quotients", values[:2], values[2:], (node,)), "building a test")
    numbers = np.array([1, -1, 5, 127], np.int8), np.array([127, 127, 3, 127], np.int8)
    (found,) = evaluate(graph, numbers).outputs
    assert found.tolist() == [127, -128, 127, 127]
    many = _int8((1, 1024), 1.0)
    graph = _far_apart(Reduce("mean", (1,)), many, _int8((1,), 0.75 * 2.0**-32))
    for number, wanted in ((3, 127), (-3, -128)):
        numbers = np.zeros((1, 1024), np.int8)
        numbers[0, 5] = number
        (found,) = evaluate(graph, (numbers,)).outputs
        assert found.tolist() == [wanted]


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_slope_beyond_float32_gives_zero() -> None:
    """Left shifts by 32 bits or more give zero."""
    graph = _far_apart(Unary("leaky_relu", 3e38), _int8((3,), 1.0), _int8((3,), 0.01, 7))
    (found,) = evaluate(graph, (np.array([-1, 0, 1], np.int8),)).outputs
    assert found.tolist() == [7, 7, 107]
    compile_graph(graph)
