"""Elementwise shaders: each invocation makes one element, or the four of a word or a vector.

Four stand together in every operand that is read along with the output, or each of the four reads
the same element; where neither holds, a word of four bytes is made of one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np

from smelt.codegen.backends.vulkan.calls import MAX_GROUPS, ShaderCall
from smelt.codegen.backends.vulkan.glsl_functions import called_in, definitions
from smelt.codegen.lower.kernel import (
    NARROW_FLOATS,
    Input,
    Output,
    Packed,
    Parameters,
    Refusal,
)
from smelt.codegen.lower.nested_loops import broadcast_strides, dense_strides, nest
from smelt.codegen.text.helpers import when
from smelt.ir import DType, Node, TensorType, Value

MAX_LOOPS = 6
"""Axes, after merging, that have sizes and strides among the specialization constants."""

SERVED = (*NARROW_FLOATS, DType.INT8, DType.UINT8, DType.BOOL, DType.INT32, DType.UINT32)
"""What elementwise shaders compute with."""

_SCALARS = {DType.FLOAT32: "float", DType.FLOAT16: "float", DType.UINT32: "uint"}
VECTORS = {"float": "vec4", "uint": "uvec4", "int": "ivec4"}


@dataclass(frozen=True)
class Read:
    """An operand of which each output element reads one: strides in the output's shape."""

    operand: Input | Packed
    dtype: DType
    strides: tuple[int, ...]

    @property
    def name(self) -> str:
        """What GLSL calls it."""
        return self.operand.name

    @staticmethod
    def of(node: Node, index: int, name: str, shape: Sequence[int] | None = None) -> Read:
        """An input of the node, broadcast to the shape (None: its output's)."""
        type_ = node.input(index).type
        strides = broadcast_strides(type_.shape, node.output.type.shape if shape is None else shape)
        return Read(operand_of(node, index, name), type_.dtype, strides)


@dataclass(frozen=True)
class ElementBody:
    """GLSL of one element's result: statements, then an expression of the operands' names.

    `constants` are specialization constants, `tables` operands that it reads by itself, each with
    the GLSL type of its elements.
    """

    result: str
    lines: tuple[str, ...] = ()
    constants: Mapping[str, int] = field(default_factory=dict[str, int])
    tables: tuple[tuple[Packed | Input, str], ...] = ()


def operand_of(node: Node, index: int, name: str) -> Input | Packed:
    """An input as an operand; constants are packed, and fill whole words."""
    value: Value = node.input(index)
    if value.data is None:
        return Input(index, name)
    flat = np.ascontiguousarray(value.data).reshape(-1)
    missing = -flat.nbytes % 4 // flat.itemsize
    return Packed(name, np.concatenate([flat, np.zeros(missing, flat.dtype)]))


def scalar(dtype: DType) -> str:
    """The GLSL type of what an element is computed in."""
    return _SCALARS.get(dtype, "int")


def element(dtype: DType, accessor: str, at: str) -> str:
    """GLSL of an element; `at` is the name of a variable."""
    if dtype.size != 1:
        return f"{accessor}({at})"
    function = "byte_of" if dtype is DType.INT8 else "unsigned_byte_of"
    return f"{function}({accessor}({at} >> 2), {at})"


def quad(dtype: DType, accessor: str, number: str) -> str:
    """GLSL of the four neighbours of that number."""
    word = f"{accessor}({number})"
    if dtype.size != 1:
        return word
    return f"{'unpacked' if dtype is DType.INT8 else 'unpacked_unsigned'}({word})"


