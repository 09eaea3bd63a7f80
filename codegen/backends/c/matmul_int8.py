"""Products of int8 matrices (MatMul) in blocks of rows times columns.

The zero points za and zb are taken out of the sums:

    sum((a - za) * (b - zb)) = sum(a * b) - zb * sum(a) - za * sum(b) + depth * za * zb

So the innermost loop multiplies stored elements. Each row is summed once for all blocks of columns,
and each column once for its matrix. With a zero point of 0, these sums are not needed.

The magnitude of each of the four terms is at most `depth * 2^14`. Below a depth of 2^15
(`DEPTH_LIMIT` of the operator), 32 bits therefore suffice for adding them in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.c.matmul import product_of
from smelt.codegen.backends.c.matrix_product import MatrixProduct
from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.lower.loop_heads import looped
from smelt.codegen.lower.nested_loops import NestedLoop, total
from smelt.codegen.lower.output_stage import OutputStage
from smelt.codegen.text.expressions import times
from smelt.ir import Array, DType, Node, Rounding
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.fully_connected import fully_connected_scales
from smelt.ops.core.matmul import MatMul

_MOST_ROWS, _MOST_COLUMNS = 4, 8
"""Upper limits of the rows and columns of a block."""


@dataclass(frozen=True)
class StoredMatMulParameters(Parameters):
    """Variables of `matmul_int8.j2`; texts are C.

    Attributes:
        title, notes: text of the function's comment.
        block_text: size of a block, for the comment of the function that computes it.
        rows: comment of the function that computes the terms of rows, -zb * sum(a); empty if zb
            is 0.
        row_sums: C lines of that function.
        columns: comment of the function that computes the terms of columns, -za * sum(b); empty if
            za is 0.
        column_sums: C lines of that function.
        parameters: parameters of the function that computes a block.
        arguments: arguments of its call.
        lines: C lines of that function.
        stack: loops over the matrices.
        row_blocks, column_blocks: loops over blocks of rows and of columns.
        row_count: rows of a block; 0 without terms of rows.
        left_rows: address of the rows of a block; empty without terms of rows.
        right: address of the right matrix; empty without terms of columns.
    """

    title: str
    notes: tuple[str, ...]
    block_text: str
    rows: str
    row_sums: tuple[str, ...]
    columns: str
    column_sums: tuple[str, ...]
    parameters: str
    arguments: str
    lines: tuple[str, ...]
    stack: tuple[NestedLoop, ...]
    row_blocks: tuple[NestedLoop, ...]
    column_blocks: tuple[NestedLoop, ...]
    row_count: int
    left_rows: str
    right: str


class StoredMatMulKernel(Kernel[MatMul]):
    """Products of quantized int8 matrices."""

    op = MatMul

    @override
    def offer(self, node: Node[MatMul], request: Request) -> KernelCall | Refusal:
        if not node.output.type.is_quantized:
            return Refusal(f"{node.op.name} in int8 needs quantized data, not {node.output.type}.")
        if node.rounding not in (Rounding.TFLM, Rounding.ONNX):
            return Refusal(f"{node.op.name} does not support rounding '{node.rounding}'.")
        a, b, y = node.input(0).type, node.input(1).type, node.output.type
        product = product_of(node)
        rows, columns = _block(product, request)
        product = replace(
            product,
            rows=replace(product.rows, count=rows),
            columns=replace(product.columns, count=columns),
        )
        scales = fully_connected_scales(a, b, y, node.rounding)
        constant = np.array([product.depth * a.zero_point * b.zero_point], np.int64)
        finish = OutputStage.of(
            node, Activation.NONE, constant, scales, _range(node, product.depth)
        )
        sums = Scratch("columns", DType.INT32, product.columns.size)
        return KernelCall(
            template="backends/c/matmul_int8.j2",
            stem="matmul",
            parameters=_parameters(node, product, finish),
            operands=(
                Input(0, "a"),
                Input(1, "b"),
                *((sums,) if a.zero_point else ()),
                Output(0, "y"),
            ),
            uses=finish.uses | {"SMELT_ARRAY"},
            summary=f"blocks of {rows} rows x {columns} columns, zero points taken out of the sums",
        )


def _parameters(node: Node, product: MatrixProduct, finish: OutputStage) -> StoredMatMulParameters:
    """Return the template's variables."""
    a, b = node.input(0).type, node.input(1).type
    by_rows, by_columns = b.zero_point != 0, a.zero_point != 0
    rows = f"Terms of {product.rows.text}: -zb * sum(a), with the zero point zb = {b.zero_point}"
    columns = f"Terms of all columns: -za * sum(b), with the zero point za = {a.zero_point}"
    sums = [total(("columns", product.columns.start(1)))]
    return StoredMatMulParameters(
        title=f"{a} times {b} -> {node.output.type}",
        notes=(f"{product.text}.", *finish.notes),
        block_text=product.block_text,
        rows=rows if by_rows else "",
        row_sums=_row_sums(product, b.zero_point) if by_rows else (),
        columns=columns if by_columns else "",
        column_sums=_column_sums(product, a.zero_point) if by_columns else (),
        parameters="const int8_t *a, const int8_t *b, "
        + "const int32_t *rows, " * by_rows
        + "const int32_t *columns, " * by_columns
        + "int8_t *y",
        arguments=", ".join(
            [
                product.left_rows,
                product.right_columns,
                *["rows"] * by_rows,
                *sums * by_columns,
                product.result,
            ]
        ),
        lines=_block_lines(product, finish, by_rows=by_rows, by_columns=by_columns),
        stack=product.stacked,
        row_blocks=product.rows.loops,
        column_blocks=product.columns.loops,
        row_count=product.rows.count if by_rows else 0,
        left_rows=product.left_rows if by_rows else "",
        right=product.right_matrix if by_columns else "",
    )


