"""Which of several memories stores each tensor and constant: the one with the fewest wait cycles.

Each item costs the bytes that an inference moves, times the wait states of its memory. Items are
sorted by the cost that a fast memory saves for each byte and slot of time. First fit in this order
gives a first assignment; branch and bound then looks for better ones. It compares the live bytes of
items, a lower bound of what a layout takes, with the sizes of the memories, and lays out only
assignments that cost less than the best one so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from smelt.codegen.arena.conflict import Gaps, align_up, make_arena
from smelt.codegen.arena.pack import pack
from smelt.codegen.arena.problem import Buffer, InPlace

_Integers = NDArray[np.int64]
_Fractions = tuple[_Integers, _Integers, NDArray[np.float64], _Integers]

_NODES, _LAYOUTS = 5_000, 24
"""Largest number of partial assignments that are tried, and of assignments that are laid out."""

_PART = 1000
"""The search ends if no assignment can save one part in `_PART` of the cost."""


@dataclass(frozen=True, slots=True)
class Bank:
    """A memory that items can be assigned to.

    Attributes:
        name: A unique name.
        size: Bytes.
        wait_states: Cycles that each access of a word (4 bytes) waits.
    """

    name: str
    size: int
    wait_states: int


@dataclass(frozen=True, slots=True)
class StoredItem:
    """Something that one memory must store.

    Attributes:
        buffer: Its name, size, and live bytes; its `memory` is not used.
        moved: Bytes that an inference reads and writes.
        banks: The names of the memories that may store it.
        fixed: Whether it has its bytes for itself, like a constant. Other items are laid out
            together, and share bytes if they are not live at the same time.
    """

    buffer: Buffer
    moved: int
    banks: tuple[str, ...]
    fixed: bool = False


def assign(
    items: Sequence[StoredItem], banks: Sequence[Bank], in_place: Sequence[InPlace] = ()
) -> tuple[str, ...] | None:
    """Return the memory of each item that costs the fewest wait cycles, or None if none was found.

    No assignment costs 0.1 % less, as far as `pack` finds the smallest layouts, unless the limits
    of the search are reached: then the result is the best that was found.

    Args:
        items: What must be stored; names of buffers that are not fixed are unique.
        banks: The memories.
        in_place: Pairs of buffers that may share bytes while both are live.
    """
    found = [""] * len(items)
    for indices, names in _components(items):
        part = [items[i] for i in indices]
        search = _Search(part, [bank for bank in banks if bank.name in names], in_place)
        search.first_fit()
        search.run()
        if search.best is None:
            return None
        for i, bank in zip(indices, search.best, strict=True):
            found[i] = bank
    return tuple(found)


def _components(items: Sequence[StoredItem]) -> list[tuple[list[int], set[str]]]:
    """Return groups of items with no memory in common: their indices, and their memories."""
    groups: list[tuple[list[int], set[str]]] = []
    for i, item in enumerate(items):
        names = set(item.banks)
        together = [group for group in groups if group[1] & names]
        groups = [group for group in groups if not group[1] & names]
        indices = sorted([i, *(j for group in together for j in group[0])])
        groups.append((indices, names.union(*(group[1] for group in together))))
    return groups


def wait_cycles(moved: int, wait_states: int) -> int:
    """Return the cycles that accesses of `moved` bytes wait, a word at a time."""
    return -(-moved // 4) * wait_states


class _Search:
    def __init__(
        self, items: Sequence[StoredItem], banks: Sequence[Bank], in_place: Sequence[InPlace]
    ) -> None:
        self.best: tuple[str, ...] | None = None
        self._in_place = in_place
        self._banks = sorted(banks, key=lambda bank: (bank.wait_states, -bank.size))
        index = {bank.name: i for i, bank in enumerate(self._banks)}
        sizes = {bank.name: bank.size for bank in banks}
        self._slots = max((item.buffer.end for item in items), default=0)
        self._order = sorted(range(len(items)), key=lambda i: (*self._rank(items[i]), i))
        self._items = [items[i] for i in self._order]
        self._allowed = [
            [index[name] for name in item.banks if sizes[name] >= item.buffer.size]
            for item in self._items
        ]
        self._costs = [
            {i: wait_cycles(item.moved, self._banks[i].wait_states) for i in allowed}
            for item, allowed in zip(self._items, self._allowed, strict=True)
        ]
        for costs, allowed in zip(self._costs, self._allowed, strict=True):
            # Of equally fast memories, the largest has the least use for its bytes.
            allowed.sort(key=lambda i: (costs[i], -self._banks[i].size))
        least = [min(costs.values(), default=0) for costs in self._costs]
        self._least_after = [*np.cumsum(least[::-1], dtype=np.int64)[::-1].tolist(), 0]
        self._loads = _loads(self._items, in_place)
        self._sizes = [bank.size for bank in self._banks]
        self._least_cost = 1 << 62
        self._failed: list[tuple[int, int]] = []
        self._nodes = self._layouts = 0

    def _rank(self, item: StoredItem) -> tuple[float, int]:
        """Return a key: what the fastest memory saves for each byte and slot, the most first."""
        waits = sorted(bank.wait_states for bank in self._banks if bank.name in item.banks)
        saved = item.moved * (waits[-1] - waits[0]) if waits else 0
        slots = self._slots if item.fixed else item.buffer.end - item.buffer.start
        return -saved / max(item.buffer.size * slots, 1), -item.buffer.size

    def first_fit(self) -> None:
        """Put each item into the best memory that has room, at the lowest offset."""
        fixed, top = [0] * len(self._banks), [0] * len(self._banks)
        chosen: list[int] = []
        offsets: dict[int, int] = {}
        neighbors = self._neighbors()
        for i, item in enumerate(self._items):
            size = _bytes(item.buffer)
            for bank in self._allowed[i]:
                if item.fixed:
                    constants, end = fixed[bank] + size, top[bank]
                else:
                    near = [(offsets[j], g) for j, g in neighbors[i] if chosen[j] == bank]
                    offsets[i] = _lowest(near, item.buffer.alignment)
                    constants, end = fixed[bank], max(top[bank], offsets[i] + size)
                if constants + end <= self._sizes[bank]:
                    fixed[bank], top[bank] = constants, end
                    chosen.append(bank)
                    break
            else:
                return
        contents = [0] * len(self._banks)
        for i, bank in enumerate(chosen):
            contents[bank] |= 1 << i
        if all(self._fits(bank, here) for bank, here in enumerate(contents)):
            cost = sum(costs[bank] for costs, bank in zip(self._costs, chosen, strict=True))
            self._take(chosen, cost)

    def _neighbors(self) -> list[list[tuple[int, Gaps]]]:
        """Return for each item the earlier ones that are live together with it.

        Each has the forbidden differences between the item's offset and its own.
        """
        found: list[list[tuple[int, Gaps]]] = [[] for _ in self._items]
        planned = [i for i, item in enumerate(self._items) if not item.fixed]
        arena = make_arena([self._items[i].buffer for i in planned], self._in_place)
        for pair in arena.pairs():
            first, second, gaps = planned[pair.first], planned[pair.second], pair.gaps
            if first > second:
                first, second = second, first
                gaps = tuple((-high, -low) for low, high in reversed(gaps))
            found[second].append((first, gaps))
        return found

    def run(self) -> None:
        """Visit assignments in depth-first order."""
        count = len(self._items)
        chosen, trial = [0] * count, [0] * (count + 1)
        load = np.zeros((len(self._banks), self._loads.shape[1]), np.int64)
        contents = [0] * len(self._banks)
        cost = depth = 0
        while depth >= 0:
            if depth == count:
                self._keep(chosen, contents, cost)
            elif trial[depth] < len(self._allowed[depth]) and self._nodes < _NODES:
                bank = self._allowed[depth][trial[depth]]
                trial[depth] += 1
                self._nodes += 1
                grown, dearer = load[bank] + self._loads[depth], cost + self._costs[depth][bank]
                if (
                    grown.max() <= self._sizes[bank]
                    and dearer + self._bound(depth + 1, grown if bank == 0 else load[0])
                    < self._least_cost - self._least_cost // _PART
                    and not self._fails(bank, contents[bank] | 1 << depth)
                ):
                    load[bank], cost, chosen[depth] = grown, dearer, bank
                    contents[bank] |= 1 << depth
                    depth += 1
                    trial[depth] = 0
                continue
            depth -= 1
            if depth >= 0:
                bank = chosen[depth]
                load[bank] -= self._loads[depth]
                cost -= self._costs[depth][bank]
                contents[bank] &= ~(1 << depth)

    def _keep(self, chosen: Sequence[int], contents: Sequence[int], cost: int) -> None:
        """Make an assignment the best one if its layouts fit; remember what does not fit."""
        for bank, here in enumerate(contents):
            if not self._fits(bank, here):
                self._failed.append((bank, self._too_much(bank, here)))
                return
        self._take(chosen, cost)

    def _take(self, chosen: Sequence[int], cost: int) -> None:
        """Make an assignment the best one."""
        self._least_cost = cost
        bank_of = dict(zip(self._order, chosen, strict=True))
        self.best = tuple(self._banks[bank_of[i]].name for i in range(len(chosen)))

    def _fails(self, bank: int, contents: int) -> bool:
        """Return whether a memory is known to be too small for some items (a bit for each)."""
        return any(b == bank and part & contents == part for b, part in self._failed)

    def _too_much(self, bank: int, contents: int) -> int:
        """Return the first of some items that do not fit into a memory together."""
        low, high = 0, len(self._items)
        while high - low > 1:
            middle = (low + high) // 2
            if self._fits(bank, contents & ((1 << middle) - 1)):
                low = middle
            else:
                high = middle
        return contents & ((1 << high) - 1)

    def _fits(self, bank: int, contents: int) -> bool:
        """Return whether a layout of some items (a bit for each) fits into a memory."""
        items = [item for i, item in enumerate(self._items) if contents >> i & 1]
        size = self._sizes[bank]
        size -= sum(_bytes(item.buffer) for item in items if item.fixed)
        buffers = [item.buffer for item in items if not item.fixed]
        if sum(map(_bytes, buffers)) <= size:
            return True
        if size < 0 or self._layouts >= _LAYOUTS:
            return False
        self._layouts += 1
        return pack(make_arena(buffers, self._in_place), enough=size).bytes <= size

    def _bound(self, first: int, fastest: _Integers) -> int:
        """Return cycles that the items from index `first` on cost at least.

        `fastest` has the live bytes of the other items in the fastest memory.

        In a slot of time, the items that do not fit into what is left of the fastest memory pay for
        the next one. The bound lets parts of items be in the fastest memory, those first that save
        the most for each byte that is live in the slot. No item is live in two of the slots, so
        their costs add up.
        """
        least: int = self._least_after[first]
        if self._slots_apart is None:
            return least
        order, sizes, saved, slots = self._slots_apart
        left = self._sizes[0] - fastest[slots]
        paid = _paid(left, np.where(order >= first, sizes, 0), saved)
        return least + int(np.ceil(paid.sum() - 1e-6))

    @cached_property
    def _slots_apart(self) -> _Fractions | None:
        """The items by what the fastest memory saves for each live byte, slot by slot.

        Returns:
            In a row for each slot: indices of items, their live bytes, and cycles saved; and the
            slots. No item is live in two of them. None if there is nothing to save.
        """
        saved = np.array([self._saved(i) for i in range(len(self._items))], np.float64)
        if not saved.any():
            return None
        sizes = np.where(saved[:, None] > 0, self._loads, 0).T
        order = np.argsort(-saved[None, :] / np.maximum(sizes, 1), axis=1, kind="stable")
        ordered = np.take_along_axis(sizes, order, axis=1)
        paid = _paid(np.full(len(sizes), self._sizes[0]), ordered, saved[order]).sum(axis=1)
        slots: list[int] = []
        taken = np.zeros(len(self._items), bool)
        for slot in np.argsort(-paid, kind="stable").tolist():
            if not (taken & (sizes[slot] > 0)).any():
                slots.append(slot)
                taken |= sizes[slot] > 0
        return order[slots], ordered[slots], saved[order[slots]], np.array(slots)

    def _saved(self, i: int) -> int:
        """Return the cycles that an item costs more if it is not in the fastest memory."""
        costs = self._costs[i]
        if 0 not in costs or len(costs) == 1:
            return 0
        return max(0, min(cost for bank, cost in costs.items() if bank) - costs[0])


def _paid(left: _Integers, sizes: _Integers, saved: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what items cost that do not fit into the bytes that are left; a row for each slot."""
    begins = np.cumsum(sizes, axis=1) - sizes
    inside = np.clip(left[:, None] - begins, 0, sizes)
    return np.where(sizes > 0, saved * (1 - inside / np.maximum(sizes, 1)), 0.0)


