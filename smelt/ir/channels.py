"""Base of the rules by which operators of quantized networks let unneeded channels be removed.

A channel is one index of a tensor's last axis. For a node, a rule says
- which range of stored numbers each channel of the result can have,
- which channels of the operands are needed for given channels of the result,
- which operator and constants compute only those.
If an operator has no rule, its result may have any values and all its channels, and all channels
of its operands are needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

import numpy as np
from typing_extensions import TypeVar

from smelt.ir.types import Array, Quant, TensorType

if TYPE_CHECKING:
    from smelt.ir.graph import Node, Op, Value

OpT_contra = TypeVar("OpT_contra", bound="Op", default="Op", contravariant=True)
"""The class of operators that a rule or a kernel applies to."""

Mask = Array
"""Selected channels: bool `[channels]`."""

Build = Callable[[str, Array, Quant | None], "Value"]
"""Builds a constant: takes the stem of its name, its data and its quantization."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """Smallest and largest stored number of each channel: int64 `[channels]`."""

    low: Array
    high: Array

    @property
    def constant(self) -> Mask:
        """Channels that always have the same number."""
        return self.low == self.high

    @staticmethod
    def of_type(type_: TensorType) -> Bounds:
        """Return the bounds of a tensor that may have any values of its element type."""
        low, high = type_.dtype.limits
        count = channels(type_)
        return Bounds(np.full(count, low, np.int64), np.full(count, high, np.int64))

    @staticmethod
    def of_arrays(*arrays: Array) -> Bounds:
        """Return bounds that include every element of the arrays, channel by channel."""
        rows = [a.reshape(-1, a.shape[-1] if a.shape else 1).astype(np.int64) for a in arrays]
        together = np.concatenate(rows)
        return Bounds(together.min(axis=0), together.max(axis=0))


def channels(type_: TensorType) -> int:
    """Return the number of channels: the size of the last axis, or 1 for a scalar."""
    return type_.shape[-1] if type_.shape else 1


def all_channels(type_: TensorType) -> Mask:
    """Return a mask of all channels."""
    return np.ones(channels(type_), bool)


def narrowed(type_: TensorType, mask: Mask) -> TensorType:
    """Return the type with only the channels of the mask."""
    return type_ if mask.all() else type_.with_shape((*type_.shape[:-1], int(mask.sum())))


@dataclass(frozen=True, eq=False)
class Narrowing:
    """Which channels of a node to keep.

    Attributes:
        result: channels of its result that are kept.
        kept: channels of each operand that are kept.
        operands: bounds of each operand.
        build: builds constants for the new node.
    """

    result: Mask
    kept: Sequence[Mask | None]
    operands: Sequence[Bounds | None]
    build: Build


Narrowed = tuple["Op", "tuple[Value | None, ...]"]
"""An operator and its operands; the operands that are not constant still have all channels."""


class ChannelRule(ABC, Generic[OpT_contra]):
    """What an operator does to channels. Its arguments `operands` are bounds of a node's inputs."""

    chooses: bool = False
    """Whether any channel of the result can be removed, whichever channels the operands keep."""

    def serves(self, node: Node[OpT_contra]) -> bool:
        """Return whether the rule can be applied to the node."""
        return True

    @abstractmethod
    def bounds(self, node: Node[OpT_contra], operands: Sequence[Bounds | None]) -> Bounds:
        """Return the bounds of the result."""

    @abstractmethod
    def needs(
        self, node: Node[OpT_contra], wanted: Mask, operands: Sequence[Bounds | None]
    ) -> tuple[Mask, Sequence[Mask | None]]:
        """Return which channels are computed if some are wanted, and which each operand needs."""

    @abstractmethod
    def result_channels(self, node: Node[OpT_contra], kept: Sequence[Mask | None]) -> Mask | bool:
        """Return which channels of the result exist if the operands have the `kept` channels."""

    @abstractmethod
    def narrow(self, node: Node[OpT_contra], to: Narrowing) -> Narrowed:
        """Return the operator and its operands for fewer channels; constants are rebuilt."""
