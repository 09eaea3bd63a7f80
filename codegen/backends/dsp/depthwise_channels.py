"""C functions that depthwise convolutions of different layers share: outputs, and rows to keep."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.dsp.depthwise_assembly import ChannelCode
from smelt.codegen.backends.dsp.depthwise_inputs import LAYER
from smelt.codegen.lower.kernel import InnerFunction, Parameters


@dataclass(frozen=True)
class DepthwiseChannelsParameters(Parameters):
    """Variables of `backends/dsp/depthwise_channels.j2`.

    Attributes:
        vertical: whether the image has one column; see `ChannelCode`.
        strip: output rows that are computed together, 1 or 2.
        stride: input rows from one output row to the next.
        step: words of a row of pairs from one output to the next.
        columns, taps: columns and taps of the window.
        places: for each tap, row by row, the index of the halfword with its weight in a channel's
            weights.
        constants: words of a channel's requantization constants, which precede its weights.
        channel_words: words of a channel's constants and weights.
        shift: C operator and operand that are applied to a sum before its bias is added.
        signed: whether the scaling has the signed form; see `scaling`.
        right: right shift of the product.
        limits: smallest and largest output.
        registers: text of a comment: contents of registers.
        channels: instructions that compute the outputs of channels.
    """

    vertical: bool
    strip: int
    stride: int
    step: int
    columns: int
    taps: int
    places: tuple[int, ...]
    constants: int
    channel_words: int
    shift: str
    signed: bool
    right: int
    limits: tuple[int, int]
    registers: str
    channels: tuple[str, ...]


@dataclass(frozen=True)
class DepthwiseKeepParameters(Parameters):
    """Variables of `backends/dsp/depthwise_keep.j2`.

    Attributes:
        kept: rows of pairs that are moved.
    """

    kept: int


def channel_outputs(code: ChannelCode, stem: str) -> InnerFunction:
    """Return the function that computes the outputs of channels.

    Args:
        code: the instructions.
        stem: start of the function's name, without `_channels`.
    """
    block, scaling = code.block, code.scaling
    shift = f"* (1 << {code.rest})" if code.rest > 0 else f">> {-code.rest}" if code.rest else ""
    return InnerFunction(
        template="backends/dsp/depthwise_channels.j2",
        stem=f"{stem}_channels",
        parameters=DepthwiseChannelsParameters(
            vertical=code.vertical,
            strip=block.rows,
            stride=block.stride[0],
            step=block.stride[1],
            columns=block.kernel[1],
            taps=block.taps,
            places=tuple(block.places),
            constants=code.constants,
            channel_words=code.constants + len(block.weights),
            shift=shift,
            signed=scaling.signed,
            right=scaling.right,
            limits=(scaling.low, scaling.high),
            registers=code.registers,
            channels=tuple(code.lines),
        ),
        uses={"SMELT_DSP"},
        details={"rows": "row" if block.rows == 1 else "rows", **scaling.details},
        layer=LAYER,
    )


def kept_rows(kept: int) -> InnerFunction:
    """Return the function that keeps rows of pairs, which layers of all windows share.

    Args:
        kept: rows of pairs.
    """
    return InnerFunction(
        template="backends/dsp/depthwise_keep.j2",
        stem=f"keep_{kept}_row{'s' if kept > 1 else ''}",
        parameters=DepthwiseKeepParameters(kept),
        uses={"move_words"},
        layer=LAYER,
    )
