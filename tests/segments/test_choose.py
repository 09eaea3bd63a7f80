"""Segments that are chosen so that a network fits: `--max-ram`, boards, and `--optimize ram`."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import pairwise
from typing import cast
from unittest.mock import PropertyMock, patch

import pytest

from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.codegen.lower.kernel import DEFAULT_SCRATCH
from smelt.codegen.schedule.fitting import Fitting
from smelt.codegen.segments.choose import SegmentSearch
from smelt.codegen.segments.parts import GraphPart, Parts
from smelt.errors import DoesNotFit
from smelt.ir import evaluate
from smelt.ops.tensor.slice import Slice
from smelt.samples import random_samples
from tests.support.banded_networks import RandomNetwork
from tests.support.graphs import assert_same, compile_graph
from tests.support.semihosted import outputs_of
from tests.support.shared import shared
from tests.support.shrinking_network import network, with_state

TARGETS = ("cortex-m0", "cortex-m3", "cortex-m4", "cortex-m55", "host")


def cycles(artifact: Artifact) -> int:
    return sum(step.cycles or 0 for step in artifact.schedule.calls)


@pytest.mark.parametrize("target", TARGETS)
def test_layers_are_computed_in_bands_where_whole_tensors_do_not_fit(target: str) -> None:
    whole = compile_graph(network(), Options(target, max_ram=100_000))
    assert not whole.schedule.segments
    found = compile_graph(network(), Options(target, max_ram=20_000))
    assert found.network.arena_bytes <= 20_000 < whole.network.arena_bytes
    banded = [step for step in found.schedule.calls if step.bands]
    assert banded
    assert all(re.match(r"Computed \d+ rows? at a time, in \d+ turns\.", s.reason) for s in banded)
    count = "1 layer" if len(banded) == 1 else f"{len(banded)} layers"
    assert any(f"{count} computed a few rows at a time" in note for note in found.notes)
    layers = cast("list[dict[str, object]]", found.report["layers"])
    reported = [layer["name"] for layer in layers if layer["bands"]]
    assert reported == [step.node.name for step in banded]


@pytest.mark.parametrize("target", TARGETS)
def test_memory_is_saved_where_it_costs_at_most_one_percent(target: str) -> None:
    """The host has no prices, so that the cost is unknown there."""
    options = Options(target)
    fastest = compile_graph(network(), replace(options, max_ram=100_000))
    found = compile_graph(network(), options)
    small = compile_graph(network(), replace(options, optimize="size"))
    assert bool(found.schedule.segments) == (target != "host")
    assert not small.schedule.segments
    if target != "host":
        assert found.network.arena_bytes <= 0.75 * fastest.network.arena_bytes
        assert cycles(found) <= 1.01 * cycles(fastest)
        assert any("computed a few rows at a time" in note for note in found.notes)


@pytest.mark.parametrize("target", TARGETS)
def test_a_limit_that_does_not_bind_allows_the_fastest_kernels(target: str) -> None:
    limited = compile_graph(network(), Options(target, max_ram=10**9))
    with patch("smelt.api.compile.can_have_segments", return_value=False):
        fastest = compile_graph(network(), Options(target))
    assert not limited.schedule.segments
    assert cycles(limited) <= cycles(fastest)


def test_segments_can_split_channels() -> None:
    """A slice has the size of its whole result, but can make a few rows of it."""
    graph = RandomNetwork(3).split(24)
    found = compile_graph(graph, Options("cortex-m4"))
    banded = [step.node.op for step in found.schedule.calls if step.bands]
    assert any(isinstance(op, Slice) for op in banded)
    artifact = compile_graph(graph, Options("host", "host", optimize="ram"))
    assert artifact.schedule.segments
    samples = random_samples(graph, 2, 0)
    wanted = [evaluate(graph, sample).outputs for sample in samples]
    assert_same(outputs_of(artifact, samples), wanted, "outputs")


def test_layers_in_segments_may_take_as_much_scratch_as_whole_tensors() -> None:
    """The depthwise layer needs more scratch than calls may take where nothing is known."""
    graph = RandomNetwork(0, channels=8).with_wide_rows()
    fastest = compile_graph(graph, Options("cortex-m4", max_ram=10**9))
    found = compile_graph(graph, Options("cortex-m4"))
    scratch = [step.choice.taken.memory for step in found.schedule.calls if step.bands]
    assert max(scratch) > DEFAULT_SCRATCH
    assert found.network.arena_bytes < fastest.network.arena_bytes / 2
    assert cycles(found) <= 1.01 * cycles(fastest)


def test_segments_that_take_more_constants_than_they_save_are_not_used() -> None:
    """Pretend that the kernels for a few rows need a copy of the weights each."""
    constants = "smelt.codegen.schedule.fitting.Fitting.constants"
    sizes = iter((100_000, 0))  # of the segments, then of whole tensors
    with patch(constants, PropertyMock(side_effect=sizes)):
        found = compile_graph(network(), Options("cortex-m4"))
    assert not found.schedule.segments


@pytest.mark.parametrize("share", [1.005, 0.995])
def test_plans_that_are_slower_than_estimated_are_not_used(share: float) -> None:
    """Pretend that a plan takes more cycles than the search has estimated."""
    whole = cycles(compile_graph(network(), Options("cortex-m4", max_ram=100_000)))

    def slower(self: Fitting) -> int:
        return round(whole * 1.01 * share) if self.schedule.segments else whole

    with patch("smelt.codegen.schedule.fitting.Fitting.cycles", property(slower)):
        found = compile_graph(network(), Options("cortex-m4"))
    assert bool(found.schedule.segments) == (share < 1)


@pytest.mark.parametrize("limit", [15_500, 17_000, 24_000])
def test_the_search_finds_what_it_would_find_if_it_estimated_all_segments(limit: int) -> None:
    """Segments that seem to take no cycles are all estimated."""
    options = Options("cortex-m4", max_ram=limit)
    found = compile_graph(network(), options)
    with patch.object(SegmentSearch, "_least_cycles", return_value=-1.0):
        all_estimated = compile_graph(network(), options)
    assert abs(cycles(found) - cycles(all_estimated)) < 10  # the estimate of each call is rounded


@pytest.mark.parametrize("target", ["cortex-m4", "host"])
def test_less_memory_takes_no_fewer_cycles(target: str) -> None:
    smallest = compile_graph(network(), Options(target, optimize="ram"))
    limits = range(smallest.network.arena_bytes, 30_000, 3_000)
    found = [compile_graph(network(), Options(target, max_ram=limit)) for limit in limits]
    assert all(a.network.arena_bytes <= n for a, n in zip(found, limits, strict=True))
    if target != "host":  # the host has no prices
        # The estimate of each call is rounded.
        assert all(more >= less - 10 for more, less in pairwise(map(cycles, found)))


@pytest.mark.parametrize("below", [16, 200])
def test_segments_are_used_just_below_what_whole_tensors_need(below: int) -> None:
    """Whole tensors take 27,648 bytes with the least scratch."""
    limit = 2 * 24 * 24 * 24 - below
    found = compile_graph(network(), Options("cortex-m4", max_ram=limit))
    assert found.schedule.segments
    assert found.network.arena_bytes <= limit


def test_a_limit_fits_wherever_a_smaller_limit_does() -> None:
    """Pretend that the search finds nothing for the limit itself."""
    smallest = compile_graph(network(), Options("cortex-m4", optimize="ram")).network.arena_bytes
    find, limit = SegmentSearch.fastest, 20_000

    def nothing_at_limit(
        self: SegmentSearch, bytes_: int, excluded: AbstractSet[GraphPart] = frozenset()
    ) -> Parts | None:
        return None if bytes_ == limit else find(self, bytes_, excluded)

    with patch.object(SegmentSearch, "fastest", nothing_at_limit):
        found = compile_graph(network(), Options("cortex-m4", max_ram=limit))
    assert smallest <= found.network.arena_bytes <= limit


def test_segments_are_used_if_they_are_faster_than_kernels_with_less_scratch() -> None:
    whole = compile_graph(network(), Options("cortex-m4", max_ram=100_000))
    limit = whole.network.arena_bytes - 1
    found = compile_graph(network(), Options("cortex-m4", max_ram=limit))
    with patch("smelt.api.compile.can_have_segments", return_value=False):
        slower = compile_graph(network(), Options("cortex-m4", max_ram=limit))
    assert found.network.arena_bytes <= limit
    assert cycles(found) <= cycles(slower)


def test_the_smallest_arena_is_not_larger_than_any_limit_that_fits() -> None:
    smallest = compile_graph(network(), Options("cortex-m4", optimize="ram")).network.arena_bytes
    with pytest.raises(DoesNotFit, match=r"larger --max-ram if you gave one"):
        compile_graph(network(), Options("cortex-m4", max_ram=smallest // 2))
    assert smallest < 14_000 + 24 * 24 * 4


def test_states_and_kept_inputs_are_whole() -> None:
    """The image stays live to the end if inputs are kept."""
    graph = with_state()
    kept = compile_graph(graph, Options("host", "host", optimize="ram", keep_inputs=True))
    free = compile_graph(graph, Options("host", "host", optimize="ram"))
    assert free.network.arena_bytes < kept.network.arena_bytes
    assert kept.network.arena_bytes > 24 * 24 * 24
    for artifact in (kept, free):
        samples = random_samples(graph, 1, 5)
        wanted = [evaluate(graph, sample).outputs for sample in samples]
        assert_same(outputs_of(artifact, samples), wanted, "outputs")


@pytest.mark.quick(every=3)
@pytest.mark.parametrize("seed", range(9))
def test_the_smallest_arenas_of_random_networks_compute_the_same(seed: int) -> None:
    graph = RandomNetwork(200 + seed).graph(6)
    artifact = compile_graph(graph, Options("host", "host", optimize="ram"))
    samples = random_samples(graph, 2, seed)
    wanted = [evaluate(graph, sample).outputs for sample in samples]
    assert_same(outputs_of(artifact, samples), wanted, f"seed {seed}")


GOALS = [
    ("vww", 28_300),
    ("ic", 18_400),
    ("ic", 23_100),
    ("kws", 9_400),
    ("kws", 8_500),
    ("sww", 4_900),
    ("sww", 3_800),
    ("ad", 768),
]
"""Bytes of arena, with which MLPerf Tiny's networks must be compiled for a Cortex-M4."""


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "limit"), GOALS)
def test_networks_fit_into_little_memory(name: str, limit: int) -> None:
    model = shared(f"models/mlperf_tiny/{name}_int8.tflite")
    artifact = compile_model(model, Options("cortex-m4", max_ram=limit))
    assert artifact.network.arena_bytes <= limit
