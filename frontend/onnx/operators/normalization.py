"""Converters of normalizations."""

from __future__ import annotations

import numpy as np

from smelt.frontend.onnx.operation import Declared, OnnxConverter, Operation, Results
from smelt.frontend.onnx.operators.elementwise import binary
from smelt.ir import Value
from smelt.ops.core.normalization import LocalResponse, Normalization
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.unary import Unary

_EPSILON = 1e-5
_GROUP_SCALE_PER_CHANNEL = 21
"""First operator set in which GroupNormalization scales channels instead of groups."""


def _batch(operation: Operation) -> Value:
    """Convert BatchNormalization for inference: multiply each channel, and add to it."""
    training = operation.flag("training_mode") or any(operation.outputs[1:])
    if training:
        raise operation.refuse("training mode is not supported: export the network for inference")
    if not operation.flag("spatial", True):
        raise operation.refuse("statistics for each element (spatial=0) are not supported")
    x = operation.value(0)
    if len(x.type.shape) < 2:
        raise operation.wrong(f"'{x.name}' is {x.type}, which has no channels")
    channels = x.type.shape[1]
    for index in range(1, 5):
        if operation.weights(index).type.size != channels:
            found = operation.value(index)
            raise operation.wrong(
                f"'{found.name}' is {found.type}, but must have an element for each of the "
                f"{channels} channels"
            )
    scale, shift = _scale_and_shift(operation)
    shape = (channels, *(1 for _ in x.type.shape[2:]))
    scaled = binary(operation, "mul", x, operation.reshape(scale, shape))
    return binary(operation, "add", scaled, operation.reshape(shift, shape))


def _scale_and_shift(operation: Operation) -> tuple[Value, Value]:
    epsilon = operation.real("epsilon", _EPSILON)
    values = [operation.value(index) for index in range(1, 5)]
    if all(value.is_constant for value in values):
        gamma, beta, mean, variance = (value.array.astype(np.float64) for value in values)
        if (variance + epsilon <= 0).any():
            raise operation.wrong(f"the variances '{values[3].name}' must be positive")
        scale = gamma / np.sqrt(variance + epsilon)
        dtype = values[0].type.dtype.numpy
        scale, shift = scale.astype(dtype), (beta - mean * scale).astype(dtype)
        return operation.literal(scale), operation.literal(shift)
    weight, bias, mean_, variance_ = values
    raised = binary(operation, "add", variance_, operation.scalar(epsilon, variance_))
    factor = binary(operation, "mul", weight, operation.emit(Unary("rsqrt"), raised))
    return factor, binary(operation, "sub", bias, binary(operation, "mul", mean_, factor))


def _layer(operation: Operation) -> Results:
    x = operation.value(0)
    rank = len(x.type.shape)
    axis = operation.axis(operation.integer("axis", -1), rank)
    op = Normalization(
        tuple(range(axis, rank)),
        operation.real("epsilon", _EPSILON),
        centered=operation.kind == "LayerNormalization",
        statistics=any(operation.outputs[1:]),
    )
    scale = operation.weights(1, "scale")
    bias = None if operation.optional(2) is None else operation.weights(2, "bias")
    return operation.emit_all(op, x, scale, bias)


def _simplified_layer(operation: Operation) -> Results:
    """Convert onnxruntime's SimplifiedLayerNormalization.

    It is RMSNormalization from before the standard had it. Its second result is the inverse of the
    root mean square.
    """
    x = operation.value(0)
    axis = operation.axis(operation.integer("axis", -1), len(x.type.shape))
    axes = tuple(range(axis, len(x.type.shape)))
    return _normalized(operation, x, axes, operation.weights(1, "scale"), None)[::2]


def _skip_layer(operation: Operation) -> Results:
    """Convert SkipLayerNormalization, which normalizes input + skip + bias.

    The fourth result is this sum.
    """
    centered = operation.kind == "SkipLayerNormalization"
    shift, bias = (3, 4) if centered else (None, 3)
    x, skip = operation.value(0), operation.value(1)
    if operation.optional(bias) is not None:
        # Add the bias to the input, where the layer before can fuse it.
        x = binary(operation, "add", x, operation.weights(bias, "bias"))
    total = binary(operation, "add", x, skip)
    if total.type.shape != operation.value(0).type.shape:
        raise operation.wrong(
            f"'{skip.name}' of {skip.type} cannot be broadcast to {operation.value(0).type}"
        )
    beta = None if shift is None or operation.optional(shift) is None else operation.weights(shift)
    last = (len(total.type.shape) - 1,)
    scale = operation.weights(2, "scale")
    return *_normalized(operation, total, last, scale, beta), total


