"""Normalization to mean 0 and variance 1 over some axes, and local response normalization.

Sources: Ba et al., "Layer Normalization" (2016); Ulyanov et al., "Instance Normalization" (2016);
Wu and He, "Group Normalization" (2018); Zhang and Sennrich, "Root Mean Square Layer
Normalization" (2019); Krizhevsky et al., "ImageNet Classification with Deep Convolutional Neural
Networks" (2012), section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, TensorType
from smelt.ir.axes import Axes, along_last, broadcast, positions_after
from smelt.ops.case import Case, CaseOperand, Constant, Data
from smelt.ops.constraints import arrays, axis_in_range, operands


@dataclass(frozen=True)
class Normalization(Op):
    """`(x - mean) / sqrt(variance + epsilon) · scale + bias`, over `axes` (ascending).

    The axes decide whether this is layer, instance or group normalization. Without `centered`, the
    mean is 0. Scale and bias are optional operands, broadcast to x. With `statistics` there are two
    more results, in which `axes` have size 1: the mean and the inverse of the square root.
    """

    axes: tuple[int, ...]
    epsilon: float
    centered: bool = True
    statistics: bool = False

    settles = True

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        (x,) = operands(self, inputs, 1)
        for axis in self.axes:
            axis_in_range(self, axis, len(x.shape))
        if list(self.axes) != sorted(set(self.axes)):
            raise ModelError(f"{self.name} needs axes in ascending order, got {self.axes}")
        if not x.dtype.is_float:
            raise ModelError(f"{self.name} needs floats, got {x}")
        for role, operand in zip(("scale", "bias"), inputs[1:], strict=False):
            if operand is not None and not _fits(operand, x):
                raise ModelError(f"{self.name} cannot broadcast {role} {operand} to {x}")
        shape = tuple(1 if i in self.axes else n for i, n in enumerate(x.shape))
        statistics = (TensorType(shape, x.dtype),) * 2 if self.statistics else ()
        return (TensorType(x.shape, x.dtype), *statistics)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        real = x.astype(np.float64)
        count = np.float64(self.count(node.input(0).type))
        with np.errstate(all="ignore"):
            mean = np.sum(real, axis=self.axes, keepdims=True) / count
            centered = real - mean if self.centered else real
            variance = np.sum(centered * centered, axis=self.axes, keepdims=True) / count
            inverse = 1 / np.sqrt(variance + float(np.float32(self.epsilon)))
            result = centered * inverse
            for array, apply in zip(inputs[1:], (np.multiply, np.add), strict=False):
                result = result if array is None else apply(result, array.astype(np.float64))
        results = (result, mean, inverse)[: len(node.outputs)]
        return tuple(np.asarray(r, x.dtype) for r in results)

    def count(self, x: TensorType) -> int:
        """Return the number of elements of `x` that share a mean."""
        return prod(x.shape[axis] for axis in self.axes)

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether rows lie along an axis that is not normalized over."""
        return axes[0] not in self.axes

    def axes_rule(self, node: Node) -> Axes:
        """Return that scale and bias are broadcast to the axes of the input."""
        return broadcast(node, lambda order: replace(self, axes=positions_after(self.axes, order)))


def _fits(operand: TensorType, x: TensorType) -> bool:
    try:
        shape = np.broadcast_shapes(operand.shape, x.shape)
    except ValueError:
        return False
    return shape == x.shape and operand.dtype is x.dtype


