"""Matrix products (MatMul) in blocks of rows times columns, with the sums in registers.

Each loaded element of the left operand is used for all columns of a block, and each of the right
operand for all its rows. With SIMD floats, there are three forms:

- If neighboring columns are adjacent in memory, they share vector registers.
- If not, but there are enough rows, a block's columns are first copied so that they are adjacent.
- Else, if the factors of a sum are adjacent, several partial sums of it share vector registers.

Operands are addressed by strides, so that no transposition is needed before or after a product.

The last block ends with the matrix. If the size of a block does not divide the matrix, it overlaps
the previous block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from typing_extensions import override

from smelt.codegen.backends.c.matrix_product import (
    LANES,
    MatrixProduct,
    MatrixSpan,
    columns_lines,
    parts_lines,
    single_lines,
)
from smelt.codegen.backends.c.vector_loops import vectors_of
from smelt.codegen.lower.kernel import (
    WIDE_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.lower.matmul_strides import strides_of
from smelt.codegen.lower.nested_loops import NestedLoop, dense_strides, nest
from smelt.codegen.text.helpers import uses_in, when
from smelt.ir import DType, Node
from smelt.ops.core.matmul import MATMUL_DTYPES, MatMul

_VECTOR_SUMS = 96
"""Upper limit of a block's sums with SIMD floats."""

_PANEL_ROWS = 16
"""With at least this many rows, copying the columns of a block pays off."""

_CALL = 40
"""Estimated instructions for the call of the function that computes a block in vectors."""


class MatMulForm(Enum):
    """Which sums of a block share vector registers.

    - `SINGLE`: none.
    - `COLUMNS`: those of neighboring columns.
    - `PANEL`: those of neighboring columns, which are first copied to be adjacent.
    - `PARTS`: the partial sums of an element.
    """

    SINGLE = "single"
    COLUMNS = "columns"
    PANEL = "panel"
    PARTS = "parts"


@dataclass(frozen=True)
class MatMulParameters(Parameters):
    """Variables of `matmul.j2`; texts are C.

    Attributes:
        title, text: texts of the function's comment.
        block_text: size of a block, for the comment of the function that computes it.
        type: type of an element.
        vectors: whether a block is computed in vectors.
        lines: C lines of the function that computes a block.
        outer: loops over matrices, then over blocks of rows; with a panel, over blocks of columns.
        inner: loop over blocks of columns; with a panel, over blocks of rows.
        copying: C lines that copy the columns of a block; empty without a panel.
        arguments: arguments of the function that computes a block.
    """

    title: str
    text: str
    block_text: str
    type: str
    vectors: bool
    lines: tuple[str, ...]
    outer: tuple[NestedLoop, ...]
    inner: tuple[NestedLoop, ...]
    copying: tuple[str, ...]
    arguments: str


class MatMulKernel(Kernel[MatMul]):
    """Products of matrices of floats or unquantized integers."""

    op = MatMul
    floats = WIDE_FLOATS
    uses_scratch_limit = True

    @override
    def offer(self, node: Node[MatMul], request: Request) -> KernelCall | Refusal:
        y = node.output.type
        if y.dtype not in MATMUL_DTYPES or y.is_quantized:
            return Refusal(f"{node.op.name} does not support {y}.")
        product = product_of(node)
        form, rows, columns = _block(product, y.dtype, request)
        product = replace(
            product,
            rows=replace(product.rows, count=rows),
            columns=replace(product.columns, count=columns),
            panel=form is MatMulForm.PANEL,
        )
        fused = y.dtype is DType.FLOAT32 and "fma" in request.target.features
        lines = {
            MatMulForm.SINGLE: partial(single_lines, product, y.dtype, fused=fused),
            MatMulForm.PARTS: partial(parts_lines, product),
        }.get(form, partial(columns_lines, product))
        outer, inner = product.spans
        parameters = MatMulParameters(
            title=f"{node.input(0).type} times {node.input(1).type} -> {y}",
            text=product.text,
            block_text=product.block_text,
            type=y.dtype.c_name,
            vectors=form is not MatMulForm.SINGLE,
            lines=tuple(lines()),
            outer=product.stacked + outer.loops,
            inner=inner.loops,
            copying=product.copying if product.panel else (),
            arguments=f"{product.left_rows}, {product.right_columns}, {product.result}",
        )
        panel = Scratch("panel", DType.FLOAT32, product.depth * columns)
        return KernelCall(
            template="backends/c/matmul.j2",
            stem="matmul",
            parameters=parameters,
            operands=(
                Input(0, "a"),
                Input(1, "b"),
                *((panel,) if product.panel else ()),
                Output(0, "y"),
            ),
            uses=uses_in(parameters.lines) | when(parameters.vectors, "SMELT_VECTORS"),
            summary=f"blocks of {rows} rows x {columns} columns, {_SUMMARY[form]}",
        )


