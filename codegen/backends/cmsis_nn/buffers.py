"""Sizes of the scratch that the library's functions need, in bytes.

They equal the results of its `arm_…_get_buffer_size` functions (CMSIS-NN 7).
"""

from __future__ import annotations

from typing import Literal

from smelt.targets import Target

Variant = Literal["plain", "dsp", "mve"]
"""The instructions that the library uses: its code and its scratch depend on them."""

CHANNELS_AT_A_TIME = 124
"""Channels that the depthwise convolution of the MVE variant gathers at once."""


def variant_of(target: Target) -> Variant:
    """Return the variant that a target's compiler flags select; "plain" for the host."""
    if not target.cross:
        return "plain"
    if "mve" in target.features:
        return "mve"
    return "dsp" if "dsp" in target.features else "plain"


def convolve(variant: Variant, taps: int, channels: int) -> int:
    """Return `arm_convolve_s8_get_buffer_size` for windows of `taps` pixels with `channels`."""
    columns = taps * channels
    if variant == "mve":
        return 4 * -(-columns // 16) * 16
    return 2 * -(-columns // 4) * 4 * 2


def convolve_row(kernel: int, stride: int, padding: int, channels: int, total: int) -> int:
    """Return `arm_convolve_1_x_n_s8_get_buffer_size` of the MVE variant without gathered windows.

    Args:
        kernel: width of the window.
        stride: pixels from one window to the next.
        padding: pixels of padding before the row.
        channels: input channels.
        total: pixels of padding before and after the row.
    """
    odd = total % 2
    after = max(1, -(-(padding + odd) // stride)) if padding + odd else 0
    left = (kernel + padding) * channels
    right = (kernel - 1 + (after if odd else padding)) * channels
    return max(left, right)


def depthwise(variant: Variant, taps: int, channels: int) -> int:
    """Return `arm_depthwise_conv_s8_opt_get_buffer_size`."""
    if variant == "mve":
        return 4 * CHANNELS_AT_A_TIME * taps
    return channels * taps * 2 if variant == "dsp" else 0


def matmul(variant: Variant, outputs: int) -> int:
    """Return `arm_fully_connected_s8_get_buffer_size`, also valid for `arm_batch_matmul_s8`."""
    return 4 * outputs if variant == "mve" else 0


def average_pool(variant: Variant, channels: int) -> int:
    """Return `arm_avgpool_s8_get_buffer_size`."""
    return 4 * channels if variant == "dsp" else 0
