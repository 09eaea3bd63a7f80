"""Elementwise shaders: each invocation computes one element, a vector of four, or a word of four.

Four elements are computed at a time if, in every operand, the four that belong to them are adjacent
or one and the same. Otherwise they are computed one by one, and bytes are put together to words.
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
"""Largest number of axes after merging: each takes specialization constants."""

SERVED = (*NARROW_FLOATS, DType.INT8, DType.UINT8, DType.BOOL, DType.INT32, DType.UINT32)
"""Element types of elementwise shaders."""

_SCALARS = {DType.FLOAT32: "float", DType.FLOAT16: "float", DType.UINT32: "uint"}
VECTORS = {"float": "vec4", "uint": "uvec4", "int": "ivec4"}


@dataclass(frozen=True)
class Read:
    """An operand of which each output element reads one element.

    Attributes:
        operand: The operand.
        dtype: Its element type.
        strides: Its stride, in elements, along each axis of the output.
    """

    operand: Input | Packed
    dtype: DType
    strides: tuple[int, ...]

    @property
    def name(self) -> str:
        """The operand's name in GLSL."""
        return self.operand.name

    @staticmethod
    def of(node: Node, index: int, name: str, shape: Sequence[int] | None = None) -> Read:
        """Return an input of the node, broadcast to a shape (None: the shape of the output)."""
        type_ = node.input(index).type
        strides = broadcast_strides(type_.shape, node.output.type.shape if shape is None else shape)
        return Read(operand_of(node, index, name), type_.dtype, strides)


@dataclass(frozen=True)
class ElementBody:
    """GLSL that computes one element.

    Attributes:
        result: An expression in which operands are variables of their names.
        lines: Statements before it.
        constants: Specialization constants by name.
        tables: Operands that the code indexes itself, each with the GLSL type of its elements.
    """

    result: str
    lines: tuple[str, ...] = ()
    constants: Mapping[str, int] = field(default_factory=dict[str, int])
    tables: tuple[tuple[Packed | Input, str], ...] = ()


def operand_of(node: Node, index: int, name: str) -> Input | Packed:
    """Return an input as an operand; constants are padded with zeros to whole words."""
    value: Value = node.input(index)
    if value.data is None:
        return Input(index, name)
    flat = np.ascontiguousarray(value.data).reshape(-1)
    missing = -flat.nbytes % 4 // flat.itemsize
    return Packed(name, np.concatenate([flat, np.zeros(missing, flat.dtype)]))


def scalar(dtype: DType) -> str:
    """Return the GLSL type in which an element is computed."""
    return _SCALARS.get(dtype, "int")


def element(dtype: DType, accessor: str, at: str) -> str:
    """Return GLSL that loads an element; `at` is the name of the variable with its index."""
    if dtype.size != 1:
        return f"{accessor}({at})"
    function = "byte_of" if dtype is DType.INT8 else "unsigned_byte_of"
    return f"{function}({accessor}({at} >> 2), {at})"


def quad(dtype: DType, accessor: str, number: str) -> str:
    """Return GLSL that loads four adjacent elements; `number` is the index of the first over 4."""
    word = f"{accessor}({number})"
    if dtype.size != 1:
        return word
    return f"{'unpacked' if dtype is DType.INT8 else 'unpacked_unsigned'}({word})"


