"""Kernels for cores without the DSP extension, against the reference.

Plain C definitions run on the host under sanitizers. Assembly runs under QEMU, with guard bytes
around all buffers that it writes, and with inputs at the ends of a memory, where accesses beyond
fault.
"""

from __future__ import annotations

import shutil
from collections.abc import Hashable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.api.options import Options
from smelt.codegen.lower.function_table import TableBody
from smelt.codegen.lower.kernel import KernelCall, Request, SharedBody
from smelt.codegen.lower.requantization import Requantization
from smelt.codegen.lower.requantization_32bit import short_scaling
from smelt.codegen.lower.tap_groups import LARGEST_GROUP, grouped
from smelt.ir import Rounding
from smelt.ops.core.convolution import Pair
from smelt.targets import Optimize, get
from tests.support.body_costs import check_instructions
from tests.support.cortexm_cases import (
    AFTER,
    BACKENDS,
    FREE,
    NARROW,
    NONE,
    RELU,
    SAME,
    Case,
    binary,
    convolution,
    core_of,
    dense,
    depthwise,
)
from tests.support.guarded import said_on
from tests.support.kernels_host import READERS, RELEASED, Entry, Run, check_on_host, check_read_by
from tests.support.library_nodes import random_graph, samples_of

SCRATCH_LIMIT = 4096


def planes(optimize: Optimize) -> tuple[Case, ...]:
    """Return depthwise convolutions with planes of many sizes."""
    return (
        *(depthwise((1, h, w, 3), optimize=optimize)
          for h, w in ((1, 1), (1, 6), (5, 1), (2, 2), (7, 6), (6, 7))),
        *(depthwise((1, h, w, 5), (3, 3), (2, 2), AFTER, optimize=optimize)
          for h, w in ((8, 6), (9, 7), (12, 12))),
        depthwise((1, 7, 5, 4), (3, 3), (2, 1), SAME, FREE, points=(7, -20), optimize=optimize),
        depthwise((1, 46, 47, 2), points=(5, -128), optimize=optimize),
        depthwise((1, 50, 50, 2), (3, 3), (2, 2), AFTER, points=(5, -128), optimize=optimize),
        depthwise((1, 28, 1, 4), (3, 1), (1, 1), NONE, FREE, points=(1, -3), optimize=optimize),
        depthwise((1, 27, 1, 3), (10, 1), (1, 1), NONE, FREE, points=(1, -3), optimize=optimize),
        depthwise((1, 15, 1, 3), (15, 1), (1, 1), NONE, points=(1, -128), optimize=optimize),
        depthwise((1, 2, 23, 3), (1, 7), (1, 2), ((0, 0), (3, 3)), NARROW, optimize=optimize),
        depthwise((2, 5, 5, 3), (5, 5), (3, 2), ((2, 2), (1, 4)), multiplier=2, optimize=optimize),
        depthwise((1, 4, 5, 3), (2, 2), (1, 1), ((0, 4), (3, 0)), points=(-9, -128),
                  optimize=optimize),
        depthwise((1, 6, 6, 4), extreme=True, optimize=optimize),
        depthwise((1, 6, 6, 4), extreme=True, activation=FREE, points=(2, 4), optimize=optimize),
    )  # fmt: skip


