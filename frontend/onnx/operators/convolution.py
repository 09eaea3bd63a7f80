"""Converters of Conv, ConvTranspose and Col2Im, for images with one, two or three axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from smelt.frontend.onnx.operation import OnnxConverter, Operation
from smelt.frontend.onnx.windows import OnnxWindow, auto_pad, halves, pads, per_axis
from smelt.ir import Value
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D, Pair
from smelt.ops.core.convolution_nd import Conv3D, ConvTranspose


def _conv(operation: Operation) -> Value:
    x, weights = operation.value(0), operation.weights(1)
    kernel, groups = geometry(operation, x, weights)
    if x.type.shape[1] != weights.type.shape[1] * groups or weights.type.shape[0] % groups:
        raise operation.wrong(
            f"weights {weights.type} do not fit input {x.type} with {groups} groups: they must be "
            "[outputs, channels / groups, *kernel], with outputs a multiple of groups"
        )
    window = OnnxWindow.of(operation, x.type.shape[2:], kernel)
    image = operation.channels_last(x)
    convolve = _conv3d if len(kernel) == 3 else _conv2d
    return operation.channels_first(convolve(operation, image, weights, window, groups))


def geometry(operation: Operation, x: Value, weights: Value) -> tuple[tuple[int, ...], int]:
    """Check the operands, and return the kernel's size and the number of groups."""
    rank, kernel = len(x.type.shape), weights.type.shape[2:]
    if rank != len(weights.type.shape) or rank < 3:
        raise operation.wrong(
            f"weights {weights.type} do not fit input {x.type}: both need the same number of "
            "dimensions, at least 3"
        )
    if rank > 5:
        raise operation.refuse(f"images with {rank - 2} axes are not supported; at most three are")
    if operation.integers("kernel_shape", kernel) != kernel:
        raise operation.wrong(
            f"kernel_shape {list(operation.integers('kernel_shape'))} contradicts weights "
            f"{weights.type}"
        )
    if x.type.size == 0 or weights.type.size == 0:
        raise operation.refuse(
            f"there is nothing to convolve: {x.type} or weights {weights.type} are empty"
        )
    groups = operation.integer("group", 1)
    if groups < 1:
        raise operation.wrong(f"attribute 'group' is {groups}; it must be at least 1")
    return kernel, groups


def _conv2d(
    operation: Operation, x: Value, weights: Value, window: OnnxWindow, groups: int
) -> Value:
    """Convolve along one or two axes; a row is an image of height 1."""
    flat = len(window.kernel) == 1
    n, *size, channels = x.type.shape
    outputs = weights.type.shape[0]
    if flat:
        x = operation.reshape(x, (n, 1, *size, channels))
        weights = operation.reshape(weights, (*weights.type.shape[:2], 1, *window.kernel))
    stride, dilation = _pair(window.stride), _pair(window.dilation)
    padding = ((0, 0), window.padding[0]) if flat else (window.padding[0], window.padding[1])
    if groups == channels and groups > 1:
        op = DepthwiseConv2D(stride, padding, dilation)
        weights = operation.transpose(weights, (1, 2, 3, 0))
    else:
        op = Conv2D(stride, padding, dilation, groups=groups)
        weights = operation.transpose(weights, (0, 2, 3, 1))
    bias = operation.optional(2)
    fused = bias if bias is None or bias.is_constant else None
    y = operation.emit(op, x, weights, *(() if fused is None else (fused,)))
    if flat:
        y = operation.reshape(y, (n, *window.outputs, outputs))
    return y if bias is fused else operation.emit(Binary("add"), y, bias)


def _pair(numbers: Sequence[int]) -> Pair:
    return (1, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])


def _conv3d(
    operation: Operation, x: Value, weights: Value, window: OnnxWindow, groups: int
) -> Value:
    op = Conv3D(window.stride, window.padding, window.dilation, groups)
    taps = operation.transpose(weights, (2, 3, 4, 1, 0))
    return operation.emit(op, x, taps, *_bias(operation))


def _bias(operation: Operation) -> tuple[Value, ...]:
    bias = operation.optional(2)
    return () if bias is None else (bias,)


