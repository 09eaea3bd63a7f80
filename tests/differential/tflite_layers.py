"""Steps of random int8 TFLite networks: layers with weights, windows and sums."""

from __future__ import annotations

from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np

from tests.differential.recipe import UnfitError
from tests.differential.tflite_builder import TfliteBuilder

MOST_PRODUCTS = 400_000
"""Most multiplications of a layer."""
_SAME, _VALID = schema.Padding.SAME, schema.Padding.VALID
_FUSED = schema.ActivationFunctionType
ACTIVATIONS = (_FUSED.NONE, _FUSED.NONE, _FUSED.RELU, _FUSED.RELU6, _FUSED.RELU_N1_TO_1)


def _padding(b: TfliteBuilder, size: tuple[int, ...], reach: tuple[int, ...]) -> int:
    """Draw SAME, or VALID if the window fits into the image."""
    fits = all(n >= r for n, r in zip(size, reach, strict=True))
    return _VALID if fits and b.draw.chance(0.5) else _SAME


def _window(b: TfliteBuilder, x: str, *, dilated: bool) -> tuple[tuple[int, int], dict[str, Any]]:
    """Draw a convolution's window and its options."""
    window = b.draw.pick((1, 2, 3, 3, 5)), b.draw.pick((1, 2, 3, 3, 5))
    strides = b.draw.pick((1, 1, 2, 3)), b.draw.pick((1, 1, 2, 3))
    dilation = (1, 1)
    if dilated and b.draw.chance(0.25):
        dilation, strides = (b.draw.integer(1, 3), b.draw.integer(1, 3)), (1, 1)
    reach = tuple((k - 1) * d + 1 for k, d in zip(window, dilation, strict=True))
    fields = {
        "padding": _padding(b, b.shape(x)[1:3], reach),
        "strideH": strides[0],
        "strideW": strides[1],
        "dilationHFactor": dilation[0],
        "dilationWFactor": dilation[1],
        "fusedActivationFunction": b.draw.pick(ACTIVATIONS),
    }
    return window, fields


def _require_few(products: int) -> None:
    if products > MOST_PRODUCTS:
        raise UnfitError(f"{products} products")


