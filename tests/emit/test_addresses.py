"""Tests of the C expressions of addresses in buffers that hold rows."""

from __future__ import annotations

import pytest

from smelt.codegen.arena.result import Effort, Placement, Plan
from smelt.codegen.emit.addresses import Addresses, bytes_of_rows
from smelt.codegen.schedule.steps import InBuffer, IterationOffset
from smelt.ir import DType

_BAND = "ARENA_OFFSET_band_of_x"


def _addresses() -> Addresses:
    return Addresses(Plan((Placement("band of x", "arena", 64, 3072, 0, 1),), (), (), Effort()))


def _in_rows(dtype: DType, start: int, *steps: int) -> InBuffer:
    """Return an argument in rows of 96 elements; `start` and `steps` are numbers of rows."""
    offsets = tuple(IterationOffset("i", step * 96) for step in steps)
    return InBuffer("band of x", dtype, True, offsets, start * 96, row=96)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        (_in_rows(DType.INT8, 0), f"arena + {_BAND}"),
        (_in_rows(DType.INT8, 1), f"arena + {_BAND} + 96"),
        (_in_rows(DType.INT8, 2), f"arena + {_BAND} + 2 * 96"),
        (_in_rows(DType.FLOAT32, 2), f"arena + {_BAND} + 2 * 384"),
        (_in_rows(DType.INT8, 0, 1), f"arena + {_BAND} + i * 96"),
        (_in_rows(DType.INT8, 0, 8), f"arena + {_BAND} + i * 8 * 96"),
        (_in_rows(DType.INT8, 7, 8), f"arena + {_BAND} + (7 + i * 8) * 96"),
        (InBuffer("band of x", DType.INT8, True, start=7), f"arena + {_BAND} + 7"),
    ],
)
def test_addresses_count_rows(argument: InBuffer, expected: str) -> None:
    assert _addresses().of(argument) == expected


def test_comments_of_offsets_tell_the_bytes_of_a_row() -> None:
    addresses = _addresses()
    addresses.offset("band of x")
    assert [offset.comment for offset in addresses.offsets] == ["3,072 bytes"]
    for dtype in (DType.INT8, DType.FLOAT32):
        addresses.of(_in_rows(dtype, 2))
    assert [offset.comment for offset in addresses.offsets] == ["3,072 bytes, rows of 96 or 384"]


@pytest.mark.parametrize("role", ["band of ", "rows of ", "sums of "])
def test_long_names_keep_what_a_buffer_stores(role: str) -> None:
    name = f"{role}functional/average_pooling2d/block_1/AvgPool"
    addresses = Addresses(Plan((Placement(name, "arena", 0, 64, 0, 1),), (), (), Effort()))
    macro = addresses.offset(name)
    assert macro == f"ARENA_OFFSET_{role.replace(' ', '_')}pooling2d_block_1_AvgPool"


def test_bytes_of_one_row_are_no_product() -> None:
    assert [bytes_of_rows(n, 96) for n in (96, 192)] == ["96", "2 * 96"]
    assert bytes_of_rows(5, 1) == "5"
