"""Kernels with two taps in one multiplication, against the reference.

Plain C definitions run on the host under sanitizers. Assembly runs under QEMU, with guard bytes
around all buffers that it writes, and with inputs at the ends of a memory, where accesses beyond
fault.
"""

from __future__ import annotations

import shutil
from collections.abc import Hashable, Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.api.options import Options
from smelt.codegen.backends.armv7m import convolution as armv7m_convolution
from smelt.codegen.backends.armv7m import convolution_rows as armv7m_convolution_rows
from smelt.codegen.backends.armv7m import dense as armv7m_dense
from smelt.codegen.backends.armv7m import depthwise_3x3 as armv7m_depthwise_3x3
from smelt.codegen.backends.armv7m.dense import CountedWeights
from smelt.codegen.backends.armv7m.paired_weights import LIFT, PairedWeights, pairs_of
from smelt.codegen.backends.armv7m.shared_pairs import JointParameters
from smelt.codegen.lower.backend import Backend
from smelt.codegen.lower.kernel import KernelCall, Refusal, Request, SharedBody
from smelt.ir import Rounding
from smelt.targets import Optimize, available, get
from tests.support.body_costs import check_instructions
from tests.support.cortexm_cases import (
    AFTER,
    FREE,
    NARROW,
    NONE,
    SAME,
    Case,
    convolution,
    core_of,
    dense,
    depthwise,
)
from tests.support.guarded import said_on
from tests.support.kernels_host import READERS, RELEASED, Entry, Run, check_on_host, check_read_by
from tests.support.library_nodes import random_graph, samples_of

M3 = get("cortex-m3")
BACKEND = Backend(
    "armv7m",
    (armv7m_convolution.PairsOfTapsConv2D(), *armv7m_dense.KERNELS, *armv7m_depthwise_3x3.KERNELS),
)
SCRATCH_LIMIT = 4096


