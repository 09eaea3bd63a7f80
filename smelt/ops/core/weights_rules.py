"""Weights rules of convolutions: which data their weights are multiplied by."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from smelt.ir import Array, Node, TensorType
from smelt.ir.channels import channels
from smelt.ir.weights import OpT_contra, WeightsRule
from smelt.ops.arithmetic.fixed_point import convolution_scales

if TYPE_CHECKING:
    from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
    from smelt.ops.core.convolution_nd import ConvolutionND


class ConvolutionWeights(WeightsRule[OpT_contra]):
    """Weights rule of any convolution."""

    @override
    def scales(self, node: Node[OpT_contra]) -> tuple[float, ...]:
        x, weights, y = node.input(0).type, node.input(1).type, node.output.type
        return convolution_scales(x, weights, y, node.rounding)


class Conv2DWeights(ConvolutionWeights["Conv2D"]):
    """Weights rule of Conv2D: weights `[o,kh,kw,i]`."""

    @override
    def output_axis(self, weights: TensorType) -> int:
        return 0

    @override
    def groups(self, node: Node[Conv2D]) -> int:
        return node.op.groups

    @override
    def input_channels(self, node: Node[Conv2D]) -> Array:
        outputs, *_, depth = node.input(1).type.shape
        return _by_group(node.op.groups, outputs, depth)[:, None, None, :]

    @override
    def uses_all_weights(self, node: Node[Conv2D]) -> bool:
        return not any(map(any, node.op.padding))

    @override
    def windows(self, node: Node[Conv2D], x: Array) -> Array:
        _, height, width, _ = node.input(1).type.shape
        return node.op.windows(x, (height, width)).reshape(-1, height * width, x.shape[-1])


class DepthwiseWeights(ConvolutionWeights["DepthwiseConv2D"]):
    """Weights rule of DepthwiseConv2D: weights `[1,kh,kw,c*m]`; each input channel is a group."""

    @override
    def output_axis(self, weights: TensorType) -> int:
        return 3

    @override
    def groups(self, node: Node[DepthwiseConv2D]) -> int:
        return channels(node.input(0).type)

    @override
    def input_channels(self, node: Node[DepthwiseConv2D]) -> Array:
        groups = self.groups(node)
        return np.repeat(np.arange(groups), channels(node.input(1).type) // groups)

    @override
    def uses_all_weights(self, node: Node[DepthwiseConv2D]) -> bool:
        return not any(map(any, node.op.padding))

    @override
    def windows(self, node: Node[DepthwiseConv2D], x: Array) -> Array:
        _, height, width, _ = node.input(1).type.shape
        return node.op.windows(x, (height, width)).reshape(-1, height * width, x.shape[-1])


class TapWeights(ConvolutionWeights["ConvolutionND"]):
    """Weights rule of Conv3D: weights `[*k,i,o]`, a matrix for each tap."""

    @override
    def output_axis(self, weights: TensorType) -> int:
        return len(weights.shape) - 1

    @override
    def groups(self, node: Node[ConvolutionND]) -> int:
        return node.op.groups

    @override
    def input_channels(self, node: Node[ConvolutionND]) -> Array:
        depth, outputs = node.input(1).type.shape[-2:]
        return _by_group(node.op.groups, outputs, depth).T

    @override
    def uses_all_weights(self, node: Node[ConvolutionND]) -> bool:
        return not any(map(any, node.op.padding))

    @override
    def windows(self, node: Node[ConvolutionND], x: Array) -> Array:
        kernel = node.input(1).type.shape[:-2]
        return node.op.windows(x, kernel).reshape(-1, prod(kernel), x.shape[-1])


class TransposedWeights(TapWeights):
    """Weights rule of ConvTranspose: as `TapWeights`, but each output uses only some taps."""

    @override
    def uses_all_weights(self, node: Node[ConvolutionND]) -> bool:
        return False


def _by_group(groups: int, outputs: int, depth: int) -> Array:
    """Return the input channels that each output uses, by its group: int64 `[outputs, depth]`."""
    group = np.repeat(np.arange(groups), outputs // groups)
    return group[:, None] * depth + np.arange(depth)
