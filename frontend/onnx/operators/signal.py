"""Converters of signal transforms (products with constant matrices) and of determinants."""

from __future__ import annotations

from itertools import permutations
from math import pi

import numpy as np

from smelt.frontend.onnx.operation import OnnxConverter, Operation
from smelt.frontend.onnx.operators.matmul import dense
from smelt.ir import Array, Value
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D
from smelt.ops.core.reduce import Reduce
from smelt.ops.tensor.gather import Gather
from smelt.ops.tensor.slice import Slice

_MOST_ELEMENTS = 1 << 24
"""Largest number of elements of a transform's matrix."""

_EACH = 8
"""Elementary operations for each element of a matrix: angle, sine, cosine."""

_EACH_INDEX = 2
"""Elementary operations for the index of each element of a frame."""

_LARGEST_DETERMINANT = 4


def _matrix(operation: Operation, shape: tuple[int, int, int, int]) -> Array:
    """Return zeros of that shape, or refuse it if it is too large."""
    if np.prod(shape, dtype=np.float64) > _MOST_ELEMENTS:
        raise operation.refuse(
            f"a transform of {shape[0]} elements needs a matrix of more than {_MOST_ELEMENTS:,} "
            "elements, which is not supported: use a shorter transform"
        )
    operation.afford(shape, _EACH)
    return np.zeros(shape)


def _transform(
    operation: Operation, given: int, parts: int, length: int, *, inverse: bool, onesided: bool
) -> Array:
    """Return the matrix `[given, parts, results, 2]` of a discrete Fourier transform.

    The transform has `length` elements, real (`parts` 1) or complex (2). If fewer are `given`, the
    others are zero.
    """
    results = length // 2 + 1 if onesided else length
    matrix = _matrix(operation, (given, parts, results, 2))
    angles = _angles(min(given, length), results, length)
    cosine, sine = np.cos(angles), np.sin(angles) * (1 if inverse else -1)
    used = matrix[:length]
    used[:, 0, :, 0], used[:, 0, :, 1] = cosine, sine
    if parts == 2:
        used[:, 1, :, 0], used[:, 1, :, 1] = -sine, cosine
    return matrix / length if inverse else matrix