@cache
def cases() -> tuple[Case, ...]:
    """Return cases with shapes around the kernels' block sizes, and extreme weights and scales."""
    return (
        *(convolution((1, 3, 5, k), n) for k in (1, 2, 3, 4, 7, 37, 64, 70) for n in (1, 2, 5)),
        *(convolution((1, 1, p, 9), 3, points=(3, -7), activation=FREE) for p in (1, 2, 3, 4, 6)),
        convolution((1, 11, 12, 20), 7),
        convolution((1, 12, 12, 36), 6, optimize="size"),
        convolution((2, 3, 3, 6), 9, activation=FREE, points=(-3, 100)),
        convolution((1, 4, 4, 130), 300, activation=NARROW),
        convolution((1, 5, 7, 3), 8, (3, 3), (2, 2), AFTER),
        convolution((1, 21, 24, 3), 8, (3, 3), (2, 2), AFTER),
        convolution((1, 6, 6, 5), 4, (3, 3), (1, 1), SAME, FREE, points=(9, 4)),
        convolution((1, 9, 6, 1), 7, (4, 3), (2, 1), ((1, 2), (1, 1)), points=(40, -128)),
        convolution((1, 6, 5, 16), 6, (3, 3), (1, 1), SAME, optimize="size"),
        convolution((1, 12, 11, 8), 5, (3, 3), (1, 1), SAME, points=(-9, 5)),
        convolution((1, 6, 9, 8), 4, (1, 5), (1, 1), ((0, 0), (2, 2)), points=(-9, 5)),
        convolution((1, 7, 9, 8), 4, (2, 3), (1, 1), activation=FREE),
        convolution((1, 7, 9, 4), 4, (3, 3), (2, 2), AFTER),
        convolution((1, 4, 12, 6), 3, (3, 3), (1, 1), SAME),
        convolution((1, 3, 9, 2), 3, (2, 4), (1, 1), points=(-3, -128)),
        convolution((1, 6, 7, 4), 5, (2, 3), (1, 2), ((2, 1), (0, 2)), NARROW, (2, 2)),
        convolution((1, 4, 3, 64), 8, (3, 3), (1, 1), SAME, FREE, points=(-5, 3), largest=40),
        convolution((1, 4, 4, 24), 6, extreme=True),
        convolution((1, 12, 12, 24), 6, extreme=True, activation=FREE),
        convolution((1, 4, 4, 24), 6, (3, 3), extreme=True, optimize="size"),
        convolution((1, 4, 4, 12), 6, steep=40.0, activation=FREE, points=(0, 9)),
        convolution((1, 4, 4, 12), 6, steep=0.01),
        convolution((1, 4, 4, 12), 6, rounding=Rounding.ONNX, activation=FREE, points=(0, 9)),
        convolution((1, 7, 9, 5), 6, (3, 3), (1, 1), SAME),
        convolution((1, 7, 9, 8), 5, (3, 3), (1, 1), SAME, points=(7, -128)),
        convolution((1, 8, 6, 3), 4, (3, 3), (2, 2), AFTER, points=(9, -128)),
        convolution((1, 4, 7, 12), 5, activation=FREE, points=(3, -4)),
        convolution((1, 9, 5, 4), 3, (3, 1), (1, 1), ((1, 1), (0, 0)), dilation=(2, 1)),
        convolution((1, 5, 1, 6), 4, (3, 4), (1, 1), ((1, 1), (2, 2)), points=(3, -4)),
        convolution((1, 4, 2, 5), 4, (2, 5), (1, 1), ((0, 1), (2, 2)), FREE, points=(-3, 9)),
        *(dense(1, k, n) for k in (1, 2, 3, 4, 7, 33, 130) for n in (1, 3, 4, 10)),
        dense(1, 400, 6, FREE, points=(3, 96)),
        dense(1, 64, 12, FREE, points=(-128, 14), optimize="size"),
        dense(1, 640, 9, largest=30),
        dense(1, 96, 5, NARROW, extreme=True),
        dense(1, 96, 7, FREE, rounding=Rounding.ONNX, points=(0, 9)),
        dense(2, 31, 5, points=(4, -9)),
        dense(3, 20, 9),
        dense(7, 33, 6, FREE, points=(4, -9)),
        *(depthwise((1, h, w, 3)) for h, w in product((1, 2, 5, 6), (1, 2, 3, 7, 10))),
        depthwise((1, 7, 5, 4), (3, 3), (1, 1), SAME, FREE, points=(7, -20)),
        depthwise((1, 46, 47, 2), points=(5, -128)),
        depthwise((1, 50, 49, 2), points=(5, -128), activation=NARROW),
        depthwise((2, 6, 5, 3), (3, 3), (1, 1), ((2, 2), (0, 3)), multiplier=2),
        depthwise((1, 6, 8, 3), (3, 3), (1, 1), NONE, FREE, points=(1, -3)),
        depthwise((1, 3, 4, 2), (3, 3), (1, 1), ((4, 5), (5, 4)), FREE, points=(-9, 3)),
        depthwise((1, 4, 5, 300)),
        *(depthwise((1, 5, w, 3), optimize="size") for w in (2, 6, 8, 9, 14)),
        *(depthwise((1, 5, w, 4), extreme=True, optimize="size") for w in (7, 10)),
        depthwise((1, 6, 6, 4), extreme=True),
        depthwise((1, 6, 6, 5), largest=50),
        depthwise((1, 6, 6, 4), extreme=True, activation=FREE, points=(2, 4)),
        depthwise((1, 6, 6, 4), steep=40.0, activation=FREE, points=(0, 9)),
        depthwise((1, 5, 9, 4), rounding=Rounding.ONNX, activation=FREE, points=(0, 9)),
    )  # fmt: skip


