"""Shaders that move elements: each output element is a copy of one input element.

The input element's position is the sum of one position per output axis: the index times a stride,
or an entry of a table. Indices that are read at run time may add to it. Neighbors that stay
together are moved as one larger element, of up to 16 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from smelt.codegen.backends.vulkan.calls import MAX_CONSTANTS, ShaderCall
from smelt.codegen.backends.vulkan.elementwise import operand_of, spread
from smelt.codegen.backends.vulkan.glsl_functions import definitions
from smelt.codegen.lower.kernel import Input, Output, Packed, Parameters, Refusal
from smelt.codegen.text.helpers import when
from smelt.ir import Array, DType, Node

_MOST_CONSTANTS = MAX_CONSTANTS - 5
"""Specialization constants left for axes and indices; five are counts, start and fill."""

UNITS = {1: "int", 2: "int", 4: "int", 8: "ivec2", 16: "ivec4"}
"""GLSL types as which elements are moved, by their size in bytes."""


@dataclass(frozen=True)
class OutputAxis:
    """An axis of the output.

    Attributes:
        size: Number of elements along the axis.
        step: Stride in the input, in elements.
        table: Positions in the input, instead of `step`; a negative one stands for the fill value.
        where: Stride in the operand of indices.
    """

    size: int
    step: int = 0
    table: Array | None = None
    where: int = 0


@dataclass(frozen=True)
class Indices:
    """Indices that are read at run time.

    Attributes:
        operand: The operand of indices.
        dtype: Type of the indices.
        parts: For each component of an index tuple, the size and the stride of its input axis.
    """

    operand: Input | Packed
    dtype: DType
    parts: tuple[tuple[int, int], ...]

    @property
    def wide(self) -> bool:
        """Whether an index has two 32-bit words."""
        return self.dtype.size > 4


@dataclass(frozen=True)
class Moves:
    """The positions of all moved elements.

    Attributes:
        axes: Axes of the output.
        start: Position in the input of the first element.
        parts: See `Indices.parts`.
        unit: Bytes of a moved element; positions and strides count such elements.
    """

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
        """Merge axes where possible, and neighboring elements into units of up to `widest` bytes.

        Args:
            axes: Axes of the output, outermost first.
            element: Bytes of an element.
            start: Position in the input of the first element.
            parts: See `Indices.parts`.
            widest: Largest unit in bytes.
        """
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
        """Whether each aligned pair of elements is moved together."""
        if not self.axes:
            return False
        *outer, last = self.axes
        if last.table is not None or last.step != 1 or last.where or last.size % 2:
            return False
        tables = [a.table[a.table >= 0] for a in outer if a.table is not None]
        steps = [a.step for a in outer] + [step for _, step in self.parts] + [self.start]
        return not any(step % 2 for step in steps) and not any((t % 2).any() for t in tables)

    @property
    def tables(self) -> list[Array]:
        """The tables of the axes that have one."""
        return [axis.table for axis in self.axes if axis.table is not None]

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
                # Floor division keeps the negative entries, which stand for the fill, negative.
                table=None if axis.table is None else axis.table // 2,
            )
            for axis in outer
        )
        parts = tuple((size, step // 2) for size, step in self.parts)
        return Moves((*halves, replace(last, size=last.size // 2)), self.start // 2, parts, unit)


@dataclass(frozen=True)
class MovedAxis:
    """An axis by its number, and whether its positions are in a table."""

    number: int
    tabulated: bool


@dataclass(frozen=True)
class MoveShaderParameters(Parameters):
    """Parameters of the shader of moves; `fill` is a GLSL expression of the fill value."""

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
    """Return the call that moves elements of the node's first input, or why no shader does.

    Args:
        node: The node.
        moves: The positions of the elements.
        fill: One element: the value where a table's entry is negative.
        indices: Indices that are read at run time.
    """
    unit, parts = moves.unit, len(moves.parts)
    if len(moves.axes) * (3 if parts else 2) + 2 * parts > _MOST_CONSTANTS:
        return Refusal(
            f"{node.op.name} is not served on the GPU: its {len(moves.axes)} axes need more than "
            f"{_MOST_CONSTANTS} specialization constants."
        )
    beside, wide = _beside(moves, indices, fill), indices is not None and indices.wide
    per_word = max(4 // unit, 1)
    items = -(-moves.count // per_word)
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
            fill=_fill_text(fill, unit) if moves.tables else "",
        ),
        operands=(
            operand_of(node, 0, "input"),
            *(operand for operand, _ in beside),
            Output(0, "output"),
        ),
        views={
            **dict.fromkeys(("input", "output"), UNITS[unit]),
            **{operand.name: kind for operand, kind in beside},
        },
        constants={
            "ITEMS": items,
            "COUNT": moves.count,
            "START": moves.start,
            **_places(moves, indexed=indices is not None),
            **_fill_constants(fill),
        },
        invocations=spread(items),
        summary=f"{unit * per_word} bytes per invocation",
        form="vulkan_moves",
        work={"calls": 1, "outputs": node.output.type.size},
    )


def _beside(
    moves: Moves, indices: Indices | None, fill: Array | Input | Packed | None
) -> list[tuple[Input | Packed, str]]:
    """Return the operands besides the first input, and the GLSL types of their elements."""
    found: list[tuple[Input | Packed, str]] = []
    if moves.tables:
        found.append((Packed("positions", np.concatenate(moves.tables).astype(np.int32)), "int"))
    if indices is not None:
        found.append((indices.operand, "ivec2" if indices.wide else "int"))
    if isinstance(fill, Input | Packed):
        found.append((fill, UNITS[moves.unit]))
    return found


def _places(moves: Moves, *, indexed: bool) -> dict[str, int]:
    """Return the specialization constants of the axes and, if indices are read, of their parts."""
    found: dict[str, int] = {}
    base = 0
    for number, axis in enumerate(moves.axes):
        found[f"SIZE_{number}"] = axis.size
        if axis.table is None:
            found[f"STEP_{number}"] = axis.step
        else:
            found[f"BASE_{number}"] = base
            base += axis.table.size
        if indexed:
            found[f"WHERE_{number}"] = axis.where
    for number, (size, step) in enumerate(moves.parts if indexed else ()):
        found |= {f"INDEX_SIZE_{number}": size, f"INDEX_STEP_{number}": step}
    return found


def _fill_text(fill: Array | Input | Packed | None, unit: int) -> str:
    """Return a GLSL expression of the fill value."""
    if isinstance(fill, Input | Packed):
        return {1: "VALUE(0) & 255", 2: "VALUE(0) & 65535"}.get(unit, "VALUE(0)")
    return "" if fill is None else _FILLS[unit]


def _fill_constants(fill: Array | Input | Packed | None) -> dict[str, int]:
    """Return the bytes of a constant fill value."""
    if fill is None or isinstance(fill, Input | Packed):
        return {}
    low, high = np.resize(np.frombuffer(fill.tobytes(), np.uint8), 8).view(np.int32).tolist()
    return {"FILL": low, "FILL_HIGH": high}


_FILLS = {
    1: "FILL & 255",
    2: "FILL & 65535",
    4: "FILL",
    8: "ivec2(FILL, FILL_HIGH)",
    16: "ivec4(FILL, FILL_HIGH, FILL, FILL_HIGH)",
}
