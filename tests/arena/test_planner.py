"""Tests of the arena's planner and validator."""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.codegen.arena import (
    Buffer,
    Memory,
    MemoryUse,
    Overlap,
    Placement,
    Plan,
    Problem,
    WriteOrder,
    plan,
    require_fit,
    validate,
)
from smelt.codegen.arena.conflict import make_arena
from smelt.codegen.arena.first_fit import sequences
from smelt.codegen.arena.planner import MOST_PAIRS
from smelt.errors import DoesNotFit, GraphError, UnsupportedError

# (size, start, end) of every activation of two networks of MLPerf Tiny, and the diagonal
# overlaps (input, output, ascending, descending) of the layers of RESNET_8.
RESNET_8 = (
    (3072, 0, 2), (16384, 1, 5), (16384, 2, 4), (16384, 3, 5), (16384, 4, 8), (8192, 5, 7),
    (8192, 6, 9), (8192, 7, 9), (8192, 8, 12), (4096, 9, 11), (4096, 10, 13), (4096, 11, 13),
    (4096, 12, 14), (64, 13, 15), (64, 14, 16), (10, 15, 17), (10, 16, 17),
)  # fmt: skip
RESNET_8_DIAGONAL = (
    (0, 1, 13398, 86), (2, 3, 528, 528), (1, 4, 0, 0), (3, 4, 0, 0), (5, 6, 544, 544),
    (4, 7, 0, 7664), (7, 8, 0, 0), (6, 8, 0, 0), (9, 10, 576, 576), (8, 11, 0, 3552),
    (11, 12, 0, 0), (10, 12, 0, 0), (12, 13, 0, 4032), (13, 14, 0, 0), (15, 16, 0, 0),
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
        Buffer(f"t{i}", size, start, end, ("sram",), alignment)
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


def test_network_with_diagonal_overlaps() -> None:
    overlaps = tuple(
        Overlap(f"t{x}", f"t{y}", (), ascending, descending)
        for x, y, ascending, descending in RESNET_8_DIAGONAL
    )
    result = planned(Problem((SRAM,), buffers_of(RESNET_8), overlaps))
    assert (result.bytes, result.optimal) == (33_296, True)
    assert result.write_orders[3] in WriteOrder


def test_exact_search_finds_what_first_fit_misses() -> None:
    rows = [(2, 2, 5), (3, 1, 4), (4, 1, 2), (1, 0, 5), (4, 4, 5), (4, 1, 6)]
    problem = Problem((SRAM,), buffers_of([(16 * size, start, end) for size, start, end in rows]))
    result = planned(problem)
    assert (result.bytes, result.lower_bound, result.optimal) == (192, 192, True)
    assert result.effort.checks > 0


def test_unreachable_bound_is_proved_optimal() -> None:
    pinned = Buffer("pinned", 16, 0, 1, ("sram",), offset=16)
    problem = Problem((SRAM,), (pinned, Buffer("free", 32, 0, 1, ("sram",))))
    result = planned(problem)
    assert (result.bytes, result.lower_bound, result.optimal) == (64, 48, True)


def test_hundreds_of_buffers_are_planned_to_the_bound() -> None:
    rows = [(64 + 16 * (37 * i % 101), i, i + 2 + (i % 7 == 0) * 5) for i in range(300)]
    result = planned(Problem((SRAM,), buffers_of(rows)))
    assert result.bytes == result.lower_bound
    assert result.effort.layouts < 1000


# --- sharing -------------------------------------------------------------------------------------


def chain(length: int, overlap: Callable[[str, str], Overlap]) -> Problem:
    buffers = buffers_of([(160, i, i + 2) for i in range(length)])
    links = tuple(overlap(a.name, b.name) for a, b in itertools.pairwise(buffers))
    return Problem((SRAM,), buffers, links)


def test_in_place_chain_takes_one_buffer() -> None:
    result = planned(chain(6, lambda x, y: Overlap(x, y, deltas=(0,))))
    assert result.bytes == 160
    assert result.optimal
    assert {p.offset for p in result.placements} == {0}
    assert not result.write_orders


def test_diagonal_chain_shifts_down() -> None:
    result = planned(chain(3, lambda x, y: Overlap(x, y, ascending=32)))
    assert (result.bytes, result.lower_bound, result.optimal) == (224, 192, True)
    assert [p.offset for p in result.placements] == [64, 32, 0]
    assert result.write_orders == {1: WriteOrder.ASCENDING, 2: WriteOrder.ASCENDING}


def test_delta_places_inputs_side_by_side_in_their_concatenation() -> None:
    buffers = buffers_of([(32, 0, 3), (48, 1, 3), (80, 2, 4)])
    overlaps = (Overlap("t0", "t2", (0,)), Overlap("t1", "t2", (-32,)))
    result = planned(Problem((SRAM,), buffers, overlaps))
    assert result.bytes == 80
    assert result["t1"].offset == result["t0"].offset + 32


def test_misaligned_delta_is_never_used() -> None:
    buffers = buffers_of([(32, 0, 2), (32, 1, 2)])
    result = planned(Problem((SRAM,), buffers, (Overlap("t0", "t1", (8,)),)))
    assert (result.bytes, result.lower_bound, result.optimal) == (64, 64, True)


def test_overlaps_of_a_step_agree_on_the_write_order() -> None:
    # Each input alone could share all of its bytes with the output, but in opposite orders.
    buffers = buffers_of([(64, 0, 2), (64, 0, 2), (64, 1, 3)])
    overlaps = (Overlap("t0", "t2", ascending=0), Overlap("t1", "t2", descending=0))
    result = planned(Problem((SRAM,), buffers, overlaps))
    assert (result.bytes, result.optimal) == (128, True)
    with pytest.raises(GraphError, match="t2"):
        validate(
            Problem((SRAM,), buffers, overlaps),
            replace(
                result,
                placements=(
                    replace(result["t0"], offset=32),
                    replace(result["t1"], offset=96),
                    replace(result["t2"], offset=0),
                ),
                memories=(replace(result.memories[0], bytes=160),),
                write_orders={1: WriteOrder.DESCENDING},
            ),
        )


# --- several memories ----------------------------------------------------------------------------


def two_memories(fast: int) -> tuple[Memory, ...]:
    return (Memory("fast", fast), Memory("slow", 4096))


def test_spills_the_smallest_buffer_that_helps() -> None:
    both = ("fast", "slow")
    buffers = (
        Buffer("large", 512, 0, 3, both),
        Buffer("small", 64, 0, 3, both),
        Buffer("middle", 256, 1, 2, both),
        Buffer("local", 128, 1, 2, ("fast",)),
    )
    problem = Problem(two_memories(768), buffers)
    result = planned(problem)
    require_fit(problem, result)
    assert result.spilled == ("middle",)
    assert result["middle"].memory == "slow"
    assert not result.optimal
    assert [u.bytes for u in result.memories] == [704, 256]


def test_nothing_spills_from_a_memory_that_is_large_enough() -> None:
    buffers = (Buffer("a", 512, 0, 3, ("fast", "slow")), Buffer("b", 512, 0, 3, ("slow",)))
    result = planned(Problem(two_memories(512), buffers))
    assert result.spilled == ()
    assert result.use("fast") == MemoryUse("fast", 512, 512, True, 0)


def test_does_not_fit_names_the_bytes_the_step_and_the_largest_buffers() -> None:
    problem = Problem(
        (Memory("sram", 1000),),
        (
            Buffer("big", 800, 0, 2, ("sram",)),
            Buffer("other", 416, 1, 2, ("sram",)),
            Buffer("early", 16, 0, 1, ("sram",)),
        ),
        steps=("input", "conv_1"),
    )
    with pytest.raises(DoesNotFit) as caught:
        require_fit(problem, planned(problem))
    error = caught.value
    assert (error.needed, error.available) == (1216, 1000)
    assert error.largest == (("big", 800), ("other", 416))
    for part in ("'sram' has 1,000", "1,216", "216 too many", "step 1 (conv_1)", "big 800"):
        assert part in str(error)


@pytest.mark.parametrize("budget", range(0, 2049, 128))
def test_buffers_that_may_move_fit_any_size_of_the_fast_memory(budget: int) -> None:
    movable = tuple(
        Buffer(f"m{i}", 64 + 16 * (i * 7 % 11), i, i + 1 + i % 4, ("fast", "middle", "slow"))
        for i in range(24)
    )
    memories = (Memory("fast", budget), Memory("middle", 256), Memory("slow"))
    result = planned(Problem(memories, movable))
    require_fit(Problem(memories, movable), result)
    assert bool(result.spilled) == (result.use("slow").bytes + result.use("middle").bytes > 0)


# --- random problems -----------------------------------------------------------------------------


@st.composite
def problems(draw: st.DrawFn, largest: int, alignments: tuple[int, ...] = (4, 16)) -> Problem:
    steps = draw(st.integers(1, 8))
    buffers: list[Buffer] = []
    for i in range(draw(st.integers(1, largest))):
        start = draw(st.integers(0, steps - 1))
        end = draw(st.integers(start + 1, steps))
        alignment = draw(st.sampled_from(alignments))
        size = draw(st.integers(0, 5 * alignments[-1]))
        pinned = draw(st.integers(0, 9)) == 0 and not any(b.offset is not None for b in buffers)
        offset = alignment * draw(st.integers(0, 3)) if pinned else None
        buffers.append(
            Buffer(
                name=f"t{i}",
                size=size,
                start=start,
                end=end,
                memories=("sram",),
                alignment=alignment,
                offset=offset,
            )
        )
    overlaps: list[Overlap] = []
    distance = st.none() | st.integers(-2 * alignments[-1], 5 * alignments[-1])
    for x, y in itertools.permutations(buffers, 2):
        first = x.start < y.start or (x.start == y.start and x.name < y.name)
        if x.end == y.start + 1 and first and draw(st.booleans()):
            deltas = tuple(draw(st.lists(st.sampled_from((0, 4, -16, 16)), max_size=2)))
            ascending, descending = draw(distance), draw(distance)
            if deltas or ascending is not None or descending is not None:
                overlaps.append(Overlap(x.name, y.name, deltas, ascending, descending))
    return Problem((SRAM,), tuple(buffers), tuple(overlaps))


@given(problems(10))
@settings(deadline=None, max_examples=100)
def test_random_plans_are_legal_and_not_below_the_bound(problem: Problem) -> None:
    result = planned(problem)
    assert result.bytes >= result.lower_bound
    ends = [p.offset + p.size for p in result.placements]
    assert max(ends) <= result.bytes < max(ends) + 16
    assert plan(problem) == result


@given(problems(4, alignments=(4,)))
@settings(deadline=None, max_examples=150)
def test_tiny_plans_are_optimal(problem: Problem) -> None:
    result = planned(problem)
    assert result.optimal
    assert not fits_within(problem, result.bytes - 4)


def fits_within(problem: Problem, limit: int) -> bool:
    """Return whether any layout takes at most `limit` bytes, by trying all layouts."""
    starts = sorted({b.start for b in problem.buffers})
    return any(
        _extend(problem, limit, dict(zip(starts, orders, strict=True)), [])
        for orders in itertools.product(WriteOrder, repeat=len(starts))
    )


def _extend(
    problem: Problem, limit: int, orders: dict[int, WriteOrder], offsets: list[int]
) -> bool:
    if len(offsets) == len(problem.buffers):
        return True
    new = problem.buffers[len(offsets)]
    options = range(0, limit - new.size + 1, new.alignment)
    for offset in options if new.offset is None else [o for o in options if o == new.offset]:
        placed = zip(problem.buffers, offsets, strict=False)
        legal = all(_may_coexist(problem, orders, b, o, new, offset) for b, o in placed)
        if legal and _extend(problem, limit, orders, [*offsets, offset]):
            return True
    return False


def _may_coexist(
    problem: Problem, orders: dict[int, WriteOrder], a: Buffer, at: int, b: Buffer, bt: int
) -> bool:
    """Return whether `a` at offset `at` and `b` at offset `bt` are legal, given write orders."""
    steps = set(range(a.start, a.end)) & set(range(b.start, b.end))
    shared = set(range(at, at + a.size)) & set(range(bt, bt + b.size))
    if not steps or not shared:
        return True
    for o in problem.overlaps:
        if {o.input, o.output} != {a.name, b.name}:
            continue
        delta, step = (bt - at, b.start) if o.output == b.name else (at - bt, a.start)
        if delta in o.deltas:
            return True
        if orders[step] is WriteOrder.ASCENDING:
            return o.ascending is not None and delta <= -o.ascending
        return o.descending is not None and delta >= o.descending
    return False


@given(problems(10), st.data())
@settings(deadline=None, max_examples=150)
def test_validator_agrees_with_the_definition_on_moved_buffers(
    problem: Problem, data: st.DataObject
) -> None:
    result = planned(problem)
    victim = data.draw(st.integers(0, len(problem.buffers) - 1))
    buffer = problem.buffers[victim]
    offset = buffer.alignment * data.draw(st.integers(0, 12))
    offset = offset if buffer.offset is None else buffer.offset
    moved = replace(result.placements[victim], offset=offset)
    placements = (*result.placements[:victim], moved, *result.placements[victim + 1 :])
    top = max(p.offset + p.size for p in placements)
    use = replace(result.memories[0], bytes=max(top, result.bytes), optimal=True)
    mutant = replace(result, placements=placements, memories=(use,))
    orders = dict(result.write_orders)
    relaxed = all(
        _legal_under(problem, orders, x, p, y, q)
        for (x, p), (y, q) in itertools.combinations(
            zip(problem.buffers, placements, strict=True), 2
        )
    )
    if relaxed:
        validate(problem, mutant)
    else:
        with pytest.raises(GraphError):
            validate(problem, mutant)


def _legal_under(
    problem: Problem,
    orders: dict[int, WriteOrder],
    a: Buffer,
    p: Placement,
    b: Buffer,
    q: Placement,
) -> bool:
    """Return whether two placements are legal; without a write order, diagonals are not."""
    step = max(a.start, b.start)
    if step in orders:
        return _may_coexist(problem, {a.start: orders[step], b.start: orders[step]},
                            a, p.offset, b, q.offset)  # fmt: skip
    without = replace(
        problem,
        overlaps=tuple(replace(o, ascending=None, descending=None)
                       for o in problem.overlaps if o.deltas),
    )  # fmt: skip
    every = dict.fromkeys((a.start, b.start), WriteOrder.ASCENDING)
    return _may_coexist(without, every, a, p.offset, b, q.offset)


# --- the validator -------------------------------------------------------------------------------

PROBLEM = Problem(
    (Memory("fast", 4096), Memory("slow")),
    (
        Buffer("x", 128, 0, 2, ("fast",)),
        Buffer("y", 128, 1, 3, ("fast",)),
        Buffer("pin", 32, 0, 3, ("fast",), offset=512),
        Buffer("z", 64, 2, 4, ("slow",)),
    ),
    (Overlap("x", "y", ascending=16),),
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
    (edited("x", lambda p: replace(p, offset=-16)), "outside"),
    (edited("z", lambda p: replace(p, offset=64)), "outside memory 'slow'"),
    (edited("z", lambda p: replace(p, memory="fast")), "memory 'fast', allowed are slow"),
    (edited("pin", lambda p: replace(p, offset=496)), "fixed at 512"),
    (edited("x", lambda p: replace(p, size=64)), "size, start and end"),
    (edited("x", lambda p: replace(p, end=1)), "size, start and end"),
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


@pytest.mark.parametrize("order", [None, WriteOrder.DESCENDING])
def test_validator_rejects_a_diagonal_without_its_write_order(order: WriteOrder | None) -> None:
    shifted = edited("x", lambda p: replace(p, offset=16))(planned(PROBLEM))
    legal = edited("y", lambda p: replace(p, offset=0))(shifted)
    validate(PROBLEM, replace(legal, write_orders={1: WriteOrder.ASCENDING}))
    with pytest.raises(GraphError, match="-16 bytes from its input 'x' at step 1"):
        validate(PROBLEM, replace(legal, write_orders={} if order is None else {1: order}))


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


def steps_compared(work: Callable[[Problem], object], length: int) -> int:
    buffers = tuple(
        Buffer(f"t{i}", 160, Counted(i), Counted(i + 2), ("sram",), 16) for i in range(length)
    )
    problem = Problem((SRAM,), buffers)
    Counted.compared = 0
    work(problem)
    return Counted.compared


def all_sequences(problem: Problem) -> list[list[int]]:
    return list(sequences(make_arena(problem.buffers, ())))


@pytest.mark.parametrize("work", [plan, planned, all_sequences])
def test_a_chain_eight_times_as_long_takes_eight_times_the_work(
    work: Callable[[Problem], object],
) -> None:
    short, long = steps_compared(work, 50), steps_compared(work, 400)
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

A = Buffer("a", 16, 0, 2, ("sram",))
B = Buffer("b", 16, 1, 3, ("sram",))


@pytest.mark.parametrize(
    ("buffers", "overlaps", "message"),
    [
        ((A, A), (), "'a' appears twice"),
        ((replace(A, memories=("ccm",)),), (), "unknown memory 'ccm'"),
        ((replace(A, memories=()),), (), "no memory"),
        ((replace(A, alignment=12),), (), "12 is not a power of two"),
        ((replace(A, alignment=32),), (), "above the 16 of memory 'sram'"),
        ((replace(A, size=-1),), (), "size -1"),
        ((replace(A, end=0),), (), r"lifetime \[0, 0\)"),
        ((replace(A, offset=8),), (), "fixed offset 8"),
        ((A, B), (Overlap("a", "b"),), "has neither deltas nor distances"),
        ((A, B), (Overlap("a", "c", (0,)),), "unknown buffer 'c'"),
        ((A, B), (Overlap("a", "a", (0,)),), "input and output are the same buffer"),
        ((A, B), (Overlap("a", "b", (0,)), Overlap("b", "a", (0,))), "appears twice"),
        ((A, replace(B, start=2)), (Overlap("a", "b", (0,)),), "never live"),
        ((replace(A, end=3), B), (Overlap("a", "b", ascending=0),), "diagonal"),
    ],
)
def test_problem_rejects(
    buffers: tuple[Buffer, ...], overlaps: tuple[Overlap, ...], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        Problem((SRAM,), buffers, overlaps)


def test_empty_problem() -> None:
    result = planned(Problem((SRAM,), ()))
    assert (result.bytes, result.lower_bound, result.optimal) == (0, 0, True)


# --- readable forms ------------------------------------------------------------------------------


def test_table_and_json_of_a_plan() -> None:
    problem = Problem(
        (SRAM,),
        (Buffer("image", 1024, 0, 2, ("sram",)), Buffer("conv", 512, 1, 2, ("sram",))),
        steps=("input", "conv_1"),
    )
    result = planned(problem)
    assert result.table().splitlines() == [
        "memory  buffer  offset   size    end  steps",
        "sram    image        0  1,024  1,024    0-1",
        "sram    conv     1,024    512  1,536    1-1",
        "sram: 1,536 bytes, lower bound 1,536, optimal, peak at step 1 (conv_1)",
    ]
    data = json.loads(json.dumps(result.to_dict()))
    assert data["map"][1] == {
        "name": "conv", "memory": "sram", "offset": 1024, "size": 512, "start": 1, "end": 2,
    }  # fmt: skip
    assert (data["bytes"], data["lower_bound"], data["optimal"]) == (1536, 1536, True)


def at_once(count: int) -> Problem:
    """Return a problem in which all buffers are live at the same time."""
    buffers = tuple(Buffer(f"t{i}", 16 + 16 * (i % 3), 0, 2, ("sram",), 16) for i in range(count))
    return Problem((SRAM,), buffers, (), ("Split #0",))


def test_pairs_of_buffers_without_overlaps_are_not_stored() -> None:
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