@cache
def three_columns() -> tuple[tuple[Case, int], ...]:
    """Return convolutions three columns wide, each with its limit of scratch in bytes."""
    return (
        *((convolution((1, 5, 4 * s, k), n, (3, 3), (s, s), SAME), 16 << 10)
          for k in (1, 2, 3, 4, 6, 9, 37) for n, s in ((1, 1), (5, 2))),
        *((convolution((1, 4, w, 5), 3, (3, 3), (1, 1), SAME, FREE, points=(9, 4)), 4096)
          for w in (4, 5, 7, 8, 11)),
        *((convolution((1, 7, w, 5), 3, (3, 3), (2, 2), AFTER, FREE, points=(9, 4)), 2048)
          for w in (8, 9, 12, 15, 18)),
        *((convolution((1, 9, 8, 16), 6, (3, 3), (1, 1), SAME, largest=60), scratch_limit)
          for scratch_limit in (4096, 8192, 9000, 10_000, 1 << 16)),
        *((convolution((1, 12, 9, 12), 4, (3, 3), (2, 2), SAME, largest=60), scratch_limit)
          for scratch_limit in (2048, 5000, 1 << 16)),
        (convolution((1, 12, 8, 8), 7, (2, 3), (1, 1), activation=FREE, points=(-4, 3)), 8192),
        (convolution((1, 12, 9, 6), 3, (1, 3), (3, 1), activation=NARROW), 2048),
        (convolution((1, 9, 70, 2), 3, (3, 3), (1, 1), ((0, 3), (2, 2))), 4096),
        (convolution((1, 5, 140, 3), 3, (3, 3), (2, 2), AFTER), 4096),
        (convolution((2, 5, 6, 6), 9, (3, 3), (1, 1), SAME, FREE, points=(-3, 100)), 4096),
        (convolution((1, 6, 8, 8), 4, (3, 3), (1, 1), SAME, extreme=True), 4096),
        (convolution((1, 6, 9, 8), 4, (3, 3), (2, 1), SAME, extreme=True), 1 << 16),
        (convolution((1, 6, 8, 8), 4, (3, 3), (1, 1), SAME, steep=40.0, points=(0, 9)), 4096),
        (convolution((1, 6, 8, 8), 4, (3, 3), (1, 1), SAME, steep=0.01), 4096),
        (convolution((1, 6, 8, 8), 4, (3, 3), (1, 1), SAME, FREE, rounding=Rounding.ONNX), 4096),
        (convolution((1, 6, 8, 8), 4, (3, 3), (1, 1), SAME, optimize="size"), 1 << 16),
        *((convolution((1, 9, w, k), 5, (3, 3), (s, s), padding, FREE, points=(z, 9),
                       optimize="size", extreme=k == 4), 6000)
          for w, k, s, padding, z in ((8, 8, 1, SAME, -7), (12, 16, 1, SAME, 5),
                                      (10, 4, 1, NONE, 3),
                                      (16, 8, 2, AFTER, 9), (17, 12, 2, NONE, -128))),
        (convolution((1, 6, 8, 8), 4, (3, 3), (1, 1), SAME, optimize="ram"), 1 << 16),
    )  # fmt: skip


def call_of(case: Case) -> KernelCall | None:
    """Return the call that computes a case; None for the fallback."""
    call = BACKEND.find(case.node, Request(M3, case.optimize))
    return None if isinstance(call, Refusal) else call


def shared(own: Sequence[tuple[Case, KernelCall]]) -> Iterator[tuple[Case, KernelCall]]:
    """Yield the calls of shared bodies: of one for each case alone, and of one for all cases."""
    groups: dict[Hashable, list[tuple[Case, SharedBody]]] = {}
    for case, call in own:
        if call.shared is not None:
            yield case, call.shared.call
            groups.setdefault(call.shared.key, []).append((case, call.shared))
    for group in groups.values():
        joint = group[0][1].joined([body for _, body in group])
        yield from zip((case for case, _ in group), joint.calls, strict=True)


@cache
def entries() -> tuple[tuple[Case, Entry], ...]:
    """Return the cases that are served."""
    calls = ((case, call_of(case)) for case in cases())
    own = [(case, call) for case, call in calls if call is not None]
    some = (*own, *shared(own), *rows_calls(), *shared(rows_calls()))
    return tuple((case, Entry(case.node, call)) for case, call in some)


@cache
def rows_calls() -> tuple[tuple[Case, KernelCall], ...]:
    """Return the calls of convolutions over widened rows."""
    rows = Backend("armv7m", armv7m_convolution_rows.KERNELS)
    found: list[tuple[Case, KernelCall]] = []
    for case, scratch_limit in three_columns():
        call = rows.find(case.node, Request(M3, case.optimize, scratch_limit=scratch_limit))
        assert not isinstance(call, Refusal), call
        assert call.scratch_bytes <= max(scratch_limit, SCRATCH_LIMIT)
        found.append((case, call))
    return tuple(found)


def runs_of() -> list[Run]:
    """Return a run of each case."""
    return [Run(c.name, e, c.samples, c.expected()) for c, e in entries()]


