"""Integer forms of products of inputs and weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from smelt.codegen.passes.quantized.quantized_values import Limits, StoredValues, activation_for
from smelt.ir import Activation, Array, DType, Node, Op, Quant, TensorType, Value
from smelt.ir.weights import weights_rule
from smelt.ops.arithmetic.fixed_point import along_axis
from smelt.ops.core.binary import Binary
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.matmul import MatMul
from smelt.ops.tensor.reshape import Reshape


class Products:
    """Finds the integer form of convolutions and dense layers."""

    def __init__(self, values: StoredValues) -> None:
        self._values = values

    def integer(self, node: Node, quant: Quant, limits: Limits) -> Value | None:
        """Return the int8 integers that store a product's result, or None without an integer form.

        Args:
            node: A product, or the sum of a product and a constant bias.
            quant: The quantization of the result.
            limits: Smallest and largest real number.
        """
        product, bias, shape = node, None, None
        if isinstance(node.op, Binary):
            found = self._biased(node)
            if found is None:
                return None
            product, bias, shape = found
        y = self._integer(product, bias, quant, limits)
        if y is None or shape is None or y.type.shape == shape:
            return y
        return self._values.emit(Reshape(shape), (y,), quant, node.origin)

    def _biased(self, node: Node) -> tuple[Node, Array, tuple[int, ...]] | None:
        """Return the product, bias `[o]` and shape of a sum with a bias, or None.

        A reshape that keeps the channels may come between product and sum.
        """
        if node.op != Binary("add"):
            return None
        for x, other in (node.inputs, node.inputs[::-1]):
            bias = self._values.real(other)
            product = None if x is None else self._values.producer.get(x)
            if bias is None or product is None or x is None or self._values.uses[x] != 1:
                continue
            if isinstance(product.op, Reshape):
                inner, last = product.input(0), product.op.shape[-1:]
                if inner.type.shape[-1:] != last or self._values.uses[inner] != 1:
                    continue
                product = self._values.producer.get(inner)
            if product is None or product.optional(2) is not None:
                continue
            channels = node.output.type.shape[-1:]
            fits = bias.size == 1 or (bias.shape[-1:] == channels and bias.size == channels[0])
            if fits and node.output.type.shape == x.type.shape and channels:
                return product, np.resize(bias.ravel(), channels), x.type.shape
        return None

    def _integer(
        self, node: Node, bias: Array | None, quant: Quant, limits: Limits
    ) -> Value | None:
        """Return an integer product, with its own bias or the given real bias `[o]`."""
        found = self._operands(node)
        if found is None:
            return None
        op, x, weights = found
        y = TensorType((), DType.INT8, quant)
        activation = activation_for(limits, y)
        if activation is None or op.fused_activation is not Activation.NONE:
            return None
        inputs: list[Value] = [x, weights]
        if node.optional(2) is not None:
            bias = self._values.real(node.input(2))
            if bias is None:
                return None
        channel_axis = weights_rule(op).output_axis(weights.type)
        summed = _stored_bias(x, weights, bias, channel_axis)
        if summed is None or not _fits(weights, summed, channel_axis):
            return None
        if bias is not None:
            inputs.append(self._values.constant(summed.astype(np.int32), f"{weights.name}:bias"))
        return self._values.try_emit(op.with_activation(activation), inputs, quant, node.origin)

    def _operands(self, node: Node) -> tuple[Op, Value, Value] | None:
        """Return the integer operator, its int8 input and its constant int8 weights, or None."""
        op = node.op
        if not op.quantized_weights and not isinstance(op, MatMul):
            return None
        x, known = self._values.stored(node.input(0)), self._values.known(node.input(1))
        if x is None or known is None or x.type.dtype is not DType.INT8:
            return None
        array, quant = known
        if isinstance(op, MatMul):
            if array.ndim != 2 or not {op.left, op.result} <= {(), _in_order(x)}:
                return None
            if op.right in ((), (0, 1)):
                axis = None if quant.axis is None else 1 - quant.axis
                array, quant = np.ascontiguousarray(array.T), replace(quant, axis=axis)
            op = FullyConnected(keep_dims=True)
        axis = weights_rule(op).output_axis(node.input(1).type)
        if array.dtype != np.int8 or quant.axis not in (None, axis):
            return None
        return op, x, self._values.constant(array, node.input(1).name, quant)


def _in_order(x: Value) -> tuple[int, ...]:
    return tuple(range(len(x.type.shape)))


def _stored_bias(x: Value, weights: Value, bias: Array | None, channel_axis: int) -> Array | None:
    """Return a real bias as int64 multiples of the sums' scale, shape `[o]`.

    Returns None if it is not a multiple of that scale.
    """
    channels = weights.type.shape[channel_axis]
    if bias is None:
        return np.zeros(channels, np.int64)
    quant = weights.type.quant
    assert quant is not None
    scales = np.broadcast_to(x.type.scale * np.asarray(quant.scale), (channels,))
    multiples = bias.ravel() / scales
    stored = np.rint(multiples)
    # The scale of a stored bias is input scale * weight scale, rounded to float32.
    if (np.abs(multiples - stored) > 1e-3 + np.abs(multiples) * 2.0**-22).any():
        return None
    return stored.astype(np.int64) if bool((np.abs(stored) < 2.0**31).all()) else None


def _fits(weights: Value, bias: Array, channel_axis: int) -> bool:
    """Return whether the sums stay within 32 bits for all inputs and orders of addition."""
    quant = weights.type.quant
    assert quant is not None
    zero_points = along_axis(quant, weights.array.ndim)[1]
    centered = np.abs(weights.array.astype(np.int64) - zero_points)
    others = tuple(axis for axis in range(centered.ndim) if axis != channel_axis)
    return bool((np.abs(bias) + 255 * centered.sum(axis=others) < 2**31).all())