def conv(b: TfliteBuilder) -> None:
    """Append CONV_2D, also in groups."""
    x = b.pick(b.images())
    _, height, width, channels = b.shape(x)
    window, fields = _window(b, x, dilated=True)
    groups = b.draw.pick([g for g in (1, 1, 1, 1, 2, 3) if channels % g == 0])
    outputs = groups * max(1, b.draw.channels() // groups)
    shape = (outputs, *window, channels // groups)
    _require_few(int(np.prod(shape)) * height * width)
    real = b.draw.weights(shape, 0, int(np.prod(shape[1:])))
    b.add("CONV_2D", x, *b.weights(x, real, 0, outputs), options=schema.Conv2DOptionsT, **fields)


def depthwise(b: TfliteBuilder) -> None:
    """Append DEPTHWISE_CONV_2D with any multiplier."""
    x = b.pick(b.images())
    channels, multiplier = b.shape(x)[3], b.draw.pick((1, 1, 1, 2, 3))
    if channels * multiplier > b.draw.most_channels * 3:
        raise UnfitError("too many channels")
    window, fields = _window(b, x, dilated=True)
    outputs = channels * multiplier
    real = b.draw.weights((1, *window, outputs), 3, window[0] * window[1])
    operands = b.weights(x, real, 3, outputs)
    options = schema.DepthwiseConv2DOptionsT
    b.add("DEPTHWISE_CONV_2D", x, *operands, options=options, depthMultiplier=multiplier, **fields)


def transposed(b: TfliteBuilder) -> None:
    """Append TRANSPOSE_CONV."""
    x = b.pick(b.images())
    batch, height, width, channels = b.shape(x)
    window = b.draw.integer(1, 4), b.draw.integer(1, 4)
    strides = b.draw.integer(1, 3), b.draw.integer(1, 3)
    same = b.draw.chance(0.5)
    size = [
        n * s if same else (n - 1) * s + max(k, s)
        for n, s, k in zip((height, width), strides, window, strict=True)
    ]
    outputs = b.draw.channels()
    shape = (outputs, *window, channels)
    _require_few(int(np.prod(shape)) * height * width)
    real = b.draw.weights(shape, 0, int(np.prod(shape[1:])))
    w, *bias = b.weights(x, real, 0, outputs)
    fields: dict[str, Any] = {
        "padding": _SAME if same else _VALID,
        "strideH": strides[0],
        "strideW": strides[1],
    }
    operands = b.integers([batch, *size, outputs]), w, x, *bias
    b.add("TRANSPOSE_CONV", *operands, options=schema.TransposeConvOptionsT, **fields)


def dense(b: TfliteBuilder) -> None:
    """Append FULLY_CONNECTED, over rows or all elements, per-tensor or per-channel."""
    x = b.pick(b.of_rank(2, 3, 4))
    if len(b.shape(x)) > 2 or b.draw.chance(0.3):
        x = b.add("RESHAPE", x, b.integers([1, int(np.prod(b.shape(x)))]), quant="same")
    depth, outputs = b.shape(x)[1], b.draw.channels()
    real = b.draw.weights((outputs, depth), 0, depth)
    operands = b.weights(x, real, b.draw.pick((None, 0)), outputs)
    fused = b.draw.pick(ACTIVATIONS)
    options = schema.FullyConnectedOptionsT
    b.add("FULLY_CONNECTED", x, *operands, options=options, fusedActivationFunction=fused)


def matmul(b: TfliteBuilder) -> None:
    """Append BATCH_MATMUL of a computed tensor and itself or another one."""
    x = b.pick(b.of_rank(2, 3, 4))
    shape = b.shape(x)
    fitting = [n for n in b.of_rank(len(shape)) if b.shape(n)[:-2] == shape[:-2]]
    other = b.draw.pick(fitting)
    for turn_x in (False, True):
        for turn_y in (False, True):
            rows = shape[-2] if turn_x else shape[-1]
            if rows == b.shape(other)[-1 if turn_y else -2]:
                options = schema.BatchMatMulOptionsT
                b.add("BATCH_MATMUL", x, other, options=options, adjX=turn_x, adjY=turn_y)
                return
    raise UnfitError("no matrices that fit")


def pool(b: TfliteBuilder) -> None:
    """Append AVERAGE_POOL_2D or MAX_POOL_2D."""
    x = b.pick(b.images())
    window = b.draw.integer(1, 4), b.draw.integer(1, 4)
    b.add(
        b.draw.pick(("AVERAGE_POOL_2D", "MAX_POOL_2D")), x,
        options=schema.Pool2DOptionsT, quant="same",
        padding=_padding(b, b.shape(x)[1:3], window),
        filterHeight=window[0], filterWidth=window[1],
        strideH=b.draw.integer(1, 3), strideW=b.draw.integer(1, 3),
        fusedActivationFunction=b.draw.pick(ACTIVATIONS),
    )  # fmt: skip


def reduce(b: TfliteBuilder) -> None:
    """Append MEAN, SUM, REDUCE_MAX or REDUCE_MIN over some axes."""
    x = b.pick(b.of_rank(2, 3, 4))
    rank = len(b.shape(x))
    kind = b.draw.pick(("MEAN", "MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN"))
    axes = [axis for axis in range(1, rank) if b.draw.chance(0.5)] or [rank - 1]
    quant = "same" if kind in ("REDUCE_MAX", "REDUCE_MIN") else "free"
    keep = b.draw.chance(0.6)
    b.add(kind, x, b.integers(axes), options=schema.ReducerOptionsT, quant=quant, keepDims=keep)


LAYERS = (
    *(conv, conv, conv, depthwise, depthwise, transposed, dense, dense, matmul),
    *(pool, pool, reduce, reduce),
)
