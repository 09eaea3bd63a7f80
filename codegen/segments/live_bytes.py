"""How many bytes are live while the calls of a segment run, without planning their addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.codegen.segments.bands import RowBands
from smelt.codegen.segments.chains import BandChain
from smelt.ir import Array, Node, Value


@dataclass(frozen=True)
class SegmentLiveBytes:
    """The live bytes of a segment's calls.

    Attributes:
        bands: The bands.
        other: Bytes of other tensors, which are live during the whole segment.
        consumed: Tensors whose rows are live only until the segment has read them.
        chains: The chains of bands that share a buffer.
    """

    bands: RowBands
    other: int
    consumed: frozenset[Value]
    chains: Sequence[BandChain] = ()

    def peaks(self) -> tuple[int, ...]:
        """Return, for each node, the most live bytes in one of its calls, without scratch."""
        bands, nodes = self.bands, self.bands.segment.nodes
        live = np.full((bands.turns, len(nodes)), self.other)
        chained = {value for chain in self.chains for value in chain.offsets}
        for chain in self.chains:
            low, high = (e.reshape(bands.turns, -1)[:, : len(nodes)] for e in chain.extent())
            live += high - low
        for value in bands.segment.readers:
            if value in chained:
                continue
            if value in bands.segment.banded:
                live += self._in_band(value)
            elif value in self.consumed:
                live += self._unread_rows(value) * bands.segment.row_bytes(value)
        for position, node in enumerate(nodes):
            if node is bands.segment.summed:
                live += self._sums(node, position)
            elif node.output not in bands.segment.banded:
                made = np.array(bands.done[node])
                later = np.arange(len(nodes)) >= position
                rows = np.where(later, made[1:, None], made[:-1, None])
                live += rows * bands.segment.row_bytes(node.output)
        return tuple(
            int(live[np.array(bands.active[node]), position].max())
            for position, node in enumerate(nodes)
        )

    def _in_band(self, value: Value) -> Array:
        """Return the bytes of a band that are live, as an array of shape [turns, nodes].

        The whole band is live from the call that fills it to the last call that reads it before the
        next one does. In between, only kept rows are.
        """
        bands, nodes = self.bands, self.bands.segment.nodes
        refills = np.array(bands.refills[value])
        first = refills * len(nodes) + nodes.index(bands.segment.producers[value])
        kept = np.array([*(bands.kept_after(value, turn - 1) for turn in refills[1:]), 0])
        rows = np.zeros(bands.turns * len(nodes) + 1, int)
        np.add.at(rows, first, bands.band_rows(value))
        np.add.at(rows, bands.last_uses[value] + 1, kept - bands.band_rows(value))
        np.add.at(rows, first[1:], -kept[:-1])
        live = np.cumsum(rows[:-1]).reshape(bands.turns, len(nodes))
        return live * bands.segment.row_bytes(value)

    def _sums(self, node: Node, position: int) -> Array:
        """Return the bytes of a node's sums, and of its result, as an array [turns, nodes]."""
        bands, turns, count = self.bands, self.bands.active[node], len(self.bands.segment.nodes)
        first, last = (turn * count + position for turn in (turns[0], turns[-1]))
        live = np.zeros(bands.turns * count, int)
        live[first : last + 1] += 0 if bands.segment.sums is None else bands.segment.sums.bytes
        live[last:] += node.output.type.bytes
        return live.reshape(bands.turns, count)

    def _unread_rows(self, value: Value) -> Array:
        """Return the rows of a tensor that will still be read, as an array [turns, nodes]."""
        bands, nodes = self.bands, self.bands.segment.nodes
        height = bands.segment.height(value)
        unread = np.zeros((bands.turns, len(nodes)), int)
        for reader in bands.segment.readers[value]:
            window, made = bands.segment.windows[reader], np.array(bands.done[reader])
            first = np.maximum(made * window.stride - window.before, 0)
            first = np.where(made < bands.segment.rows(reader), first, height)
            earlier = np.arange(len(nodes)) <= nodes.index(reader)
            begins = np.where(earlier, first[:-1, None], first[1:, None])
            unread = np.maximum(unread, height - begins)
        return unread
