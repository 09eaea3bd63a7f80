"""A check whether the library's convolution of an image of one row is correct.

The MVE variant of `arm_convolve_1_x_n_s8` divides the outputs into three parts. If a window begins
before the row, its output is computed from a copy with padding before it; if a window ends after
the row, from a copy with padding after it. The other outputs are computed in place. The library
derives the sizes of the parts and the start of the second copy from the padding, which is wrong for
some strides.
"""

from __future__ import annotations

from smelt.codegen.lower.window import Window

_PADDING = -1
"""Marks padding in a list of columns."""


def gathers_rows(window: Window, channels: int) -> bool:
    """Return whether the library computes a convolution in this way, and correctly.

    Args:
        window: geometry of a convolution with one group.
        channels: input channels.
    """
    rows = window.size[0] == 1 and window.kernel[0] == 1 and not any(window.padding[0])
    if not rows or window.dilation[1] != 1 or window.stride[1] * channels % 4:
        return False
    before, after = window.padding[1]
    outputs = (window.size[1] + before + after - window.kernel[1]) // window.stride[1] + 1
    wanted = [
        [
            column if 0 <= column < window.size[1] else _PADDING
            for column in range(first, first + window.kernel[1])
        ]
        for first in range(-before, outputs * window.stride[1] - before, window.stride[1])
    ]
    return _gathered(window, outputs) == wanted


def _gathered(window: Window, outputs: int) -> list[list[int]] | None:
    """Return the columns that the library reads for each output; None if some are out of range."""
    width, kernel, stride = window.size[1], window.kernel[1], window.stride[1]
    before = window.padding[1][0]
    total = (outputs - 1) * stride + kernel - width
    odd = total % 2
    if total < 0 or before * 2 + odd != total:
        return None
    after = max(1, -(-(before + odd) // stride)) if before + odd else 0
    first = max(1, -(-before // stride)) if before else 0
    middle = max(outputs - first - after, 0)
    start, end = stride * first - before, stride * (first + middle) - before
    if first + middle + after != outputs or start < 0:
        return None
    left = [_PADDING] * before + list(range(kernel))
    right = list(range(end, end + kernel - 1)) + [_PADDING] * (after if odd else before)
    inside = list(range(width))
    rows = [
        *(left[i * stride : i * stride + kernel] for i in range(first)),
        *(inside[start + i * stride : start + i * stride + kernel] for i in range(middle)),
        *(right[i * stride : i * stride + kernel] for i in range(after)),
    ]
    within = kernel <= width and end + kernel - 1 <= width
    return rows if within else None