def _conv_transpose(operation: Operation) -> Value:
    x, weights = operation.value(0), operation.weights(1)
    kernel, groups = geometry(operation, x, weights)
    inputs, outputs = weights.type.shape[:2]
    if x.type.shape[1] != inputs or inputs % groups:
        raise operation.wrong(
            f"weights {weights.type} do not fit input {x.type} with {groups} groups: they must be "
            "[channels, outputs / groups, *kernel], with channels a multiple of groups"
        )
    # [g * i, o, *k] to [*k, i, g * o]
    rank = len(kernel)
    parted = operation.reshape(weights, (groups, inputs // groups, outputs, *kernel))
    turned = operation.transpose(parted, (*range(3, 3 + rank), 1, 0, 2))
    taps = operation.reshape(turned, (*kernel, inputs // groups, groups * outputs))
    stride, dilation = (per_axis(operation, n, kernel) for n in ("strides", "dilations"))
    size = x.type.shape[2:]
    # A step along a single element is not used, and may be too large.
    op = ConvTranspose(
        tuple(1 if n == 1 else s for n, s in zip(size, stride, strict=True)),
        _cut(operation, size, kernel),
        tuple(1 if k == 1 else d for k, d in zip(kernel, dilation, strict=True)),
        groups,
    )
    image = operation.channels_last(x)
    return operation.channels_first(operation.emit(op, image, taps, *_bias(operation)))


def _cut(operation: Operation, size: Sequence[int], kernel: Sequence[int]) -> tuple[Pair, ...]:
    """Return what to remove from each axis of a transposed convolution; negative numbers add."""
    rank = len(kernel)
    stride = per_axis(operation, "strides", kernel)
    dilation = per_axis(operation, "dilations", kernel)
    extra = operation.integers("output_padding", ()) or (0,) * rank
    wanted = operation.integers("output_shape", ())[-rank:]
    if len(extra) != rank or (wanted and len(wanted) != rank):
        raise operation.wrong(f"output_padding and output_shape must have {rank} entries")
    mode = auto_pad(operation)
    if mode.startswith("SAME") and not wanted:
        wanted = tuple(n * s for n, s in zip(size, stride, strict=True))
    if not wanted:
        given = pads(operation, rank) if mode == "NOTSET" else ((0, 0),) * rank
        return tuple((before, after - e) for (before, after), e in zip(given, extra, strict=True))
    cut: list[Pair] = []
    for n, s, e, k, d, w in zip(size, stride, extra, kernel, dilation, wanted, strict=True):
        total = s * (n - 1) + e + (k - 1) * d + 1 - w
        # If the output is smaller than the wanted size, the missing elements are added at the end.
        odd = "SAME_UPPER" if mode == "SAME_UPPER" else "SAME_LOWER"
        before, after = halves(total, odd) if total > 0 else (0, total)
        cut.append((before, after - e))
    return tuple(cut)


def _col2im(operation: Operation) -> Value:
    """Convert Col2Im, which sums columns where they overlap.

    It is a transposed convolution; each of its taps selects one input.
    """
    x = operation.value(0)
    size = operation.attribute_or_operand("", 1)
    kernel = operation.attribute_or_operand("", 2)
    if not size or not kernel or len(size) != len(kernel) or len(x.type.shape) != 3:
        raise operation.wrong(
            f"image_shape {size} and block_shape {kernel} must have equally many entries, and its "
            f"input must be [n, channels * taps, columns], not {x.type}"
        )
    if len(kernel) > 3:
        raise operation.refuse(
            f"images with {len(kernel)} axes are not supported; at most three are"
        )
    n, rows, columns = x.type.shape
    window = OnnxWindow.of(operation, size, kernel)
    taps = prod(kernel)
    if rows % taps or columns != prod(window.outputs):
        raise operation.wrong(
            f"{x.type} cannot be the columns of an image of {list(size)}: it needs a multiple of "
            f"{taps} rows, and {prod(window.outputs)} columns"
        )
    channels = rows // taps
    operation.afford((taps, taps, channels))
    ones = np.eye(taps, dtype=np.float32).reshape(*kernel, taps, 1)
    weights = operation.literal(np.tile(ones, channels))
    padding: list[Pair] = []
    for axis, (before, _) in enumerate(window.padding):
        extent = (kernel[axis] - 1) * window.dilation[axis] + 1
        full = (window.outputs[axis] - 1) * window.stride[axis] + extent
        padding.append((before, full - before - size[axis]))
    op = ConvTranspose(window.stride, tuple(padding), window.dilation, channels)
    image = operation.reshape(operation.channels_last(x), (n, *window.outputs, rows))
    return operation.channels_first(operation.emit(op, image, weights))


CONVERTERS: dict[str, OnnxConverter] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Col2Im": _col2im,
}
