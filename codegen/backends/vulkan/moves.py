"""Shaders that move elements: where each comes from follows from its place in the output.

Along an axis the places are multiples of a step, or stand in a table; indices that are read at run
time may add to them. Elements that stay together are moved as larger ones, of up to 16 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.backends.vulkan.elementwise import operand_of, spread
from smelt.codegen.backends.vulkan.functions import definitions
from smelt.codegen.lower.offer import Input, Operand, Output, Packed, Parameters, Refusal
from smelt.codegen.text.helpers import when
from smelt.ir import Array, DType, Node

_MOST_CONSTANTS = 32 - 5
"""Specialization constants of axes and indices; the others are counts, start and fill."""

UNITS = {1: "int", 2: "int", 4: "int", 8: "ivec2", 16: "ivec4"}
"""GLSL types that elements of so many bytes are moved as."""


@dataclass(frozen=True)
class OutputAxis:
    """An axis of the output: places in the input, in elements, are `step` apart, or in `table`.

    A negative number in a table stands for the fill. `where` is the step in the indices.
    """

    size: int
    step: int = 0
    table: Array | None = None
    where: int = 0


@dataclass(frozen=True)
class Indices:
    """Indices that are read: each tuple's parts have a size and a step in the input."""

    operand: Input | Packed
    dtype: DType
    parts: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Moves:
    """Places of all elements, merged, in units of so many bytes."""

    axes: tuple[OutputAxis, ...]
    start: int
    parts: tuple[tuple[int, int], ...]
    unit: int

    @staticmethod
    def of(
        axes: Sequence[OutputAxis],
        element: int,
        start: int = 0,
        parts: Sequence[tuple[int, int]] = (),
        *,
        widest: int = 16,
    ) -> Moves:
        """Axes merged, and elements too, up to `widest` bytes."""
        merged: list[OutputAxis] = []
        for axis in axes:
            before = merged[-1] if merged else None
            if axis.size == 1 and axis.table is None:
                continue
            if (
                before is not None
                and before.table is None
                and axis.table is None
                and before.step == axis.size * axis.step
                and before.where == axis.size * axis.where
            ):
                merged[-1] = replace(axis, size=before.size * axis.size)
            else:
                merged.append(axis)
        moves = Moves(tuple(merged), start, tuple(parts), element)
        unit = element
        while unit < widest and moves.pairs:
            unit *= 2
            moves = moves._joined(unit)
        return moves

    @property
    def pairs(self) -> bool:
        """Whether two neighbours always stay together."""
        if not self.axes:
            return False
        *outer, last = self.axes
        if last.table is not None or last.step != 1 or last.where or last.size % 2:
            return False
        tables = [a.table[a.table >= 0] for a in outer if a.table is not None]
        steps = [a.step for a in outer] + [step for _, step in self.parts] + [self.start]
        return not any(step % 2 for step in steps) and not any((t % 2).any() for t in tables)

    @property
    def count(self) -> int:
        """Elements of the output, in units."""
        return int(np.prod([axis.size for axis in self.axes], dtype=np.int64))

    def _joined(self, unit: int) -> Moves:
        *outer, last = self.axes
        halves = tuple(
            replace(
                axis,
                step=axis.step // 2,
                # Rounded down, what is negative stays so.
                table=None if axis.table is None else axis.table // 2,
            )
            for axis in outer
        )
        parts = tuple((size, step // 2) for size, step in self.parts)
        return Moves((*halves, replace(last, size=last.size // 2)), self.start // 2, parts, unit)


@dataclass(frozen=True)
class MovedAxis:
    """An axis by its number, and whether its places stand in a table."""

    number: int
    tabulated: bool


@dataclass(frozen=True)
class MoveShaderParameters(Parameters):
    """`fill` is GLSL of what stands where a table has no place."""

    functions: str
    type: str
    unit: int
    axes: tuple[MovedAxis, ...]
    indices: tuple[int, ...]
    wide: bool
    fill: str


def move(
    node: Node,
    moves: Moves,
    *,
    fill: Array | Input | Packed | None = None,
    indices: Indices | None = None,
) -> ShaderCall | Refusal:
    """The call that moves elements of the node's first input; `fill` is one element."""
    unit, parts = moves.unit, len(moves.parts)
    if len(moves.axes) * (3 if parts else 2) + 2 * parts > _MOST_CONSTANTS:
        return Refusal(f"{node.op.name} over so many axes is not served on the GPU.")
    per_word = max(4 // unit, 1)
    items = -(-moves.count // per_word)
    constants = {"ITEMS": items, "COUNT": moves.count, "START": moves.start}
    operands: list[Operand] = [operand_of(node, 0, "input")]
    views = {"input": UNITS[unit], "output": UNITS[unit]}
    tables: list[Array] = []
    for number, axis in enumerate(moves.axes):
        constants[f"SIZE_{number}"] = axis.size
        if axis.table is None:
            constants[f"STEP_{number}"] = axis.step
        else:
            constants[f"BASE_{number}"] = sum(table.size for table in tables)
            tables.append(axis.table)
        if indices is not None:
            constants[f"WHERE_{number}"] = axis.where
    if tables:
        operands.append(Packed("positions", np.concatenate(tables).astype(np.int32)))
        views["positions"] = "int"
    if indices is not None:
        for number, (size, step) in enumerate(moves.parts):
            constants |= {f"INDEX_SIZE_{number}": size, f"INDEX_STEP_{number}": step}
        operands.append(indices.operand)
        views[indices.operand.name] = "ivec2" if indices.dtype.size > 4 else "int"
    text = ""
    if isinstance(fill, Input | Packed):
        text = {1: "VALUE(0) & 255", 2: "VALUE(0) & 65535"}.get(unit, "VALUE(0)")
        operands.append(fill)
        views[fill.name] = UNITS[unit]
    elif fill is not None:
        low, high = np.resize(np.frombuffer(fill.tobytes(), np.uint8), 8).view(np.int32).tolist()
        constants |= {"FILL": low, "FILL_HIGH": high}
        text = _FILLS[unit]
    wide = indices is not None and indices.dtype.size > 4
    return ShaderCall(
        template="backends/vulkan/moves.comp.j2",
        stem=f"move_{unit}_bytes",
        parameters=MoveShaderParameters(
            functions=definitions(when(moves.parts, "position"), when(wide, "narrowed")),
            type=UNITS[unit],
            unit=unit,
            axes=tuple(MovedAxis(n, axis.table is not None) for n, axis in enumerate(moves.axes)),
            indices=tuple(range(len(moves.parts))),
            wide=wide,
            fill=text if tables else "",
        ),
        operands=(*operands, Output(0, "output")),
        views=views,
        constants=constants,
        invocations=spread(items),
        summary=f"{unit * per_word} bytes an invocation",
        form="vulkan_moves",
        work={"calls": 1, "outputs": node.output.type.size},
    )


_FILLS = {
    1: "FILL & 255",
    2: "FILL & 65535",
    4: "FILL",
    8: "ivec2(FILL, FILL_HIGH)",
    16: "ivec4(FILL, FILL_HIGH, FILL, FILL_HIGH)",
}