def test_most_cases_are_served() -> None:
    served = {case.name for case, _ in entries()}
    missing = [case.name for case in cases() if case.name not in served]
    assert len(missing) <= 1, missing


def test_working_memory_is_small() -> None:
    wide = {call.template for _, call in (*rows_calls(), *shared(rows_calls()))}
    for case, entry in entries():
        if entry.call.template in wide:
            continue
        assert entry.call.scratch_bytes <= SCRATCH_LIMIT, case.name


def test_both_kinds_of_weights_are_tried() -> None:
    forms = {entry.call.form for _, entry in entries() if entry.call.form}
    pairs = {"armv7m_pairs_2x3", "armv7m_pairs_words_2x3", "armv7m_pairs_4x1"}
    assert forms == {*pairs, "armv7m_columns_3x3", "armv7m_rows_3"}
    rows = [entry.call for _, entry in entries() if entry.call.form == "armv7m_rows_3"]
    assert {call.work["made"] > 0 for call in rows} == {False, True}
    assert any(call.work["repairs"] for call in rows)


@pytest.mark.parametrize(("optimize", "bodies"), [("speed", 2), ("size", 1)])
def test_layers_of_different_sizes_share_a_body(optimize: Optimize, bodies: int) -> None:
    """For speed, weights are in bytes if layers have few pixels, and otherwise in words."""
    shapes = ((6, 6, 8), 13), ((7, 5, 12), 10), ((4, 4, 20), 10), ((4, 4, 21), 10)
    calls = [
        call_of(convolution((1, *shape), outputs, optimize=optimize)) for shape, outputs in shapes
    ]
    keys = [call.shared.key for call in calls if call is not None and call.shared is not None]
    assert len(keys) == len(shapes)
    assert len(set(keys)) == bodies


def test_widened_rows_of_any_size_share_a_body_for_size() -> None:
    bodies = [call.shared for _, call in rows_calls() if call.shared is not None]
    assert len(bodies) > 5
    assert len({body.key for body in bodies}) == 1


@pytest.mark.parametrize(("optimize", "width", "depth"), [("speed", 6, 31), ("size", 9, 20)])
def test_lines_share_their_functions(optimize: Optimize, width: int, depth: int) -> None:
    """Lines of equal length do and, for size, all of at least three outputs with equal rests."""
    cases = [
        depthwise((1, 6, w, k), (3, 3), (1, 1), SAME, largest=60, optimize=optimize)
        for w, k in ((6, 19), (width, depth))
    ]
    calls = [call for call in map(call_of, cases) if call is not None]
    assert len({tuple(inner.key for inner in call.inner) for call in calls}) == len(calls)
    assert len({call.shared.key for call in calls if call.shared is not None}) == 1


def test_layers_of_equal_requantization_share_its_code() -> None:
    cases = [convolution((1, 6, 6, 8), 4)] * 2
    cases += [convolution((1, 6, 6, 8), outputs, activation=NARROW) for outputs in (4, 5)]
    bodies = [call.shared for call in map(call_of, cases) if call is not None]
    joint = [
        bodies[0].joined([body for body in some if body is not None]).calls[0].inner[1].parameters
        for some in (bodies[:1], bodies[:2], bodies[:3], bodies)
        if bodies[0] is not None
    ]
    assert [len(p.tails) for p in joint if isinstance(p, JointParameters)] == [1, 1, 2, 3]


@pytest.mark.qemu
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(
    ("case", "within"),
    [
        (convolution((1, 6, 6, 16), 12), 0.02),
        (convolution((1, 5, 5, 30), 9, optimize="size"), 0.025),
        (convolution((1, 6, 7, 130), 8, activation=NARROW), 0.02),
        (convolution((1, 4, 7, 12), 5, activation=FREE, points=(3, -4)), 0.02),
        (depthwise((1, 6, 6, 9), (3, 3), (1, 1), SAME), 0.06),
        (depthwise((1, 24, 24, 5), (3, 3), (1, 1), SAME), 0.06),
    ],
    ids=["speed", "size", "long", "nudged", "short lines", "long lines"],
)
def test_instructions_of_bodies_are_counted(
    case: Case, within: float, monkeypatch: pytest.MonkeyPatch, *, alone: bool
) -> None:
    """The counts decide whether layers share a body."""
    options = Options(
        board="mps2-an385", target="cortex-m3", optimize=case.optimize, backends=("armv7m",)
    )
    offered = call_of(case)
    assert offered is not None
    check_instructions(
        case.graph, case.samples[0], offered, options, monkeypatch, alone=alone, within=within
    )


