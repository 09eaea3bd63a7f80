"""Sums of int8 products on cores that multiply into 32 bits only."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from smelt.codegen.lower.kernel import Refusal
from smelt.codegen.lower.quantized_products import (
    bias_with_zero_point,
    can_fold_zero_point,
    refuse_products,
    sums,
)
from smelt.codegen.lower.requantization import Requantization
from smelt.codegen.lower.requantization_32bit import ShortScaling, short_scaling
from smelt.ir import DType, Node
from smelt.ir.weights import weights_rule
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.fully_connected import FullyConnected

SCRATCH_BYTES = 4096
"""Bytes of scratch for packed inputs."""


@lru_cache(maxsize=128)
def scaling_of(
    node: Node[Conv2D | DepthwiseConv2D | FullyConnected],
) -> ShortScaling | Refusal:
    """Return the short requantization of a node with constant symmetric weights, or a refusal."""
    op, rule = node.op, weights_rule(node.op)
    axis = rule.output_axis(node.input(1).type)
    if refusal := refuse_products(node, axis):
        return refusal
    if node.output.type.dtype is not DType.INT8 or not can_fold_zero_point(node):
        return Refusal(f"{op.name} in halfwords supports only constant, symmetric int8 weights.")
    range_ = sums(node, axis)
    bias = bias_with_zero_point(node, axis)
    if bias is None:
        bias = np.zeros(len(range_[0]), np.int64)
    found = short_scaling(Requantization.of(node, rule.scales(node), op.activation, range_), bias)
    return found or Refusal(f"{op.name} has scales for which no short multiplications are exact.")
