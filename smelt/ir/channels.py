"""What operators of quantized networks do to channels, the elements of a tensor's last axis.

A rule says of a node between which stored numbers each channel of its result lies, which channels
of its operands are needed for some of its result, and what the node is with those alone. A value
whose producer has no rule may hold anything and keeps every channel, and so do the operands of such
a node.
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
"""The operators that a rule, or a kernel, is for."""

Mask = Array
"""Channels that are meant: bool `[channels]`."""

Build = Callable[[str, Array, Quant | None], "Value"]
"""Makes a constant of a stem for its name, its data and its quantization."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """The least and the greatest stored number that each channel may hold: int64 `[channels]`."""

    low: Array
    high: Array

    @property
    def constant(self) -> Mask:
        """Channels that always hold the same number."""
        return self.low == self.high

    @staticmethod
    def anything(type_: TensorType) -> Bounds:
        """Those of a tensor of which nothing is known."""
        low, high = type_.dtype.limits
        count = channels(type_)
        return Bounds(np.full(count, low, np.int64), np.full(count, high, np.int64))

    @staticmethod
    def among(*arrays: Array) -> Bounds:
        """Those of a tensor that lies, element by element, between the least and the greatest."""
        rows = [a.reshape(-1, a.shape[-1] if a.shape else 1).astype(np.int64) for a in arrays]
        together = np.concatenate(rows)
        return Bounds(together.min(axis=0), together.max(axis=0))


def channels(type_: TensorType) -> int:
    """Elements of the last axis."""
    return type_.shape[-1] if type_.shape else 1


def everything(type_: TensorType) -> Mask:
    """Every channel."""
    return np.ones(channels(type_), bool)


def narrowed(type_: TensorType, mask: Mask) -> TensorType:
    """The type with some of its channels."""
    return type_ if mask.all() else type_.with_shape((*type_.shape[:-1], int(mask.sum())))


@dataclass(frozen=True, eq=False)
class Narrowing:
    """What a node is to be narrowed to.

    Attributes:
        result: the channels of its result that stay.
        kept: those of its operands.
        operands: the bounds of its operands.
        build: makes its constants.
    """

    result: Mask
    kept: Sequence[Mask | None]
    operands: Sequence[Bounds | None]
    build: Build


Narrowed = tuple["Op", "tuple[Value | None, ...]"]
"""An operator and its operands, of which those that are not constant are still whole."""


class ChannelRule(ABC, Generic[OpT_contra]):
    """What an operator does to channels. `operands` are the bounds of a node's inputs."""

    chooses: bool = False
    """Whether any channels of the result can be left out, whatever the operands keep."""

    def serves(self, node: Node[OpT_contra]) -> bool:
        """Whether the rule holds for the node."""
        return True

    @abstractmethod
    def bounds(self, node: Node[OpT_contra], operands: Sequence[Bounds | None]) -> Bounds:
        """Those of the result."""

    @abstractmethod
    def needs(
        self, node: Node[OpT_contra], wanted: Mask, operands: Sequence[Bounds | None]
    ) -> tuple[Mask, Sequence[Mask | None]]:
        """The channels that are computed if some are wanted, and those of each operand needed."""

    @abstractmethod
    def carries(self, node: Node[OpT_contra], kept: Sequence[Mask | None]) -> Mask | bool:
        """The channels of the result that are there if those of the operands are."""

    @abstractmethod
    def narrow(self, node: Node[OpT_contra], to: Narrowing) -> Narrowed:
        """The operator and its constants where the result and the operands have fewer channels."""
