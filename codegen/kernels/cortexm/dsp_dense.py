"""int8 dense layers of one row, on cores with the DSP extension.

The inputs are widened into working memory once; then one assembly function makes four outputs at a
time, two in a halfword of weights (see `dsp_tile`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.kernels.base import (
    Input,
    KernelCall,
    Output,
    Packed,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.kernels.c.window import Window
from smelt.codegen.kernels.cortexm.cores import DspKernel
from smelt.codegen.kernels.cortexm.dsp_dot import products
from smelt.codegen.kernels.cortexm.dsp_taps import add
from smelt.codegen.kernels.cortexm.dsp_tile import PATCH_BYTES, DspTile, pairs_exact
from smelt.ir import Array, DType, Node
from smelt.ops.convolution import Conv2D
from smelt.ops.fully_connected import FullyConnected

_STRAIGHT = {"speed": 36, "size": 8, "ram": 8}
"""Words of inputs up to this many are written out."""

_LOOPED = {"speed": 8, "size": 1, "ram": 1}
"""Times four words in one turn of a loop."""


@dataclass(frozen=True)
class Fours:
    """How four sums at a time are made; see the template.

    Attributes:
        tile: inputs and scaling; its pairs of channels are what a word of weights holds.
    """

    tile: DspTile

    @property
    def first(self) -> int:
        """Words of inputs of the first step, which need not be four."""
        return (self.tile.words - 1) % 4 + 1

    @property
    def unrolled(self) -> int:
        """Steps of four words in a turn of the loop."""
        return _LOOPED[self.tile.optimize]

    @property
    def turns(self) -> int:
        """Of the loop; 0 where all is written out."""
        if self.tile.words <= _STRAIGHT[self.tile.optimize]:
            return 0
        return (self.tile.words - self.first) // 4 // self.unrolled

    @property
    def repeats(self) -> int:
        """Steps of four words between the first one and the loop."""
        return (self.tile.words - self.first) // 4 - self.turns * self.unrolled

    @property
    def overlap(self) -> int:
        """Outputs that the last four have in common with those before."""
        return -self.tile.outputs % 4

    @property
    def group_words(self) -> int:
        """Words of weights and constants of four outputs."""
        return 2 * self.tile.words + 4 * self.tile.row

    @property
    def ends(self) -> list[str]:
        """Instructions that note where inputs and weights end."""
        size = 4 * self.group_words
        lines = ["mov r0, r11", *add("r0", 4 * self.tile.words), "str r0, [sp, #8]"]
        lines += ["mov r0, r10", *add("r0", self.tile.outputs // 4 * size), "str r0, [sp, #12]"]
        return [*lines, *add("r0", size), "str r0, [sp, #20]"] if self.overlap else lines

    def packed(self, weights: Array) -> Array:
        """int32: weights `[o, 1, k]` and the scaling as the assembly reads them."""
        starts = np.arange(0, self.tile.outputs - 3, 4)
        if self.overlap:
            starts = np.append(starts, self.tile.outputs - 4)
        chosen = (starts[:, None] + np.arange(4)).ravel()
        pairs = self.tile.pairs(weights[chosen]).reshape(len(starts), 2, -1)
        rows = self.tile.scaling.rows[chosen].reshape(len(starts), -1)
        stream = pairs.swapaxes(1, 2).reshape(len(starts), -1)
        whole = np.concatenate([stream, rows], axis=1)
        return whole.astype(np.uint64).astype(np.uint32).view(np.int32).ravel()


def _covers(window: Window, node: Node) -> bool:
    """Whether one window covers the whole input, so that every input is multiplied once."""
    single = node.output.type.size == window.outputs
    return single and not window.padded and window.kernel == window.size


class DspDense(DspKernel[FullyConnected | Conv2D]):
    """Dense layers of one row, and convolutions whose window covers the whole input."""

    op = FullyConnected | Conv2D

    @override
    def offer(self, node: Node[FullyConnected | Conv2D], request: Request) -> KernelCall | Refusal:
        name = node.op.name
        if isinstance(node.op, Conv2D) and node.op.groups > 1:
            return Refusal(f"{name} is served for one group.")
        found = products(node)
        if isinstance(found, Refusal):
            return found
        w = found.window
        covered = w.size == (1, 1) if isinstance(node.op, FullyConnected) else _covers(w, node)
        if not covered:
            return Refusal(f"{name} has more than one row of outputs.")
        if w.outputs < 4:
            return Refusal(f"{name} is served four outputs at a time.")
        if not pairs_exact(found.weights):
            return Refusal(f"{name} has weights too large to be paired.")
        if found.weights[0].size > PATCH_BYTES // 2 - 8:
            return Refusal(f"{name} has more inputs than {PATCH_BYTES} bytes hold when widened.")
        weights = found.weights.reshape(found.window.outputs, 1, -1)
        length, outputs = weights.shape[2], found.window.outputs
        tile = DspTile(1, outputs, 1, length, found.scaling, request.optimize)
        fours = Fours(tile)
        return KernelCall(
            template="cortexm/dsp_dense.j2",
            stem="fully_connected",
            parameters={
                "title": f"{node.op.name}: {node.input(0).type} -> {node.output.type}",
                "notes": [found.scaling.note],
                "t": tile,
                "d": fours,
            },
            operands=(
                Input(0, "input"),
                Packed("weights", fours.packed(weights)),
                Scratch("patch", DType.INT32, tile.words),
                Output(0, "output"),
            ),
            summary="4 outputs at a time",
            form="dsp_dense" + ("_signed" if found.scaling.signed else ""),
            work={
                "products": tile.words * 2 * (outputs + fours.overlap),
                "outputs": outputs + fours.overlap,
                "inputs": tile.words * 2,
                "calls": 1,
            },
        )


KERNELS = (DspDense(),)
