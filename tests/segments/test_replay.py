"""The replay accepts correct segments and finds each kind of fault in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from smelt.api import compile as pipeline
from smelt.api.artifact import Artifact
from smelt.api.options import Options
from smelt.codegen import arena
from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.schedule import fitting
from smelt.codegen.schedule.replay import replay
from smelt.codegen.schedule.schedule import Schedule
from smelt.codegen.schedule.steps import BandCall, BandedSegment, InBuffer, RowsMove
from smelt.codegen.segments.bands import BandNodes, bands_of, segment_of
from smelt.codegen.segments.choose import SegmentSearch
from smelt.codegen.segments.turns import Turns
from smelt.errors import GraphError
from smelt.ir import Graph, evaluate
from smelt.samples import Sample, random_samples
from tests.support.banded_networks import RandomNetwork, chain, in_place, random_segments
from tests.support.graphs import SETUPS, SampleOutputs, assert_same, compile_graph
from tests.support.sanitized import run_sanitized
from tests.support.semihosted import outputs_of


def in_random_segments(graph: Graph, options: Options, seed: int) -> Artifact:
    """Compile a graph in random segments."""
    rng = np.random.default_rng(seed)

    def forced(
        scheduled: fitting.Scheduling,
        partitioner: Partitioner,
        search: SegmentSearch | None,
        **_: object,
    ) -> fitting.Fitting:
        assert search is not None
        word = 1 if "unaligned" in partitioner.request.target.features else 4
        segments = random_segments(search.graph, rng, word, in_place(partitioner))
        made = scheduled(partitioner, segments)
        return fitting.Fitting(made, arena.plan(made.problem))

    with patch.object(pipeline, "kernels_that_fit", forced):
        return compile_graph(graph, options)


def unchanged(graph: Graph, **_: object) -> Graph:
    """Return the graph as it is, in place of the passes."""
    return graph


def in_segments(graph: Graph, options: Options, segments: Sequence[Turns]) -> Artifact:
    """Compile a graph in segments of its own nodes, without passes."""

    def forced(
        scheduled: fitting.Scheduling,
        partitioner: Partitioner,
        search: SegmentSearch | None,
        **_: object,
    ) -> fitting.Fitting:
        made = scheduled(partitioner, segments)
        return fitting.Fitting(made, arena.plan(made.problem))

    with (
        patch.object(pipeline, "kernels_that_fit", forced),
        patch.object(pipeline, "run_passes", unchanged),
    ):
        return compile_graph(graph, options)


def network(seed: int) -> Graph:
    return RandomNetwork(seed).graph(5, pooled=seed % 2 == 0)


def expected(artifact: Artifact, count: int) -> tuple[list[Sample], SampleOutputs]:
    samples = random_samples(artifact.imported.graph, count, 3)
    return samples, [evaluate(artifact.imported.graph, sample).outputs for sample in samples]


@pytest.mark.quick(every=4)
@pytest.mark.parametrize("seed", range(24))
def test_random_segments_compute_the_network(seed: int, tmp_path: Path) -> None:
    """On this computer with sanitizers, which find reads and writes outside of the arena."""
    artifact = in_random_segments(network(seed), Options("host", "host"), seed)
    samples, wanted = expected(artifact, 2)
    assert_same(run_sanitized(artifact, samples, tmp_path / "project"), wanted, f"seed {seed}")


@pytest.mark.qemu
@pytest.mark.quick(setup=("m4",))
@pytest.mark.parametrize("setup", ["m0", "m3", "m4", "m33", "m55"])
@pytest.mark.parametrize("seed", range(4))
def test_random_segments_compute_the_network_on_a_core(setup: str, seed: int) -> None:
    """Half of the networks have rows that are no multiple of a word."""
    channels = 4 if seed % 2 or setup == "m0" else 1
    graph = RandomNetwork(100 + seed, channels=channels).graph(7, pooled=True)
    artifact = in_random_segments(graph, SETUPS[setup], seed)
    assert artifact.schedule.segments
    samples, wanted = expected(artifact, 2)
    assert_same(outputs_of(artifact, samples), wanted, f"seed {seed} on {setup}")


Edit = Iterator[Sequence[BandCall | RowsMove]]
"""What an action is replaced by, once for each place of a fault."""
Fault = Callable[[BandCall | RowsMove], Edit]

# --- faults ---------------------------------------------------------------------------------------


def edited(artifact: Artifact, change: Fault, *, repeated: bool) -> Iterator[Schedule]:
    """Yield the schedule with one action of a segment changed, for each change."""
    for i, segment in enumerate(artifact.schedule.actions):
        if not isinstance(segment, BandedSegment):
            continue
        for k, action in enumerate(segment.actions):
            if repeated and len(action.turns) == 1:
                continue
            for others in change(action):
                actions = (*segment.actions[:k], *others, *segment.actions[k + 1 :])
                yield with_segment(artifact.schedule, i, replace(segment, actions=actions))


def with_segment(schedule: Schedule, index: int, segment: BandedSegment) -> Schedule:
    actions = schedule.actions
    return replace(schedule, actions=(*actions[:index], segment, *actions[index + 1 :]))


def in_fewer_turns(action: BandCall | RowsMove) -> Edit:
    """Leave out the first turn, then the last one."""
    for turns in (action.turns[1:], action.turns[:-1]):
        yield (replace(action, turns=turns),)


def without_shift(action: BandCall | RowsMove) -> Edit:
    if isinstance(action, RowsMove):
        yield ()


def shorter_shift(action: BandCall | RowsMove) -> Edit:
    if isinstance(action, RowsMove):
        yield (replace(action, bytes=action.bytes - 1),)


def shift_from_elsewhere(action: BandCall | RowsMove) -> Edit:
    if isinstance(action, RowsMove):
        yield (replace(action, start=action.start + (-1 if action.start else 1)),)


def argument_elsewhere(action: BandCall | RowsMove) -> Edit:
    if isinstance(action, BandCall):
        operands = action.choice.taken.call.operands
        for i, (operand, argument) in enumerate(zip(operands, action.arguments, strict=True)):
            if isinstance(argument, InBuffer) and type(operand).__name__ in ("Input", "Output"):
                other = replace(argument, start=argument.start + 1)
                yield (
                    replace(
                        action,
                        arguments=(*action.arguments[:i], other, *action.arguments[i + 1 :]),
                    ),
                )


def without_call(action: BandCall | RowsMove) -> Edit:
    if isinstance(action, BandCall):
        yield ()


def call_twice(action: BandCall | RowsMove) -> Edit:
    if isinstance(action, BandCall):
        yield action, action


def call_in_fewer_turns(action: BandCall | RowsMove) -> Edit:
    if isinstance(action, BandCall):
        yield from in_fewer_turns(action)


def shift_in_fewer_turns(action: BandCall | RowsMove) -> Edit:
    if isinstance(action, RowsMove):
        yield from in_fewer_turns(action)


def moves_bytes(move: RowsMove, plan: arena.Plan) -> bool:
    """Return whether source and target of a move have different addresses."""
    return plan[move.source].offset + move.start != plan[move.target].offset + move.to


ANY_CALL = [argument_elsewhere, without_call, call_twice, call_in_fewer_turns]
"""Faults that make every network wrong."""
ANY_SHIFT = [without_shift, shorter_shift, shift_from_elsewhere, shift_in_fewer_turns]
"""Faults that make a network wrong if each row is read in the turn after the shift."""


def assert_found(artifact: Artifact, fault: Fault, *, repeated: bool = False) -> int:
    """Assert that a fault is found in each action, or only in those of several turns."""
    tried = 0
    replay(artifact.schedule, artifact.plan)
    for schedule in edited(artifact, fault, repeated=repeated):
        tried += 1
        with pytest.raises(GraphError):
            replay(schedule, artifact.plan)
    return tried


@pytest.mark.parametrize("fault", ANY_CALL, ids=lambda fault: fault.__name__)
def test_each_wrong_call_is_found(fault: Fault) -> None:
    seeds = range(6)
    artifacts = [in_random_segments(network(s), Options("cortex-m4"), s) for s in seeds]
    assert sum(assert_found(artifact, fault) for artifact in artifacts) > 10


@pytest.mark.parametrize("fault", ANY_SHIFT, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("mirrored", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("kept", ["late", "early", "spilled"])
@pytest.mark.parametrize("rows", [Fraction(2), Fraction(1, 2)])
def test_each_wrong_shift_is_found(
    fault: Fault, rows: Fraction, kept: str, *, mirrored: bool
) -> None:
    """In a chain of windows of three rows; in the last turns, not all rows are read again."""
    graph = chain(strided=rows < 1)
    whole = segment_of(graph, graph.nodes)
    assert whole is not None
    bands = bands_of(whole.mirrored() if mirrored else whole, rows)
    assert bands is not None
    assert bands.period == rows.denominator
    early, spilled = (whole.banded if kept == place else () for place in ("early", "spilled"))
    turns = Turns(bands, BandNodes(), (), frozenset(early), frozenset(spilled))
    artifact = in_segments(graph, Options("cortex-m4"), (turns,))

    def in_moves(action: BandCall | RowsMove) -> Edit:
        """Yield the fault, unless the plan has made a move to where the rows are already."""
        if isinstance(action, RowsMove) and moves_bytes(action, artifact.plan):
            yield from fault(action)

    assert assert_found(artifact, in_moves, repeated=True) >= len(graph.nodes) - 1


def test_rows_are_moved_in_their_bands_before_others_are_spilled() -> None:
    """The plan may spill rows to where the rows of another band have been before that move."""
    segment = segment_of(graph := chain(), graph.nodes)
    assert segment is not None
    bands = bands_of(segment, Fraction(1))
    assert bands is not None
    both = 0
    for early in segment.banded:
        turns = Turns(bands, BandNodes(), (), frozenset({early}), segment.banded - {early})
        for turn in range(bands.turns):
            for node in segment.nodes:
                moved = turns.moved_after(node, turn)
                assert early not in moved[1:]
                both += len(moved) > 1 and early in moved
    assert both


@pytest.mark.parametrize("rows", [Fraction(2), Fraction(1, 2)])
@pytest.mark.parametrize("fault", ANY_SHIFT, ids=lambda fault: fault.__name__)
def test_each_wrong_shift_of_a_streamed_input_is_found(fault: Fault, rows: Fraction) -> None:
    graph = chain(strided=rows < 1)
    segment = segment_of(graph, graph.nodes, graph.inputs[0])
    assert segment is not None
    bands = bands_of(segment, rows)
    assert bands is not None
    artifact = in_segments(graph, Options("cortex-m4"), (Turns(bands, BandNodes()),))
    assert artifact.schedule.streamed is not None
    assert assert_found(artifact, fault, repeated=True) >= len(graph.nodes)


@pytest.mark.parametrize("rows", [Fraction(1, 2), Fraction(1), Fraction(2), Fraction(3)], ids=str)
def test_rows_that_no_layer_reads_overwrite_nothing(rows: Fraction, tmp_path: Path) -> None:
    graph = RandomNetwork(0).with_unread_rows()
    segment = segment_of(graph, graph.nodes)
    assert segment is not None
    bands = bands_of(segment, rows)
    assert bands is not None
    artifact = in_segments(graph, Options("cortex-m4", "host"), (Turns(bands, BandNodes()),))
    (band,) = (b for b in artifact.schedule.problem.buffers if b.name.startswith("band of"))
    written = [
        slot
        for call in artifact.schedule.segments[0].calls
        if call.result.buffer == band.name
        for slot in call.slots
    ]
    assert band.end > max(written)
    samples, wanted = expected(artifact, 2)
    assert_same(run_sanitized(artifact, samples, tmp_path / "project"), wanted, str(rows))


def test_a_plan_that_overwrites_live_bytes_is_found() -> None:
    """Move one buffer into another that is live: both the replay and the planner's check see it."""
    found = 0
    for seed in range(4):
        artifact = in_random_segments(network(seed), Options("cortex-m4"), seed)
        plan = artifact.plan
        for i, placed in enumerate(plan.placements):
            for offset in {p.offset for p in plan.placements} - {placed.offset}:
                if offset + placed.size > plan.bytes:
                    continue
                moved = replace(placed, offset=offset)
                others = (*plan.placements[:i], moved, *plan.placements[i + 1 :])
                changed = replace(plan, placements=others)
                try:
                    arena.validate(artifact.schedule.problem, changed)
                except GraphError:
                    found += 1
                else:
                    replay(artifact.schedule, changed)
                    continue
    assert found > 10
