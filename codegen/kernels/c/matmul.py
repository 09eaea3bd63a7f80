"""MatMul in blocks of rows times columns, whose sums stay in registers.

Every element that is loaded serves a whole block: one of the left operand all its columns, one of
the right operand all its rows. Where floats are computed several at a time, neighbouring columns
share vector registers. Where columns do not stand together, those of a block are copied first, if
enough rows use the copy; else several partial sums of each element share registers, if the factors
of a sum stand together. Operands are addressed by strides, so that no transposition is needed
before or after a product.

The last block of rows, and of columns, ends where the matrix does: it overlaps the block before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from typing_extensions import override

from smelt.codegen.kernels.base import (
    WIDE_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.kernels.c.loops import Loop, dense_strides, index, nest, total
from smelt.codegen.kernels.c.vectors import vectors_of
from smelt.ir import DType, Node
from smelt.ops.matmul import MATMUL_DTYPES, MatMul

LANES = 8
"""Partial sums of an element that are computed together."""

_VECTOR_SUMS = 96
"""Floats that a block keeps in vector registers."""

_PANEL_ROWS = 16
"""Rows from which on copying the columns of a block pays."""

_CALL = 40
"""Instructions around a block of vectors, which is a call of its own."""


class Form(Enum):
    """What a block computes at a time: one element, neighbouring columns, partial sums of one.

    A panel is a copy of a block's columns that has them stand together.
    """

    SINGLE = "single"
    COLUMNS = "columns"
    PANEL = "panel"
    PARTS = "parts"


@dataclass(frozen=True)
class Span:
    """Rows or columns: `size` of them, `count` at a time.

    Each stands `operand` elements after the one before in the operand, `output` in the output.
    """

    size: int
    operand: int
    output: int
    variable: str
    count: int = 1

    @property
    def repeats(self) -> bool:
        """Whether a loop over blocks is needed."""
        return self.size != self.count

    @property
    def overlaps(self) -> bool:
        """Whether the last block overlaps the one before."""
        return self.size % self.count != 0

    @property
    def head(self) -> str:
        """The C line that opens the loop over blocks."""
        name = self.variable
        return f"for (int32_t {name} = 0; {name} < {self.size}; {name} += {self.count}) {{"

    @property
    def last(self) -> int:
        """Where the last block starts."""
        return self.size - self.count

    @property
    def text(self) -> str:
        """How many there are in a block, for comments."""
        return f"{self.count} {'row' if self.variable == 'i' else 'column'}" + "s" * (
            self.count > 1
        )

    def start(self, stride: int) -> str:
        """The C expression of where a block starts: `stride` is that of the operand or output."""
        if not self.repeats:
            return "0"
        return _scaled("first_" * self.overlaps + self.variable, stride)


@dataclass(frozen=True)
class Product:
    """A stack of products of matrices in memory.

    Attributes:
        stack: loops over the matrices; strides of the left and right operand and the output.
        rows: of the left operand and the output.
        columns: of the right operand and the output.
        depth: products that make one element.
        left: stride of the left operand from one factor of a sum to the next.
        right: that of the right operand.
        panel: whether the columns of a block are copied first.
    """

    stack: tuple[Loop, ...]
    rows: Span
    columns: Span
    depth: int
    left: int
    right: int
    panel: bool = False

    def a(self, row: int, factor: int | str = "k") -> str:
        """The C expression of a left factor of a row of the block."""
        return f"a[{total((str(row * self.rows.operand), _scaled(factor, self.left)))}]"

    def b(self, column: int, factor: int | str = "k") -> str:
        """The C expression of a right factor of a column of the block."""
        return f"b[{total((str(column * self.columns.operand), _scaled(factor, self.right)))}]"

    def b_at(self, column: str) -> str:
        """The C expression of right factor `k` of the column of that number in its matrix."""
        return f"b[{total((_scaled('k', self.right), _scaled(column, self.columns.operand)))}]"

    def y(self, row: int, column: int | str) -> str:
        """The C expression of an element of the block."""
        offset = _scaled(column, self.columns.output)
        return f"y[{total((str(row * self.rows.output), offset))}]"

    @property
    def spans(self) -> tuple[Span, Span]:
        """Rows and columns in the order of the loops over blocks, the outer one first."""
        return (self.columns, self.rows) if self.panel else (self.rows, self.columns)

    @property
    def line(self) -> str:
        """The C expression of where the columns of a block have their right factors `k`."""
        return total(("b", _scaled("k", self.columns.count if self.panel else self.right)))

    @property
    def copied(self) -> str:
        """The C expression of right factor `k` of column `l` of a block, which is copied."""
        columns = self.columns
        start = index(self.stack, 1), columns.start(columns.operand)
        return f"b[{total((*start, _scaled('k', self.right), _scaled('l', columns.operand)))}]"

    @property
    def left_rows(self) -> str:
        """The C expression of where the rows of a block start."""
        return total(("a", index(self.stack, 0), self.rows.start(self.rows.operand)))

    @property
    def right_matrix(self) -> str:
        """The C expression of where the right matrix starts."""
        return total(("b", index(self.stack, 1)))

    @property
    def right_columns(self) -> str:
        """The C expression of where the columns of a block start."""
        if self.panel:
            return "panel"
        return total(("b", index(self.stack, 1), self.columns.start(self.columns.operand)))

    @property
    def result(self) -> str:
        """The C expression of where the results of a block start."""
        rows, columns = self.rows, self.columns
        starts = index(self.stack, 2), rows.start(rows.output), columns.start(columns.output)
        return total(("y", *starts))


def _scaled(position: int | str, stride: int) -> str:
    """The C expression of a number of elements: a position times a stride."""
    if isinstance(position, int):
        return str(position * stride)
    return position if stride == 1 else f"{position} * {stride}"


class MatMulKernel(Kernel[MatMul]):
    """Products of matrices that are computed at run time."""

    op = MatMul
    floats = WIDE_FLOATS

    @override
    def offer(self, node: Node[MatMul], request: Request) -> KernelCall | Refusal:
        y = node.output.type
        if y.dtype not in MATMUL_DTYPES or y.is_quantized:
            return Refusal(f"{node.op.name} is not served for {y}.")
        product = product_of(node)
        form, rows, columns = _block(product, y.dtype, request)
        product = replace(
            product,
            rows=replace(product.rows, count=rows),
            columns=replace(product.columns, count=columns),
            panel=form is Form.PANEL,
        )
        panel = Scratch("panel", DType.FLOAT32, product.depth * columns)
        a, b = node.input(0).type, node.input(1).type
        return KernelCall(
            template="c/matmul.j2",
            stem="matmul",
            parameters={
                "title": f"{a} times {b} -> {y}",
                "p": product,
                "form": form.value,
                "lanes": LANES,
                "across": vectors_of(columns),
                "type": y.dtype.c_name,
                "sum_type": _sum_type(y.dtype),
                "fused": y.dtype is DType.FLOAT32 and "fma" in request.target.features,
            },
            operands=(
                Input(0, "a"),
                Input(1, "b"),
                *((panel,) if product.panel else ()),
                Output(0, "y"),
            ),
            helpers=frozenset({"sum_of_8"} if form is Form.PARTS else ()),
            summary=f"blocks of {rows} rows x {columns} columns, {_SUMMARY[form]}",
        )


_SUMMARY = {
    Form.SINGLE: "one product at a time",
    Form.COLUMNS: "columns in vectors",
    Form.PANEL: "columns in vectors, copied",
    Form.PARTS: f"{LANES} partial sums an element",
}


def _sum_type(dtype: DType) -> str:
    """The C type of a sum: unsigned for integers, so that it may wrap around."""
    return dtype.c_name if dtype.is_float else f"uint{8 * dtype.size}_t"


def product_of(node: Node[MatMul]) -> Product:
    """The node's strides, in elements; stacked matrices are merged into rows where they can be."""
    op, y = node.op, node.output.type
    shape, left, right, (factor_a, factor_b) = strides_of(node)
    written = dense_strides(y.shape)
    result = [written[op.result.index(i) if op.result else i] for i in range(len(shape))]
    n = shape[-1]
    loops = nest(shape[:-1], left[:-1], right[:-1], result[:-1], names=_NAMES)
    rows = Span(1, 0, 0, "i")
    if loops and loops[-1].strides[1] == 0:
        rows = Span(loops[-1].size, loops[-1].strides[0], loops[-1].strides[2], "i")
        loops = loops[:-1]
    depth = op.depth(node.input(0).type)
    # The stride of an axis of one element is never taken: that of neighbours serves most forms.
    columns = Span(n, right[-1], result[-1], "j") if n > 1 else Span(n, 1, 1, "j")
    strides = (factor_a, factor_b) if depth > 1 else (1, 1)
    return Product(loops, rows, columns, depth, *strides)


