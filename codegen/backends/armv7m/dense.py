"""int8 dense layers for Armv7-M without the DSP extension: one word holds two taps of a row.

Inputs are counted from -128, so that x' = x + 128 lies within 0 and 255, and weights from an
*offset*, u = w + offset. With

    X = x'_a + 2^16 x'_b    and    W = u_b + 2^16 u_a,

    X W = x'_a u_b + 2^16 (x'_a u_a + x'_b u_b)    modulo 2^32.

While no u is negative or more than 255 and u_a + u_b is 257 at most, the first product stays below
2^16 and the bracket too, since 255 * 257 = 2^16 - 1: the upper half of X W is the bracket. One
instruction makes the words of a pair out of bytes, so a product costs a mask, a multiplication and
an addition with a shift for two taps. The offset is the one that the fewest pairs stand against; of
those, one u is changed until they hold, and what its weight lacks stands in a list of *repairs*,
multiplied and added one by one.

The sum of w x is that of u x', less `offset` times the sum of all x' of the row, less 128 times the
sum of w. Modulo 2^32, in which all of it is computed, the sum that results is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.armv7m.assembly import Turns
from smelt.codegen.backends.armv7m.dense_assembly import RowSums, row
from smelt.codegen.backends.armv7m.instructions import CONDITION
from smelt.codegen.backends.armv7m.products import PIXELS, convolution
from smelt.codegen.lower.images import Frame
from smelt.codegen.lower.offer import (
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.lower.short_products import SCRATCH_BYTES, scaling_of
from smelt.codegen.lower.short_scaling import ScalingSteps, ShortScaling
from smelt.codegen.lower.window import Window
from smelt.codegen.text.helpers import when
from smelt.ir import Array, DType, Node
from smelt.ops.core.fully_connected import FullyConnected

_LARGEST_PAIR = 257
"""What u_a + u_b may be."""

_LARGEST_OFFSET = 128
_UNROLLED = {"speed": 8, "ram": 8, "size": 1}
"""Fours of taps in a turn of the loop, at most."""


@dataclass(frozen=True)
class PairsOfInputsParameters(Parameters):
    """Variables of `backends/armv7m/dense.j2`.

    Attributes:
        title: what is computed.
        condition: the preprocessor's, for assembly.
        assembly: the lines of each statement of the function for a row.
        scaling: of sums.
        offset: what weights are counted from.
        rows: to be computed.
        outputs: of a row.
        blocks: fours of inputs.
        whole: those that are whole.
        last: C of the inputs of the last block, where it is not whole.
        left: how many they are.
        repaired: whether some output has repairs.
        common: words of constants that requantize all outputs.
        fields: words of an output's own, and of four outputs'.
        own: C of both, side by side; none where outputs have nothing in common.
    """

    title: str
    condition: str
    assembly: tuple[str, ...]
    scaling: ScalingSteps
    offset: int
    rows: int
    outputs: int
    blocks: int
    whole: int
    last: tuple[str, ...]
    left: int
    repaired: bool
    common: int
    fields: tuple[int, int]
    own: tuple[str, ...]


class PairsFullyConnected(Kernel[FullyConnected]):
    """Dense layers: row by row, or rows as the pixels of a 1x1 convolution."""

    op = FullyConnected

    @override
    def offer(self, node: Node[FullyConnected], request: Request) -> KernelCall | Refusal:
        outputs, depth = node.input(1).type.shape
        rows = node.input(0).type.size // depth
        if rows < PIXELS:
            return _dense(node, rows, request)
        window, place = Window.dense(rows, depth, outputs), Frame.of_rows(node)
        return convolution(node, window, place, request, stem="fully_connected")


def _dense(node: Node[FullyConnected], rows: int, request: Request) -> KernelCall | Refusal:
    """The call that computes all outputs of each of some rows, or why none does."""
    scaling = scaling_of(node)
    if isinstance(scaling, Refusal):
        return scaling
    scaling, weights = scaling.signed, node.input(1).array
    outputs, depth = weights.shape
    if -(-depth // 4) * 8 > SCRATCH_BYTES:
        return Refusal(
            f"{node.op.name} has rows too long to be widened into {SCRATCH_BYTES} bytes."
        )
    fours, blocks = -(-outputs // 4), -(-depth // 4)
    filled = np.zeros((fours * 4, blocks * 4), np.int64)
    filled[:outputs, :depth] = weights
    offset = _offset(filled)
    counted, repairs = counted_weights(filled, offset)
    common, rows_ = _rows_of(scaling, len(filled))
    summed = RowSums(
        outputs=outputs,
        blocks=blocks,
        turns=Turns.of(blocks, _UNROLLED[request.optimize]),
        offset=offset,
        repaired=any(repairs),
        common=len(common),
        scaling=scaling,
    )
    fields = rows_.shape[1]
    own = [f"row[j * {fields} + {i}]" for i in range(fields)]
    own += [f"common[{i}]" for i in range(len(common))]
    parameters = PairsOfInputsParameters(
        title=f"{node.op.name}: {node.input(0).type} -> {node.output.type}",
        condition=CONDITION,
        assembly=row(summed).statements,
        scaling=scaling.steps,
        offset=offset,
        rows=rows,
        outputs=outputs,
        blocks=blocks,
        whole=depth // 4,
        last=tuple(f"input[{i}] + 128" if i < depth % 4 else "0" for i in range(4)),
        left=depth % 4,
        repaired=any(repairs),
        common=len(common),
        fields=(fields, 4 * fields),
        own=tuple(own) if len(common) else (),
    )
    return KernelCall(
        template="backends/armv7m/dense.j2",
        stem="fully_connected",
        parameters=parameters,
        operands=(
            Input(0, "input"),
            Packed("constants", _stream(filled, counted, repairs, common, rows_)),
            Scratch("wide", DType.INT32, blocks * 2),
            Output(0, "output"),
        ),
        uses={"SMELT_ARRAY"} | when(depth >= 4, "string.h"),
        summary="two taps in one multiplication, four outputs at a time",
        form="armv7m_pairs_4x1",
        work={
            "products": rows * filled.size,
            "repairs": rows * sum(map(len, repairs)),
            "outputs": rows * len(filled),
            "inputs": rows * depth,
            "calls": 1,
        },
    )


def _pairs(weights: Array) -> Array:
    """`[o, k/4, 2, 2]`: the pairs of taps 0 and 2, and of taps 1 and 3, of every four."""
    return weights.reshape(len(weights), -1, 2, 2).transpose(0, 1, 3, 2)


def _offset(weights: Array) -> int:
    """The offset that needs the fewest repairs."""
    sums = _pairs(weights).sum(axis=3)
    counts = [
        (weights < -offset).sum() + (sums > _LARGEST_PAIR - 2 * offset).sum()
        for offset in range(_LARGEST_OFFSET + 1)
    ]
    return int(np.argmin(counts))


def _rows_of(scaling: ShortScaling, outputs: int) -> tuple[Array, Array]:
    """What requantizes all outputs alike, if anything, and the rest, `[outputs, fields]`."""
    rows = scaling.rows
    own = 1 if scaling.biases is None else 2
    if (rows[:, own:] != rows[0, own:]).any():
        own = rows.shape[1]
    filled = np.zeros((outputs, own), np.int64)
    filled[: len(rows)] = rows[:, :own]
    return rows[0, own:], filled


def counted_weights(weights: Array, offset: int) -> tuple[Array, list[list[tuple[int, int]]]]:
    """What is multiplied, `[o, k/4, 2, 2]`, and by output the taps whose weights lack something.

    A tap is given by where its input stands in the packed inputs, in bytes.
    """
    wanted = _pairs(weights) + offset
    found = np.maximum(wanted, 0)
    over = np.maximum(found.sum(axis=3) - _LARGEST_PAIR, 0)
    first = found[..., 0] >= found[..., 1]
    found = found - np.stack([np.where(first, over, 0), np.where(first, 0, over)], axis=-1)
    lack = (wanted - found).reshape(len(weights), -1)
    return found, [[(2 * int(i), int(row[i])) for i in np.flatnonzero(row)] for row in lack]


def _stream(
    weights: Array,
    counted: Array,
    repairs: Sequence[Sequence[tuple[int, int]]],
    common: Array,
    rows: Array,
) -> Array:
    """int32: what all outputs have in common, then all constants of four outputs after others."""
    # A word of weights: the pair (0, 2) in the even bytes, (1, 3) in the odd ones, u_b below u_a.
    even, odd = counted[:, :, 0], counted[:, :, 1]
    words = even[..., 1] | odd[..., 1] << 8 | even[..., 0] << 16 | odd[..., 0] << 24
    parts: list[Array] = [common]
    for i in range(0, len(weights), 4):
        mine = repairs[i : i + 4]
        parts += [-128 * weights[i : i + 4].sum(axis=1), words[i : i + 4].T.ravel()]
        if any(repairs):
            parts.append(np.asarray([sum(map(len, mine))]))
            for repair in mine if any(mine) else ():
                parts.append(np.asarray([len(repair)]))
                parts.append(np.asarray(repair, np.int64).reshape(-1))
        parts.append(rows[i : i + 4].ravel())
    return (np.concatenate(parts).astype(np.int64) & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


KERNELS = (PairsFullyConnected(),)
