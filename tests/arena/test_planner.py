"""Tests of the arena's planner and validator."""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from smelt.codegen.arena import (
    Buffer,
    InPlace,
    Memory,
    MemoryUse,
    Placement,
    Plan,
    Problem,
    Span,
    plan,
    require_fit,
    validate,
)
from smelt.codegen.arena.conflict import make_arena
from smelt.codegen.arena.first_fit import sequences
from smelt.codegen.arena.planner import MOST_PAIRS
from smelt.errors import DoesNotFit, GraphError, UnsupportedError

# (size, start, end) of every activation of two networks of MLPerf Tiny.
RESNET_8 = (
    (3072, 0, 2), (16384, 1, 5), (16384, 2, 4), (16384, 3, 5), (16384, 4, 8), (8192, 5, 7),
    (8192, 6, 9), (8192, 7, 9), (8192, 8, 12), (4096, 9, 11), (4096, 10, 13), (4096, 11, 13),
    (4096, 12, 14), (64, 13, 15), (64, 14, 16), (10, 15, 17), (10, 16, 17),
)  # fmt: skip
MOBILENET_025_96 = (
    (27648, 0, 2), (18432, 1, 3), (18432, 2, 4), (36864, 3, 5), (9216, 4, 6), (18432, 5, 7),
    (18432, 6, 8), (18432, 7, 9), (4608, 8, 10), (9216, 9, 11), (9216, 10, 12), (9216, 11, 13),
    (2304, 12, 14), (4608, 13, 15), (4608, 14, 16), (4608, 15, 17), (4608, 16, 18),
    (4608, 17, 19), (4608, 18, 20), (4608, 19, 21), (4608, 20, 22), (4608, 21, 23),
    (4608, 22, 24), (4608, 23, 25), (1152, 24, 26), (2304, 25, 27), (2304, 26, 28),
    (2304, 27, 29), (256, 28, 30), (256, 29, 31), (2, 30, 32), (2, 31, 32),
)  # fmt: skip

SRAM = Memory("sram")


def buffers_of(rows: Sequence[tuple[int, int, int]], alignment: int = 16) -> tuple[Buffer, ...]:
    return tuple(
        Buffer(f"t{i}", size, start, end, "sram", alignment)
        for i, (size, start, end) in enumerate(rows)
    )


def planned(problem: Problem) -> Plan:
    result = plan(problem)
    validate(problem, result)
    return result


# --- known instances -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(RESNET_8, 49_152), (MOBILENET_025_96, 55_296)],
    ids=["resnet-8", "mobilenet-0.25-96"],
)
def test_network_reaches_its_live_bytes(
    rows: Sequence[tuple[int, int, int]], expected: int
) -> None:
    result = planned(Problem((SRAM,), buffers_of(rows)))
    assert (result.bytes, result.lower_bound, result.optimal) == (expected, expected, True)


def test_exact_search_finds_what_first_fit_misses() -> None:
    rows = [(2, 2, 5), (3, 1, 4), (4, 1, 2), (1, 0, 5), (4, 4, 5), (4, 1, 6)]
    problem = Problem((SRAM,), buffers_of([(16 * size, start, end) for size, start, end in rows]))
    result = planned(problem)
    assert (result.bytes, result.lower_bound, result.optimal) == (192, 192, True)
    assert result.effort.checks > 0


def test_unreachable_bound_is_proved_optimal() -> None:
    pinned = Buffer("pinned", 16, 0, 1, "sram", offset=16)
    problem = Problem((SRAM,), (pinned, Buffer("free", 32, 0, 1, "sram")))
    result = planned(problem)
    assert (result.bytes, result.lower_bound, result.optimal) == (64, 48, True)


def test_hundreds_of_buffers_are_planned_to_the_bound() -> None:
    rows = [(64 + 16 * (37 * i % 101), i, i + 2 + (i % 7 == 0) * 5) for i in range(300)]
    result = planned(Problem((SRAM,), buffers_of(rows)))
    assert result.bytes == result.lower_bound
    assert result.effort.layouts < 1000


# --- in place ------------------------------------------------------------------------------------


def test_in_place_chain_takes_one_buffer() -> None:
    buffers = buffers_of([(160, i, i + 2) for i in range(6)])
    pairs = tuple(InPlace(a.name, b.name) for a, b in itertools.pairwise(buffers))
    result = planned(Problem((SRAM,), buffers, pairs))
    assert (result.bytes, result.optimal) == (160, True)
    assert {p.offset for p in result.placements} == {0}


def test_output_in_place_of_two_inputs_shares_with_one() -> None:
    buffers = buffers_of([(64, 0, 2), (64, 0, 2), (64, 1, 3)])
    pairs = (InPlace("t0", "t2"), InPlace("t1", "t2"))
    result = planned(Problem((SRAM,), buffers, pairs))
    assert (result.bytes, result.optimal) == (128, True)


# --- sizes of memories ---------------------------------------------------------------------------


