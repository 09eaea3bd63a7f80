"""Elementwise shaders: each invocation makes one element, or the four of a word or a vector.

Four stand together in every operand that is read along with the output, or each of the four reads
the same element; where neither holds, a word of four bytes is made of one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from smelt.codegen.backends.vulkan.calls import MAX_GROUPS, ShaderCall
from smelt.codegen.backends.vulkan.functions import called_in, definitions
from smelt.codegen.lower.nested_loops import broadcast_strides, dense_strides, nest
from smelt.codegen.lower.offer import (
    NARROW_FLOATS,
    Input,
    Operand,
    Output,
    Packed,
    Parameters,
    Refusal,
)
from smelt.codegen.text.helpers import when
from smelt.ir import DType, Node, Value

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
    vector_type: str
    bytes: bool
    lanes: int
    quads: bool
    loops: tuple[int, ...]
    names: tuple[str, ...]
    reads: tuple[ElementRead, ...]


def elementwise(
    node: Node, stem: str, what: str, reads: Sequence[Read], body: ElementBody
) -> ShaderCall:
    """The call that computes `body` for every element of the node's output."""
    y = node.output.type
    own = [read.strides for read in reads]
    loops = list(nest(y.shape, *own, dense_strides(y.shape), names="x" * len(y.shape)))
    axes = [(loop.size, loop.strides[:-1]) for loop in loops]
    quads, axes = _in_quads(y.dtype, y.size, reads, axes)
    lanes = 4 if quads or y.dtype.size == 1 else 1
    vectors = [quads and bool(axes) and axes[-1][1][i] != 0 for i in range(len(reads))]
    loads: list[ElementRead] = []
    for read, vector in zip(reads, vectors, strict=True):
        accessor, at, kind = read.name.upper(), f"{read.name}_at", scalar(read.dtype)
        load = (
            quad(read.dtype, accessor, f"{at} >> 2")
            if vector
            else element(read.dtype, accessor, at)
        )
        declared = (VECTORS[kind] if vector else kind) if quads else ""
        loads.append(ElementRead(read.name, declared, vector, load))
    bytes_ = y.dtype.size == 1
    texts = [load.load for load in loads]
    items = -(-y.size // lanes)
    constants = {"ITEMS": items, "COUNT": y.size, **body.constants}
    for i, (size, strides) in enumerate(axes):
        constants[f"SIZE_{i}"] = size
        for read, stride in zip(reads, strides, strict=True):
            constants[f"{read.name.upper()}_{i}"] = stride
    operands: list[Operand] = [*(r.operand for r in reads), *(t for t, _ in body.tables)]
    views = {r.name: view(r.dtype, v) for r, v in zip(reads, vectors, strict=True)}
    return ShaderCall(
        template="backends/vulkan/elementwise.comp.j2",
        stem=stem,
        parameters=ElementwiseShaderParameters(
            what=what,
            functions=definitions(
                called_in(body.result, *body.lines, *texts), when(quads and bytes_, "packed")
            ),
            arguments=tuple(f"{scalar(r.dtype)} {r.name}" for r in reads),
            lines=body.lines,
            result=body.result,
            result_type=scalar(y.dtype),
            vector_type=VECTORS[scalar(y.dtype)] if quads else "",
            bytes=bytes_,
            lanes=lanes,
            quads=quads,
            loops=tuple(range(len(axes))),
            names=tuple(r.name for r in reads),
            reads=tuple(loads),
        ),
        operands=(*operands, Output(0, "output")),
        in_place=tuple(
            (0, r.operand.index)
            for r in reads
            if isinstance(r.operand, Input) and _reads_what_it_writes(node, r.operand.index)
        ),
        views={
            **views,
            **{table.name: kind for table, kind in body.tables},
            "output": view(y.dtype, quads),
        },
        constants=constants,
        invocations=spread(items),
        summary=f"{what}, {lanes} elements an invocation",
        form="vulkan_elements",
        work={"calls": 1, "outputs": y.size},
    )


def _reads_what_it_writes(node: Node, index: int) -> bool:
    x, y = node.input(index).type, node.output.type
    return (x.size, x.bytes) == (y.size, y.bytes)


StridedAxes = list[tuple[int, tuple[int, ...]]]
"""Size and strides, outermost first."""


def _in_quads(
    dtype: DType, count: int, reads: Sequence[Read], axes: StridedAxes
) -> tuple[bool, StridedAxes]:
    """Whether four elements at a time stand together; then the axes that count such fours."""
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
    narrow = dtype.size == 1 and all(
        read.dtype.size == 1 or not step for read, step in zip(reads, inner, strict=True)
    )
    if not aligned or (size % 4 and not (narrow and len(axes) == 1 and size == count)):
        return False, axes
    return True, [*axes[:-1], (-(-size // 4), tuple(4 * step for step in inner))]
