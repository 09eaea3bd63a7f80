"""Windows that slide over the spatial axes of a tensor, as in convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.frontend.onnx.operation import Operation
from smelt.ir import Array
from smelt.ops.core.convolution import Pair
from smelt.ops.core.pool import taps_within

LARGEST = 1 << 24
"""Largest size of an image's axis; larger ones only occur in damaged files."""
_AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True, kw_only=True)
class OnnxWindow:
    """A window over spatial axes; every field has an entry for each axis.

    Attributes:
        size: size of the input.
        kernel: number of taps.
        stride, dilation: in elements.
        padding: elements before and after the input, up to the end of the last window.
        outputs: number of windows.
        padded: padding as the file gives it; `padding` may be larger at the end for the last
            window.
    """

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[Pair, ...]
    outputs: tuple[int, ...]
    padded: tuple[Pair, ...]

    @staticmethod
    def of(operation: Operation, size: Sequence[int], kernel: Sequence[int]) -> OnnxWindow:
        """Return the window of a convolution or a pool.

        Args:
            operation: has the attributes strides, dilations, pads, auto_pad and ceil_mode.
            size: sizes of the spatial axes.
            kernel: number of taps along each.

        Raises:
            ModelError: the attributes are invalid, or no window fits into the input.
        """
        stride = per_axis(operation, "strides", kernel)
        dilation = per_axis(operation, "dilations", kernel)
        extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        padded = _padding(operation, size, extents, stride)
        padding: list[Pair] = []
        outputs: list[int] = []
        strides: list[int] = []
        for n, extent, step, (before, after) in zip(size, extents, stride, padded, strict=True):
            spare = n + before + after - extent
            count = spare // step + 1
            if operation.flag("ceil_mode") and spare % step:
                # Add a window, unless it would begin in the padding after the input.
                count += count * step < n + before
                after = max((count - 1) * step + extent - n - before, 0)
            if count < 1:
                raise operation.wrong(
                    f"its window of {list(kernel)} does not fit into the input of {list(size)}"
                )
            if max(count, extent) > LARGEST:
                raise operation.refuse(
                    f"{count} windows of {extent} elements along an axis are not supported; "
                    f"at most {LARGEST:,} of either are"
                )
            # With a single window, the stride is not used and may be too large.
            beyond = n + before + after - extent + 1
            strides.append(min(step, beyond) if count == 1 else step)
            padding.append((before, after))
            outputs.append(count)
        return OnnxWindow(
            size=tuple(size),
            kernel=tuple(kernel),
            stride=tuple(strides),
            dilation=tuple(1 if k == 1 else d for k, d in zip(kernel, dilation, strict=True)),
            padding=tuple(padding),
            outputs=tuple(outputs),
            padded=padded,
        )

    def covered(self, axis: int, *, padded: bool) -> Array:
        """Return the taps of each window in the input, or also in its padding from the file."""
        before, after = self.padded[axis] if padded else (0, 0)
        starts = np.arange(self.outputs[axis]) * self.stride[axis] - self.padding[axis][0]
        limits = -before, self.size[axis] + after
        return taps_within(starts, self.kernel[axis], self.dilation[axis], limits)


def per_axis(operation: Operation, name: str, kernel: Sequence[int]) -> tuple[int, ...]:
    """Return an attribute with a positive integer for each spatial axis; by default all 1."""
    found = operation.integers(name, ()) or (1,) * len(kernel)
    if len(found) != len(kernel) or min(found) < 1:
        raise operation.wrong(
            f"attribute '{name}' is {list(found)}; it needs {len(kernel)} numbers of at least 1"
        )
    return found


def pads(operation: Operation, rank: int) -> tuple[Pair, ...]:
    """Return the attribute 'pads' as pairs of before and after; by default all 0."""
    found = operation.integers("pads", ()) or (0,) * (2 * rank)
    if len(found) != 2 * rank or min(found) < 0:
        raise operation.wrong(
            f"attribute 'pads' is {list(found)}; it needs {2 * rank} numbers of at least 0"
        )
    return tuple(zip(found[:rank], found[rank:], strict=True))


def auto_pad(operation: Operation) -> str:
    """Return the attribute 'auto_pad', which must be a known one."""
    found = operation.text("auto_pad", "NOTSET") or "NOTSET"
    if found not in _AUTO_PADS:
        raise operation.wrong(
            f"auto_pad '{found}' does not exist; use one of {', '.join(_AUTO_PADS)}"
        )
    return found


def halves(total: int, mode: str) -> Pair:
    """Split padding of an axis; an odd element goes after, or before for SAME_LOWER."""
    smaller = total // 2
    return (total - smaller, smaller) if mode == "SAME_LOWER" else (smaller, total - smaller)


def _padding(
    operation: Operation, size: Sequence[int], extents: Sequence[int], stride: Sequence[int]
) -> tuple[Pair, ...]:
    mode = auto_pad(operation)
    if mode == "NOTSET":
        return pads(operation, len(size))
    if mode == "VALID":
        return ((0, 0),) * len(size)
    return tuple(
        halves(max((-(-n // step) - 1) * step + extent - n, 0), mode)
        for n, extent, step in zip(size, extents, stride, strict=True)
    )
