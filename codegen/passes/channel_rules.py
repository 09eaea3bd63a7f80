"""What operators of quantized networks do to channels, the elements of a tensor's last axis.

A rule says of a node between which stored numbers each channel of its result lies, which channels
of its operands are needed for some of its result, and what the node is with those alone. To add
one, put a class into `RULES`, here or in `channel_products`. A value whose producer has no rule may
hold anything and keeps every channel, and so do the operands of such a node.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from smelt.ir import Array, DType, Node, Op, Quant, Rounding, TensorType, Value
from smelt.ops.binary import Binary
from smelt.ops.concat import Concat
from smelt.ops.copy import Copy
from smelt.ops.fixed_point import INT32_MAX
from smelt.ops.pad import Pad
from smelt.ops.pool import Pool2D
from smelt.ops.quantize import Quantize
from smelt.ops.reduce import Reduce
from smelt.ops.reshape import Reshape
from smelt.ops.resize import Resize
from smelt.ops.table import Table
from smelt.ops.unary import Unary

Mask = Array
"""Channels that are meant: bool `[channels]`."""

Build = Callable[[str, Array, Quant | None], Value]
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


Narrowed = tuple[Op, tuple[Value | None, ...]]
"""An operator and its operands, of which those that are not constant are still whole."""


class Rule(ABC):
    """What one kind of operator does to channels. `operands` are the bounds of a node's inputs."""

    chooses: bool = False
    """Whether any channels of the result can be left out, whatever the operands keep."""

    def serves(self, node: Node) -> bool:
        """Whether the rule holds for the node."""
        del node
        return True

    @abstractmethod
    def bounds(self, node: Node, operands: Sequence[Bounds | None]) -> Bounds:
        """Those of the result."""

    @abstractmethod
    def needs(
        self, node: Node, wanted: Mask, operands: Sequence[Bounds | None]
    ) -> tuple[Mask, Sequence[Mask | None]]:
        """The channels that are computed if some are wanted, and those of each operand needed."""

    @abstractmethod
    def carries(self, node: Node, kept: Sequence[Mask | None]) -> Mask | bool:
        """The channels of the result that are there if those of the operands are."""

    @abstractmethod
    def narrow(self, node: Node, to: Narrowing) -> Narrowed:
        """The operator and its constants where the result and the operands have fewer channels."""


class Alike(Rule):
    """Each channel of the result is of the same channel of the operands, and grows with them."""

    def bounds(self, node: Node, operands: Sequence[Bounds | None]) -> Bounds:
        """See `Rule.bounds`."""
        if _may_wrap(node):
            return Bounds.anything(node.output.type)
        found = [node.op.reference(node, inputs)[0] for inputs in self.corners(node, operands)]
        return Bounds.among(*found)

    def corners(
        self, node: Node, operands: Sequence[Bounds | None]
    ) -> Iterator[Sequence[Array | None]]:
        """Inputs among whose results the least and the greatest of every element are."""
        for greatest in (False, True):
            yield [
                None if v is None or b is None else _filled(v, b, greatest)
                for v, b in zip(node.inputs, operands, strict=True)
            ]

    def needs(
        self, node: Node, wanted: Mask, operands: Sequence[Bounds | None]
    ) -> tuple[Mask, Sequence[Mask | None]]:
        """See `Rule.needs`."""
        del operands
        return wanted, [
            None if v is None else wanted if channels(v.type) == wanted.size else everything(v.type)
            for v in node.inputs
        ]

    def carries(self, node: Node, kept: Sequence[Mask | None]) -> Mask | bool:
        """See `Rule.carries`."""
        count = channels(node.output.type)
        found: Mask | bool = False
        for value, mask in zip(node.inputs, kept, strict=True):
            if value is not None and value.data is None and mask is not None:
                found = found | mask if mask.size == count else found
        return found

    def narrow(self, node: Node, to: Narrowing) -> Narrowed:
        """See `Rule.narrow`."""
        return node.op, tuple(
            v if v is None or v.data is None or mask is None else _sliced(v, mask, to.build)
            for v, mask in zip(node.inputs, to.kept, strict=True)
        )


def _may_wrap(node: Node) -> bool:
    """Whether numbers may leave 32 bits when they are shifted left: results do not grow then."""
    x, y = node.input(0).type, node.output.type
    if node.rounding is not Rounding.TFLM or not (x.is_quantized and y.is_quantized):
        return False
    largest = x.scale / y.scale * _levels(x)
    if isinstance(node.op, Reduce):
        largest *= x.size // y.size
    elif isinstance(node.op, Binary) and node.op.kind == "mul":
        largest *= node.input(1).type.scale * _levels(node.input(1).type)
    # Shifted left it is at most twice what it is multiplied by.
    return 2 * largest > INT32_MAX


def _levels(type_: TensorType) -> int:
    """More than the magnitude of any stored number less the zero point."""
    return 1 << (8 * type_.dtype.size)


def _filled(value: Value, bounds: Bounds, greatest: bool) -> Array:
    if value.data is not None:
        return value.data
    row = bounds.high if greatest else bounds.low
    return np.broadcast_to(row, value.type.shape).astype(value.type.dtype.numpy)


def _sliced(value: Value, mask: Mask, build: Build) -> Value:
    """A constant with some of its channels."""
    return value if mask.all() else build(value.name, value.array[..., mask], value.type.quant)


class _Pad(Alike):
    def serves(self, node: Node) -> bool:
        """See `Rule.serves`."""
        assert isinstance(node.op, Pad)
        return node.op.padding[-1] == (0, 0) and len(node.inputs) == 1