def test_does_not_fit_names_the_bytes_the_step_and_the_largest_buffers() -> None:
    problem = Problem(
        (Memory("sram", 1000),),
        (
            Buffer("big", 800, 0, 2, "sram"),
            Buffer("other", 416, 1, 2, "sram"),
            Buffer("early", 16, 0, 1, "sram"),
        ),
        steps=("input", "conv_1"),
    )
    with pytest.raises(DoesNotFit) as caught:
        require_fit(problem, planned(problem))
    error = caught.value
    assert (error.needed, error.available) == (1216, 1000)
    assert error.largest == (("big", 800), ("other", 416))
    for part in ("'sram' has 1,000", "1,216", "216 too many", "peak is at conv_1: ", "big 800"):
        assert part in str(error)


# --- the validator -------------------------------------------------------------------------------

PROBLEM = Problem(
    (Memory("fast", 4096), Memory("slow")),
    (
        Buffer("x", 128, 0, 2, "fast"),
        Buffer("y", 128, 1, 3, "fast"),
        Buffer("pin", 32, 0, 3, "fast", offset=512),
        Buffer("z", 64, 2, 4, "slow"),
    ),
    (InPlace("x", "y"),),
)


Edit = Callable[[Plan], Plan]


def edited(victim: str, change: Callable[[Placement], Placement]) -> Edit:
    def edit(legal: Plan) -> Plan:
        placements = (change(p) if p.name == victim else p for p in legal.placements)
        return replace(legal, placements=tuple(placements))

    return edit


def slow_use(change: Callable[[MemoryUse], MemoryUse]) -> Edit:
    return lambda legal: replace(legal, memories=(legal.memories[0], change(legal.memories[1])))


MUTANTS: list[tuple[Edit, str]] = [
    (edited("x", lambda p: replace(p, offset=24)), "'x'.*24 is not a multiple of 16"),
    (edited("x", lambda p: replace(p, offset=400)), "'x' .* and 'pin' .* share bytes"),
    (edited("x", lambda p: replace(p, offset=16)), "'x' .* and 'y' .* share bytes"),
    (edited("x", lambda p: replace(p, offset=-16)), "outside"),
    (edited("z", lambda p: replace(p, offset=64)), "outside memory 'slow'"),
    (edited("z", lambda p: replace(p, memory="fast")), "memory 'fast' instead of 'slow'"),
    (edited("pin", lambda p: replace(p, offset=496)), "fixed at 512"),
    (edited("x", lambda p: replace(p, size=64)), "size, start and end"),
    (edited("x", lambda p: replace(p, end=1)), "size, start and end"),
    (edited("x", lambda p: replace(p, spans=(Span(0, 2, 0, 64),))), "'x': its spans are not"),
    (edited("x", lambda p: replace(p, name="ghost")), "'x' is placed 0 times"),
    (lambda p: replace(p, placements=(*p.placements, p["x"])), "'x' is placed 2 times"),
    (
        lambda p: replace(p, placements=(*p.placements, replace(p["x"], name="ghost"))),
        "not in the problem: ghost",
    ),
    (lambda p: replace(p, memories=p.memories[:1]), "has memories"),
    (slow_use(lambda u: replace(u, lower_bound=80)), "below the lower bound"),
    (slow_use(lambda u: replace(u, optimal=False)), "not marked optimal"),
]


