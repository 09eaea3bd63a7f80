"""LengthOf: a dimension's size that is known at run time, as a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.ir import Array, DType, Node, Op, TensorType
from smelt.ops.case import Case


@dataclass(frozen=True)
class LengthOf(Op):
    """The size of dimension `length` (see `Graph.lengths`), `count` times: int32 `[count]`.

    `size` is what it is where the graph is evaluated: the largest one, unless the graph has been
    brought to another.
    """

    length: str
    size: int
    count: int = 1

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """See `Op.infer`."""
        del inputs
        return (TensorType((self.count,), DType.INT32),)

    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        """See `Op.reference`."""
        del node, inputs
        return (np.full(self.count, self.size, np.int32),)


CASES: tuple[Case, ...] = ()
