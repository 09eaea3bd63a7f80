"""The planner's result: placements, bytes in each memory, bounds, and printed forms."""

from dataclasses import asdict, dataclass
from functools import cached_property

from smelt.codegen.arena.problem import Span


@dataclass(frozen=True, slots=True)
class Placement:
    """A buffer's address: `offset` bytes from the base of `memory`, in steps [start, end).

    `spans` says which bytes are live in which steps, as in `Buffer`.
    """

    name: str
    memory: str
    offset: int
    size: int
    start: int
    end: int
    spans: tuple[Span, ...] = ()

    def live_bytes(self, step: int) -> int:
        """Return the number of bytes that are live at `step`."""
        spans = self.spans or (Span(self.start, self.end, 0, self.size),)
        return sum(span.high - span.low for span in spans if span.start <= step < span.end)

    def to_dict(self) -> dict[str, object]:
        """Return the fields as a dictionary for JSON, without `spans` if there are none."""
        fields = asdict(self)
        if not self.spans:
            del fields["spans"]
        return fields


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The use of one memory.

    Attributes:
        name: The name of the memory.
        bytes: The size that the layout needs.
        lower_bound: Bytes that every layout of the buffers in this memory needs.
        optimal: Whether it is proved that no layout of these buffers needs less than `bytes`.
        peak_step: The first step at which the lower bound is reached.
    """

    name: str
    bytes: int
    lower_bound: int
    optimal: bool
    peak_step: int

    @property
    def certificate(self) -> str:
        """Which bound of its schedule the memory meets, in words."""
        if self.optimal:
            return "proved smallest for this schedule"
        gap = self.bytes - self.lower_bound
        more = f"{gap:,} bytes or {gap / self.lower_bound:.1%} more"
        return f"{more} than the lower bound of this schedule"


@dataclass(frozen=True, slots=True)
class Effort:
    """The cost of the search: first-fit layouts tried, and pair checks of the exact search."""

    layouts: int = 0
    checks: int = 0


@dataclass(frozen=True)
class Plan:
    """A layout of every buffer."""

    placements: tuple[Placement, ...]
    memories: tuple[MemoryUse, ...]
    steps: tuple[str, ...]
    effort: Effort

    @property
    def bytes(self) -> int:
        """The bytes of all memories together."""
        return sum(use.bytes for use in self.memories)

    @property
    def lower_bound(self) -> int:
        """The sum of the memories' lower bounds."""
        return sum(use.lower_bound for use in self.memories)

    @property
    def optimal(self) -> bool:
        """Whether it is proved that no plan needs less."""
        return all(use.optimal for use in self.memories)

    def __getitem__(self, name: str) -> Placement:
        """Return the placement of the buffer `name`. Raises KeyError if there is none."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Placement]:
        return {placement.name: placement for placement in self.placements}

    def use(self, memory: str) -> MemoryUse:
        """Return the use of `memory`. Raises KeyError if there is no such memory."""
        for use in self.memories:
            if use.name == memory:
                return use
        raise KeyError(memory)

    def live(self, memory: str, step: int) -> tuple[Placement, ...]:
        """Return the buffers that have live bytes in `memory` at `step`, by offset."""
        here = (p for p in self.placements if p.memory == memory and p.live_bytes(step))
        return tuple(sorted(here, key=lambda p: (p.offset, p.start, p.name)))

    def step_name(self, step: int) -> str:
        """Return the name of a step for messages, or its number if it has none."""
        name = self.steps[step] if step < len(self.steps) else ""
        return name or f"slot {step}"

    def to_dict(self) -> dict[str, object]:
        """Return the plan as a dictionary for JSON."""
        return {
            "bytes": self.bytes,
            "lower_bound": self.lower_bound,
            "optimal": self.optimal,
            "memories": [asdict(use) for use in self.memories],
            "map": [p.to_dict() for p in self.placements],
            "effort": asdict(self.effort),
        }

    def table(self) -> str:
        """Return a text table: a line per buffer, by memory and offset, then a line per memory."""
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
            peak = self.step_name(use.peak_step)
            lines.append(f"{use.name}: {use.bytes:,} bytes, {use.certificate}, peak at {peak}")
        return "\n".join(lines)


_LEFT_COLUMNS = 2


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    cells = (
        text.ljust(w) if k < _LEFT_COLUMNS else text.rjust(w)
        for k, (text, w) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join(cells)