Strides = tuple[int, ...]


def strides_of(node: Node) -> tuple[tuple[int, ...], Strides, Strides, tuple[int, int]]:
    """The shape `[..., m, n]` of a MatMul's product, and how its operands are crossed, in elements.

    Returns:
        The shape; strides along its axes of the left and of the right operand, 0 where it has only
        one element or none; strides of both from one factor of a sum to the next.
    """
    op, a, b = node.op, node.input(0).type, node.input(1).type
    if not isinstance(op, MatMul):
        raise TypeError(f"{op.name} is no MatMul")
    shape = op.product_shape(a, b)
    left = _strides(a.shape, op.left)
    right = _strides(b.shape, op.right)
    stack = len(shape) - 2
    return (
        shape,
        (*_stack(a.shape, op.left, left, stack), left[-2], 0),
        (*_stack(b.shape, op.right, right, stack), 0, right[-1]),
        (left[-1], right[-2]),
    )


_NAMES = "pqrstuvw"


def _strides(shape: tuple[int, ...], permutation: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense array whose axes are taken in another order."""
    strides = dense_strides(shape)
    return tuple(strides[axis] for axis in permutation) if permutation else strides


def _stack(
    shape: tuple[int, ...],
    permutation: tuple[int, ...],
    strides: tuple[int, ...],
    rank: int,
) -> list[int]:
    """Strides of an operand along the `rank` axes of the stack: 0 where it is broadcast."""
    sizes = [shape[axis] for axis in permutation] if permutation else list(shape)
    own = [0 if size == 1 else s for size, s in zip(sizes[:-2], strides[:-2], strict=True)]
    return [0] * (rank - len(own)) + own


def _form(product: Product, dtype: DType, request: Request) -> Form:
    """What a block computes at a time."""
    several = product.columns.size > 1 and product.depth > 0
    if dtype is not DType.FLOAT32 or "simd_float" not in request.target.features:
        return Form.SINGLE
    if several and product.columns.operand == 1:
        return Form.COLUMNS
    if several and product.rows.size >= _PANEL_ROWS and request.optimize != "ram":
        return Form.PANEL
    if product.left == 1 and product.right == 1 and product.depth >= LANES:
        return Form.PARTS
    return Form.SINGLE


def _block(product: Product, dtype: DType, request: Request) -> tuple[Form, int, int]:
    """The form, and the rows and columns of a block, that cost the fewest instructions."""
    target = request.target
    form = _form(product, dtype, request)
    registers = 31 if "fpu" in target.features and request.optimize != "size" else 8
    m, n = product.rows.size, product.columns.size

    def fits(rows: int, columns: int) -> bool:
        if form is Form.SINGLE:
            return rows * columns + min(rows, columns) + 1 <= registers
        lanes = LANES if form is Form.PARTS else 1
        return rows * columns * lanes <= _VECTOR_SUMS

    def cost(block: tuple[int, int]) -> tuple[int, int]:
        rows, columns = block
        turns = -(-m // rows) * -(-n // columns)
        if form is Form.SINGLE:
            return turns * (rows + columns + rows * columns + 3), rows * columns
        across = columns if form is Form.PARTS else _vectors(columns)
        steps = product.depth // LANES if form is Form.PARTS else product.depth
        each = (rows + across + 2 * rows * across) * steps + _CALL
        return turns * each, rows * columns

    rows, columns = min(
        (
            (rows, columns)
            for rows in range(1, min(max(m, 1), 8) + 1)
            for columns in range(1, min(max(n, 1), _VECTOR_SUMS) + 1)
            if fits(rows, columns)
        ),
        key=cost,
    )
    return form, rows, columns


def _vectors(columns: int) -> int:
    """Instructions for that many neighbouring columns, in vectors of eight."""
    return sum(-(-size // 8) for _, size in vectors_of(columns))


KERNELS = (MatMulKernel(),)