@dataclass(frozen=True)
class Lanes:
    """How many elements of an output an invocation makes.

    Attributes:
        quads: whether it computes four neighbours at a time.
        bytes: whether elements are bytes, so that four make a word that is written.
        type: GLSL of what is computed at a time.
    """

    quads: bool
    bytes: bool
    type: str

    @staticmethod
    def of(dtype: DType, *, quads: bool) -> Lanes:
        """Those of an output of that type."""
        kind = scalar(dtype)
        return Lanes(quads, dtype.size == 1, VECTORS[kind] if quads else kind)

    @property
    def width(self) -> int:
        """Elements that are computed at a time."""
        return 4 if self.quads else 1

    @property
    def made(self) -> int:
        """Elements that are written at a time."""
        return 4 if self.quads or self.bytes else 1

    def items(self, size: int) -> int:
        """Invocations for an output of so many elements."""
        return -(-size // self.made)

    def load(self, dtype: DType, accessor: str, at: str) -> str:
        """GLSL of as many elements of an operand as are computed at a time."""
        return (quad if self.quads else element)(dtype, accessor, at)

    def functions(self, *texts: str, other: AbstractSet[str] = frozenset()) -> str:
        """The functions that texts call, others, and what writes the output."""
        return definitions(called_in(*texts), other | when(self.quads and self.bytes, "packed"))


def by_axis(**pairs: tuple[int, int]) -> dict[str, int]:
    """Numbers of a shader, `NAME_Y` and `NAME_X` of each pair."""
    return {
        f"{name}_{axis}": number
        for name, pair in pairs.items()
        for axis, number in zip("YX", pair, strict=True)
    }


def view(dtype: DType, vector: bool = False) -> str:
    """The GLSL type of what an operand's memory is seen as: single elements, or four at a time."""
    if dtype.size == 1:
        return "int"
    return narrowed(VECTORS[scalar(dtype)] if vector else scalar(dtype), dtype)


def narrowed(kind: str, dtype: DType) -> str:
    """The GLSL type of what is stored where `kind` is computed with: halves are stored as such."""
    return {"float": "float16_t", "vec4": "f16vec4"}[kind] if dtype is DType.FLOAT16 else kind


def spread(items: int, local: int = 64) -> tuple[int, int, int]:
    """Invocations for so many items, in as many rows as workgroups of one row cannot have.

    `local`: invocations of a workgroup, at least.
    """
    across = MAX_GROUPS * local
    if items <= across:
        return items, 1, 1
    return across, -(-items // across), 1


def refuse_types(node: Node) -> Refusal | None:
    """Why elementwise shaders cannot serve the node's types; None where they can."""
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.type.dtype not in SERVED:
            name, dtype = node.op.name, value.type.dtype
            return Refusal(f"{name} of {dtype.value} data is not served on the GPU.")
    return None


def refuse_axes(node: Node) -> Refusal | None:
    """Why broadcasting has too many axes; None where it does not."""
    shape = node.output.type.shape
    strides = [
        broadcast_strides(v.type.shape, shape)
        for v in node.inputs
        if v is not None and len(v.type.shape) <= len(shape)
    ]
    if len(nest(shape, *strides, names="x" * len(shape))) > MAX_LOOPS:
        return Refusal(f"{node.op.name} over more than {MAX_LOOPS} axes is not served on the GPU.")
    return None


@dataclass(frozen=True)
class ElementRead:
    """GLSL that loads an operand; `declared` is its type where four are made at a time.

    `vector`: then four stand together in it.
    """

    name: str
    declared: str
    vector: bool
    load: str


@dataclass(frozen=True)
class ElementwiseShaderParameters(Parameters):
    """`reads` are the operands as one element, or four, of each is loaded."""

    what: str
    functions: str
    arguments: tuple[str, ...]
    lines: tuple[str, ...]
    result: str
    result_type: str
    lanes: Lanes
    loops: tuple[int, ...]
    names: tuple[str, ...]
    reads: tuple[ElementRead, ...]


def elementwise(
    node: Node, stem: str, what: str, reads: Sequence[Read], body: ElementBody
) -> ShaderCall:
    """The call that computes `body` for every element of the node's output."""
    y = node.output.type
    quads, axes = _axes(y, reads)
    lanes = Lanes.of(y.dtype, quads=quads)
    vectors = [quads and bool(axes) and axes[-1][1][i] != 0 for i in range(len(reads))]
    loads = [_load(r, lanes, vector=v) for r, v in zip(reads, vectors, strict=True)]
    items = lanes.items(y.size)
    return ShaderCall(
        template="backends/vulkan/elementwise.comp.j2",
        stem=stem,
        parameters=ElementwiseShaderParameters(
            what=what,
            functions=lanes.functions(body.result, *body.lines, *(load.load for load in loads)),
            arguments=tuple(f"{scalar(r.dtype)} {r.name}" for r in reads),
            lines=body.lines,
            result=body.result,
            result_type=scalar(y.dtype),
            lanes=lanes,
            loops=tuple(range(len(axes))),
            names=tuple(r.name for r in reads),
            reads=tuple(loads),
        ),
        operands=(
            *(r.operand for r in reads),
            *(table for table, _ in body.tables),
            Output(0, "output"),
        ),
        in_place=_in_place(node, reads),
        views={
            **{r.name: view(r.dtype, v) for r, v in zip(reads, vectors, strict=True)},
            **{table.name: kind for table, kind in body.tables},
            "output": view(y.dtype, quads),
        },
        constants={
            "ITEMS": items,
            "COUNT": y.size,
            **body.constants,
            **_places(axes, reads),
        },
        invocations=spread(items),
        summary=f"{what}, {lanes.made} elements an invocation",
        form="vulkan_elements",
        work={"calls": 1, "outputs": y.size},
    )


def _load(read: Read, lanes: Lanes, *, vector: bool) -> ElementRead:
    """How an operand is loaded; `vector`: four of its elements stand together."""
    accessor, at, kind = read.name.upper(), f"{read.name}_at", scalar(read.dtype)
    declared = (VECTORS[kind] if vector else kind) if lanes.quads else ""
    if vector:
        return ElementRead(read.name, declared, vector, quad(read.dtype, accessor, f"{at} >> 2"))
    return ElementRead(read.name, declared, vector, element(read.dtype, accessor, at))


def _places(axes: StridedAxes, reads: Sequence[Read]) -> dict[str, int]:
    """Specialization constants of where the elements of operands stand."""
    found: dict[str, int] = {}
    for i, (size, strides) in enumerate(axes):
        found[f"SIZE_{i}"] = size
        for read, stride in zip(reads, strides, strict=True):
            found[f"{read.name.upper()}_{i}"] = stride
    return found


def _in_place(node: Node, reads: Sequence[Read]) -> tuple[tuple[int, int], ...]:
    """Which inputs are read as the output is written."""
    found: list[tuple[int, int]] = []
    y = node.output.type
    for read in reads:
        if isinstance(read.operand, Input):
            x = node.input(read.operand.index).type
            if (x.size, x.bytes) == (y.size, y.bytes):
                found.append((0, read.operand.index))
    return tuple(found)


StridedAxes = list[tuple[int, tuple[int, ...]]]
"""Size and strides, outermost first."""


def _axes(y: TensorType, reads: Sequence[Read]) -> tuple[bool, StridedAxes]:
    """Whether four elements at a time stand together; the output's axes, counted by such fours."""
    strides = [read.strides for read in reads]
    loops = nest(y.shape, *strides, dense_strides(y.shape), names="x" * len(y.shape))
    axes = [(loop.size, loop.strides[:-1]) for loop in loops]
    if not axes:
        return False, axes
    size, inner = axes[-1]
    aligned = all(step in (0, 1) for step in inner) and all(
        step % 4 == 0
        for _, strides in axes[:-1]
        for step, last in zip(strides, inner, strict=True)
        if last
    )
    # A word's bytes behind the end belong to nobody; those of a vector might.
    narrow = y.dtype.size == 1 and all(
        read.dtype.size == 1 or not step for read, step in zip(reads, inner, strict=True)
    )
    if not aligned or (size % 4 and not (narrow and len(axes) == 1 and size == y.size)):
        return False, axes
    return True, [*axes[:-1], (-(-size // 4), tuple(4 * step for step in inner))]
