"""Bodies that layers share although they need different static functions, which are in a table.

A layer's struct contains its sizes, and the index of the table's row with the layer's functions.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from typing_extensions import override

from smelt.codegen.lower.kernel import (
    BodyCost,
    InnerFunction,
    JointBody,
    KernelCall,
    LayerStruct,
    Operand,
    Parameters,
    SharedBody,
)

ROW = "functions"
"""The field of a layer's struct that contains the index of its row."""

ROW_MEANING = "row of the table of functions"

_SLOWER = 1.02
"""Assumed instructions of a shared body, relative to those of a layer's own body.

Measured for all depthwise convolutions of MLPerf Tiny's vww together; 1x1 convolutions take fewer.
"""


@dataclass(frozen=True)
class TableRow:
    """A row as the template prints it.

    Attributes:
        numbers: numbers that layers with these functions have in common.
        functions: places of the functions in `inner`; None for a function that is not needed.
    """

    numbers: tuple[int, ...]
    functions: tuple[int | None, ...]


@dataclass(frozen=True)
class FunctionTableParameters(Parameters):
    """Variables that the templates of these bodies have in common.

    Attributes:
        table: the rows.
    """

    table: tuple[TableRow, ...]


@dataclass(frozen=True)
class TableBody(SharedBody):
    """A body with a table.

    Attributes:
        common: static functions that all layers need.
        numbers, functions: the layer's row; see `TableRow`.
        row_bytes: bytes of a row.
    """

    common: tuple[InnerFunction, ...] = ()
    numbers: tuple[int, ...] = ()
    functions: tuple[InnerFunction | None, ...] = ()
    row_bytes: int = 0

    @staticmethod
    def of(
        call: KernelCall,
        numbers: tuple[int, ...],
        functions: tuple[InnerFunction | None, ...],
        sizes: tuple[int, int, int],
    ) -> TableBody:
        """Return the body of a layer.

        Args:
            call: its call, with an empty table; `inner` contains only what all layers need. The
                call of the returned body has a table with the layer's row.
            numbers: see `TableRow`.
            functions: see `TableRow`.
            sizes: bytes of the body, of a row, and of a layer's own function.
        """
        size, row, own = sizes
        instructions = sum(call.work.values())
        body = TableBody(
            call,
            BodyCost(round(instructions * _SLOWER), size),
            BodyCost(instructions, own),
            family=call.key,
            common=call.inner,
            numbers=numbers,
            functions=functions,
            row_bytes=row,
        )
        return replace(body, call=body.joined([body]).calls[0])

    @property
    def row_key(self) -> Hashable:
        """A key that is equal for equal rows."""
        return self.numbers, tuple(f and f.key for f in self.functions)

    @override
    def joined(self, bodies: Sequence[SharedBody]) -> JointBody:
        tables = [body for body in bodies if isinstance(body, TableBody)]
        rows = {body.row_key: body for body in tables}
        inner = list(self.common)
        table = tuple(TableRow(row.numbers, _places(row, inner)) for row in rows.values())
        parameters = replace(_parameters(self.call), table=table)
        calls = tuple(
            replace(
                body.call,
                parameters=parameters,
                inner=tuple(inner),
                operands=_indexed(body.call.operands, list(rows).index(body.row_key)),
            )
            for body in tables
        )
        return JointBody(calls, self.cost.bytes + self.row_bytes * len(rows))


def _parameters(call: KernelCall) -> FunctionTableParameters:
    """Return the template's variables."""
    if not isinstance(call.parameters, FunctionTableParameters):
        raise TypeError(f"{call.template} has no table")
    return call.parameters


def _places(body: TableBody, inner: list[InnerFunction]) -> tuple[int | None, ...]:
    """Return the places of a layer's functions in `inner`; append those that are missing."""
    found: list[int | None] = []
    for function in body.functions:
        if function is None:
            found.append(None)
            continue
        keys = [known.key for known in inner]
        if function.key not in keys:
            inner.append(function)
            keys.append(function.key)
        found.append(keys.index(function.key))
    return tuple(found)


def _indexed(operands: Sequence[Operand], row: int) -> tuple[Operand, ...]:
    """Return the operands with the index of the row in the struct."""
    return tuple(
        replace(o, numbers={**o.numbers, ROW: row}) if isinstance(o, LayerStruct) else o
        for o in operands
    )
