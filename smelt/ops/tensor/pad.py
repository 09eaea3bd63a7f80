"""Pad: adds a border of one value, or of the tensor's own elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import override

from smelt.errors import ModelError
from smelt.ir import Array, DType, Node, Op, Quant, TensorType
from smelt.ir.axes import Axes, of_first, permuted
from smelt.ir.homogeneity import Homogeneity, in_place
from smelt.ops.case import Case, Data
from smelt.ops.constraints import arrays, operands, same_quant
from smelt.ops.core.channel_rules import MonotonicChannels

_NUMPY_MODES: dict[str, Any] = {
    "edge": "edge",
    "reflect": "reflect",
    "symmetric": "symmetric",
    "wrap": "wrap",
}
MODES = ("constant", *_NUMPY_MODES)
"""Content of the border: a value; the nearest element; the tensor mirrored without its outermost
element, or with it; the tensor repeated."""


class PadChannels(MonotonicChannels["Pad"]):
    """Channel rule of padding that adds no channels."""

    def serves(self, node: Node[Pad]) -> bool:
        """Return whether no channels are added, and the value is constant."""
        return node.op.padding[-1] == (0, 0) and len(node.inputs) == 1


@dataclass(frozen=True)
class Pad(Op):
    """A border of `(before, after)` elements for each axis, none of them negative.

    `value` is the stored element of the border. None means real zero, which is the zero point of a
    quantized tensor. If there is a second input of one element, it is used instead. The modes other
    than "constant" are those of numpy.
    """

    padding: tuple[tuple[int, int], ...]
    value: float | int | None = None
    mode: str = "constant"

    moves_data = True
    sixteen_bits = True
    channel_rule = PadChannels()

    @override
    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        (x,) = operands(self, inputs, 1)
        if len(self.padding) != len(x.shape):
            raise ModelError(
                f"Pad of {x} has {len(self.padding)} pairs of padding; it needs {len(x.shape)}, "
                "one for each axis"
            )
        if any(before < 0 or after < 0 for before, after in self.padding):
            raise ModelError(f"Pad of {x} has negative padding {self.padding}")
        value = inputs[1] if len(inputs) > 1 else None
        if value is not None and (value.size, value.dtype) != (1, x.dtype):
            raise ModelError(
                f"Pad of {x} has padding value {value}; it must be one element of type "
                f"{x.dtype.value}"
            )
        if self.value is not None and x.dtype.is_integer:
            low, high = x.dtype.limits
            if self.value != int(self.value) or not low <= self.value <= high:
                raise ModelError(
                    f"Pad of {x} has padding value {self.value}; it must be an integer from {low} "
                    f"to {high}"
                )
        self._check_mode(x)
        shape = tuple(n + sum(pair) for n, pair in zip(x.shape, self.padding, strict=True))
        return (TensorType(shape, x.dtype),)

    def _check_mode(self, x: TensorType) -> None:
        if self.mode not in MODES:
            raise ModelError(f"Pad does not support mode '{self.mode}'; use {', '.join(MODES)}")
        for size, pair in zip(x.shape, self.padding, strict=True):
            if self.mode != "constant" and size == 0 and any(pair):
                raise ModelError(
                    f"Pad of {x} in mode '{self.mode}' cannot pad an axis without elements"
                )

    def output_quant(self, inputs: Sequence[TensorType | None]) -> Quant | None:
        """Return the quantization of the input."""
        return operands(self, inputs, 1)[0].quant

    @override
    def check(self, node: Node) -> None:
        same_quant(node, len(node.inputs))

    @override
    def reference(self, node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        (x,) = arrays(node, inputs, 1)
        if not self.padding:  # NumPy does not accept a scalar.
            return (x.copy(),)
        if self.mode != "constant":
            return (np.pad(x, self.padding, mode=_NUMPY_MODES[self.mode]),)
        value = inputs[1] if len(inputs) > 1 else None
        fill = self.stored_value(node.output.type) if value is None else value.reshape(())
        return (np.pad(x, self.padding, constant_values=fill),)

    def stored_value(self, y: TensorType) -> float | int:
        """Return the stored element of the border, for an output of type `y`."""
        if self.value is not None:
            return self.value if y.dtype.is_float else int(self.value)
        return 0 if y.quant is None else y.zero_point

    def sources(self, axis: int, size: int) -> Array:
        """Return the input position of each output position along an axis of `size` elements."""
        return np.pad(np.arange(size), self.padding[axis], mode=_NUMPY_MODES[self.mode])

    def selects(self, node: Node) -> int:
        """Return 1 if the border is real zero: elements are then those of the input, or zeros."""
        return int(self.value is None)

    def homogeneity(self, node: Node) -> Sequence[Homogeneity]:
        """Return that channels keep their factors, if the border is zero or copied from them."""
        zero = self.value in (None, 0) and len(node.inputs) == 1
        kept = self.padding[-1:] == ((0, 0),)
        return (Homogeneity(in_place(node)),) if zero and kept else ()

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether rows lie along an axis that is not padded."""
        return axes[0] is not None and self.padding[axes[0]] == (0, 0)

    def axes_rule(self, node: Node) -> Axes:
        """Return that input and result have the same axes, and the value has none."""
        return of_first(node, lambda order: replace(self, padding=permuted(self.padding, order)))

    def is_identity(self, node: Node) -> bool:
        """Return whether all padding is 0."""
        return not any(map(any, self.padding))


_IMAGE = ((0, 0), (1, 2), (2, 1), (0, 0))

CASES = (
    Case("image", Pad(((0, 0), (1, 1), (1, 1), (0, 0))), (Data((1, 4, 3, 5)),)),
    Case("one_sided", Pad(((0, 0), (0, 1), (0, 1), (0, 0))), (Data((1, 4, 4, 2), 0.0, 6.0),)),
    Case("asymmetric", Pad(((0, 0), (2, 1), (0, 3), (0, 0))), (Data((1, 2, 3, 3)),)),
    Case("channels", Pad(((0, 0), (0, 0), (0, 0), (1, 2))), (Data((1, 3, 2, 4), -3.0, 1.0),)),
    Case("everywhere", Pad(((1, 0), (0, 1), (2, 2), (1, 1))), (Data((1, 2, 2, 3)),)),
    Case("matrix", Pad(((1, 2), (0, 1))), (Data((2, 3)),)),
    Case("vector", Pad(((3, 1),)), (Data((5,)),)),
    Case("nothing", Pad(((0, 0), (0, 0))), (Data((2, 3)),)),
    Case("lowest", Pad(((0, 0), (1, 1), (1, 1), (0, 0)), -128), (Data((1, 3, 3, 2)),)),
    Case("value", Pad(((1, 1),), 0.5), (Data((4,)),), (DType.FLOAT32,)),
    Case("read_value", Pad(((1, 2), (0, 1))), (Data((2, 3)), Data((1,))), same_scale=True),
    *(Case(mode, Pad(_IMAGE, mode=mode), (Data((1, 4, 3, 2)),)) for mode in _NUMPY_MODES),
    Case("reflect_far", Pad(((7, 5),), mode="reflect"), (Data((3,)),)),
    Case("wrap_far", Pad(((7, 5), (1, 0)), mode="wrap"), (Data((3, 2)),)),
    Case("edge_of_one", Pad(((2, 2), (0, 0)), mode="edge"), (Data((1, 3)),)),
)
