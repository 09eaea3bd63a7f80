"""Tests of the choice of memories by wait cycles."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.codegen.arena import Buffer, InPlace, Span
from smelt.codegen.arena import assign as assignment
from smelt.codegen.arena.assign import Bank, StoredItem, wait_cycles
from smelt.codegen.arena.conflict import make_arena
from smelt.codegen.arena.pack import pack

FAST, SLOW = Bank("fast", 64, 0), Bank("slow", 1 << 20, 4)
BOTH = (FAST, SLOW)
NAMES = ("fast", "slow")


def item(
    name: str,
    size: int,
    moved: int,
    start: int = 0,
    end: int = 1,
    banks: tuple[str, ...] = NAMES,
    *,
    spans: tuple[Span, ...] = (),
    fixed: bool = False,
) -> StoredItem:
    return StoredItem(Buffer(name, size, start, end, "", 16, spans=spans), moved, banks, fixed)


def assign(
    items: list[StoredItem], banks: tuple[Bank, ...], in_place: Sequence[InPlace] = ()
) -> dict[str, str] | None:
    """Return the memory of each item by its name."""
    found = assignment.assign(items, banks, in_place)
    names = [one.buffer.name for one in items]
    return None if found is None else dict(zip(names, found, strict=True))


def test_a_small_busy_tensor_is_faster_than_a_large_idle_one() -> None:
    items = [item("large", 64, 64), item("busy", 16, 640)]
    assert assign(items, BOTH) == {"large": "slow", "busy": "fast"}


def test_the_best_two_may_beat_the_best_one() -> None:
    """One tensor saves the most for each byte, but two others save more together."""
    items = [item("dense", 48, 500), item("a", 32, 300), item("b", 32, 300)]
    assert assign(items, BOTH) == {"dense": "slow", "a": "fast", "b": "fast"}


def test_tensors_at_different_times_share_the_fast_memory() -> None:
    items = [item(f"t{i}", 64, 100, i, i + 1) for i in range(5)]
    assert set((assign(items, BOTH) or {}).values()) == {"fast"}


def test_constants_take_bytes_at_all_times() -> None:
    items = [*(item(f"t{i}", 64, 100, i, i + 1) for i in range(5)), item("w", 16, 90, fixed=True)]
    found = assign(items, BOTH)
    assert found == {**{f"t{i}": "fast" for i in range(5)}, "w": "slow"}
    busier = [*items[:-1], item("w", 16, 900, fixed=True)]
    assert assign(busier, BOTH) == {**{f"t{i}": "slow" for i in range(5)}, "w": "fast"}


def test_a_result_in_place_of_its_operand_needs_no_bytes() -> None:
    items = [item("x", 64, 100, 0, 2), item("y", 64, 100, 1, 3)]
    assert set((assign(items, BOTH) or {}).values()) == {"fast", "slow"}
    assert assign(items, BOTH, [InPlace("x", "y")]) == {"x": "fast", "y": "fast"}


def test_bytes_that_are_not_live_may_be_shared() -> None:
    first = item("x", 64, 100, 0, 4, spans=(Span(0, 1, 0, 64), Span(3, 4, 0, 64)))
    assert assign([first, item("y", 64, 100, 1, 3)], BOTH) == {"x": "fast", "y": "fast"}


def test_gaps_between_buffers_take_bytes() -> None:
    """The live bytes would fit, but `a` and `c` leave no room for the last one in one piece."""
    items = [
        item("a", 16, 900, 0, 3),
        item("b", 32, 900, 0, 2),
        item("c", 16, 900, 1, 5),
        item("d", 48, 100, 3, 6),
        item("e", 32, 900, 2, 3),
        item("f", 16, 900, 5, 6),
    ]
    assert assign(items, BOTH) is not None
    check(items, BOTH)


def test_of_three_memories_the_fastest_that_has_room_is_chosen() -> None:
    banks = (Bank("psram", 4096, 8), Bank("tcm", 32, 0), Bank("sram", 64, 2))
    names = tuple(bank.name for bank in banks)
    items = [item(f"t{i}", 32, 100 + i, banks=names) for i in range(4)]
    assert assign(items, banks) == {"t0": "psram", "t1": "sram", "t2": "sram", "t3": "tcm"}


def test_tensors_without_accesses_go_to_the_slow_memory() -> None:
    assert assign([item("idle", 16, 0)], BOTH) == {"idle": "slow"}


def test_only_allowed_memories_are_used() -> None:
    items = [item("pinned", 16, 10_000, banks=("slow",)), item("t", 16, 1)]
    assert assign(items, BOTH) == {"pinned": "slow", "t": "fast"}


def test_nothing_is_found_if_nothing_fits() -> None:
    assert assign([item("t", 80, 1, banks=("fast",))], BOTH) is None
    two = [item("a", 48, 1, banks=("fast",)), item("b", 32, 1, banks=("fast",))]
    assert assign(two, BOTH) is None


@pytest.mark.parametrize(("moved", "states", "cycles"), [(4, 3, 3), (5, 3, 6), (0, 3, 0)])
def test_wait_cycles_count_words(moved: int, states: int, cycles: int) -> None:
    assert wait_cycles(moved, states) == cycles


def test_hundreds_of_items_are_assigned_within_the_limits_of_the_search() -> None:
    items = [
        item(f"t{i}", 64 + 16 * (37 * i % 101), 1000 * (i * 7 % 11), i, i + 2 + i % 5)
        for i in range(200)
    ]
    items += [item(f"w{i}", 16 * (1 + i % 9), 500 * (i % 4), fixed=True) for i in range(200)]
    fast = Bank("fast", 4096, 0)
    found = assign(items, (fast, SLOW))
    assert found is not None
    in_fast = [one for one in items if found[one.buffer.name] == "fast"]
    assert is_legal(in_fast, fast, ())
    saved = sum(one.moved for one in in_fast)
    assert saved > 0.7 * sum(one.moved for one in items)


# --- comparison with all assignments -------------------------------------------------------------


def is_legal(items: list[StoredItem], bank: Bank, in_place: tuple[InPlace, ...]) -> bool:
    constants = sum(-(-one.buffer.size // 16) * 16 for one in items if one.fixed)
    arena = make_arena([one.buffer for one in items if not one.fixed], in_place)
    return constants + pack(arena).bytes <= bank.size


def cost(items: list[StoredItem], banks: tuple[Bank, ...], chosen: dict[str, str]) -> int:
    waits = {bank.name: bank.wait_states for bank in banks}
    return sum(wait_cycles(one.moved, waits[chosen[one.buffer.name]]) for one in items)


def check(
    items: list[StoredItem], banks: tuple[Bank, ...], in_place: tuple[InPlace, ...] = ()
) -> None:
    """Compare the cost with the least of all assignments that fit."""
    names = [one.buffer.name for one in items]
    legal = (
        chosen
        for tuple_ in itertools.product(*(one.banks for one in items))
        for chosen in [dict(zip(names, tuple_, strict=True))]
        if all(
            is_legal([one for one in items if chosen[one.buffer.name] == b.name], b, in_place)
            for b in banks
        )
    )
    least = min((cost(items, banks, chosen) for chosen in legal), default=None)
    found = assign(items, banks, in_place)
    assert (None if found is None else cost(items, banks, found)) == least


@st.composite
def assignments(
    draw: st.DrawFn,
) -> tuple[list[StoredItem], tuple[Bank, ...], tuple[InPlace, ...]]:
    sizes = st.integers(0, 12).map(lambda units: 16 * units)
    banks = tuple(
        Bank(f"m{i}", draw(sizes), draw(st.integers(0, 4))) for i in range(draw(st.integers(1, 3)))
    )
    subsets = st.lists(st.sampled_from([bank.name for bank in banks]), min_size=1, unique=True)
    items: list[StoredItem] = []
    for i in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, 5))
        end = start + draw(st.integers(1, 4))
        size = 8 * draw(st.integers(1, 10))
        spans: tuple[Span, ...] = ()
        if end - start > 1 and draw(st.booleans()):
            spans = (Span(start, start + 1, 0, size), Span(start + 1, end, 0, max(size // 2, 1)))
        items.append(
            item(
                f"t{i}",
                size,
                draw(st.integers(0, 160)),
                start,
                end,
                tuple(draw(subsets)),
                spans=spans,
                fixed=draw(st.integers(0, 3)) == 0,
            )
        )
    pairs = tuple(
        InPlace(a.buffer.name, b.buffer.name)
        for a, b in itertools.combinations([one for one in items if not one.fixed], 2)
        if a.buffer.start < b.buffer.end and b.buffer.start < a.buffer.end
        if draw(st.booleans())
    )
    return items, banks, pairs


@given(assignments())
@settings(deadline=None, max_examples=300)
def test_no_assignment_that_fits_costs_less(
    problem: tuple[list[StoredItem], tuple[Bank, ...], tuple[InPlace, ...]],
) -> None:
    check(*problem)
