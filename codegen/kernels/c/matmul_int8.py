"""MatMul of int8 operands: blocks of rows times columns, with the zero points taken out of sums.

A sum of `(a - za) (b - zb)` is the sum of `a b`, less `zb` times that of the row and `za` times
that of the column, plus a constant. So the inner loop multiplies what is stored; rows are summed
once for all blocks beside each other, columns once for each matrix. A zero point of 0 needs no
sums.

Every part stays within `depth * 2^14`, so that up to a depth of 2^15 no order of adding them leaves
32 bits (`ops.matmul.DEPTH_LIMIT`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from typing_extensions import override

from smelt.codegen.kernels.base import (
    Input,
    Kernel,
    KernelCall,
    Output,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.kernels.c.finish import Finish
from smelt.codegen.kernels.c.loops import total
from smelt.codegen.kernels.c.matmul import Product, product_of
from smelt.ir import Array, DType, Node, Rounding
from smelt.ops.fixed_point import Activation
from smelt.ops.fully_connected import fully_connected_scales
from smelt.ops.matmul import MatMul

_MOST_ROWS, _MOST_COLUMNS = 4, 8


class StoredMatMulKernel(Kernel[MatMul]):
    """Products of int8 matrices that are computed at run time."""

    op = MatMul

    @override
    def offer(self, node: Node[MatMul], request: Request) -> KernelCall | Refusal:
        if not node.output.type.is_quantized:
            return Refusal(f"{node.op.name} in integers needs quantized data.")
        if node.rounding not in (Rounding.TFLM, Rounding.ONNX):
            return Refusal(f"{node.op.name} is not served for rounding '{node.rounding}'.")
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
        finish = Finish.of(node, Activation.NONE, constant, scales, _range(node, product.depth))
        sums = Scratch("columns", DType.INT32, product.columns.size)
        return KernelCall(
            template="c/matmul_int8.j2",
            stem="matmul",
            parameters={
                "title": f"{a} times {b} -> {y}",
                "p": product,
                "f": finish,
                "row_factor": -b.zero_point,
                "column_factor": -a.zero_point,
                "column_sums": total(("columns", product.columns.start(1))),
            },
            operands=(
                Input(0, "a"),
                Input(1, "b"),
                *((sums,) if a.zero_point else ()),
                Output(0, "y"),
            ),
            helpers=finish.helpers,
            summary=f"blocks of {rows} rows x {columns} columns, zero points out of the sums",
        )


def _range(node: Node, depth: int) -> tuple[Array, Array]:
    """int64 `[1]` each: the smallest and the largest sum of any operands."""
    ends = [
        [limit - value.type.zero_point for limit in value.type.dtype.limits]
        for value in (node.input(0), node.input(1))
    ]
    products = [depth * first * second for first in ends[0] for second in ends[1]]
    return np.array([min(products)], np.int64), np.array([max(products)], np.int64)


def _block(product: Product, request: Request) -> tuple[int, int]:
    """The rows and columns of a block that cost the fewest instructions."""
    registers = _REGISTERS if request.optimize != "size" else _FEW_REGISTERS
    m, n = product.rows.size, product.columns.size

    def cost(block: tuple[int, int]) -> tuple[int, int]:
        rows, columns = block
        each = (rows + columns + rows * columns + 2) * product.depth + _AROUND * rows * columns
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
"""For the sums and factors of a block."""

_AROUND = 12
"""Instructions that make a sum a stored output."""

KERNELS = (StoredMatMulKernel(),)
