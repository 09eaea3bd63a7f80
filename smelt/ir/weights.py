"""Base of the rules by which convolutions and dense layers multiply data by weights.

The operands are the data, the weights, and possibly a bias. The last axis of the data and of the
result indexes channels. In a grouped operator, each output uses only some channels of the data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic

from smelt.ir.channels import OpT_contra
from smelt.ir.types import Array, TensorType

if TYPE_CHECKING:
    from smelt.ir.graph import Node, Op


BIAS = 2
"""Index of the bias among the operands."""


class WeightsRule(ABC, Generic[OpT_contra]):
    """Which data an operator's weights are multiplied by, and which axis indexes its outputs."""

    @abstractmethod
    def output_axis(self, weights: TensorType) -> int:
        """Return the axis of the weights that indexes output channels."""

    @abstractmethod
    def groups(self, node: Node[OpT_contra]) -> int:
        """Return the number of groups."""

    @abstractmethod
    def input_channels(self, node: Node[OpT_contra]) -> Array:
        """Return each weight's channel of the data: int64, broadcast to the weights' shape."""

    def keeps_channels(self, node: Node[OpT_contra]) -> bool:
        """Return whether a weight uses the same data channel for every pixel or row of results."""
        return True

    @abstractmethod
    def uses_all_weights(self, node: Node[OpT_contra]) -> bool:
        """Return whether every pixel or row of a channel is computed from all its weights.

        It is not if a window reaches into padding.
        """

    def windows(self, node: Node[OpT_contra], x: Array) -> Array:
        """Return the elements of `x` that the weights are multiplied by: `[rows, taps, channels]`.

        Rows are pixels or rows of the result; `x` are real numbers. Elements outside of the data
        are 0. Only operators with `quantized_weights` implement this.
        """
        raise NotImplementedError(f"{node.op.name} has no windows of {x.shape}")

    def scales(self, node: Node[OpT_contra]) -> tuple[float, ...]:
        """Return the scale of the sums divided by that of the output: one, or one per channel.

        The node must be quantized.
        """
        raise NotImplementedError(f"{node.op.name} has no scales")


def weights_rule(op: Op) -> WeightsRule[Any]:
    """Return an operator's weights rule. Raises `TypeError` if it has no weights."""
    if op.weights_rule is None:
        raise TypeError(f"{op.name} has no weights")
    return op.weights_rule