def _normalized(
    operation: Operation,
    x: Value,
    axes: tuple[int, ...],
    scale: Value,
    bias: Value | None,
) -> tuple[Value, Value, Value]:
    """Return a normalization of onnxruntime's own, its mean, and the inverse of the root.

    If the file does not use the mean and the inverse, the normalization is returned in their place.
    """
    wanted = any(operation.outputs[1:3])
    epsilon = operation.real("epsilon", 1e-5 if operation.has("axis") else 1e-12)
    centered = "Simplified" not in operation.kind
    op = Normalization(axes, epsilon, centered=centered, statistics=wanted)
    y, *statistics = operation.emit_all(op, x, scale, bias)
    mean, inverse = statistics or (y, y)
    return y, mean, inverse


def _instance(operation: Operation) -> Value:
    x = operation.value(0)
    op = Normalization(tuple(range(1, len(x.type.shape) - 1)), operation.real("epsilon", _EPSILON))
    scale, bias = operation.weights(1, "scale"), operation.weights(2, "bias")
    return operation.channels_first(operation.emit(op, operation.channels_last(x), scale, bias))


def _group(operation: Operation) -> Value:
    """Convert GroupNormalization; images become [n, …, group, channel in the group]."""
    x = operation.value(0)
    groups, shape = operation.integer("num_groups"), x.type.shape
    if len(shape) < 2 or groups < 1 or shape[1] % groups:
        raise operation.wrong(f"{x.type} cannot be divided into {groups} groups of channels")
    image = operation.channels_last(x)
    per_channel = operation.version >= _GROUP_SCALE_PER_CHANNEL
    own = (groups, shape[1] // groups if per_channel else 1)
    parameters: list[Value] = []
    for index, role in ((1, "scale"), (2, "bias")):
        value = operation.weights(index, role)
        if value.type.size != own[0] * own[1]:
            raise operation.wrong(
                f"its {role} '{value.name}' is {value.type}, but must have {own[0] * own[1]} "
                "elements"
            )
        parameters.append(operation.reshape(value, own))
    rank = len(shape)
    axes = (*range(1, rank - 1), rank)
    op = Normalization(axes, operation.real("epsilon", _EPSILON))
    grouped = operation.reshape(image, (*image.type.shape[:-1], groups, shape[1] // groups))
    result = operation.emit(op, grouped, *parameters)
    return operation.channels_first(operation.reshape(result, image.type.shape))


def _mean_variance(operation: Operation) -> Value:
    x = operation.value(0)
    rank = len(x.type.shape)
    axes = sorted(operation.axes(operation.integers("axes", (0, 2, 3)), rank))
    # The standard adds 1e-9 to the root; this is its square, added below the root.
    epsilon = 1e-18
    if 1 in axes or rank < 3:
        return operation.emit(Normalization(tuple(axes), epsilon), x)
    op = Normalization(tuple(axis - (axis > 1) for axis in axes), epsilon)
    return operation.channels_first(operation.emit(op, operation.channels_last(x)))


def _lp(operation: Operation) -> Value:
    """Convert LpNormalization; if the norm is 0, the result is 0."""
    x = operation.value(0)
    order = operation.integer("p", 2)
    if order not in (1, 2):
        raise operation.wrong(f"attribute 'p' is {order}; only norms of order 1 and 2 exist")
    axis = operation.axis(operation.integer("axis", -1), len(x.type.shape))
    norm = operation.emit(Reduce(f"l{order}", (axis,), keep_dims=True), x)
    tiny = float(np.finfo(np.float32).tiny)
    return binary(
        operation, "div", x, binary(operation, "maximum", norm, operation.scalar(tiny, norm))
    )


def _local_response(operation: Operation) -> Value:
    op = LocalResponse(
        operation.integer("size"),
        operation.real("alpha", 1e-4),
        operation.real("beta", 0.75),
        operation.real("bias", 1.0),
    )
    image = operation.channels_last(operation.value(0))
    return operation.channels_first(operation.emit(op, image))


CONVERTERS: dict[str, OnnxConverter] = {
    "BatchNormalization": _batch,
    "LayerNormalization": _layer,
    "RMSNormalization": _layer,
    "SimplifiedLayerNormalization": Declared(_simplified_layer, ("axis", "epsilon", "stash_type")),
    "com.microsoft::SkipLayerNormalization": Declared(_skip_layer, ("epsilon",)),
    "com.microsoft::SkipSimplifiedLayerNormalization": Declared(_skip_layer, ("epsilon",)),
    "InstanceNormalization": _instance,
    "GroupNormalization": _group,
    "MeanVarianceNormalization": _mean_variance,
    "LpNormalization": _lp,
    "LRN": _local_response,
}
