"""Steps of random ONNX networks with weights, windows or statistics: layers of image networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.differential.onnx_builder import OnnxBuilder
from tests.differential.recipe import UnfitError

MOST_PRODUCTS = 400_000
"""Most multiplications of a layer."""


def conv(b: OnnxBuilder) -> None:
    """Append a convolution over one to three axes, with groups, dilations and padding."""
    x = b.pick(b.of_rank(3, 4, 4, 4, 5))
    _, channels, *size = b.shape(x)
    window = [b.draw.pick((1, 1, 2, 3, 3, 5)) for _ in size]
    strides = [b.draw.pick((1, 1, 2, 3)) for _ in size]
    dilations = [b.draw.pick((1, 1, 1, 2, 3)) for _ in size]
    groups = b.draw.pick([g for g in (1, 1, 1, 2, 3, 4, channels) if channels % g == 0])
    outputs = groups * max(1, b.draw.channels() // groups)
    attributes = _padding(b, size, window, strides, dilations)
    _require_few(outputs * channels // groups * int(np.prod(window)) * int(np.prod(size)))
    shape = (outputs, channels // groups, *window)
    w = b.const(b.draw.weights(shape, 0, int(np.prod(shape[1:]))))
    operands = [x, w, *_bias(b, outputs)]
    y = b.add(
        "Conv",
        *operands,
        kernel_shape=window,
        strides=strides,
        dilations=dilations,
        group=groups,
        **attributes,
    )
    activation(b, y)


def depthwise(b: OnnxBuilder) -> None:
    """Append a depthwise convolution with any multiplier."""
    x = b.pick(b.images())
    _, channels, *size = b.shape(x)
    multiplier = b.draw.pick((1, 1, 1, 2, 3))
    if channels * multiplier > b.draw.most_channels * 3:
        raise UnfitError("too many channels")
    window = [b.draw.pick((1, 2, 3, 3, 5)) for _ in size]
    strides = [b.draw.pick((1, 1, 2, 3)) for _ in size]
    dilations = [b.draw.pick((1, 1, 1, 2)) for _ in size]
    attributes = _padding(b, size, window, strides, dilations)
    shape = (channels * multiplier, 1, *window)
    w = b.const(b.draw.weights(shape, 0, window[0] * window[1]))
    operands = [x, w, *_bias(b, shape[0])]
    y = b.add("Conv", *operands, strides=strides, dilations=dilations, group=channels, **attributes)
    activation(b, y)


def transposed(b: OnnxBuilder) -> None:
    """Append a transposed convolution."""
    x = b.pick(b.of_rank(3, 4, 4, 4))
    _, channels, *size = b.shape(x)
    window = [b.draw.pick((1, 2, 3, 3, 4)) for _ in size]
    strides = [b.draw.pick((1, 2, 2, 3)) for _ in size]
    dilations = [b.draw.pick((1, 1, 1, 2)) for _ in size]
    groups = b.draw.pick([g for g in (1, 1, 1, 2, channels) if channels % g == 0])
    outputs = max(1, b.draw.channels() // groups)
    extra = [b.draw.integer(0, s - 1) if b.draw.chance(0.3) else 0 for s in strides]
    reach = [(k - 1) * d for k, d in zip(window, dilations, strict=True)]
    cut = [b.draw.integer(0, min(r, 2)) for r in reach * 2]
    _require_few(outputs * channels * int(np.prod(window)) * int(np.prod(size)))
    w = b.const(b.draw.weights((channels, outputs, *window), 0, channels * int(np.prod(window))))
    y = b.add(
        "ConvTranspose",
        *(x, w, *_bias(b, outputs * groups)),
        strides=strides,
        dilations=dilations,
        group=groups,
        pads=cut,
        output_padding=extra,
    )
    activation(b, y)


def pool(b: OnnxBuilder) -> None:
    """Append a maximum, average or norm over windows."""
    x = b.pick(b.of_rank(3, 4, 4, 4))
    size = list(b.shape(x)[2:])
    # onnxruntime rounds the count of windows that do not fit up to one; the standard does not.
    window = [min(b.draw.pick((1, 2, 2, 3, 4)), n) for n in size]
    strides = [b.draw.pick((1, 2, 2, 3)) for _ in size]
    kind = b.draw.pick(("MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool"))
    attributes: dict[str, Any] = {}
    if kind != "LpPool":
        attributes["ceil_mode"] = int(b.draw.chance(0.3))
    if kind == "AveragePool":
        attributes["count_include_pad"] = int(b.draw.chance(0.3))
    if b.draw.chance(0.5):
        attributes["pads"] = [b.draw.integer(0, k - 1) for k in window * 2]
    b.add(kind, x, kernel_shape=window, strides=strides, **attributes)


def global_pool(b: OnnxBuilder) -> None:
    """Append a maximum or average over a whole image."""
    b.add(b.draw.pick(("GlobalAveragePool", "GlobalMaxPool")), b.pick(b.of_rank(3, 4)))


def dense(b: OnnxBuilder) -> None:
    """Append a product with weights, as Gemm or MatMul."""
    x = b.pick(b.of_rank(2, 3, 4))
    if len(b.shape(x)) > 2 and b.draw.chance(0.7):
        x = b.add("Flatten", x, axis=b.draw.integer(1, 2))
    depth, outputs = b.shape(x)[-1], b.draw.channels()
    weights = b.draw.weights((depth, outputs), 1, depth)
    if len(b.shape(x)) == 2 and b.draw.chance(0.6):
        turned = b.draw.chance(0.5)
        attributes: dict[str, Any] = {"transB": int(turned)}
        if b.draw.chance(0.3):
            attributes |= {"alpha": 0.75, "beta": 1.5}
        w = b.const(weights.T if turned else weights)
        y = b.add("Gemm", x, w, *_bias(b, outputs), **attributes)
    else:
        y = b.add("MatMul", x, b.const(weights))
        if b.draw.chance(0.6):
            y = b.add("Add", y, b.const(b.draw.real((outputs,))))
    activation(b, y)


def product(b: OnnxBuilder) -> None:
    """Append a product of two computed tensors."""
    x = b.pick(b.of_rank(2, 3, 4))
    rank = len(b.shape(x))
    order = [*range(rank - 2), rank - 1, rank - 2]
    turned = b.add("Transpose", x, perm=order)
    other = b.draw.pick(
        [n for n in b.of_rank(rank) if b.shape(n)[:-2] == b.shape(x)[:-2]
         and b.shape(n)[-2] == b.shape(x)[-1]] or [turned]
    )  # fmt: skip
    y = b.add("MatMul", x, other)
    b.add("Mul", y, b.const(1 / b.shape(x)[-1] ** 0.5))


def batch_normalization(b: OnnxBuilder) -> None:
    """Append a batch normalization with scales and offsets as training leaves them."""
    x = b.pick(b.of_rank(3, 4))
    channels = b.shape(x)[1]
    parts = [b.draw.real((channels,)) for _ in range(3)]
    deviation = np.abs(b.draw.real((channels,))) + np.float32(0.2)
    b.add("BatchNormalization", x, *(b.const(part) for part in (*parts, deviation)))


def normalization(b: OnnxBuilder) -> None:
    """Append a normalization by the input's own statistics."""
    x = b.pick(b.of_rank(3, 4))
    channels, last = b.shape(x)[1], b.shape(x)[-1]
    kind = b.draw.pick(("instance", "layer", "group", "lrn"))
    # Avoid a division by a variance near 0, and cancellation in onnxruntime at a large mean.
    noise = b.const(b.draw.real(b.shape(x)))
    x = b.add("Add", b.add("Clip", x, b.const(-4), b.const(4)), noise)
    if kind == "instance":
        scale, bias = (b.const(b.draw.real((channels,))) for _ in range(2))
        b.add("InstanceNormalization", x, scale, bias, epsilon=1e-2)
    elif kind == "layer":
        scale, bias = (b.const(b.draw.real((last,))) for _ in range(2))
        b.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-2)
    elif kind == "group":
        groups = b.draw.pick([g for g in (1, 2, 3, 4, channels) if channels % g == 0])
        scale, bias = (b.const(b.draw.real((channels,))) for _ in range(2))
        b.add("GroupNormalization", x, scale, bias, num_groups=groups, epsilon=1e-2)
    elif len(b.shape(x)) == 4:
        b.add("LRN", x, size=b.draw.pick((1, 3, 5)), alpha=0.1, beta=0.75, bias=1.0)