@dataclass(frozen=True)
class LocalResponse(Op):
    """Each element divided by a power of the squares of its neighbors along the last axis.

    `x / (bias + alpha / size · Σ x²) ^ beta`. The sum is over `size` elements around x. If `size`
    is even, it includes one more element after x than before.
    """

    size: int
    alpha: float
    beta: float
    bias: float

    settles = True

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        (x,) = operands(self, inputs, 1)
        if not x.shape or not x.dtype.is_float:
            raise ModelError(f"{self.name} needs floats with at least one axis, got {x}")
        if self.size < 1:
            raise ModelError(f"{self.name} has size {self.size}; it must be at least 1")
        return (TensorType(x.shape, x.dtype),)

    @property
    def reach(self) -> tuple[int, int]:
        """Number of elements before and after an element that are in its sum."""
        return (self.size - 1) // 2, self.size // 2

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        real = x.astype(np.float64)
        before, behind = self.reach
        sums = np.cumsum(real * real, axis=-1)
        channels = np.arange(x.shape[-1], dtype=np.int64)
        until = np.minimum(channels + behind, x.shape[-1] - 1)
        since = channels - before - 1
        squares = sums[..., until] - np.where(since >= 0, sums[..., np.maximum(since, 0)], 0)
        alpha, beta, bias = (float(np.float32(v)) for v in (self.alpha, self.beta, self.bias))
        base = bias + alpha / self.size * np.maximum(squares, 0)
        return ((real / base**beta).astype(x.dtype),)

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether rows lie along another axis than the last, which is summed over."""
        rank = len(node.input(0).type.shape)
        return axes[0] is not None and axes[0] != rank - 1

    def axes_rule(self, node: Node) -> Axes:
        """Return that all axes but the last may be permuted."""
        return along_last(node)


def _case(name: str, op: Normalization, *arguments: CaseOperand) -> Case:
    return Case(name, op, arguments, (DType.FLOAT32,))


_SCALE, _BIAS = Constant((0.5, 1.5, -1.0, 2.0, 0.25), (5,)), Constant((0.1, -2.0, 0, 1, 3), (5,))
_OFF = Data((1, 6, 7, 5), 90.0, 110.0)
_GROUPED = Data((2, 3, 4, 2, 6), -3.0, 5.0)
CASES = (
    _case("layer", Normalization((2,), 1e-5), Data((2, 3, 5), -4.0, 4.0), _SCALE, _BIAS),
    _case("layer_wide", Normalization((1,), 1e-5), Data((2, 131), -4.0, 4.0), None, Data((131,))),
    _case("layer_axes", Normalization((1, 2), 1e-3), Data((2, 3, 5), -4.0, 4.0), _SCALE),
    _case("statistics", Normalization((1, 2), 1e-3, True, True), Data((2, 3, 5)), _SCALE, _BIAS),
    _case("lanes_statistics", Normalization((1, 2), 1e-3, True, True), Data((2, 3, 2, 6))),
    _case("instance", Normalization((1, 2), 1e-5), _OFF, _SCALE, _BIAS),
    _case("instance_signal", Normalization((1,), 1e-5), Data((2, 9, 5), -1.0, 3.0), None, _BIAS),
    _case("group", Normalization((1, 2, 4), 1e-5), _GROUPED, Data((2, 6)), Data((2, 6))),
    _case("group_scalar", Normalization((1, 2, 4), 1e-5), _GROUPED, Data((2, 1)), Data(())),
    _case("apart", Normalization((0, 2), 1e-5), Data((3, 2, 5, 3)), Data((5, 1))),
    _case("everything", Normalization((0, 1), 1e-5), Data((4, 9), -2.0, 1.0)),
    _case("root_mean_square", Normalization((2,), 1e-6, False), Data((2, 3, 5)), _SCALE),
    _case("root_mean_square_lanes", Normalization((1,), 1e-6, False), Data((2, 3, 5)), _SCALE),
    *(
        Case(
            name,
            LocalResponse(size, alpha, beta, bias),
            (Data((1, 2, 3, 7), -4.0, 4.0),),
            (DType.FLOAT32,),
        )
        for name, size, alpha, beta, bias in (
            ("usual", 5, 1e-4, 0.75, 1.0),
            ("even", 4, 0.5, 0.5, 2.0),
            ("wide", 9, 0.25, 0.75, 0.5),
        )
    ),
)
