"""What the planner answers: placements, bytes for each memory, bounds, and readable forms."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

from smelt.codegen.arena.problem import WriteOrder


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a buffer lives: `offset` bytes from the base of `memory`, in steps [start, end)."""

    name: str
    memory: str
    offset: int
    size: int
    start: int
    end: int

    def to_dict(self) -> dict[str, str | int]:
        """The fields, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What one memory must hold.

    `lower_bound` (bytes) holds for every layout of the buffers that were put here, and is reached
    first at step `peak_step`; `optimal` says that no layout of them takes less than `bytes`.
    """

    name: str
    bytes: int
    lower_bound: int
    optimal: bool
    peak_step: int


@dataclass(frozen=True, slots=True)
class Effort:
    """What the search cost: layouts tried by first fit, and pair checks of the exact search."""

    layouts: int = 0
    checks: int = 0


@dataclass(frozen=True)
class Plan:
    """A layout of every buffer.

    `write_orders` has an entry for each step that relies on a diagonal overlap; a step without one
    may write in any order. `spilled` names the buffers that are not in their preferred memory.
    """

    placements: tuple[Placement, ...]
    memories: tuple[MemoryUse, ...]
    write_orders: Mapping[int, WriteOrder]
    spilled: tuple[str, ...]
    steps: tuple[str, ...]
    effort: Effort

    @property
    def bytes(self) -> int:
        """Bytes in all memories together."""
        return sum(use.bytes for use in self.memories)

    @property
    def lower_bound(self) -> int:
        """The memories' lower bounds together, for the memories that the buffers were given."""
        return sum(use.lower_bound for use in self.memories)

    @property
    def optimal(self) -> bool:
        """Whether it is proved that no plan needs less; never said of a plan that spills."""
        return not self.spilled and all(use.optimal for use in self.memories)

    def __getitem__(self, name: str) -> Placement:
        """The placement of the buffer `name`. Raises KeyError if there is none."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Placement]:
        return {placement.name: placement for placement in self.placements}

    def use(self, memory: str) -> MemoryUse:
        """What `memory` must hold. Raises KeyError if there is no such memory."""
        for use in self.memories:
            if use.name == memory:
                return use
        raise KeyError(memory)

    def live(self, memory: str, step: int) -> tuple[Placement, ...]:
        """The buffers that are live in `memory` at `step`, by offset."""
        here = (p for p in self.placements if p.memory == memory and p.start <= step < p.end)
        return tuple(sorted(here, key=lambda p: (p.offset, p.start, p.name)))

    def step_name(self, step: int) -> str:
        """The name of a step for messages: its index, and its own name if it has one."""
        name = self.steps[step] if step < len(self.steps) else ""
        return f"step {step} ({name})" if name else f"step {step}"

    def to_dict(self) -> dict[str, object]:
        """The plan, ready for JSON."""
        return {
            "bytes": self.bytes,
            "lower_bound": self.lower_bound,
            "optimal": self.optimal,
            "memories": [asdict(use) for use in self.memories],
            "map": [p.to_dict() for p in self.placements],
            "write_orders": {str(s): str(order) for s, order in self.write_orders.items()},
            "spilled": list(self.spilled),
            "effort": asdict(self.effort),
        }

    def table(self) -> str:
        """One line a buffer, by memory and offset, and one line a memory."""
        header = ("memory", "buffer", "offset", "size", "end", "steps")
        order = {use.name: i for i, use in enumerate(self.memories)}
        rows = [
            (
                p.memory,
                p.name,
                f"{p.offset:,}",
                f"{p.size:,}",
                f"{p.offset + p.size:,}",
                f"{p.start}-{p.end - 1}",
            )
            for p in sorted(
                self.placements, key=lambda p: (order[p.memory], p.offset, p.start, p.name)
            )
        ]
        widths = [max(len(row[k]) for row in (header, *rows)) for k in range(len(header))]
        lines = [_line(row, widths) for row in (header, *rows)]
        for use in self.memories:
            proof = "optimal" if use.optimal else "not proved optimal"
            lines.append(
                f"{use.name}: {use.bytes:,} bytes, lower bound {use.lower_bound:,}, "
                f"{proof}, peak at {self.step_name(use.peak_step)}"
            )
        return "\n".join(lines)


_LEFT_COLUMNS = 2


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    cells = (
        text.ljust(w) if k < _LEFT_COLUMNS else text.rjust(w)
        for k, (text, w) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join(cells)
