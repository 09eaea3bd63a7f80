"""int8 3x3 convolutions of stride 1 by minimal filtering, on cores with the DSP extension.

Winograd's F(2x2, 3x3) makes 2x2 outputs of 4x4 inputs with 16 products a channel instead of 36.
Transformed inputs need 11 bits. The transform of the weights has halves, which are left out:
transformed weights are integers of 12 bits, sums are four times as large, everything stays exact.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.kernels.base import (
    Input,
    KernelCall,
    Operand,
    Output,
    Packed,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.kernels.c.images import Frame
from smelt.codegen.kernels.c.window import Window
from smelt.codegen.kernels.cortexm.cores import DspKernel
from smelt.codegen.kernels.cortexm.dsp_dot import DspProducts, products
from smelt.codegen.kernels.cortexm.dsp_scaling import DspScaling
from smelt.codegen.kernels.cortexm.dsp_taps import add
from smelt.codegen.kernels.cortexm.dsp_tile import PATCH_BYTES
from smelt.codegen.kernels.cortexm.dsp_winograd_inputs import ROW_ORDER, Transform
from smelt.ir import Array, DType, Node
from smelt.ops.convolution import Conv2D

_TRANSFORM = np.asarray([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, -2]], np.int64)
"""Of the weights, along columns: what sums need in the end."""

_TRANSFORM_ROWS = np.asarray([[1, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 1]], np.int64)
"""The same along rows, where the factors 2 and -2 are left to the sums."""


@dataclass(frozen=True)
class Grid:
    """The tiles of a convolution; see the template.

    Attributes:
        window: its geometry.
        scaling: how sums become outputs.
        size: height and width of the output.
        inputs: how inputs are transformed.
    """

    window: Window
    scaling: DspScaling
    size: tuple[int, int]
    inputs: Transform

    @property
    def tiles(self) -> int:
        """Tiles at a time."""
        return self.inputs.tiles

    @property
    def row(self) -> int:
        """Words that requantize a channel."""
        return self.scaling.rows.shape[1]

    @property
    def pair_words(self) -> int:
        """Words of two output channels."""
        return 16 * self.window.depth + 2 * self.row

    @property
    def row_bytes(self) -> int:
        """Bytes of an output row."""
        return self.size[1] * self.window.outputs

    @property
    def factor(self) -> int:
        """What four times a sum is multiplied by before its bias is added."""
        return 1 << (self.scaling.left - 2)

    @property
    def sums(self) -> int:
        """Sums of a position: of two output channels of each tile."""
        return 2 * self.tiles

    @property
    def column_bytes(self) -> int:
        """Bytes on the stack for a column: the end of `v`, the sums of both rows of outputs."""
        return 4 + 8 * self.sums

    @property
    def prologue(self) -> list[str]:
        """Instructions that put constants on the stack."""
        ends = (
            (0, "r0", 64 * self.inputs.stride),
            (12, "r1", 2 * self.window.outputs * self.pair_words),
        )
        lines: list[str] = []
        for at, register, size in ends:
            lines += [*add(register, size), f"str {register}, [sp, #{at}]"]
        if self.scaling.signed:
            addend = self.scaling.addend % 2**32
            lines += [f"movw r0, #{addend % 65536}", f"movt r0, #{addend >> 16}"]
            lines.append("str r0, [sp, #16]")
        return lines

    @property
    def near(self) -> bool:
        """Whether both rows of outputs are in reach of one register."""
        return self.row_bytes + 4 * self.window.outputs <= 4096

    @property
    def below(self) -> list[str]:
        """Instructions that make r6 point to the second row of outputs, where r10 is too far."""
        return [] if self.near else ["mov r6, r10", *add("r6", self.row_bytes, "r12")]

    def out(self, channel: int, row: int, pixel: int) -> str:
        """Where an output is stored."""
        at = channel + pixel * self.window.outputs
        if self.near:
            return f"[r10, #{at + row * self.row_bytes}]"
        return f"[{('r10', 'r6')[row]}, #{at}]"

    @property
    def inner(self) -> bool:
        """Whether there is room for tiles whose inputs are all within the image."""
        return self.window.size[0] >= 4 and self.window.size[1] >= self.inputs.columns

    @property
    def border_row(self) -> int:
        """Bytes from a row of four channels at a border to the next.

        Columns lie as far apart as in the image; with many channels all rows fit between two.
        """
        return 4 if self.window.depth >= 16 else self.inputs.columns * self.window.depth

    @property
    def border_bytes(self) -> int:
        """Bytes of four channels at a border."""
        return 3 * self.border_row + (self.inputs.columns - 1) * self.window.depth + 4

    @property
    def shared(self) -> int:
        """Words of an output channel's weights that one load of four registers brings."""
        return 4 // self.tiles

    def input(self, k: str, tile: str) -> str:
        """C index of word `k` of a tile's inputs of a position."""
        return k if self.tiles == 1 else f"{k} / 2 * 4 + {tile} * 2 + {k} % 2"

    def weight(self, k: str, channel: str) -> str:
        """C index of word `k` of the weights of one of two output channels of a position."""
        shared = self.shared
        return f"{k} / {shared} * {2 * shared} + {channel} * {shared} + {k} % {shared}"

    def at(self, column: int, row: int, total: int) -> int:
        """Where on the stack a sum is; every column pushes the upper row of outputs first."""
        return (3 - column) * self.column_bytes + 4 + 4 * ((1 - row) * self.sums + total)

    def packed(self, weights: Array) -> Array:
        """int32: weights `[o, 3, 3, i]` and the scaling as the assembly reads them."""
        g = np.einsum("ia,oabc,jb->ojic", _TRANSFORM, weights.astype(np.int64), _TRANSFORM_ROWS)
        g = g[:, :, ROW_ORDER]
        outputs, depth = len(g), g.shape[3]
        # Channels 4q + (0, 2), then 4q + (1, 3), as SXTB16 widens four inputs.
        words = g.reshape(outputs // 2, 2, 16, depth // 4, 2, 2).swapaxes(4, 5) & 0xFFFF
        # One load brings words of one output channel, or half as many of both.
        loads = words.reshape(outputs // 2, 2, 16, -1, self.shared, 2).transpose(0, 2, 3, 1, 4, 5)
        words = (loads[..., 0] | loads[..., 1] << 16).reshape(outputs // 2, -1)
        rows = self.scaling.rows.reshape(outputs // 2, -1)
        whole = np.concatenate([words, rows], axis=1)
        return whole.astype(np.uint64).astype(np.uint32).view(np.int32).ravel()


class DspWinograd(DspKernel[Conv2D]):
    """3x3 convolutions of stride 1, tiles of 2x2 outputs at a time."""

    op = Conv2D

    @override
    def offer(self, node: Node[Conv2D], request: Request) -> KernelCall | Refusal:
        name, y = node.op.name, node.output.type
        if node.op.groups > 1:
            return Refusal(f"{name} is served for one group.")
        w, size = Window.of(node), (y.shape[1], y.shape[2])
        if (w.kernel, w.stride, w.dilation) != ((3, 3), (1, 1), (1, 1)):
            return Refusal(f"{name} is served by minimal filtering for 3x3 windows of stride 1.")
        if w.depth % 4 or w.outputs % 2:
            return Refusal(
                f"{name} is served by minimal filtering for multiples of four input channels."
            )
        tiles = _tiles(w, size)
        if tiles == 0 or 4 * w.outputs > 4096:
            return Refusal(
                f"{name} has too few pixels, or channels too many for {PATCH_BYTES} bytes."
            )
        found = products(node)
        if isinstance(found, Refusal):
            return found
        if found.scaling.left < 2:
            return Refusal(f"{name} has sums that four times do not fit into 32 bits.")
        return _call(node, found, Grid(w, found.scaling, size, Transform(tiles, w.depth)))


def _call(node: Node[Conv2D], found: DspProducts, grid: Grid) -> KernelCall:
    w, size, inputs = grid.window, grid.size, grid.inputs
    x, y = node.input(0).type, node.output.type
    weights = found.weights.reshape(w.outputs, 3, 3, w.depth)
    place = Frame.of(node)
    operands: list[Operand] = [Input(0, "input")]
    if w.padded:
        operands.append(Packed("padding", np.full(w.depth, x.zero_point, np.int8)))
    operands += [
        Packed("weights", grid.packed(weights)),
        Scratch("v", DType.INT32, 16 * inputs.stride),
    ]
    tiles = -(-size[0] // 2) * -(-size[1] // (2 * grid.tiles)) * grid.tiles * place.batch
    return KernelCall(
        template="cortexm/dsp_winograd.j2",
        stem="conv_3x3",
        parameters={
            "frame": place,
            "title": f"{node.op.name}: {x} -> {y}, {w.text}",
            "notes": [found.scaling.note],
            "w": w,
            "s": found.scaling,
            "g": grid,
            "row_order": ROW_ORDER,
        },
        operands=(*operands, Output(0, "output")),
        summary=f"minimal filtering, {grid.tiles} tiles of 2x2 pixels x 2 channels",
        form=f"dsp_winograd_{grid.tiles}" + ("_signed" if found.scaling.signed else ""),
        work={
            "products": tiles * 16 * w.depth * w.outputs,
            "outputs": tiles * 4 * w.outputs,
            "inputs": tiles * 4 * (inputs.columns // inputs.tiles) * w.depth,
            "groups": tiles // grid.tiles,
            "calls": 1,
        },
    )


def _tiles(window: Window, size: tuple[int, ...]) -> int:
    """How many tiles at a time fit into working memory and the output, 0 to 2."""
    for tiles in (2, 1):
        fits = size[0] >= 2 and size[1] >= 2 * tiles and 32 * window.depth * tiles <= PATCH_BYTES
        if fits and window.depth % (8 // tiles) == 0:
            return tiles
    return 0


KERNELS = (DspWinograd(),)