@pytest.mark.thorough
def test_host_definitions_equal_the_reference(tmp_path: Path) -> None:
    check_on_host(runs_of(), tmp_path)


@pytest.mark.slow
def test_host_definitions_as_released_equal_the_reference(tmp_path: Path) -> None:
    check_on_host(runs_of(), tmp_path, RELEASED, "gcc")


@pytest.mark.parametrize("compiler", READERS)
def test_compilers_give_no_warnings(compiler: str, tmp_path: Path) -> None:
    check_read_by(compiler, [entry for _, entry in entries()], tmp_path)


@pytest.mark.skipif(shutil.which("qemu-system-arm") is None, reason="no qemu-system-arm")
def test_assembly_equals_the_reference(tmp_path: Path) -> None:
    assert said_on(core_of("cortex-m3"), runs_of(), tmp_path) == "passed"


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3, 4))])
@pytest.mark.skipif(shutil.which("qemu-system-arm") is None, reason="no qemu-system-arm")
def test_random_nodes(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    runs: list[Run] = []
    for i in range(120):
        graph = random_graph(rng)
        case = Case(f"{i}: {graph.nodes[0].op}", graph, samples_of(graph, rng), "speed")
        call = call_of(case)
        if call is not None:
            runs.append(Run(case.name, Entry(case.node, call), case.samples, case.expected()))
    assert len(runs) > 20
    assert said_on(core_of("cortex-m3"), runs, tmp_path) == "passed"


EXTREMES = (-128, -127, -1, 0, 1, 126, 127)
BYTES = st.integers(-128, 127)


def upper(x: int, weight: int) -> int:
    """Return the upper halfword of a product of words, as an arithmetic shift by 16 reads it."""
    return ((x * weight + 2**31) % 2**32 - 2**31) >> 16


@given(BYTES, BYTES, BYTES, BYTES)
def test_a_lifted_product_holds_two_taps(first: int, second: int, x: int, y: int) -> None:
    weights = PairedWeights.of(np.asarray([[[first, second]]]))
    w = int(weights.kept[0, 0, 0])
    lack = sum(missing for _, missing in weights.repairs[0])
    for a, b in ((x, y), *product(EXTREMES, EXTREMES)):
        word = (a + LIFT) + (b << 16)
        found = upper(word, second + (w << 16)) + (second < 0) + upper(word, lack << 16)
        assert found - LIFT * first == a * first + b * second


@given(st.lists(BYTES, min_size=4, max_size=4), st.integers(0, 128), BYTES, BYTES)
def test_a_counted_product_holds_two_taps(
    weights: Sequence[int], offset: int, x: int, y: int
) -> None:
    counted = CountedWeights.of(np.asarray([weights]), offset)
    lacks = dict(counted.repairs[0])
    for pair, taps in enumerate(((0, 2), (1, 3))):
        (a, b), word = counted.pairs[0, 0, pair].tolist(), 4 * pair
        for p, q in ((x, y), *product(EXTREMES, EXTREMES)):
            first, second = p + 128, q + 128
            found = ((first + (second << 16)) * (b + (a << 16)) % 2**32) >> 16
            found += first * lacks.get(word, 0) + second * lacks.get(word + 2, 0)
            wanted = first * (weights[taps[0]] + offset) + second * (weights[taps[1]] + offset)
            assert found == wanted


@pytest.mark.parametrize("run", range(1, 14))
def test_pairs_hold_each_tap_once(run: int) -> None:
    taps = [tap for pair in pairs_of(run) for tap in pair if tap is not None]
    assert sorted(taps) == list(range(run))


def test_only_cores_without_dsp_are_served() -> None:
    assert [t.name for t in available() if "armv7m" in t.backends] == ["cortex-m3"]


def test_windows_beyond_scratch_are_refused() -> None:
    case = convolution((1, 3, 3, 200), 8, (3, 3), (1, 1), NONE, largest=20)
    assert f"{SCRATCH_LIMIT} bytes" in str(BACKEND.find(case.node, Request(M3)))