_SUMMARY = {
    MatMulForm.SINGLE: "one product at a time",
    MatMulForm.COLUMNS: "columns in vectors",
    MatMulForm.PANEL: "columns in vectors, copied",
    MatMulForm.PARTS: f"{LANES} partial sums per element",
}


def product_of(node: Node[MatMul]) -> MatrixProduct:
    """Return sizes and strides of the node's product, with blocks of a single element.

    A stack of left matrices that share one right matrix is merged into rows, if strides allow.
    """
    op, y = node.op, node.output.type
    shape, left, right, (factor_a, factor_b) = strides_of(node)
    written = dense_strides(y.shape)
    result = [written[op.result.index(i) if op.result else i] for i in range(len(shape))]
    n = shape[-1]
    loops = nest(shape[:-1], left[:-1], right[:-1], result[:-1], names=_NAMES)
    rows = MatrixSpan(1, 0, 0, "i")
    if loops and loops[-1].strides[1] == 0:
        rows = MatrixSpan(loops[-1].size, loops[-1].strides[0], loops[-1].strides[2], "i")
        loops = loops[:-1]
    depth = op.depth(node.input(0).type)
    # The stride of an axis with one element is never used; with stride 1, more forms are possible.
    columns = MatrixSpan(n, right[-1], result[-1], "j") if n > 1 else MatrixSpan(n, 1, 1, "j")
    strides = (factor_a, factor_b) if depth > 1 else (1, 1)
    return MatrixProduct(loops, rows, columns, depth, *strides)


_NAMES = "pqrstuvw"
"""C variables of the loops over matrices."""


def _form(product: MatrixProduct, dtype: DType, request: Request) -> MatMulForm:
    """Return which sums of a block share vector registers."""
    several = product.columns.size > 1 and product.depth > 0
    if dtype is not DType.FLOAT32 or "simd_float" not in request.target.features:
        return MatMulForm.SINGLE
    if several and product.columns.operand == 1:
        return MatMulForm.COLUMNS
    panel = 4 * product.depth * min(product.columns.size, _VECTOR_SUMS)
    if several and product.rows.size >= _PANEL_ROWS and request.allows(panel):
        return MatMulForm.PANEL
    if product.left == 1 and product.right == 1 and product.depth >= LANES:
        return MatMulForm.PARTS
    return MatMulForm.SINGLE


def _block(product: MatrixProduct, dtype: DType, request: Request) -> tuple[MatMulForm, int, int]:
    """Return the form, and the rows and columns of a block that take the fewest instructions."""
    target = request.target
    form = _form(product, dtype, request)
    registers = 31 if "fpu" in target.features and request.optimize != "size" else 8
    m, n = product.rows.size, product.columns.size

    def fits(rows: int, columns: int) -> bool:
        if form is MatMulForm.SINGLE:
            return rows * columns + min(rows, columns) + 1 <= registers
        lanes = LANES if form is MatMulForm.PARTS else 1
        return rows * columns * lanes <= _VECTOR_SUMS

    def cost(block: tuple[int, int]) -> tuple[int, int]:
        rows, columns = block
        iterations = -(-m // rows) * -(-n // columns)
        if form is MatMulForm.SINGLE:
            return iterations * (rows + columns + rows * columns + 3), rows * columns
        across = columns if form is MatMulForm.PARTS else _vectors(columns)
        steps = product.depth // LANES if form is MatMulForm.PARTS else product.depth
        each = (rows + across + 2 * rows * across) * steps + _CALL
        return iterations * each, rows * columns

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
    """Return the number of vectors of up to eight floats that hold `columns` columns."""
    return sum(-(-size // 8) for _, size in vectors_of(columns))


KERNELS = (MatMulKernel(),)