def _real_inverse(operation: Operation, given: int, length: int) -> Array:
    """Return the matrix `[given, 2, length, 1]` from the first half of a spectrum to a signal.

    The signal is real, so the other half mirrors the first; all but the ends count twice.
    """
    matrix = _matrix(operation, (given, 2, length, 1))
    used = min(given, length // 2 + 1)
    angles = _angles(used, length, length)
    weights = np.full((used, 1), 2.0 / length)
    weights[0] = 1.0 / length
    if length % 2 == 0 and used == length // 2 + 1:
        weights[-1] = 1.0 / length
    matrix[:used, 0, :, 0] = weights * np.cos(angles)
    matrix[:used, 1, :, 0] = -weights * np.sin(angles)
    return matrix


def _angles(times: int, frequencies: int, length: int) -> Array:
    """Return `2π · time · frequency / length`, modulo 2π."""
    turns = np.outer(np.arange(times), np.arange(frequencies)) % length
    return turns * (2 * pi / length)


def _dft(operation: Operation) -> Value:
    x, rank = operation.value(0), len(operation.value(0).type.shape)
    shape = x.type.shape
    if rank < 2 or shape[-1] not in (1, 2) or not x.type.dtype.is_float:
        raise operation.wrong(
            f"{x.type} is not a signal: it needs floats in at least 2 dimensions, the last of them "
            "with 1 or 2 elements"
        )
    axis = operation.integer("axis", 1)
    if operation.version >= 20:
        axis = -2 if operation.optional(2) is None else operation.whole_number(2, "axis")
    axis = operation.axis(axis, rank)
    if axis == rank - 1:
        raise operation.wrong(f"its axis {axis} is that of real and imaginary parts")
    inverse, onesided = operation.flag("inverse"), operation.flag("onesided")
    given, parts = shape[axis], shape[-1]
    length = 2 * (given - 1) if inverse and onesided else given
    if operation.optional(1) is not None:
        length = operation.whole_number(1, "dft_length")
    if length < 1:
        raise operation.wrong(f"its transform has {length} elements; it needs at least 1")
    if inverse and onesided:
        if parts != 2:
            raise operation.wrong(f"{x.type} is not a spectrum: its last axis must have 2 elements")
        matrix = _real_inverse(operation, given, length)
    else:
        matrix = _transform(operation, given, parts, length, inverse=inverse, onesided=onesided)
    order = [*(i for i in range(rank) if i not in (axis, rank - 1)), axis, rank - 1]
    rows = operation.transpose(x, order)
    rows = operation.reshape(rows, (*rows.type.shape[:-2], given * parts))
    product = matrix.reshape(given * parts, -1).astype(x.type.dtype.numpy)
    y = dense(operation, rows, product)
    y = operation.reshape(y, (*y.type.shape[:-1], *matrix.shape[2:]))
    return operation.transpose(y, [order.index(i) for i in range(rank)])


def _stft(operation: Operation) -> Value:
    """Convert STFT: transforms of overlapping frames; a convolution if the window is constant."""
    x = operation.image(0, 3)
    batch, size, parts = x.type.shape
    step = operation.whole_number(1, "frame step")
    window = operation.optional(2)
    length = size if window is None else window.type.size
    if operation.optional(3) is not None:
        length = operation.whole_number(3, "frame length")
    onesided = operation.flag("onesided", default=True)
    if step < 1 or not 1 <= length <= size or parts not in (1, 2):
        raise operation.wrong(f"frames of {length} elements every {step} do not fit {x.type}")
    frames = 1 + (size - length) // step
    given = min(length, window.type.size) if window is not None else length
    matrix = _transform(operation, given, parts, length, inverse=False, onesided=onesided)
    shape = (batch, frames, *matrix.shape[2:])
    if window is None or window.data is not None:
        if window is not None and window.data is not None:
            matrix = matrix * window.data.ravel()[:given, None, None, None]
        kernel = np.moveaxis(matrix.reshape(given, parts, -1), 2, 0)[:, None]
        weights = operation.literal(np.ascontiguousarray(kernel, np.float32))
        image = operation.reshape(x, (batch, 1, size, parts))
        image = operation.emit(Conv2D(stride=(1, step)), image, weights)
        # If the window is shorter than a frame, there are positions after the last frame.
        cut = image if image.type.shape[2] == frames else _first(operation, image, frames)
        return operation.reshape(cut, shape)
    operation.afford((frames, given), _EACH_INDEX)
    starts = np.arange(frames)[:, None] * step + np.arange(given)
    framed = operation.emit(Gather(1), x, operation.literal(starts))
    weighted = operation.emit(Binary("mul"), framed, operation.reshape(window, (given, 1)))
    rows = operation.reshape(weighted, (batch, frames, given * parts))
    product = matrix.reshape(given * parts, -1).astype(x.type.dtype.numpy)
    return operation.reshape(dense(operation, rows, product), shape)


def _window(operation: Operation) -> None:
    """Check the size of HannWindow and others; their functions treat a negative size as 0."""
    size = operation.whole_number(0, "size")
    if size < 0:
        raise operation.wrong(f"its size is {size}; it must be at least 0")


def _first(operation: Operation, image: Value, frames: int) -> Value:
    return operation.emit(Slice.along(2, 0, frames, image.type.shape), image)


def _det(operation: Operation) -> Value:
    """Convert Det by Leibniz' formula: signed products of an element of each row and column."""
    x = operation.value(0)
    *stack, rows, columns = x.type.shape if len(x.type.shape) > 1 else (0, 1)
    if rows != columns:
        raise operation.wrong(f"{x.type} is not a stack of square matrices")
    if not 1 <= rows <= _LARGEST_DETERMINANT:
        raise operation.refuse(
            f"determinants of {rows}x{rows} matrices are not supported; at most "
            f"{_LARGEST_DETERMINANT}x{_LARGEST_DETERMINANT} are"
        )
    chosen = list(permutations(range(rows)))
    positions = np.asarray(chosen, np.int64) + np.arange(rows) * rows
    signs = [[round(float(np.linalg.det(np.eye(rows)[list(order)])))] for order in chosen]
    flat = operation.reshape(x, (*stack, rows * rows))
    factors = operation.emit(Gather(len(stack)), flat, operation.literal(positions))
    products = operation.emit(Reduce("prod", (len(stack) + 1,)), factors)
    matrix = np.asarray(signs, x.type.dtype.numpy)
    terms = operation.reshape(products, (*stack, len(chosen)) if stack else (1, len(chosen)))
    return operation.reshape(dense(operation, terms, matrix), tuple(stack))


CONVERTERS: dict[str, OnnxConverter] = {
    "DFT": _dft,
    "STFT": _stft,
    "Det": _det,
    "BlackmanWindow": _window,
    "HammingWindow": _window,
    "HannWindow": _window,
}