@pytest.mark.parametrize(("edit", "message"), MUTANTS)
def test_validator_rejects(edit: Edit, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        validate(PROBLEM, edit(planned(PROBLEM)))


# --- the work is proportional to the number of buffers -------------------------------------------


class Counted(int):
    """A step number that counts comparisons of all such numbers."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < other

    def __le__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) <= other

    def __gt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) > other

    def __ge__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) >= other


def chain(length: int) -> tuple[Buffer, ...]:
    """Return whole buffers, each of which is live together with the next one."""
    return tuple(
        Buffer(f"t{i}", 160, Counted(i), Counted(i + 2), "sram", 16) for i in range(length)
    )


def diagonal(length: int) -> tuple[Buffer, ...]:
    """Return an input that ends row by row, and an output that begins row by row."""
    size = 16 * length
    shrinking = tuple(Span(Counted(i), Counted(i + 1), 16 * i, size) for i in range(length))
    growing = tuple(Span(Counted(i), Counted(i + 1), 0, 16 * i + 16) for i in range(length))
    return tuple(
        Buffer(name, size, Counted(0), Counted(length), "sram", 16, spans=spans)
        for name, spans in (("x", shrinking), ("y", growing))
    )


def steps_compared(work: Callable[[Problem], object], buffers: tuple[Buffer, ...]) -> int:
    problem = Problem((SRAM,), buffers)
    Counted.compared = 0
    work(problem)
    return Counted.compared


def all_sequences(problem: Problem) -> list[list[int]]:
    return list(sequences(make_arena(problem.buffers, ())))


@pytest.mark.parametrize("work", [plan, planned, all_sequences])
@pytest.mark.parametrize("buffers", [chain, diagonal])
def test_a_problem_eight_times_as_long_takes_eight_times_the_work(
    buffers: Callable[[int], tuple[Buffer, ...]], work: Callable[[Problem], object]
) -> None:
    short, long = (steps_compared(work, buffers(length)) for length in (50, 400))
    assert short > 50
    assert long < 10 * short  # comparing all pairs would take 64 times as many


def test_a_placement_is_looked_up_without_a_search() -> None:
    class Name(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    names = [Name(f"t{i}") for i in range(200)]
    placements = tuple(Placement(name, "sram", 0, 16, i, i + 1) for i, name in enumerate(names))
    result = replace(plan(Problem((SRAM,), ())), placements=placements)
    Name.compared = 0
    assert all(result[f"t{i}"].start == i for i in range(200))
    assert Name.compared <= 2 * 200
    with pytest.raises(KeyError, match="ghost"):
        result["ghost"]


# --- the problem ---------------------------------------------------------------------------------

A = Buffer("a", 16, 0, 2, "sram")
B = Buffer("b", 16, 1, 3, "sram")


@pytest.mark.parametrize(
    ("buffers", "in_place", "message"),
    [
        ((A, A), (), "'a' appears twice"),
        ((replace(A, memory="ccm"),), (), "unknown memory 'ccm'"),
        ((replace(A, alignment=12),), (), "12 is not a power of two"),
        ((replace(A, alignment=32),), (), "above the 16 of memory 'sram'"),
        ((replace(A, size=-1),), (), "size -1"),
        ((replace(A, end=0),), (), r"lifetime \[0, 0\)"),
        ((replace(A, offset=8),), (), "fixed offset 8"),
        ((A, B), (InPlace("a", "c"),), "unknown buffer 'c'"),
        ((A, B), (InPlace("a", "a"),), "input and output are the same buffer"),
        ((A, B), (InPlace("a", "b"), InPlace("b", "a")), "appears twice"),
        ((A, replace(B, start=2)), (InPlace("a", "b"),), "never live"),
        ((replace(A, spans=(Span(0, 0, 0, 16),)),), (), r"steps \[0, 0\) is empty"),
        ((replace(A, spans=(Span(0, 2, 8, 8),)),), (), r"bytes \[8, 8\) are empty"),
        ((replace(A, spans=(Span(0, 2, 8, 17),)),), (), r"bytes \[8, 17\) .* outside \[0, 16\)"),
        (
            (replace(A, spans=(Span(1, 2, 0, 16), Span(0, 1, 0, 16))),),
            (),
            "step 0 begins before the previous one ends at 2",
        ),
        (
            (replace(A, spans=(Span(0, 1, 0, 16),)),),
            (),
            "spans reach from step 0 to 1, its lifetime from 0 to 2",
        ),
    ],
)
def test_problem_rejects(
    buffers: tuple[Buffer, ...], in_place: tuple[InPlace, ...], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        Problem((SRAM,), buffers, in_place)


def test_empty_problem() -> None:
    result = planned(Problem((SRAM,), ()))
    assert (result.bytes, result.lower_bound, result.optimal) == (0, 0, True)


# --- readable forms ------------------------------------------------------------------------------


def test_table_and_json_of_a_plan() -> None:
    problem = Problem(
        (SRAM,),
        (Buffer("image", 1024, 0, 2, "sram"), Buffer("conv", 512, 1, 2, "sram")),
        steps=("input", "conv_1"),
    )
    result = planned(problem)
    assert result.table().splitlines() == [
        "memory  buffer  offset   size    end  steps",
        "sram    image        0  1,024  1,024    0-1",
        "sram    conv     1,024    512  1,536    1-1",
        "sram: 1,536 bytes, proved smallest for this schedule, peak at conv_1",
    ]
    unproved = replace(result.memories[0], bytes=1600, lower_bound=1280, optimal=False)
    gap = "320 bytes or 25.0% more than the lower bound of this schedule"
    assert unproved.certificate == gap
    data = json.loads(json.dumps(result.to_dict()))
    assert data["map"][1] == {
        "name": "conv", "memory": "sram", "offset": 1024, "size": 512, "start": 1, "end": 2,
    }  # fmt: skip
    assert (data["bytes"], data["lower_bound"], data["optimal"]) == (1536, 1536, True)


def at_once(count: int) -> Problem:
    """Return a problem in which all buffers are live at the same time."""
    buffers = tuple(Buffer(f"t{i}", 16 + 16 * (i % 3), 0, 2, "sram", 16) for i in range(count))
    return Problem((SRAM,), buffers, (), ("Split #0",))


def test_pairs_of_whole_buffers_are_not_stored() -> None:
    problem = at_once(1000)
    arena = make_arena(problem.buffers, ())
    assert arena.pair_count == 1000 * 999 // 2
    assert arena.sharing == ()
    assert len(list(arena.pairs())) == arena.pair_count
    planned(problem)


def test_too_many_buffers_that_are_live_together_are_refused() -> None:
    count = next(n for n in itertools.count() if n * (n - 1) // 2 > MOST_PAIRS)
    with pytest.raises(UnsupportedError) as refused:
        plan(at_once(count))
    assert str(refused.value).startswith(
        f"{count:,} tensors and buffers are live at the same time at Split #0: "
    )
    plan(at_once(count // 8))
