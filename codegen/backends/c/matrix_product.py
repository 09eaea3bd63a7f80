"""C code of matrix products: offsets of elements, and functions that compute a block.

In the C code, `a` points to the block's rows in the left operand, `b` to its columns in the right
operand, and `y` to the block in the output. `k` is the position of a product in its sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.c.vector_loops import lane_loops, vectors_of
from smelt.codegen.lower.loop_heads import looped
from smelt.codegen.lower.nested_loops import ArrayLoop, NestedLoop, braced, index, total
from smelt.codegen.text.expressions import in_parentheses
from smelt.ir import DType

LANES = 8
"""Partial sums of an element if these share vector registers."""


@dataclass(frozen=True)
class MatrixSpan:
    """The rows or columns of a product.

    Attributes:
        size: number of rows or columns.
        operand: stride in the operand, in elements.
        output: stride in the output, in elements.
        variable: C variable of the loop over blocks: `i` for rows, `j` for columns.
        count: rows or columns of a block.
    """

    size: int
    operand: int
    output: int
    variable: str
    count: int = 1

    @property
    def repeats(self) -> bool:
        """Whether there are several blocks, so that a loop over them is needed."""
        return self.size != self.count

    @property
    def overlaps(self) -> bool:
        """Whether the last block overlaps the previous one: `count` does not divide `size`."""
        return self.size % self.count != 0

    @property
    def loops(self) -> tuple[NestedLoop, ...]:
        """The loop over blocks; empty for a single block."""
        if not self.repeats:
            return ()
        name, last = self.variable, self.size - self.count
        head = f"for (int32_t {name} = 0; {name} < {self.size}; {name} += {self.count}) {{"
        first = f"const int32_t first_{name} = {name} < {last} ? {name} : {last};"
        return (NestedLoop(head, (first,) if self.overlaps else ()),)

    @property
    def text(self) -> str:
        """The rows or columns of a block in words, for comments."""
        return f"{self.count} {'row' if self.variable == 'i' else 'column'}" + "s" * (
            self.count > 1
        )

    def start(self, stride: int) -> str:
        """Return the C expression of a block's offset in the operand or output with this stride."""
        if not self.repeats:
            return "0"
        return _scaled("first_" * self.overlaps + self.variable, stride)


@dataclass(frozen=True)
class MatrixProduct:
    """A stack of matrix products.

    Attributes:
        stack: loops over the matrices, with the strides of left operand, right operand and output.
        rows: rows of the left operand and the output.
        columns: columns of the right operand and the output.
        depth: products of a sum.
        left: stride of the left operand along the depth, in elements.
        right: stride of the right operand along the depth, in elements.
        panel: whether a block's columns are first copied to `panel`, where they are adjacent.
    """

    stack: tuple[ArrayLoop, ...]
    rows: MatrixSpan
    columns: MatrixSpan
    depth: int
    left: int
    right: int
    panel: bool = False

    def a(self, row: int, factor: int | str = "k") -> str:
        """Return the C expression of a left factor of a row of the block."""
        return f"a[{total((str(row * self.rows.operand), _scaled(factor, self.left)))}]"

    def b(self, column: int, factor: int | str = "k") -> str:
        """Return the C expression of a right factor of a column of the block."""
        return f"b[{total((str(column * self.columns.operand), _scaled(factor, self.right)))}]"

    def b_at(self, column: str, factor: str = "k") -> str:
        """Return the C expression of a right factor of a column if `b` is the whole matrix."""
        return f"b[{total((_scaled(factor, self.right), _scaled(column, self.columns.operand)))}]"

    def y(self, row: int, column: int | str) -> str:
        """Return the C expression of an output of the block."""
        offset = _scaled(column, self.columns.output)
        return f"y[{total((str(row * self.rows.output), offset))}]"

    @property
    def stacked(self) -> tuple[NestedLoop, ...]:
        """The loops over the matrices."""
        return tuple(NestedLoop(loop.head) for loop in self.stack)

    @property
    def block_text(self) -> str:
        """The size of a block in words, for comments."""
        return f"{self.rows.text} times {self.columns.text}"

    @property
    def text(self) -> str:
        """The division into blocks in words, for comments."""
        overlaps = self.rows.overlaps or self.columns.overlaps
        suffix = "; the last block overlaps the previous one" if overlaps else ""
        return f"{self.block_text} at a time{suffix}"

    @property
    def spans(self) -> tuple[MatrixSpan, MatrixSpan]:
        """Rows and columns in the order of the loops over blocks, outer loop first."""
        return (self.columns, self.rows) if self.panel else (self.rows, self.columns)

    @property
    def line(self) -> str:
        """The C expression of the address of right factor `k` of the block's first column."""
        return total(("b", _scaled("k", self.columns.count if self.panel else self.right)))

    @property
    def copying(self) -> tuple[str, ...]:
        """The C lines that copy the right factors of a block's columns to `panel`."""
        columns = self.columns
        start = index(self.stack, 1), columns.start(columns.operand)
        at = total((*start, _scaled("k", self.right), _scaled("l", columns.operand)))
        copied = f"panel[k * {columns.count} + l] = b[{at}];"
        each = braced(f"for (int32_t l = 0; l < {columns.count}; ++l) {{", [copied])
        return tuple(braced(f"for (int32_t k = 0; k < {self.depth}; ++k) {{", each))

    @property
    def left_rows(self) -> str:
        """The C expression of the address of the block's rows in the left operand."""
        return total(("a", index(self.stack, 0), self.rows.start(self.rows.operand)))

    @property
    def right_matrix(self) -> str:
        """The C expression of the address of the right matrix."""
        return total(("b", index(self.stack, 1)))

    @property
    def right_columns(self) -> str:
        """The C expression of the address of the block's columns: `panel` or the right operand."""
        if self.panel:
            return "panel"
        return total(("b", index(self.stack, 1), self.columns.start(self.columns.operand)))

    @property
    def result(self) -> str:
        """The C expression of the address of the block in the output."""
        rows, columns = self.rows, self.columns
        starts = index(self.stack, 2), rows.start(rows.output), columns.start(columns.output)
        return total(("y", *starts))


