"""Slice: elements at regular distances along each axis, forwards or backwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, Node, Op, Quant, TensorType
from smelt.ir.axes import Axes, permuted, same_axes
from smelt.ir.homogeneity import FactorLink, Homogeneity
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, operands, same_quant


@dataclass(frozen=True)
class Slice(Op):
    """Element `i` along axis `a` of the output is element `starts[a] + i * steps[a]` of the input.

    All three fields have an entry for each axis. Starts are not negative, but steps may be.
    `sizes` are those of the output.
    """

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    moves_data = True

    @staticmethod
    def along(axis: int, start: int, size: int, shape: Sequence[int], step: int = 1) -> Slice:
        """Return a slice of `shape`: `size` elements along one axis, all along the others."""
        starts, sizes, steps = [0] * len(shape), list(shape), [1] * len(shape)
        starts[axis], sizes[axis], steps[axis] = start, size, step
        return Slice(tuple(starts), tuple(sizes), tuple(steps))

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        (x,) = operands(self, inputs, 1)
        rank = len(x.shape)
        if not len(self.starts) == len(self.sizes) == len(self.steps) == rank:
            raise ModelError(f"Slice of {x} needs a start, a size and a step for each axis")
        for size, start, count, step in zip(
            x.shape, self.starts, self.sizes, self.steps, strict=True
        ):
            last = start + (count - 1) * step
            inside = 0 <= start < size and 0 <= last < size
            if count < 0 or step == 0 or (count > 0 and not inside):
                raise ModelError(
                    f"Slice of {x} from {list(self.starts)} in steps of {list(self.steps)} to "
                    f"size {list(self.sizes)} reads elements outside of the tensor"
                )
        return (TensorType(self.sizes, x.dtype),)

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the input."""
        return operands(self, inputs, 1)[0].quant

    @override
    def check(self, node: Node) -> None:
        same_quant(node)

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        for axis, (start, size, step) in enumerate(
            zip(self.starts, self.sizes, self.steps, strict=True)
        ):
            x = x.take(start + np.arange(size) * step, axis)
        return (x.copy(),)

    def homogeneity(self, node: Node) -> Sequence[Homogeneity]:
        """Return that the selected channels keep their factors."""
        if not self.sizes:
            return ()
        taken = np.arange(self.sizes[-1])
        return (Homogeneity([FactorLink(0, self.starts[-1] + taken * self.steps[-1], taken)]),)

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether rows are taken from the first on, in order."""
        axis = axes[0]
        return axis is not None and (self.starts[axis], self.steps[axis]) == (0, 1)

    @override
    def with_rows(self, axis: int, rows: int) -> Slice:
        sizes = (*self.sizes[:axis], rows, *self.sizes[axis + 1 :])
        return replace(self, sizes=sizes)

    def axes_rule(self, node: Node) -> Axes:
        """Return that operand and result have the same axes."""
        fields = (self.starts, self.sizes, self.steps)
        return same_axes(node, lambda order: Slice(*(permuted(field, order) for field in fields)))

    def is_identity(self, node: Node) -> bool:
        """Return whether all elements are taken in order."""
        return node.input(0).type == node.output.type and set(self.steps) <= {1}


CASES = (
    Case("rows", Slice((0, 1, 0, 0), (1, 3, 4, 2), (1, 1, 1, 1)), (Data((1, 5, 4, 2)),)),
    Case("window", Slice((0, 1, 2, 0), (1, 2, 2, 3), (1, 1, 1, 1)), (Data((1, 4, 5, 3)),)),
    Case("channels", Slice((0, 0, 0, 1), (2, 3, 2, 2), (1, 1, 1, 1)), (Data((2, 3, 2, 4)),)),
    Case("strided", Slice((0, 1, 0, 0), (1, 2, 3, 2), (1, 2, 2, 1)), (Data((1, 5, 5, 2)),)),
    Case("every_other", Slice((1,), (4,), (2,)), (Data((9,)),)),
    Case("reversed", Slice((6,), (7,), (-1,)), (Data((7,)),)),
    Case("mirrored", Slice((0, 0, 4, 0), (1, 3, 5, 2), (1, 1, -1, 1)), (Data((1, 3, 5, 2)),)),
    Case("backwards", Slice((3, 0, 5), (2, 2, 3), (-2, 1, -2)), (Data((4, 2, 6)),)),
    Case("scalar", Slice((), (), ()), (Data(()),)),
    Case("everything", Slice((0, 0), (2, 3), (1, 1)), (Data((2, 3)),)),
)
