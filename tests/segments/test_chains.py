"""Layers that overwrite the rows that they read: bands in one buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from unittest.mock import patch

import pytest

from smelt.api import compile as pipeline
from smelt.api.artifact import Artifact
from smelt.api.options import Options
from smelt.codegen import arena
from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.schedule import fitting
from smelt.codegen.schedule.replay import replay
from smelt.codegen.schedule.schedule import Schedule
from smelt.codegen.schedule.steps import BandedSegment, RowsMove
from smelt.codegen.segments.bands import BandNodes, RowBands, bands_of, segment_of
from smelt.codegen.segments.chains import BandChain, chains_of
from smelt.codegen.segments.choose import SegmentSearch
from smelt.errors import GraphError
from smelt.ir import Graph, Node, evaluate
from smelt.samples import random_samples
from tests.support.banded_networks import RandomNetwork, chained, in_place
from tests.support.graphs import SETUPS, SampleOutputs, assert_same, compile_graph
from tests.support.sanitized import run_sanitized
from tests.support.semihosted import outputs_of

ROWS = tuple(map(Fraction, (1, 2, 3, 4)))


def separable(seed: int) -> Graph:
    """Return depthwise and 1x1 convolutions whose strides are 1 along the rows."""
    return RandomNetwork(seed, channels=4).separable(4)


def bands_for(graph: Graph, rows: Fraction) -> RowBands:
    """Return the bands of all layers of a network but the first, which is no 1x1 convolution."""
    segment = segment_of(graph, graph.nodes[1:])
    assert segment is not None
    bands = bands_of(segment, rows)
    assert bands is not None
    return bands


def in_chain(
    graph: Graph, options: Options, rows: Fraction
) -> tuple[Artifact, tuple[BandChain, ...]]:
    """Compile a network whose layers overwrite what they read, and return the chains."""
    found: list[BandChain] = []

    def forced(
        scheduled: fitting.Scheduling,
        partitioner: Partitioner,
        search: SegmentSearch | None,
        **_: object,
    ) -> fitting.Fitting:
        assert search is not None
        turns = chained(bands_for(search.graph, rows), BandNodes(), in_place(partitioner))
        found.extend(turns.chains)
        made = scheduled(partitioner, [turns])
        return fitting.Fitting(made, arena.plan(made.problem))

    with patch.object(pipeline, "kernels_that_fit", forced):
        return compile_graph(graph, options), tuple(found)


def check(artifact: Artifact, outputs: SampleOutputs, what: str) -> None:
    samples = random_samples(artifact.imported.graph, 2, 3)
    wanted = [evaluate(artifact.imported.graph, sample).outputs for sample in samples]
    assert_same(outputs, wanted, what)


@pytest.mark.quick(every=3)
@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m3"])
@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_layers_overwrite_what_they_read(
    seed: int, rows: Fraction, target: str, tmp_path: Path
) -> None:
    """On this computer, in the plain C of the kernels, with sanitizers."""
    artifact, chains = in_chain(separable(seed), Options(target, "host"), rows)
    assert chains or target == "cortex-m3"
    samples = random_samples(artifact.imported.graph, 2, 3)
    check(artifact, run_sanitized(artifact, samples, tmp_path / "project"), f"{seed}, {rows}")


@pytest.mark.qemu
@pytest.mark.quick(setup=("m4",), rows=(Fraction(2),))
@pytest.mark.parametrize("setup", ["m0", "m3", "m4", "m33", "m55"])
@pytest.mark.parametrize("rows", ROWS[1:3], ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_layers_overwrite_what_they_read_on_a_core(seed: int, rows: Fraction, setup: str) -> None:
    artifact, _ = in_chain(separable(seed), SETUPS[setup], rows)
    samples = random_samples(artifact.imported.graph, 2, 3)
    check(artifact, outputs_of(artifact, samples), f"seed {seed}, {rows} rows on {setup}")


def always(_node: Node, _made: range) -> bool:
    return True


def never(_node: Node, _made: range) -> bool:
    return False


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_chains_take_less_than_their_bands(rows: Fraction) -> None:
    bands = bands_for(separable(0), rows)
    (chain,) = chains_of(bands, always)
    alone = [bands.band_rows(v) * bands.segment.row_bytes(v) for v in chain.offsets]
    kept = [bands.kept[v] * bands.segment.row_bytes(v) for v in chain.offsets]
    assert max(alone) <= chain.size <= max(alone) + sum(kept)
    low, high = chain.extent()
    assert 0 <= low.min() <= high.max() <= chain.size


def test_wrong_offsets_are_not_possible() -> None:
    """Moved apart from the bands before, each band but the last overlaps what others still need."""
    bands = bands_for(separable(0), Fraction(2))
    (chain,) = chains_of(bands, always)
    assert chain.is_possible(always)
    assert not chain.is_possible(never)
    for moved in list(chain.offsets)[1:-1]:
        row = bands.segment.row_bytes(moved)
        offsets = {v: offset + row * (v is moved) for v, offset in chain.offsets.items()}
        assert not BandChain(bands, offsets).is_possible(always)


def test_segments_that_make_their_last_rows_first_have_no_chains() -> None:
    bands = bands_for(separable(0), Fraction(2))
    mirrored = bands_of(bands.segment.mirrored(), Fraction(2))
    assert mirrored is not None
    assert chains_of(mirrored, always) == ()


def test_chains_are_dropped_if_a_call_for_the_last_rows_is_not_in_place() -> None:
    """The search asks about most calls, but other kernels may compute the first and last rows."""
    bands = bands_for(separable(0), Fraction(2))
    turns = chained(bands, BandNodes(), lambda _: True)
    assert len(turns.chains) == 1
    assert turns.with_possible_chains(lambda _: True) is turns
    few = {node for calls in turns.band_nodes().values() for node in calls if calls[node] == 1}
    assert few
    assert turns.with_possible_chains(lambda node: node not in few).chains == []


def without_a_move(schedule: Schedule) -> Iterator[Schedule]:
    """Yield the schedule without one of the moves that several turns make."""
    for i, action in enumerate(schedule.actions):
        if not isinstance(action, BandedSegment):
            continue
        for n, move in enumerate(action.actions):
            if isinstance(move, RowsMove) and len(move.turns) > 1:
                fewer = (*action.actions[:n], *action.actions[n + 1 :])
                changed = replace(action, actions=fewer)
                actions = (*schedule.actions[:i], changed, *schedule.actions[i + 1 :])
                yield replace(schedule, actions=actions)


def test_the_replay_finds_each_missing_move() -> None:
    artifact, _ = in_chain(separable(0), Options("cortex-m4"), Fraction(2))
    replay(artifact.schedule, artifact.plan)
    tried = 0
    for wrong in without_a_move(artifact.schedule):
        tried += 1
        with pytest.raises(GraphError):
            replay(wrong, artifact.plan)
    assert tried >= 2
