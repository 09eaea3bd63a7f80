"""Assembly that transforms the inputs of minimal filtering, on cores with the DSP extension.

A tile of 4x4 inputs is transformed along its columns, then along its rows, each time by

    d0 - d2, d1 + d2, d2 - d1, d1 - d3

for two channels at once in the halves of a word. Of two tiles side by side the second begins with
the last two columns of the first. Results go to where the products of their position are summed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ROW_ORDER = 1, 2, 0, 3
"""Of the positions of a column: the first two enter both rows of outputs."""


def position(row: int, column: int) -> int:
    """The place of a position among the sixteen."""
    return 4 * column + ROW_ORDER.index(row)


@dataclass(frozen=True)
class TransformStep:
    """Lines of assembly, and what they do."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class InputTransform:
    """The transformation of four channels of one or two tiles.

    Attributes:
        tiles: side by side, 1 or 2.
        depth: channels.
    """

    tiles: int
    depth: int

    @property
    def columns(self) -> int:
        """Columns of inputs."""
        return 2 * self.tiles + 2

    @property
    def stride(self) -> int:
        """Words of a position: two channels each, four channels of every tile in turn."""
        return self.depth // 2 * self.tiles

    @property
    def start(self) -> tuple[str, ...]:
        """Instructions up to the first four channels.

        r0-r3: rows; r4: results. On the stack: the results' end.
        """
        end = f"add r2, r1, r2, lsl #{self.tiles}"
        return "push {r4-r11, lr}", end, "push {r2}", "mov r4, r1", "ldm r0, {r0-r3}", "1:"

    @property
    def end(self) -> tuple[str, ...]:
        """Instructions that go on to the next four channels, or return."""
        rows = (f"add r{row}, r{row}, #4" for row in range(4))
        lines = [*rows, "ldr r5, [sp]", f"add r4, r4, #{8 * self.tiles}", "cmp r4, r5", "bne 1b"]
        return (*lines, "pop {r4}", "pop {r4-r11, pc}")

    def at(self, row: int, column: int, tile: int, word: int) -> int:
        """Words from the first result of four channels to that at a position."""
        return position(row, column) * self.stride + 2 * tile + word

    @property
    def steps(self) -> list[TransformStep]:
        """The first and third of four channels, then the second and fourth."""
        return [step for word in (0, 1) for step in _Half(self, word).steps()]


@dataclass
class _Half:
    """Two of four channels. r0-r3 point to rows of inputs, r4 to results."""

    transform: InputTransform
    word: int
    spare: str = "lr"
    lines: list[str] = field(default_factory=list[str])

    def steps(self) -> list[TransformStep]:
        """In an order in which two columns at a time are in registers."""
        first, third = ["r5", "r6", "r7", "r8"], ["r9", "r10", "r11", "r12"]
        self._load(0, first)
        self._load(2, third)
        first, third = self._along(first), self._along(third)
        self._results(0, 0, "ssub16", first, third)
        steps = [self._step("columns 0 and 2")]
        second = self._column(1, first)
        self._results(0, 1, "sadd16", second, third)
        self._results(0, 2, "ssub16", third, second)
        if self.transform.tiles == 1:
            fourth = self._column(3, third)
            self._results(0, 3, "ssub16", second, fourth)
            return [*steps, self._step("columns 1 and 3")]
        # The last column of the first tile comes when there is room for it.
        kept = [f"[r4, #{4 * self.transform.at(i, 3, 0, self.word)}]" for i in range(4)]
        self.lines += [f"str {r}, {place}" for r, place in zip(second, kept, strict=True)]
        steps.append(self._step("column 1"))
        fifth = self._column(4, second)
        self._results(1, 0, "ssub16", third, fifth)
        steps.append(self._step("column 4"))
        fourth = self._column(3, third)
        self._results(1, 1, "sadd16", fourth, fifth)
        self._results(1, 2, "ssub16", fifth, fourth)
        self.lines += [f"ldr {r}, {place}" for r, place in zip(fifth, kept, strict=True)]
        self._results(0, 3, "ssub16", fifth, fourth)
        steps.append(self._step("column 3"))
        sixth = self._column(5, fifth)
        self._results(1, 3, "ssub16", fourth, sixth)
        return [*steps, self._step("column 5")]

    def _step(self, columns: str) -> TransformStep:
        lines, self.lines = self.lines, []
        channels = ("First and third", "Second and fourth")[self.word]
        return TransformStep(f"{channels} channel: {columns}.", tuple(lines))

    def _column(self, column: int, registers: list[str]) -> list[str]:
        self._load(column, registers)
        return self._along(registers)

    def _load(self, column: int, registers: list[str]) -> None:
        at = column * self.transform.depth
        self.lines += [f"ldr {r}, [r{i}, #{at}]" for i, r in enumerate(registers)]

    def _along(self, registers: list[str]) -> list[str]:
        """Widens a column and transforms it; the registers where it then is."""
        turn = ", ror #8" if self.word else ""
        self.lines += [f"sxtb16 {r}, {r}{turn}" for r in registers]
        a, b, c, d = registers
        self.lines += [
            f"ssub16 {a}, {a}, {c}",
            f"ssub16 {d}, {b}, {d}",
            f"sadd16 {self.spare}, {b}, {c}",
            f"ssub16 {c}, {c}, {b}",
        ]
        found = [a, self.spare, c, d]
        self.spare = b
        return found

    def _results(
        self, tile: int, column: int, operation: str, left: list[str], right: list[str]
    ) -> None:
        """Makes and stores a column of results."""
        for row, (a, b) in enumerate(zip(left, right, strict=True)):
            at = 4 * self.transform.at(row, column, tile, self.word)
            self.lines.append(f"{operation} {self.spare}, {a}, {b}")
            self.lines.append(f"str {self.spare}, [r4, #{at}]")