def _lowest(near: Sequence[tuple[int, Gaps]], alignment: int) -> int:
    """Return the lowest offset that is allowed beside buffers with given offsets."""
    lowest = 0
    for low, high in sorted((at + low, at + high) for at, gaps in near for low, high in gaps):
        if low < lowest < high:
            lowest = align_up(high, alignment)
    return lowest


def _bytes(buffer: Buffer) -> int:
    return align_up(buffer.size, buffer.alignment)


def _loads(items: Sequence[StoredItem], in_place: Sequence[InPlace]) -> _Integers:
    """Return the live bytes of each item (rows) at each step at which some live bytes begin.

    A result that may overwrite operands counts less, by what the operands have live.
    """
    starts = sorted({span.start for item in items for span in item.buffer.live} or {0})
    steps = np.array(starts)
    found = np.zeros((len(items), len(starts)), np.int64)
    for row, item in enumerate(items):
        if item.fixed:
            found[row] = _bytes(item.buffer)
            continue
        for span in item.buffer.live:
            here = (steps >= span.start) & (steps < span.end)
            found[row, here] = span.high - span.low
    rows = {item.buffer.name: row for row, item in enumerate(items) if not item.fixed}
    shared = np.zeros_like(found)
    for pair in in_place:
        if pair.input in rows and pair.output in rows:
            source, result = rows[pair.input], rows[pair.output]
            shared[result] += np.minimum(found[source], found[result])
    return np.maximum(found - shared, 0)
