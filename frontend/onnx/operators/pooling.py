"""Converters of pools over windows and over whole images, and of MaxUnpool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from smelt.frontend.onnx.operation import OnnxConverter, Operation, Results
from smelt.frontend.onnx.windows import OnnxWindow, pads, per_axis
from smelt.ir import Value
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Pair
from smelt.ops.core.max_unpool import MaxPoolIndices, MaxUnpool
from smelt.ops.core.pool import Pool2D
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.pad import Pad


def _window(operation: Operation) -> OnnxWindow:
    x = operation.value(0)
    size, kernel = x.type.shape[2:], operation.integers("kernel_shape")
    if not size or len(kernel) != len(size) or min(kernel) < 1:
        raise operation.wrong(
            f"kernel_shape {list(kernel)} must have a size of at least 1 for each spatial axis of "
            f"{x.type}"
        )
    if len(size) > 3:
        raise operation.refuse(f"images with {len(size)} axes are not supported; at most three are")
    if x.type.size == 0:
        raise operation.refuse(f"there is nothing to pool: '{x.name}' {x.type} is empty")
    return OnnxWindow.of(operation, size, kernel)


@dataclass(frozen=True)
class _WindowAxis:
    """An axis that a window slides over; the default leaves it unchanged."""

    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    padding: Pair = (0, 0)


_STILL = _WindowAxis()


def _pooled(
    operation: Operation, kind: str, x: Value, window: OnnxWindow, *, counts_padding: bool = False
) -> Value:
    """Pool an image `[n, *size, c]`; for a volume, the depth is pooled first."""
    n, *size, channels = x.type.shape
    outputs = (n, *window.outputs, channels)
    axes = list(map(_WindowAxis, window.kernel, window.stride, window.dilation, window.padding))
    if len(axes) == 1:
        size, axes = [1, *size], [_STILL, *axes]
    if len(axes) == 3:
        depth, height, width = size
        x = operation.reshape(x, (n, depth, height * width, channels))
        x = _pool2d(operation, kind, x, axes[0], _STILL, counts_padding)
        n, size = n * window.outputs[0], [height, width]
    x = operation.reshape(x, (n, *size, channels))
    x = _pool2d(operation, kind, x, axes[-2], axes[-1], counts_padding)
    return operation.reshape(x, outputs)


def _pool2d(
    operation: Operation,
    kind: str,
    x: Value,
    rows: _WindowAxis,
    columns: _WindowAxis,
    counts_padding: bool,
) -> Value:
    if rows == columns == _STILL:
        return x
    op = Pool2D(
        kind,
        (rows.kernel, columns.kernel),
        (rows.stride, columns.stride),
        (rows.padding, columns.padding),
        dilation=(rows.dilation, columns.dilation),
        counts_padding=counts_padding,
    )
    return operation.emit(op, x, quant=x.type.quant)


def _average_pool(operation: Operation) -> Value:
    window = _window(operation)
    counts_padding = operation.flag("count_include_pad") and any(map(any, window.padding))
    x = operation.channels_last(operation.value(0))
    if not counts_padding:
        return operation.channels_first(_pooled(operation, "average", x, window))
    operation.afford((sum(window.outputs),), 8)
    counts = [window.covered(axis, padded=True) for axis in range(len(window.kernel))]
    if all((c == k).all() for c, k in zip(counts, window.kernel, strict=True)):
        return operation.channels_first(
            _pooled(operation, "average", x, window, counts_padding=True)
        )
    # The average of a window that reaches beyond the padding is over fewer elements.
    total = _pooled(operation, "sum", x, window)
    operation.afford(window.outputs, 4)
    number = reduce(np.multiply.outer, counts)[..., None].astype(np.float32)
    mean = operation.emit(Binary("div"), total, operation.literal(number))
    return operation.channels_first(mean)


def _max_pool(operation: Operation) -> Results:
    window, x = _window(operation), operation.value(0)
    if len(operation.outputs) < 2 or not operation.outputs[1]:
        image = operation.channels_last(x)
        return operation.channels_first(_pooled(operation, "max", image, window))
    # The operator computes a table of taps for each axis.
    counts = zip(window.outputs, window.kernel, strict=True)
    operation.afford((sum(windows * taps for windows, taps in counts),), 4)
    fields = (window.kernel, window.stride, window.padding, window.dilation)
    return operation.emit_all(MaxPoolIndices(*fields, operation.flag("storage_order")), x)


def _norm(operation: Operation, x: Value, total: Callable[[Value], Value]) -> Value:
    """Return the p-norm, with sums computed by `total`."""
    p = operation.attributes["p"] if operation.has("p") else None
    order = 2.0 if p is None else p.f if p.type == p.FLOAT else float(p.i)
    if order == 2:
        return operation.emit(Unary("sqrt"), total(operation.emit(Unary("square"), x)))
    powers = operation.emit(Unary("abs"), x)
    if order == 1:
        return total(powers)
    if order <= 0:
        raise operation.wrong(f"attribute 'p' is {order}; it must be positive")
    powers = operation.emit(Binary("pow"), powers, operation.scalar(order, x))
    return operation.emit(Binary("pow"), total(powers), operation.scalar(1 / order, x))


def _lp_pool(operation: Operation) -> Value:
    window = _window(operation)
    x = operation.channels_last(operation.value(0))
    return operation.channels_first(
        _norm(operation, x, lambda powers: _pooled(operation, "sum", powers, window))
    )


def _over_image(operation: Operation, kind: str, x: Value) -> Value:
    rank = len(x.type.shape)
    if rank < 3:
        raise operation.wrong(f"{x.type} is not an image: it needs at least 3 dimensions")
    return operation.emit(Reduce(kind, tuple(range(2, rank)), True), x, quant=x.type.quant)


def _global(kind: str) -> OnnxConverter:
    def convert(operation: Operation) -> Value:
        return _over_image(operation, kind, operation.value(0))

    return convert


def _global_lp_pool(operation: Operation) -> Value:
    return _norm(
        operation, operation.value(0), lambda powers: _over_image(operation, "sum", powers)
    )


def _max_unpool(operation: Operation) -> Value:
    x, indices = operation.value(0), operation.value(1)
    kernel = operation.integers("kernel_shape")
    rank = len(x.type.shape) - 2
    if len(kernel) != rank or min(kernel, default=0) < 1:
        raise operation.wrong(
            f"kernel_shape {list(kernel)} must have a size of at least 1 for each spatial axis of "
            f"{x.type}"
        )
    stride = per_axis(operation, "strides", kernel)
    size = tuple(
        (n - 1) * s - sum(pair) + k
        for n, s, pair, k in zip(
            x.type.shape[2:], stride, pads(operation, rank), kernel, strict=True
        )
    )
    shape = (*x.type.shape[:2], *size)
    y = operation.emit(MaxUnpool(shape), x, indices)
    wanted = operation.attribute_or_operand("", 2)
    if wanted is None or wanted == shape:
        return y
    if len(wanted) != len(shape) or any(w < n for w, n in zip(wanted, shape, strict=True)):
        raise operation.wrong(
            f"output shape {list(wanted)} must be at least {list(shape)} along each axis"
        )
    padding = tuple((0, w - n) for w, n in zip(wanted, shape, strict=True))
    return operation.emit(Pad(padding), y)


def _max_roi_pool(operation: Operation) -> Value:
    raise operation.refuse("it is not supported: use RoiAlign, which replaces it")


CONVERTERS: dict[str, OnnxConverter] = {
    "AveragePool": _average_pool,
    "MaxPool": _max_pool,
    "LpPool": _lp_pool,
    "GlobalAveragePool": _global("mean"),
    "GlobalMaxPool": _global("max"),
    "GlobalLpPool": _global_lp_pool,
    "MaxUnpool": _max_unpool,
    "MaxRoiPool": _max_roi_pool,
}