def _row_sums(product: MatrixProduct, zero_point: int) -> tuple[str, ...]:
    """Return C lines that compute the terms of a block's rows, -zb * sum(a)."""
    rows = range(product.rows.count)
    added = looped("k", product.depth, lambda k: [f"sum{i} += {product.a(i, k)};" for i in rows])
    return (
        *(f"int32_t sum{i} = 0;" for i in rows),
        *added,
        *(f"rows[{i}] = {times(f'sum{i}', -zero_point)};" for i in rows),
    )


def _column_sums(product: MatrixProduct, zero_point: int) -> tuple[str, ...]:
    """Return C lines that compute the terms of a matrix's columns, -za * sum(b)."""

    def column(j: str) -> list[str]:
        added = looped("k", product.depth, lambda k: [f"sum += {product.b_at(j, k)};"])
        return ["int32_t sum = 0;", *added, f"columns[{j}] = {times('sum', -zero_point)};"]

    return looped("j", product.columns.size, column)


def _block_lines(
    product: MatrixProduct, finish: OutputStage, *, by_rows: bool, by_columns: bool
) -> tuple[str, ...]:
    """Return C lines that compute a block; its sums start from the terms of rows and columns."""
    rows, columns = range(product.rows.count), range(product.columns.count)

    def products(k: str) -> list[str]:
        lines = [f"const int32_t a{i} = {product.a(i, k)};" for i in rows]
        for j in columns:
            lines.append(f"const int32_t b{j} = {product.b(j, k)};")
            lines += [f"sum{i}_{j} += a{i} * b{j};" for i in rows]
        return lines

    def start(i: int, j: int) -> str:
        return " + ".join([f"rows[{i}]"] * by_rows + [f"columns[{j}]"] * by_columns) or "0"

    return (
        *(f"int32_t sum{i}_{j} = {start(i, j)};" for i in rows for j in columns),
        *looped("k", product.depth, products),
        *(f"{product.y(i, j)} = {finish.output(f'sum{i}_{j}')};" for i in rows for j in columns),
    )


def _range(node: Node, depth: int) -> tuple[Array, Array]:
    """Return the smallest and the largest possible sum, int64 `[1]` each."""
    ends = [
        [limit - value.type.zero_point for limit in value.type.dtype.limits]
        for value in (node.input(0), node.input(1))
    ]
    products = [depth * first * second for first in ends[0] for second in ends[1]]
    return np.array([min(products)], np.int64), np.array([max(products)], np.int64)


def _block(product: MatrixProduct, request: Request) -> tuple[int, int]:
    """Return the rows and columns of a block that take the fewest instructions."""
    registers = _REGISTERS if request.optimize != "size" else _FEW_REGISTERS
    m, n = product.rows.size, product.columns.size

    def cost(block: tuple[int, int]) -> tuple[int, int]:
        rows, columns = block
        each = (rows + columns + rows * columns + 2) * product.depth + _STORE * rows * columns
        return -(-m // rows) * -(-n // columns) * each, rows * columns

    return min(
        (
            (rows, columns)
            for rows in range(1, min(max(m, 1), _MOST_ROWS) + 1)
            for columns in range(1, min(max(n, 1), _MOST_COLUMNS) + 1)
            if rows * columns + rows + columns <= registers
        ),
        key=cost,
    )


_REGISTERS, _FEW_REGISTERS = 8, 3
"""Registers for the sums and factors of a block, normally and with `--optimize size`."""

_STORE = 12
"""Estimated instructions that requantize and store a sum."""

KERNELS = (StoredMatMulKernel(),)
