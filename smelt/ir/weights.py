"""How operators multiply data by weights: convolutions and dense layers.

Their operands are the data, the weights, and a bias where there is one. Channels of the data and of
the result lie along the last axis. In groups, outputs meet some of the data's channels only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic

from smelt.ir.channels import OpT_contra
from smelt.ir.types import Array, TensorType

if TYPE_CHECKING:
    from smelt.ir.graph import Node, Op


BIAS = 2
"""The bias' place among the operands."""


class WeightsRule(ABC, Generic[OpT_contra]):
    """What the weights of an operator meet, and where its outputs lie in them."""

    @abstractmethod
    def output_axis(self, weights: TensorType) -> int:
        """The axis of the weights that output channels lie along."""

    @abstractmethod
    def groups(self, node: Node[OpT_contra]) -> int:
        """How many groups there are."""

    @abstractmethod
    def input_channels(self, node: Node[OpT_contra]) -> Array:
        """The channel of the data that each weight meets: int64, broadcast to the weights."""

    def keeps_channels(self, node: Node[OpT_contra]) -> bool:
        """Whether a weight meets that channel for every pixel or row of the result."""
        return True

    @abstractmethod
    def meets_everywhere(self, node: Node[OpT_contra]) -> bool:
        """Whether each weight meets an element of the data for every pixel or row."""

    def windows(self, node: Node[OpT_contra], x: Array) -> Array:
        """What the weights meet of real data, for each pixel or row: `[rows, taps, channels]`.

        Zeros where they meet nothing. Of operators with `quantized_weights`.
        """
        raise NotImplementedError(f"{node.op.name} has no windows of {x.shape}")

    def scales(self, node: Node[OpT_contra]) -> tuple[float, ...]:
        """Of a quantized node, the sums' scale over the output's: one, or one for each channel."""
        raise NotImplementedError(f"{node.op.name} has no scales")


def weights_rule(op: Op) -> WeightsRule[Any]:
    """That of an operator that has weights; `TypeError` for another."""
    if op.weights_rule is None:
        raise TypeError(f"{op.name} has no weights")
    return op.weights_rule