@cache
def cases() -> tuple[Case, ...]:
    """Return cases with shapes around the kernels' block sizes, and extreme weights and scales."""
    return (
        *(convolution((1, 3, 5, k), n) for k in (1, 3, 7, 37, 64, 70) for n in (1, 5, 8, 19)),
        *(convolution((1, 1, p, 9), 3, points=(3, -7), activation=FREE) for p in (1, 2, 3, 4, 6)),
        convolution((2, 3, 3, 6), 9, activation=FREE, points=(-3, 100)),
        convolution((1, 4, 4, 130), 300, activation=NARROW),
        *(convolution((2, 3, 3, k), 17, optimize="size") for k in (1, 2, 5, 12, 16, 33)),
        *(convolution((2, 3, 3, k), 17, largest=60) for k in (1, 6, 13, 20)),
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
        *(convolution((1, 5, w, k), n, (3, 3), (1, 1), SAME, optimize="size", points=(3, -128))
          for w, k, n in ((3, 16, 9), (4, 32, 8), (9, 8, 3))),
        *(convolution((1, 5, 9, 16), 9, kernel, (2, 2), NONE, FREE, points=(3, z), optimize="size")
          for kernel, z in (((3, 3), -8), ((1, 1), 5), ((3, 1), 7))),
        convolution((1, 5, 6, 80), 9, (3, 3), (1, 1), SAME, FREE, points=(3, 7), optimize="size"),
        convolution((1, 4, 5, 8), 4, (2, 7), (1, 1), ((0, 1), (3, 3)), optimize="size"),
        convolution((1, 4, 4, 12), 6, steep=40.0, activation=FREE, points=(0, 9)),
        convolution((1, 4, 4, 12), 6, steep=0.01),
        convolution((1, 4, 4, 12), 6, rounding=Rounding.ONNX, activation=FREE, points=(0, 9)),
        convolution((1, 7, 9, 5), 6, (3, 3), (1, 1), SAME),
        convolution((1, 8, 6, 3), 4, (3, 3), (2, 2), AFTER, points=(9, -128)),
        convolution((1, 4, 7, 12), 5, activation=FREE, points=(3, -4)),
        convolution((1, 9, 5, 4), 3, (3, 1), (1, 1), ((1, 1), (0, 0)), dilation=(2, 1)),
        convolution((1, 5, 1, 6), 4, (3, 4), (1, 1), ((1, 1), (2, 2)), points=(3, -4)),
        convolution((1, 4, 2, 5), 4, (2, 5), (1, 1), ((0, 1), (2, 2)), FREE, points=(-3, 9)),
        *planes("speed"),
        *planes("size"),
        depthwise((1, 4, 5, 3), (3, 3), (2, 1), ((7, 5), (4, 4)), optimize="size"),
        depthwise((1, 4, 5, 3), (1, 3), (2, 1), optimize="size", points=(9, -128)),
        depthwise((1, 4, 120, 2), (3, 3), (1, 1), ((20, 4), (1, 1)), optimize="size"),
        *(dense(1, k, n) for k in (1, 2, 7, 8, 33, 130) for n in (1, 3, 4, 10)),
        dense(1, 400, 6, FREE, points=(3, 96)),
        dense(1, 64, 12, FREE, points=(-128, 14), optimize="size"),
        dense(1, 96, 5, NARROW, extreme=True),
        *(dense(1, k, n, no_scratch=True) for k in (4, 8, 12, 132) for n in (1, 3, 4, 10)),
        dense(1, 64, 12, FREE, points=(-128, 14), optimize="size", no_scratch=True),
        dense(1, 96, 5, NARROW, extreme=True, no_scratch=True),
        dense(3, 20, 9),
        dense(7, 33, 6, FREE, points=(4, -9)),
        binary("add", 101, (0.02, 0.03, 0.04), (-128, 4, -128), RELU),
        binary("add", 33, (0.0513, 0.0117, 0.0231), (3, -100, 17)),
        binary("add", 35, (0.0513, 0.0117, 0.0231), (3, -100, 17), optimize="size"),
        binary("sub", 37, (0.02, 0.03, 0.04), (-128, 4, -128), RELU, optimize="size"),
        binary("sub", 34, (0.0513, 0.0117, 0.0331), (3, -100, 17), NARROW),
    )  # fmt: skip


@cache
def entries(target: str) -> tuple[tuple[Case, Entry], ...]:
    """Return the cases that a target's kernels serve."""
    calls = ((case, case.call(target)) for case in cases())
    own = [(case, call) for case, call in calls if call is not None]
    shared = [(case, call.shared.call) for case, call in own if call.shared is not None]
    joined = joint_calls([(case, call.shared) for case, call in own if call.shared is not None])
    return tuple((case, Entry(case.node, call)) for case, call in (*own, *shared, *joined))


def joint_calls(bodies: list[tuple[Case, SharedBody]]) -> list[tuple[Case, KernelCall]]:
    """Return the calls of layers that share a body with a table of functions."""
    groups: dict[Hashable, list[tuple[Case, SharedBody]]] = {}
    for case, body in bodies:
        if isinstance(body, TableBody):
            groups.setdefault(body.key, []).append((case, body))
    found: list[tuple[Case, KernelCall]] = []
    for group in groups.values():
        some, members = zip(*group, strict=True)
        if len(some) > 1:
            found += zip(some, members[0].joined(members).calls, strict=True)
    return found


def runs_of(target: str) -> list[Run]:
    """Return a run of each case that a target's kernels serve."""
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


@pytest.mark.parametrize(("optimize", "largest"), [("speed", 60), ("size", 120)])
def test_layers_of_different_sizes_share_a_body(optimize: Optimize, largest: int) -> None:
    shapes = ((6, 6, 8), 13), ((5, 5, 12), 9), ((4, 4, 20), 10)
    offers = [
        convolution((1, *shape), outputs, optimize=optimize, largest=largest).call("cortex-m0")
        for shape, outputs in shapes
    ]
    bodies = [call.shared for call in offers if call is not None]
    assert len(bodies) == len(shapes)
    assert len({body.key for body in bodies if body is not None}) == 1


def test_windows_of_different_sizes_share_a_body_and_their_sums() -> None:
    cases = [
        convolution((1, 6, w, k), n, (3, 3), (1, 1), SAME, optimize="size", largest=60)
        for w, k, n in ((6, 16, 13), (9, 32, 8), (5, 8, 20))
    ]
    calls = [case.call("cortex-m0") for case in cases]
    bodies = [call.shared for call in calls if call is not None and call.shared is not None]
    assert len({body.key for body in bodies}) == 1
    joint = bodies[0].joined(bodies)
    assert len(joint.calls) == len(cases)
    assert len({tuple(inner.key for inner in call.inner) for call in joint.calls}) == 1
    assert len(joint.calls[0].inner) <= len(cases)