def recurrent(b: OnnxBuilder) -> None:
    """Append an LSTM, GRU or RNN over a sequence."""
    x = b.pick(b.of_rank(3))
    steps, batch, depth = b.shape(x)
    units = min(b.draw.channels(), 16)
    kind = b.draw.pick(("LSTM", "GRU", "RNN"))
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    direction = b.draw.pick(("forward", "reverse", "bidirectional"))
    ways = 1 + (direction == "bidirectional")
    _require_few(steps * batch * gates * units * (units + depth) * ways)
    operands = [
        b.const(b.draw.real((ways, gates * units, depth), depth**-0.5)),
        b.const(b.draw.real((ways, gates * units, units), units**-0.5)),
    ]
    if b.draw.chance(0.7):
        operands.append(b.const(b.draw.real((ways, 2 * gates * units), 0.5)))
    attributes: dict[str, Any] = {"hidden_size": units, "direction": direction}
    if kind == "GRU":
        attributes["linear_before_reset"] = int(b.draw.chance(0.5))
    y = b.add(kind, x, *operands, **attributes)
    turned = b.add("Transpose", y, perm=[0, 2, 1, 3])
    b.add("Reshape", turned, b.const([steps, batch, -1], np.int64))


def activation(b: OnnxBuilder, y: str) -> None:
    """Sometimes append an activation that is fused with the layer before it."""
    kind = b.draw.pick((*[""] * 4, "Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSwish"))
    if kind == "Clip":
        low, high = b.draw.pick(((0, 6), (-1, 1), (0, 1)))
        b.add("Clip", y, b.const(low), b.const(high))
    elif kind == "LeakyRelu":
        b.add("LeakyRelu", y, alpha=0.2)
    elif kind:
        b.add(kind, y)


