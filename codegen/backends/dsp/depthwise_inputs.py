"""Functions that widen inputs of depthwise convolutions: four channels of pairs of rows."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.dsp.assembly import repeated
from smelt.codegen.lower.kernel import InnerFunction, Parameters

LAYER = "depthwise"
"""The kind of the structs with the numbers of depthwise convolutions."""

FIELDS = {
    "channels": "of input and output",
    "pair_row": "words of a row of pairs in scratch",
    "plane": "words of a channel in scratch",
    "output_row": "bytes of a row of the output",
    "addend": "added to products before the last shift",
    "input_height": "rows of the input",
    "input_row": "bytes of a row of the input",
    "input_columns": "columns of the input under any window",
    "left": "columns of padding",
    "top": "rows of padding",
    "output_width": "columns of the output",
    "output_height": "rows of the output",
    "rows_at_once": "rows of the output whose inputs are in scratch at once",
    "padding": "zero point of the input, times 256",
}
"""The fields of these structs and their meanings; assembly reads the first five."""

_COLUMN = (
    "ldr r5, [r0, r2]",
    "ldr r4, [r0]",
    "add r0, r0, r10",
    "pkhbt r6, r4, r5, lsl #16",
    "pkhtb r5, r5, r4, asr #16",
    "and r4, lr, r6, lsl #8",
    "and r6, lr, r6",
    "and r7, lr, r5, lsl #8",
    "and r5, lr, r5",
    "str r6, [r1, r11]",
    "str r7, [r1, r11, lsl #1]",
    "str r5, [r1, r8]",
    "str r4, [r1], #4",
)
"""Widens four channels of two inputs, one above the other, to the upper bytes of halfwords."""


@dataclass(frozen=True)
class DepthwiseInputsParameters(Parameters):
    """Variables of `backends/dsp/depthwise_inputs.j2`.

    Attributes:
        vertical: whether columns are two rows of the image apart; see `ChannelCode`.
        widen: instructions that widen pairs of rows.
    """

    vertical: bool
    widen: tuple[str, ...]


def input_pairs(*, vertical: bool, unrolled: bool) -> InnerFunction:
    """Return the C functions that widen inputs, which layers of all windows share.

    Args:
        vertical: whether columns are two rows of the image apart; see `ChannelCode`.
        unrolled: whether to widen two columns per iteration.
    """
    return InnerFunction(
        template="backends/dsp/depthwise_inputs.j2",
        stem="input_pairs" + ("_vertical" if vertical else ""),
        parameters=DepthwiseInputsParameters(
            vertical=vertical, widen=widening(vertical=vertical, unrolled=unrolled)
        ),
        uses={"SMELT_DSP"},
        layer=LAYER,
    )


def widening(*, vertical: bool, unrolled: bool) -> tuple[str, ...]:
    """Return the instructions of the function that widens pairs of rows.

    r0: inputs; r1: pairs; r2: bytes from an input to the one below; r3: pairs of rows left
    r9: iterations left; r10: bytes from a column of inputs to the next; r12: columns; lr: mask
    r11, r8: bytes from a channel's pairs to those of the next channel and of the third next one
    Stack: bytes from the end of a pair of rows to the next pair, of inputs and of pairs

    Args:
        vertical: whether columns are two rows of the image apart; see `ChannelCode`.
        unrolled: whether to widen two columns per iteration.
    """
    iteration = ["subs r9, r9, #1", "bne 2b"]
    columns = ["mov r9, r12", "2:", *_COLUMN, *iteration]
    if unrolled:
        columns = ["lsrs r9, r12, #1", "beq 3f", "2:", *repeated(2, _COLUMN), *iteration]
        columns += ["3:", "tst r12, #1", "beq 4f", *_COLUMN, "4:"]
    return (
        "push {r4-r11, lr}",
        "ldrd r12, r9, [sp, #36]",
        "ldm r2, {r4-r6}",
        *(["lsl r4, r4, #1"] if vertical else []),
        "mov r10, r4",
        "lsl r11, r6, #2",
        "add r8, r11, r11, lsl #1",
        "mul r4, r4, r12",
        "rsb r4, r4, r9, lsl #1",
        "sub r5, r5, r12",
        "lsl r5, r5, #2",
        "strd r4, r5, [sp, #-8]!",
        "mov r2, r9",
        "mov lr, #0xff00ff00",
        "1:",
        *columns,
        "ldrd r4, r5, [sp]",
        "add r0, r0, r4",
        "add r1, r1, r5",
        "subs r3, r3, #1",
        "bne 1b",
        "add sp, sp, #8",
        "pop {r4-r11, pc}",
    )


def widening_cost(rows: int, columns: int, *, unrolled: bool) -> int:
    """Return approximately how many instructions a call executes."""
    return 18 + rows * (columns * len(_COLUMN) + (columns if unrolled else 2 * columns) + 8)
