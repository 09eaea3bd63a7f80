"""Assembly that transforms the inputs of minimal filtering, on cores with the DSP extension.

A tile of 4x4 inputs is transformed along its columns, then along its rows, each time by

    d0 - d2, d1 + d2, d2 - d1, d1 - d3

for two channels at once, in the halfwords of a word. The last two columns of a tile are the first
two of the tile beside it. Results are stored position by position, in the order of summation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ROW_ORDER = 1, 2, 0, 3
"""Order of the rows of a column of positions: both output rows need the sums of the first two."""


def position(row: int, column: int) -> int:
    """Return the index of a position: column by column, with rows in `ROW_ORDER`."""
    return 4 * column + ROW_ORDER.index(row)


@dataclass(frozen=True)
class TransformStep:
    """Lines of assembly, and a title for their comment."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class InputTransform:
    """The transform of the inputs of one tile, or of two side by side.

    Attributes:
        tiles: number of tiles, 1 or 2.
        depth: input channels.
    """

    tiles: int
    depth: int

    @property
    def columns(self) -> int:
        """Columns of inputs under all tiles."""
        return 2 * self.tiles + 2

    @property
    def stride(self) -> int:
        """Words of a position.

        For each four channels, there are two words of two channels for each tile.
        """
        return self.depth // 2 * self.tiles

    @property
    def start(self) -> tuple[str, ...]:
        """Instructions before the first four channels.

        r0-r3: rows of inputs; r4: results. Stack: end of the first position's results.
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
        """Return the offset, in words, of a result of four channels at a position.

        Args:
            row: row of the position.
            column: column of the position.
            tile: number of the tile.
            word: 0 for the first and third channel, 1 for the second and fourth.
        """
        return position(row, column) * self.stride + 2 * tile + word

    @property
    def steps(self) -> list[TransformStep]:
        """Instructions for the first and third of four channels, then the second and fourth."""
        return [step for word in (0, 1) for step in _ChannelPair(self, word).steps()]


@dataclass
class _ChannelPair:
    """The transform of two of four channels.

    Registers:
        r0-r3: rows of inputs; r4: results; r5-r12 and lr: columns of a tile, and one spare register

    Attributes:
        transform: the transform of all channels.
        word: 0 for the first and third channel, 1 for the second and fourth.
        spare: the register that is free.
        lines: instructions of the current step.
    """

    transform: InputTransform
    word: int
    spare: str = "lr"
    lines: list[str] = field(default_factory=list[str])

    def steps(self) -> list[TransformStep]:
        """Return the steps, ordered so that only two columns at a time are in registers."""
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
        # Keep column 1 in place of the first tile's last results, until registers are free.
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
        """Widen a column and transform it; return the registers that then contain it."""
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
        """Compute and store a column of results."""
        for row, (a, b) in enumerate(zip(left, right, strict=True)):
            at = 4 * self.transform.at(row, column, tile, self.word)
            self.lines.append(f"{operation} {self.spare}, {a}, {b}")
            self.lines.append(f"str {self.spare}, [r4, #{at}]")
