"""The memories of a board that store a network's buffers, states and constants.

If several memories may store them, each goes where the bytes that an inference moves wait the least
(`arena/assign.py`). Tensors and scratch in one memory are planned together, as an arena of their
own; each constant is an array of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property

from smelt.codegen import arena
from smelt.codegen.arena.assign import Bank, StoredItem, assign
from smelt.codegen.arena.conflict import align_up
from smelt.codegen.schedule.banded import BANDS
from smelt.codegen.schedule.schedule import ARENA, STATE, Schedule
from smelt.codegen.schedule.steps import Argument, InFlash
from smelt.codegen.schedule.traffic import Traffic
from smelt.errors import ConfigError, DoesNotFit
from smelt.targets import Part, Platform, PlatformMemory

WEIGHTS = ":weights"
"""The end of a name that stands for the constants of a layer."""

_BUFFER = "buffer "


@dataclass(frozen=True)
class StoredArray:
    """A buffer, state or constant in a memory.

    Attributes:
        name: The name of the buffer or constant.
        kind: `arena` for tensors and scratch, `state`, or `weights` for all constants.
        bytes: Its size.
        moved: The bytes that an inference reads and writes.
    """

    name: str
    kind: str
    bytes: int
    moved: int


@dataclass(frozen=True)
class Distribution:
    """Where a board stores a network: its memory for each arena, constant, and the states.

    Attributes:
        schedule: The steps; its problem has a memory for each arena.
        plan: The offsets in the arenas.
        platform: The platform; its placement has the largest memories that store tensors and
            constants.
        arenas: The memory of each arena, by the arena's name in the problem; `ARENA` is the first.
        constants: The memory of each constant.
        state: The memory of the states; None if there are none.
    """

    schedule: Schedule
    plan: arena.Plan
    platform: Platform
    arenas: Mapping[str, str]
    constants: Mapping[str, str]
    state: str | None

    @property
    def has_choice(self) -> bool:
        """Whether several memories may hold weights or tensors."""
        return _has_choice(self.platform)

    @cached_property
    def _traffic(self) -> Traffic:
        return Traffic(self.schedule, self.plan)

    def contents(self, memory: str) -> tuple[StoredArray, ...]:
        """Return the arrays in a memory of the board."""
        homes = {**self.arenas, STATE: self.state}
        buffers = (
            StoredArray(
                b.name, STATE if b.memory == STATE else ARENA, b.size, self._traffic.buffers[b.name]
            )
            for b in self.schedule.problem.buffers
            if homes[b.memory] == memory
        )
        constants = (
            StoredArray(name, "weights", array.nbytes, self._traffic.constants[name])
            for name, array in self.schedule.constants.items()
            if self.constants[name] == memory
        )
        return (*buffers, *constants)

    def sizes(self, memory: str) -> dict[str, int]:
        """Return the bytes of arena, state and weights in a memory of the board."""
        arrays = self.schedule.constants
        return {
            "arena": sum(
                self.plan.use(name).bytes for name, home in self.arenas.items() if home == memory
            ),
            "state": self.plan.use(STATE).bytes if self.state == memory else 0,
            "weights": sum(
                arrays[n].nbytes for n, home in self.constants.items() if home == memory
            ),
        }

    def main(self, part: Part) -> str:
        """Return the memory of a part, the main one if there are several; empty without a board."""
        memory = self.platform.memory_of(part)
        return "" if memory is None else memory.name

    def require_constants_fit(self) -> None:
        """Raise if the constants in a memory are larger than it.

        Raises:
            DoesNotFit: The message has both sizes and the largest constants.
        """
        arrays = self.schedule.constants
        for memory in self.platform.memories_of("weights"):
            here = [name for name, home in self.constants.items() if home == memory.name]
            sizes = sorted(((arrays[name].nbytes, name) for name in here), reverse=True)
            needed = sum(size for size, _ in sizes)
            if needed <= memory.size:
                continue
            largest = tuple((name, size) for size, name in sizes[:5])
            raise DoesNotFit(
                f"memory '{memory.name}' of {self.platform.name} has {memory.size:,} bytes, the "
                f"weights need {needed:,}; the largest are "
                f"{', '.join(f'{name} {size:,}' for name, size in largest)} bytes. Use a board "
                "with more memory or a smaller network.",
                needed=needed,
                available=memory.size,
                largest=largest,
            )


def distribute(
    schedule: Schedule,
    plan: arena.Plan,
    platform: Platform,
    pins: Mapping[str, str],
    *,
    together: bool,
    spread: bool,
) -> Distribution:
    """Return where everything is stored, so that an inference waits the fewest cycles for memory.

    If nothing that fits is found, everything that is not pinned is in the largest memories.

    Args:
        schedule: The steps; all buffers except states are in one arena.
        plan: The offsets in that arena.
        platform: The target and its memories, if it has any.
        pins: The memory of each tensor, by its name or a pattern, and of a layer's constants, by
            the layer's name with `WEIGHTS` behind it.
        together: Whether the arena stays in one piece, which takes the fewest bytes.
        spread: Whether there is a choice; if not, everything is in the largest memories.

    Raises:
        ConfigError: `pins` has an unknown name, or a memory that cannot store it.
        DoesNotFit: What is pinned to a memory does not fit there.
    """
    placement = platform.placement
    if placement is None:
        if pins:
            raise ConfigError("--place-tensor needs a --board, whose file describes its memories")
        return Distribution(schedule, plan, platform, {}, {}, None)
    pinned = _pinned(schedule, platform, pins)
    if together and any(key.startswith(_BUFFER) for key in pinned):
        raise ConfigError(
            "--place-tensor for tensors needs an arena in each memory, which take more bytes "
            "together than one arena: remove --max-ram or --optimize ram, or pin only weights, as "
            f"LAYER{WEIGHTS}=MEMORY"
        )
    stored = _Stored(schedule, plan, platform, pinned, together=together)
    homes = stored.homes(spread=spread)
    constants = {name: homes[_constant(name)] for name in schedule.constants}
    state = homes.get(STATE)
    buffers = [b for b in schedule.problem.buffers if b.memory == ARENA]
    where = {b.name: homes[ARENA if together else _buffer(b.name)] for b in buffers}
    main = _largest(platform, "arena", [where[b.name] for b in buffers if b.size])
    weights = _largest(platform, "weights", constants.values())
    platform = replace(platform, placement=replace(placement, arena=main, weights=weights))
    if not (spread and _has_choice(platform)):
        return Distribution(schedule, plan, platform, {ARENA: main}, constants, state)
    used = {where[b.name] for b in buffers if b.size} - {main}
    names = {main: ARENA, **{home: f"{ARENA}_{home}" for home in sorted(used)}}
    problem = replace(
        schedule.problem,
        memories=(
            *(
                arena.Memory(name, stored.room(home, homes), schedule.alignment)
                for home, name in names.items()
            ),
            *(memory for memory in schedule.problem.memories if memory.name != ARENA),
        ),
        buffers=tuple(
            replace(b, memory=names.get(where[b.name], ARENA)) if b.name in where else b
            for b in schedule.problem.buffers
        ),
    )
    limit = problem.memory(ARENA).size
    if len(names) > 1 or (limit is not None and plan.use(ARENA).bytes > limit):
        plan = arena.plan(problem)
    arenas = {name: home for home, name in names.items()}
    return Distribution(
        replace(schedule, problem=problem), plan, platform, arenas, constants, state
    )


def _has_choice(platform: Platform) -> bool:
    parts: tuple[Part, ...] = ("weights", "arena")
    return any(len(platform.memories_of(part)) > 1 for part in parts)


def _largest(platform: Platform, part: Part, used: Iterable[str]) -> str:
    """Return the largest of the memories that are used for a part, or else that may hold it."""
    names = [memory.name for memory in _by_size(platform, part)]
    taken = set(used)
    return next((name for name in names if name in taken), names[0])


def _by_size(platform: Platform, part: Part) -> list[PlatformMemory]:
    return sorted(platform.memories_of(part), key=lambda memory: -memory.size)


def _buffer(name: str) -> str:
    """Return the key of a buffer among all that is stored."""
    return f"{_BUFFER}{name}"


def _constant(name: str) -> str:
    """Return the key of a constant among all that is stored."""
    return f"constant {name}"


class _Stored:
    """What the memories store, as items of `assign`: the first memory of each is the largest."""

    def __init__(
        self,
        schedule: Schedule,
        plan: arena.Plan,
        platform: Platform,
        pinned: Mapping[str, str],
        *,
        together: bool,
    ) -> None:
        self._schedule = schedule
        self._platform = platform
        self._pinned = pinned
        self._together = together
        self._items = dict(self._each(plan, Traffic(schedule, plan)))
        self._limit = schedule.problem.memory(ARENA).size if together else None

    def homes(self, *, spread: bool) -> dict[str, str]:
        """Return the memory of each item: the largest one, or the best one if `spread` is set."""
        items = list(self._items.values())
        found = self._assigned(items) if spread and _has_choice(self._platform) else None
        if found is None:
            self._require_pins_fit()
            found = tuple(item.banks[0] for item in items)
        return dict(zip(self._items, found, strict=True))

    def room(self, home: str, homes: Mapping[str, str]) -> int:
        """Return the bytes of a memory that are left for an arena beside states and constants."""
        memory = next(memory for memory in self._platform.memories if memory.name == home)
        fixed = (
            align_up(item.buffer.size, item.buffer.alignment)
            for key, item in self._items.items()
            if item.fixed and key != ARENA and homes[key] == home
        )
        left = max(self._platform.room(memory) - sum(fixed), 0)
        return left if self._limit is None else min(left, self._limit)

    def _each(self, plan: arena.Plan, traffic: Traffic) -> Iterator[tuple[str, StoredItem]]:
        """Yield what is stored, by key: the arena or its buffers, the states, the constants."""
        schedule, moved = self._schedule, traffic.buffers
        buffers = [b for b in schedule.problem.buffers if b.memory == ARENA]
        states = [b for b in schedule.problem.buffers if b.memory == STATE]
        if self._together:
            yield (
                ARENA,
                self._fixed(
                    ARENA, plan.use(ARENA).bytes, sum(moved[b.name] for b in buffers), "arena"
                ),
            )
        else:
            for b in buffers:
                banks = self._banks(_buffer(b.name), "arena")
                yield _buffer(b.name), StoredItem(b, moved[b.name], banks)
        if states:
            size, all_moved = plan.use(STATE).bytes, sum(moved[b.name] for b in states)
            yield STATE, self._fixed(STATE, size, all_moved, "arena")
        for name, array in schedule.constants.items():
            key, size = _constant(name), array.nbytes
            yield key, self._fixed(key, size, traffic.constants[name], "weights")

    def _fixed(self, key: str, size: int, moved: int, part: Part) -> StoredItem:
        """Return an item that has its bytes for itself."""
        alignment = self._schedule.alignment
        buffer = arena.Buffer(key, size, 0, 1, ARENA, alignment)
        return StoredItem(buffer, moved, self._banks(key, part), fixed=True)

    def _banks(self, key: str, part: Part) -> tuple[str, ...]:
        """Return the memories that may store an item, the largest first."""
        if key in self._pinned:
            return (self._pinned[key],)
        return tuple(memory.name for memory in _by_size(self._platform, part))

    def _assigned(self, items: Sequence[StoredItem]) -> tuple[str, ...] | None:
        banks = [
            Bank(memory.name, self._platform.room(memory), memory.wait_states)
            for memory in self._platform.memories
        ]
        return assign(items, banks, self._schedule.problem.in_place)

    def _require_pins_fit(self) -> None:
        """Raise a `DoesNotFit` if what is pinned to a memory does not fit there."""
        for home in dict.fromkeys(self._pinned.values()):
            keys = [key for key, bank in self._pinned.items() if bank == home]
            if self._assigned([self._items[key] for key in keys]) is not None:
                continue
            memory = next(memory for memory in self._platform.memories if memory.name == home)
            room = self._platform.room(memory)
            sizes = [self._items[key].buffer.size for key in keys]
            raise DoesNotFit(
                f"--place-tensor: what is pinned to memory '{home}' of {self._platform.name} does "
                f"not fit into the {room:,} bytes that it has beside stack and reserve; it is "
                f"{', '.join(f'{size:,}' for size in sizes)} bytes. Pin fewer arrays to it",
                needed=sum(sizes),
                available=room,
            )


def _pinned(schedule: Schedule, platform: Platform, pins: Mapping[str, str]) -> dict[str, str]:
    """Return the memory of each pinned item, by its key."""
    tensors, weights = _tensors(schedule), _layer_constants(schedule)
    found: dict[str, str] = {}
    for pattern, memory in pins.items():
        part: Part = "weights" if pattern.endswith(WEIGHTS) else "arena"
        where = f"--place-tensor {pattern}={memory}"
        known = weights if part == "weights" else tensors
        keys = [key for name in known if _matches(name, pattern) for key in known[name]]
        if not keys:
            close = get_close_matches(pattern, known, n=3, cutoff=0.3) or list(known)[:3]
            raise ConfigError(
                f"{where}: no {'layer with weights' if part == 'weights' else 'tensor'} has this "
                f"name; there are {', '.join(map(repr, close))}, …"
            )
        names = [one.name for one in platform.memories_of(part)]
        if memory not in names:
            what = "weights" if part == "weights" else "tensors"
            raise ConfigError(
                f"{where}: {platform.name} has no memory '{memory}' that may hold {what}; give "
                f"{' or '.join(names)}"
            )
        for key in keys:
            if found.setdefault(key, memory) != memory:
                raise ConfigError(
                    f"{where}: the same array is also placed in '{found[key]}'; name it once"
                )
    return found


def _tensors(schedule: Schedule) -> dict[str, list[str]]:
    """Return the keys of the buffers of each tensor and scratch, by name.

    Of a tensor that is stored in bands, these are the band, which may be a part of a buffer that
    other bands share, and its rows that wait elsewhere.
    """
    states = {b.name for b in schedule.problem.buffers if b.memory == STATE}
    buffers: dict[str, list[str]] = {v.name: [name] for v, name in schedule.storage.items()}
    for buffer in schedule.problem.buffers:
        name = buffer.name
        for prefix in BANDS:
            if name.startswith(prefix):
                buffers.setdefault(name.removeprefix(prefix), []).append(name)
        buffers.setdefault(name, [name])
    for segment in schedule.segments:
        outputs = {layer.index: layer.node.output.name for layer in segment.layers}
        for call in segment.calls:
            known = buffers.setdefault(outputs[call.step], [])
            if call.result.buffer not in known:
                known.append(call.result.buffer)
    return {
        tensor: [STATE if name in states else _buffer(name) for name in names]
        for tensor, names in buffers.items()
    }


def _layer_constants(schedule: Schedule) -> dict[str, list[str]]:
    """Return the keys of the constants that each layer reads, by its name with `WEIGHTS`."""
    found: dict[str, list[str]] = {}
    layers = {call.index: f"{call.node.name}{WEIGHTS}" for call in schedule.calls}
    calls: list[tuple[str, tuple[Argument, ...]]] = [
        (layers[call.index], call.arguments) for call in schedule.calls
    ]
    for segment in schedule.segments:
        calls += [(layers[call.step], call.arguments) for call in segment.calls]
    for name, arguments in calls:
        for argument in arguments:
            if isinstance(argument, InFlash):
                found.setdefault(name, []).append(_constant(argument.constant))
    return found


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)