@dataclass(frozen=True)
class Lanes:
    """The number of elements of an output that an invocation computes.

    Attributes:
        quads: Whether it computes four adjacent elements at a time.
        bytes: Whether elements are bytes, of which it writes a word of four.
        type: GLSL type of what is computed at a time.
    """

    quads: bool
    bytes: bool
    type: str

    @staticmethod
    def of(dtype: DType, *, quads: bool) -> Lanes:
        """Return the lanes of an output of type `dtype`."""
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
        """Return the number of invocations for an output of `size` elements."""
        return -(-size // self.made)

    def load(self, dtype: DType, accessor: str, at: str) -> str:
        """Return GLSL that loads `width` elements of an operand."""
        return (quad if self.quads else element)(dtype, accessor, at)

    def functions(self, *texts: str, other: AbstractSet[str] = frozenset()) -> str:
        """Return GLSL of the shared functions that `texts` and the store call, and of `other`."""
        return definitions(called_in(*texts), other | when(self.quads and self.bytes, "packed"))


def by_axis(**pairs: tuple[int, int]) -> dict[str, int]:
    """Return constants `NAME_Y` and `NAME_X` for each pair."""
    return {
        f"{name}_{axis}": number
        for name, pair in pairs.items()
        for axis, number in zip("YX", pair, strict=True)
    }


def view(dtype: DType, vector: bool = False) -> str:
    """Return the GLSL type of an operand's elements in memory, single ones or vectors of four.

    Bytes are always accessed as words, `int`.
    """
    if dtype.size == 1:
        return "int"
    return narrowed(VECTORS[scalar(dtype)] if vector else scalar(dtype), dtype)


def narrowed(kind: str, dtype: DType) -> str:
    """Return the GLSL type in memory of what is computed as `kind`; float16 is stored as such."""
    return {"float": "float16_t", "vec4": "f16vec4"}[kind] if dtype is DType.FLOAT16 else kind


def spread(items: int, local: int = 64) -> tuple[int, int, int]:
    """Return invocations in x, y and z for a number of items.

    If x would need more than `MAX_GROUPS` workgroups, the invocations form several rows along y.

    Args:
        items: Number of items.
        local: Invocations per workgroup, at least.
    """
    across = MAX_GROUPS * local
    if items <= across:
        return items, 1, 1
    return across, -(-items // across), 1


def refuse_types(node: Node) -> Refusal | None:
    """Return why elementwise shaders do not support the node's types; None if they do."""
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.type.dtype not in SERVED:
            name, dtype = node.op.name, value.type.dtype
            return Refusal(f"{name} of {dtype.value} data is not served on the GPU.")
    return None


def refuse_axes(node: Node) -> Refusal | None:
    """Return a refusal if broadcasting needs more than `MAX_LOOPS` axes; else None."""
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
    """GLSL that loads an operand.

    Attributes:
        name: The operand's name.
        declared: GLSL type of what is loaded if four elements are computed at a time; else empty.
        vector: Whether four adjacent elements are loaded.
        load: The expression that loads them.
    """

    name: str
    declared: str
    vector: bool
    load: str


@dataclass(frozen=True)
class ElementwiseShaderParameters(Parameters):
    """Parameters of the elementwise shader.

    Attributes:
        what: The operator, for the comment.
        functions: GLSL of shared functions.
        arguments: Declarations of the arguments of the function that computes an element.
        lines: Statements of that function; see `ElementBody`.
        result: The expression that it returns.
        result_type: The GLSL type of that expression.
        lanes: How many elements an invocation computes.
        loops: Indices of the axes.
        names: Names of the operands.
        reads: How operands are loaded.
    """

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
    """Return the call that computes `body` for every element of the node's output."""
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
        summary=f"{what}, {lanes.made} elements per invocation",
        form="vulkan_elements",
        work={"calls": 1, "outputs": y.size},
    )


def _load(read: Read, lanes: Lanes, *, vector: bool) -> ElementRead:
    """Return how an operand is loaded; `vector`: as four adjacent elements."""
    accessor, at, kind = read.name.upper(), f"{read.name}_at", scalar(read.dtype)
    declared = (VECTORS[kind] if vector else kind) if lanes.quads else ""
    if vector:
        return ElementRead(read.name, declared, vector, quad(read.dtype, accessor, f"{at} >> 2"))
    return ElementRead(read.name, declared, vector, element(read.dtype, accessor, at))


def _places(axes: StridedAxes, reads: Sequence[Read]) -> dict[str, int]:
    """Return specialization constants: sizes of axes and strides of operands."""
    found: dict[str, int] = {}
    for i, (size, strides) in enumerate(axes):
        found[f"SIZE_{i}"] = size
        for read, stride in zip(reads, strides, strict=True):
            found[f"{read.name.upper()}_{i}"] = stride
    return found


def _in_place(node: Node, reads: Sequence[Read]) -> tuple[tuple[int, int], ...]:
    """Return pairs (output, input) where the output may overwrite the input: equal sizes."""
    found: list[tuple[int, int]] = []
    y = node.output.type
    for read in reads:
        if isinstance(read.operand, Input):
            x = node.input(read.operand.index).type
            if (x.size, x.bytes) == (y.size, y.bytes):
                found.append((0, read.operand.index))
    return tuple(found)


StridedAxes = list[tuple[int, tuple[int, ...]]]
"""Size and strides of the operands for each axis, outermost first."""


def _axes(y: TensorType, reads: Sequence[Read]) -> tuple[bool, StridedAxes]:
    """Return whether four elements are computed at a time, and the merged axes of the output.

    If they are, the last axis counts groups of four.
    """
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
    # Buffers of bytes are padded to whole words, but not to whole vectors of wider elements.
    narrow = y.dtype.size == 1 and all(
        read.dtype.size == 1 or not step for read, step in zip(reads, inner, strict=True)
    )
    if not aligned or (size % 4 and not (narrow and len(axes) == 1 and size == y.size)):
        return False, axes
    return True, [*axes[:-1], (-(-size // 4), tuple(4 * step for step in inner))]