class _Pool(Alike):
    def serves(self, node: Node) -> bool:
        """See `Rule.serves`."""
        return isinstance(node.op, Pool2D) and node.op.kind in ("max", "average")


class _Reduce(Alike):
    def serves(self, node: Node) -> bool:
        """See `Rule.serves`."""
        assert isinstance(node.op, Reduce)
        last = len(node.input(0).type.shape) - 1
        return last not in node.op.axes and node.op.kind in ("mean", "sum", "max", "min")


class _Resize(Alike):
    def serves(self, node: Node) -> bool:
        """See `Rule.serves`."""
        return isinstance(node.op, Resize) and node.op.kind == "nearest"


class _Binary(Alike):
    """The extremes are where each operand is at one of its own."""

    def serves(self, node: Node) -> bool:
        """See `Rule.serves`."""
        return isinstance(node.op, Binary) and node.op.kind in _GROWING

    def corners(
        self, node: Node, operands: Sequence[Bounds | None]
    ) -> Iterator[Sequence[Array | None]]:
        """See `Alike.corners`."""
        pairs = [(v, b) for v, b in zip(node.inputs, operands, strict=True) if v and b]
        for ends in product((False, True), repeat=len(pairs)):
            yield [_filled(v, b, end) for (v, b), end in zip(pairs, ends, strict=True)]


_GROWING = ("add", "sub", "mul", "maximum", "minimum")
"""Operators that grow or fall steadily with each operand."""


class _Function(Alike):
    """Any function of 8-bit elements, looked at for all of them."""

    def serves(self, node: Node) -> bool:
        """See `Rule.serves`."""
        return node.input(0).type.dtype in (DType.INT8, DType.UINT8)

    def bounds(self, node: Node, operands: Sequence[Bounds | None]) -> Bounds:
        """See `Rule.bounds`."""
        x, given = node.input(0), operands[0]
        assert given is not None
        least, greatest = x.type.dtype.limits
        stored = np.arange(least, greatest + 1).astype(x.type.dtype.numpy)
        types = (x.type.with_shape(stored.shape), node.output.type.with_shape(stored.shape))
        ends = [Value(v.name, t) for v, t in zip((x, node.output), types, strict=True)]
        probe = replace(node, inputs=(ends[0], *node.inputs[1:]), outputs=(ends[1],))
        others = [None if v is None else v.data for v in node.inputs[1:]]
        (results,) = node.op.reference(probe, [stored, *others])
        spans = [
            results[low - least : high - least + 1].astype(np.int64)
            for low, high in zip(given.low, given.high, strict=True)
        ]
        return Bounds(np.array([s.min() for s in spans]), np.array([s.max() for s in spans]))

    def narrow(self, node: Node, to: Narrowing) -> Narrowed:
        """See `Rule.narrow`."""
        del to
        return node.op, node.inputs


class _Concat(Alike):
    """Along the last axis, operands hold the channels one after the other."""

    def needs(
        self, node: Node, wanted: Mask, operands: Sequence[Bounds | None]
    ) -> tuple[Mask, Sequence[Mask | None]]:
        """See `Rule.needs`."""
        assert isinstance(node.op, Concat)
        if node.op.axis != len(node.output.type.shape) - 1:
            return super().needs(node, wanted, operands)
        counts = [0 if v is None else channels(v.type) for v in node.inputs]
        parts = np.split(wanted.copy(), np.cumsum(counts)[:-1])
        for part in parts:
            part[:1] |= not part.any()  # No operand may be empty.
        return np.concatenate(parts), parts

    def carries(self, node: Node, kept: Sequence[Mask | None]) -> Mask | bool:
        """See `Rule.carries`."""
        assert isinstance(node.op, Concat)
        if node.op.axis != len(node.output.type.shape) - 1:
            return super().carries(node, kept)
        return np.concatenate([mask for mask in kept if mask is not None])


class _Reshape(Rule):
    """Each channel of the operand is at regular places among those of the result."""

    def serves(self, node: Node) -> bool:
        """See `Rule.serves`."""
        x, y = node.input(0).type, node.output.type
        return channels(x) > 0 and channels(y) % channels(x) == 0

    def bounds(self, node: Node, operands: Sequence[Bounds | None]) -> Bounds:
        """See `Rule.bounds`."""
        given = operands[0]
        assert given is not None
        times = channels(node.output.type) // given.low.size
        return Bounds(np.tile(given.low, times), np.tile(given.high, times))

    def needs(
        self, node: Node, wanted: Mask, operands: Sequence[Bounds | None]
    ) -> tuple[Mask, Sequence[Mask | None]]:
        """See `Rule.needs`."""
        del operands
        needed: Mask = np.any(wanted.reshape(-1, channels(node.input(0).type)), axis=0)
        return np.tile(needed, wanted.size // needed.size), [needed]

    def carries(self, node: Node, kept: Sequence[Mask | None]) -> Mask | bool:
        """See `Rule.carries`."""
        (mask,) = (m for m in kept if m is not None)
        return np.tile(mask, channels(node.output.type) // mask.size)

    def narrow(self, node: Node, to: Narrowing) -> Narrowed:
        """See `Rule.narrow`."""
        return Reshape(narrowed(node.output.type, to.result).shape), node.inputs


RULES: dict[type[Op], Rule] = {
    Binary: _Binary(),
    Concat: _Concat(),
    Copy: Alike(),
    Pad: _Pad(),
    Pool2D: _Pool(),
    Quantize: _Function(),
    Reduce: _Reduce(),
    Reshape: _Reshape(),
    Resize: _Resize(),
    Table: _Function(),
    Unary: _Function(),
}