def _scaled(position: int | str, stride: int) -> str:
    """Return the C expression of a position times a stride."""
    if isinstance(position, int) or position.isdecimal():
        return str(int(position) * stride)
    return position if stride == 1 else f"{position} * {stride}"


def single_lines(product: MatrixProduct, dtype: DType, *, fused: bool) -> list[str]:
    """Return C lines that compute a block with a variable for each sum."""
    type_, sum_type = dtype.c_name, _sum_type(dtype)
    wide, narrow = (f"({name})" * (sum_type != type_) for name in (sum_type, type_))
    rows, columns = range(product.rows.count), range(product.columns.count)

    def products(k: str) -> list[str]:
        lines = [f"const {sum_type} a{i} = {wide}{product.a(i, k)};" for i in rows]
        for j in columns:
            lines.append(f"const {sum_type} b{j} = {wide}{product.b(j, k)};")
            if fused:
                lines += [f"sum{i}_{j} = fmaf(a{i}, b{j}, sum{i}_{j});" for i in rows]
            else:
                lines += [f"sum{i}_{j} += a{i} * b{j};" for i in rows]
        return lines

    return [
        *(f"{sum_type} sum{i}_{j} = 0;" for i in rows for j in columns),
        *looped("k", product.depth, products),
        *(f"{product.y(i, j)} = {narrow}sum{i}_{j};" for i in rows for j in columns),
    ]


def columns_lines(product: MatrixProduct) -> list[str]:
    """Return C lines that compute a block with neighboring columns in vectors."""
    across, rows = vectors_of(product.columns.count), range(product.rows.count)
    lines: list[str] = []
    ends: list[str] = []
    body = [f"const float *const row = {product.line};"]
    body += [f"const float a{i} = {product.a(i)};" for i in rows]
    for i in rows:
        lines += [f"SMELT_ARRAY float sum{i}_{first}[{count}];" for first, count in across]
        lines += lane_loops(
            across, lambda n, j, at, i=i: f"sum{i}_{n}[{j}] = {product.a(i, 0)} * b[{at}];"
        )
        body += lane_loops(across, lambda n, j, at, i=i: f"sum{i}_{n}[{j}] += a{i} * row[{at}];")
        ends += lane_loops(
            across,
            lambda n, j, at, i=i: f"{product.y(i, in_parentheses(at))} = sum{i}_{n}[{j}] + 0.0f;",
        )
    head = f"for (int32_t k = 1; k < {product.depth}; ++k) {{"
    return [*lines, *(braced(head, body) if product.depth > 1 else ()), *ends]


def parts_lines(product: MatrixProduct) -> list[str]:
    """Return C lines that compute a block with `LANES` partial sums of each element in vectors."""
    pairs = [(i, j) for i in range(product.rows.count) for j in range(product.columns.count)]
    each = f"for (int32_t l = 0; l < {LANES}; ++l) {{"
    lines: list[str] = []
    body: list[str] = []
    for i, j in pairs:
        lines.append(f"SMELT_ARRAY float part{i}_{j}[{LANES}];")
        lines += braced(each, [f"part{i}_{j}[l] = {product.a(i, 'l')} * {product.b(j, 'l')};"])
        added = f"{product.a(i, 'k + l')} * {product.b(j, 'k + l')}"
        body += braced(each, [f"part{i}_{j}[l] += {added};"])
    lines.append(f"int32_t k = {LANES};")
    lines += braced(f"for (; k <= {product.depth} - {LANES}; k += {LANES}) {{", body)
    lines += [f"float sum{i}_{j} = sum_of_8(part{i}_{j});" for i, j in pairs]
    if product.depth % LANES:
        last = [f"sum{i}_{j} += {product.a(i)} * {product.b(j)};" for i, j in pairs]
        lines += braced(f"for (; k < {product.depth}; ++k) {{", last)
    return [*lines, *(f"{product.y(i, j)} = sum{i}_{j};" for i, j in pairs)]


def _sum_type(dtype: DType) -> str:
    """Return the C type of a sum; it is unsigned for integers, so that the sum can wrap around."""
    return dtype.c_name if dtype.is_float else f"uint{8 * dtype.size}_t"
