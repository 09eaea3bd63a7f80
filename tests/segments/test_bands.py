"""Rows that turns make, read and keep, compared with what operators need."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from smelt.codegen.segments.bands import RowBands, bands_of, segment_of
from smelt.ir import Node, Value
from smelt.ir.row_window import RowWindow
from tests.support.banded_networks import RandomNetwork


def needed(node: Node, row: int) -> set[int]:
    """Return the rows of the first operand that a row of the result depends on.

    The reference is asked, with an operand in which one row differs.
    """
    x = node.input(0)
    fill = np.zeros(x.type.shape, np.int8)
    constants = [None if v is None else v.data for v in node.inputs[1:]]
    others = [
        fill if c is None and v is not None else c
        for v, c in zip(node.inputs[1:], constants, strict=True)
    ]
    found: set[int] = set()
    base = node.op.reference(node, [fill, *others])[0]
    for changed in range(x.type.shape[1]):
        for value in (90, -90):
            one = fill.copy()
            one[:, changed] = value
            result = node.op.reference(node, [one, *others])[0]
            if not np.array_equal(result[:, row], base[:, row]):
                found.add(changed)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_windows_contain_all_rows_that_the_reference_reads(seed: int) -> None:
    for node in RandomNetwork(seed).graph(3).nodes:
        window = node.op.row_window(node, 1)
        assert window is not None
        height, made = node.input(0).type.shape[1], node.output.type.shape[1]
        mirrored = window.mirrored(height, made)
        for row in {0, 1, made // 2, made - 1}:
            rows = window.read(range(row, row + 1), height).rows
            assert needed(node, row) <= set(rows)
            other = mirrored.read(range(made - 1 - row, made - row), height).rows
            assert sorted(height - 1 - r for r in other) == list(rows)


@pytest.mark.parametrize("seed", range(40))
def test_each_row_is_made_once_and_held_until_it_is_read(seed: int) -> None:
    graph = RandomNetwork(seed).graph(4, pooled=seed % 4 == 0)
    found = 0
    for start in range(len(graph.nodes)):
        for end in range(start + 1, len(graph.nodes) + 1):
            segment = segment_of(graph, graph.nodes[start:end])
            if segment is None:
                continue
            for rows in (Fraction(1, 4), Fraction(1, 3), Fraction(1, 2), *map(Fraction, (1, 2, 3))):
                for order in (segment, segment.mirrored()):
                    bands = bands_of(order, rows)
                    if bands is not None:
                        found += 1
                        follow(bands)
    assert found


def follow(bands: RowBands) -> None:
    """Execute all turns, and check what each band holds."""
    segment = bands.segment
    held: dict[Value, list[int | None]] = {
        value: [None] * bands.band_rows(value) for value in segment.banded
    }
    made: dict[Node, int] = dict.fromkeys(segment.nodes, 0)
    for turn in range(bands.turns):
        for node in segment.nodes:
            value, rows = node.output, bands.rows(node, turn)
            if value in held and turn in bands.refills[value][1:]:
                kept = bands.kept_after(value, turn - 1)
                band = held[value]
                unused = [None] * (bands.kept[value] - kept)
                held[value] = [*unused, *band[len(band) - kept :], *[None] * bands.made(node)]
            if not rows:
                continue
            assert rows.start == made[node]
            made[node] = rows.stop
            for operand in segment.operands(node):
                read = segment.windows[node].read(rows, segment.height(operand)).rows
                if operand in held:
                    first = bands.first(operand, turn)
                    assert read.start >= first
                    assert held[operand][read.start - first : read.stop - first] == list(read)
                elif operand in segment.producers:
                    assert made[segment.producers[operand]] >= read.stop
            if value in held:
                first = bands.first(value, turn)
                held[value][rows.start - first : rows.stop - first] = list(rows)
    assert made == {node: segment.rows(node) for node in segment.nodes}


def test_bands_keep_no_more_rows_than_windows_overlap() -> None:
    """For windows of one size with usual padding, only the overlap of two windows is kept."""
    assert RowWindow(3, 1, 1).read(range(4, 6), 20).rows == range(3, 7)
    for seed in range(60):
        graph = RandomNetwork(seed).graph(2)
        segment = segment_of(graph, graph.nodes[:2])
        bands = None if segment is None else bands_of(segment, Fraction(2))
        if segment is None or bands is None or len(segment.readers) != 2:
            continue
        for value in segment.banded:
            (reader,) = segment.readers[value]
            window = segment.windows[reader]
            assert bands.kept[value] < max(window.size, 1) + window.stride
