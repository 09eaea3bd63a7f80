"""Converters of convolutions and fully connected layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tflite

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.tflite.dilation import KINDS, REMEDY
from smelt.frontend.tflite.operation import Converter, TfliteOperation
from smelt.frontend.tflite.options import OperatorOptions
from smelt.ir import Value
from smelt.ops.core.convolution import (
    NO_PADDING,
    Conv2D,
    DepthwiseConv2D,
    Padding2D,
    Pair,
    same_padding,
)
from smelt.ops.core.convolution_nd import ConvTranspose
from smelt.ops.core.fully_connected import FullyConnected


def _symmetric_weights(operation: TfliteOperation, channel_axis: int, data: int = 0) -> Value:
    """Return weights without zero points; TFLite Micro's convolutions ignore zero points."""
    weights = operation.weights(channel_axis, data=data)
    if weights.type.quant is not None and any(weights.type.quant.zero_point):
        raise UnsupportedError(
            f"{operation}: weights '{weights.name}' have zero points; convert the network with "
            "symmetric int8 weights"
        )
    return weights


def _window(
    operation: TfliteOperation, options: OperatorOptions, x: Value, weights: Value
) -> tuple[Pair, Padding2D, Pair]:
    """Return stride, padding and dilation of a convolution."""
    if len(x.type.shape) != 4 or len(weights.type.shape) != 4 or 0 in x.type.shape:
        raise ModelError(f"{operation}: input {x.type} and weights {weights.type} must be 4-D")
    stride = options.pair("StrideH", "StrideW")
    dilation = options.pair("DilationHFactor", "DilationWFactor")
    size = (x.type.shape[1], x.type.shape[2])
    window = (weights.type.shape[1], weights.type.shape[2])
    same = options.same_padding()
    if operation.spread is not None:
        if same or stride != (1, 1) or dilation != (1, 1):
            raise UnsupportedError(f"{operation} between {' and '.join(KINDS)}: {REMEDY}")
        return stride, operation.spread.padding, operation.spread.dilation
    padding = same_padding(size, window, stride, dilation) if same else NO_PADDING
    return stride, padding, dilation


def _conv_2d(operation: TfliteOperation) -> None:
    options = operation.options(tflite.Conv2DOptions)
    x, weights = operation.input(0), _symmetric_weights(operation, 0)
    stride, padding, dilation = _window(operation, options, x, weights)
    depth, group_depth = x.type.shape[3], weights.type.shape[3]
    if group_depth == 0 or depth % group_depth:
        raise ModelError(
            f"{operation}: input {x.type} has {depth} channels, which is not a multiple of the "
            f"{group_depth} channels of weights {weights.type}"
        )
    groups = depth // group_depth
    op = Conv2D(stride, padding, dilation, options.activation(), groups=groups)
    operation.emit(op, x, weights, operation.bias())


def _depthwise_conv_2d(operation: TfliteOperation) -> None:
    options = operation.options(tflite.DepthwiseConv2DOptions)
    x, weights = operation.input(0), _symmetric_weights(operation, 3)
    stride, padding, dilation = _window(operation, options, x, weights)
    multiplier, filters = options.integer("DepthMultiplier"), weights.type.shape[3]
    # Some exporters leave the multiplier at 0; it also follows from the shape of the weights.
    if multiplier not in (0, filters / x.type.shape[3]):
        raise ModelError(
            f"{operation}: {filters} filters for {x.type.shape[3]} channels contradict depth "
            f"multiplier {multiplier}"
        )
    op = DepthwiseConv2D(stride, padding, dilation, options.activation())
    operation.emit(op, x, weights, operation.bias())


def _transpose_conv(operation: TfliteOperation) -> None:
    """Convert TRANSPOSE_CONV, with operands output shape, weights and image.

    Its padding is defined by the convolution that computes the image from the output.
    """
    options = operation.options(tflite.TransposeConvOptions)
    x, weights = operation.input(2), _symmetric_weights(operation, 0, data=2)
    if len(x.type.shape) != 4 or len(weights.type.shape) != 4 or 0 in x.type.shape:
        raise ModelError(f"{operation}: input {x.type} and weights {weights.type} must be 4-D")
    shape = operation.output_shape
    if operation.input(0).is_constant:
        shape = operation.integers(0, "output shape")
    elif -1 in shape[1:3]:
        operation.refuse_open_shapes()
    if len(shape) != 4 or min(shape[1:3]) < 1:
        raise ModelError(
            f"{operation}: output shape {list(shape)} is not [batch, height, width, channels] with "
            "height and width of at least 1"
        )
    stride, window = options.pair("StrideH", "StrideW"), weights.type.shape[1:3]
    padding = NO_PADDING
    if options.same_padding():
        padding = same_padding((shape[1], shape[2]), (window[0], window[1]), stride)
    cut = tuple(
        (before, (n - 1) * s + k - before - wanted)
        for (before, _), n, s, k, wanted in zip(
            padding, x.type.shape[1:3], stride, window, shape[1:3], strict=True
        )
    )
    op = ConvTranspose(stride, cut, (1, 1), activation=options.activation())
    operation.emit(op, x, _taps(operation, weights), operation.bias(3, data=2))


def _taps(operation: TfliteOperation, weights: Value) -> Value:
    """Return weights `[o, kh, kw, i]` transposed to `[kh, kw, i, o]`."""
    quant = weights.type.quant
    if quant is not None and quant.axis is not None:
        quant = replace(quant, axis=3)
    array = np.ascontiguousarray(weights.array.transpose(1, 2, 3, 0))
    return operation.derived(f"{weights.name}:taps", array, quant)


def _fully_connected(operation: TfliteOperation) -> None:
    options = operation.options(tflite.FullyConnectedOptions, optional=True)
    if options.integer("WeightsFormat") != tflite.FullyConnectedOptionsWeightsFormat.DEFAULT:
        raise UnsupportedError(
            f"{operation}: shuffled weights are not supported; convert the network without them"
        )
    op = FullyConnected(options.activation(), options.flag("KeepNumDims"))
    # Files of old converters have outputs with leading dimensions of 1, without the flag.
    x, weights, bias = operation.input(0), operation.weights(0), operation.bias()
    operation.emit(op, x, weights, bias, same_rows=True)


CONVERTERS = {
    "CONV_2D": Converter(_conv_2d),
    "DEPTHWISE_CONV_2D": Converter(_depthwise_conv_2d),
    "FULLY_CONNECTED": Converter(_fully_connected),
    "TRANSPOSE_CONV": Converter(_transpose_conv, shape_operands=frozenset({0}), data=2),
}