@pytest.mark.parametrize("channels", [(8, 9), (12, 30)])
def test_planes_of_equal_size_share_their_functions(channels: tuple[int, int]) -> None:
    calls = [depthwise((1, 6, 6, k), (3, 3), (1, 1), SAME).call("cortex-m0") for k in channels]
    own = {tuple(inner.key for inner in call.inner) for call in calls if call is not None}
    assert len(own) == len(calls)
    assert len({call.shared.key for call in calls if call is not None and call.shared}) == 1


@pytest.mark.parametrize("target", BACKENDS)
def test_planes_of_any_size_share_a_body_for_size(target: str) -> None:
    cases = [
        depthwise(shape, (3, 3), stride, SAME, optimize="size", largest=120)
        for shape, stride in (
            ((1, 6, 6, 19), (1, 1)),
            ((1, 24, 23, 8), (1, 1)),
            ((1, 12, 12, 9), (2, 2)),
            ((1, 48, 46, 5), (2, 1)),
        )
    ]
    calls = [case.call(target) for case in cases]
    bodies = [call.shared for call in calls if call is not None]
    assert len(bodies) == len(cases)
    assert len({body.key for body in bodies if body is not None}) == 1


def test_risc_v_keeps_groups_of_constant_size_for_speed() -> None:
    node = convolution((1, 6, 6, 8), 13, largest=60).node
    for target, shares in (("cortex-m0", True), ("rv32imac", False)):
        call = BACKENDS["cortex-m0"].find(node, Request(get(target)))
        assert isinstance(call, KernelCall)
        assert (call.shared is not None) is shares


@pytest.mark.qemu
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(
    ("case", "within"),
    [
        (convolution((1, 4, 4, 16), 12, largest=60), 0.02),
        (convolution((1, 5, 5, 30), 9, optimize="size", largest=120), 0.02),
        (depthwise((1, 6, 6, 57), (3, 3), (1, 1), SAME), 0.03),
        (depthwise((1, 25, 23, 9), (3, 3), (2, 2), SAME), 0.08),
        (depthwise((1, 6, 6, 57), (3, 3), (1, 1), SAME, optimize="size"), 0.04),
        (depthwise((1, 12, 12, 31), (3, 3), (2, 2), AFTER, optimize="size"), 0.08),
    ],
    ids=["speed", "size", "planes", "odd planes", "any plane", "any plane with stride"],
)
def test_instructions_of_bodies_are_counted(
    case: Case, within: float, monkeypatch: pytest.MonkeyPatch, *, alone: bool
) -> None:
    """The counts decide whether layers share a body."""
    options = Options(
        board="mps2-an385", target="cortex-m0", optimize=case.optimize, backends=("armv6m",)
    )
    offered = case.call("cortex-m0")
    assert offered is not None
    check_instructions(
        case.graph, case.samples[0], offered, options, monkeypatch, alone=alone, within=within
    )


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
def test_compilers_give_no_warnings(compiler: str, target: str, tmp_path: Path) -> None:
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
    """Return requantizations of up to four channels, with ranges short enough to try every sum."""
    channels = draw(st.integers(1, 4))
    base = draw(st.integers(1, 12))

    def each(strategy: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(strategy, min_size=channels, max_size=channels))

    lowest = np.asarray(each(st.integers(-(2**20), 2**10)), np.int64)
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
        multipliers=np.asarray([1_518_500_250, 2_147_000_001]),
        shifts=np.asarray(shifts),
        lowest=-limit,
        highest=limit,
        zero_point=zero_point,
        low=-128,
        high=127,
    )
    assert short_scaling(r, np.asarray([700, -300])) is not None


def test_layers_of_similar_sums_have_equal_shifts() -> None:
    """Code with equal shifts can be shared, although sums would allow different ones."""
    found: list[tuple[int, int, int]] = []
    for limit, shift in ((2**15, -5), (2**16, -6), (2**17, -7)):
        r = Requantization(
            multipliers=np.asarray([1_518_500_250]),
            shifts=np.asarray([shift]),
            lowest=np.asarray([-limit]),
            highest=np.asarray([limit]),
            zero_point=-128,
            low=-128,
            high=127,
        )
        scaling = short_scaling(r, np.zeros(1, np.int64))
        assert scaling is not None
        found.append((scaling.count, scaling.drop, scaling.shift))
    assert len(set(found)) == 1, found


@given(st.integers(0, 2**32 - 1), st.integers(1, 90), st.sampled_from(("speed", "size")))
def test_groups_contain_each_tap_once_and_are_small(
    seed: int, length: int, optimize: Optimize
) -> None:
    weights = np.random.default_rng(seed).integers(-128, 128, (3, length))
    taps = grouped(weights, optimize)
    assert sorted(taps.order) == list(range(length))
    begin = 0
    for group_loop in taps.group_loops:
        for size in group_loop.groups * group_loop.iterations:
            group = np.abs(weights[:, list(taps.order[begin : begin + size])])
            assert group.sum(axis=1).max() <= LARGEST_GROUP
            begin += size
    assert begin == length