def _padding(
    b: OnnxBuilder, size: list[int], window: list[int], strides: list[int], dilations: list[int]
) -> dict[str, Any]:
    """Draw padding, by name or as sizes that leave room for at least one window."""
    plain = all(d == 1 for d in dilations)
    if plain and b.draw.chance(0.3):
        return {"auto_pad": b.draw.pick(("SAME_UPPER", "SAME_LOWER"))}
    reach = [(k - 1) * d for k, d in zip(window, dilations, strict=True)]
    pads = [b.draw.integer(0, r) for r in reach * 2]
    for axis, (n, r) in enumerate(zip(size, reach, strict=True)):
        if n + pads[axis] + pads[axis + len(size)] <= r:
            pads[axis], pads[axis + len(size)] = (r + 1) // 2, (r + 1) // 2
    return {"pads": pads}


def _bias(b: OnnxBuilder, channels: int) -> list[str]:
    return [b.const(b.draw.real((channels,)))] if b.draw.chance(0.8) else []


def _require_few(products: int) -> None:
    if products > MOST_PRODUCTS:
        raise UnfitError(f"{products} products")


LAYERS = (
    *(conv, conv, conv, depthwise, depthwise, transposed, transposed, pool, pool, global_pool),
    *(dense, dense, product, batch_normalization, normalization, recurrent, recurrent),
)
