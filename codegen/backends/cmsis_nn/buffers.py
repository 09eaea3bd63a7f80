"""How many bytes of working memory the library's functions need.

The same arithmetic as its `arm_…_get_buffer_size` functions (CMSIS-NN 7), for the functions that
the kernels call.
"""

from __future__ import annotations

from typing import Literal

from smelt.targets import Target

Variant = Literal["plain", "dsp", "mve"]
"""For which instructions the library is written: its code differs, and what it needs."""

CHANNELS_AT_A_TIME = 124
"""Channels that the MVE depthwise convolution gathers at a time."""


def variant_of(target: Target) -> Variant:
    """The variant that a target's compiler flags select; this computer's own select none."""
    if not target.cross:
        return "plain"
    if "mve" in target.features:
        return "mve"
    return "dsp" if "dsp" in target.features else "plain"


def convolve(variant: Variant, taps: int, channels: int) -> int:
    """`arm_convolve_s8_get_buffer_size` for windows of `taps` pixels of `channels`."""
    columns = taps * channels
    if variant == "mve":
        return 4 * -(-columns // 16) * 16
    return 2 * -(-columns // 4) * 4 * 2


def convolve_row(kernel: int, stride: int, padding: int, channels: int, total: int) -> int:
    """`arm_convolve_1_x_n_s8_get_buffer_size` of the MVE variant, where it gathers no windows.

    Args:
        kernel: width of the window.
        stride: pixels from one to the next.
        padding: pixels before the row.
        channels: of the input.
        total: pixels of padding in all.
    """
    odd = total % 2
    after = max(1, -(-(padding + odd) // stride)) if padding + odd else 0
    left = (kernel + padding) * channels
    right = (kernel - 1 + (after if odd else padding)) * channels
    return max(left, right)


def depthwise(variant: Variant, taps: int, channels: int) -> int:
    """`arm_depthwise_conv_s8_opt_get_buffer_size`."""
    if variant == "mve":
        return 4 * CHANNELS_AT_A_TIME * taps
    return channels * taps * 2 if variant == "dsp" else 0


def matmul(variant: Variant, outputs: int) -> int:
    """`arm_fully_connected_s8_get_buffer_size`, which `arm_batch_matmul_s8` needs too."""
    return 4 * outputs if variant == "mve" else 0


def average_pool(variant: Variant, channels: int) -> int:
    """`arm_avgpool_s8_get_buffer_size`."""
    return 4 * channels if variant == "dsp" else 0
