"""Random ONNX networks with QuantizeLinear and DequantizeLinear around their operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from smelt.ir import Array
from tests.differential.onnx_builder import OnnxBuilder, proto_of
from tests.differential.onnx_elements import ELEMENTS
from tests.differential.onnx_float import add_inputs, grow
from tests.differential.onnx_layers import LAYERS, normalization, recurrent
from tests.differential.recipe import MOST_STEPS, Draw, Network, Recipe
from tests.support.onnx_networks import node

_WEIGHTED = {"Conv": 0, "ConvTranspose": 1, "Gemm": None, "MatMul": 1}
"""By operator, the axis of outputs in the weights, which are the second operand."""
_OPERANDS = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Where", "PRelu", "Einsum")
"""Operators whose constant operands are quantized like activations."""
_FUSED = ("Relu", "Clip")
_MOVING = (
    *("Transpose", "Reshape", "Flatten", "Slice", "Split", "Gather", "Unsqueeze", "Tile"),
    *("Expand", "MaxPool", "GlobalMaxPool", "SpaceToDepth", "DepthToSpace", "Concat", "Pad"),
)
"""Operators whose results usually have the scale of their operand."""
_EXACT = frozenset(
    {*_MOVING, *_FUSED, "Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Mul", "Max"}
    | {"Min", "Where", "Abs", "Neg", "ReduceSum", "ReduceMax", "ReduceMin", "CumSum", "Einsum"}
)
"""Operators without any rounding error on multiples of powers of two that are not too large."""
STEPS = (*(s for s in (*LAYERS, *LAYERS, *ELEMENTS) if s not in (normalization, recurrent)),)


@dataclass(frozen=True)
class Piece:
    """One operator, or two that are fused, between DequantizeLinear and QuantizeLinear."""

    nodes: tuple[onnx.NodeProto, ...]
    reads: tuple[str, ...]
    makes: tuple[str, ...]


@dataclass(frozen=True)
class Quantized:
    """What a comparison of a quantized network with onnxruntime needs.

    Attributes:
        pieces: parts of the network, from stored integers to stored integers.
        constants: constants that the pieces read.
        shapes: arrays of the shape and type of each tensor that is fed or stored.
        exact: whether onnxruntime's float32 arithmetic has no rounding errors.
        whole: the model with every stored tensor as an output.
    """

    pieces: tuple[Piece, ...]
    constants: dict[str, Array]
    shapes: dict[str, list[Array]]
    exact: bool
    whole: bytes


def quantized_network(recipe: Recipe) -> Network:
    """Generate the network of a recipe."""
    b = OnnxBuilder(recipe.draw())
    add_inputs(b)
    steps = [n for n in range(b.draw.integer(2, MOST_STEPS)) if n not in recipe.without]
    grow(b, recipe, steps, STEPS)
    writer = _Writer(b, recipe.draw(MOST_STEPS + 1))
    return writer.network(recipe, steps)


@dataclass
class _Writer:
    """A writer of a float network's nodes with QuantizeLinear and DequantizeLinear around them."""

    b: OnnxBuilder
    draw: Draw
    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    constants: dict[str, Array] = field(default_factory=dict[str, Array])
    scales: dict[str, float] = field(default_factory=dict[str, float])
    pieces: list[Piece] = field(default_factory=list[Piece])
    shapes: dict[str, list[Array]] = field(default_factory=dict[str, list[Array]])
    exact: bool = False

    def network(self, recipe: Recipe, steps: Sequence[int]) -> Network:
        self.dtype = self.draw.pick((np.int8, np.uint8))
        self.powers = self.draw.chance(0.5)
        self.per_channel = self.draw.chance(0.5)
        self.exact = self.powers and all(n.op_type in _EXACT for n in self.b.nodes)
        stored_inputs = self.draw.chance(0.5)
        fed = [self._feed(name, stored_inputs) for name in self.b.inputs]
        for part in self._parts():
            self._piece(part)
        ends = self._ends()
        samples = tuple(tuple(self.shapes[name][i] for name in fed) for i in range(3))
        kinds = tuple(n.op_type for n in self.b.nodes)
        stored = [name for piece in self.pieces for name in piece.makes]
        whole = proto_of(self.nodes, self.constants, fed, stored, self.shapes)
        details = Quantized(
            tuple(self.pieces), self.constants, self.shapes, self.exact, whole.SerializeToString()
        )
        if self.draw.chance(0.5):
            ends = [name.removesuffix("_q") + "_d" for name in ends]
        data = proto_of(self.nodes, self.constants, fed, ends, self.shapes).SerializeToString()
        return Network(recipe, data, samples, kinds, tuple(steps), details)

    def _feed(self, name: str, stored: bool) -> str:
        """Add a network input, of integers or of floats that are quantized first."""
        self._quantization(name, None)
        arrays = self.b.reals[name]
        scale, zero = self.constants[f"{name}_s"], self.constants[f"{name}_z"]
        integers = [_stored(array, scale, zero) for array in arrays]
        self.shapes[f"{name}_q"] = integers
        self._dequantize(name)
        if stored:
            return f"{name}_q"
        self.shapes[name] = arrays
        self.nodes.insert(0, node("QuantizeLinear", f"{name} {name}_s {name}_z", f"{name}_q"))
        return name

    def _parts(self) -> list[list[onnx.NodeProto]]:
        """Group the nodes: one each, some with the activation that is their only reader."""
        parts = list[list[onnx.NodeProto]]()
        for n in self.b.nodes:
            before = parts[-1][-1] if parts else None
            readers = [m for m in self.b.nodes if before and before.output[0] in m.input]
            fits = n.op_type in _FUSED and readers == [n] and len(parts[-1]) == 1
            if fits and self.draw.chance(0.7):
                parts[-1].append(n)
            else:
                parts.append([n])
        return parts

    def _piece(self, part: Sequence[onnx.NodeProto]) -> None:
        first, last = part[0], part[-1]
        reads = [name for n in part for name in n.input if f"{name}_q" in self.shapes]
        made = list[onnx.NodeProto]()
        for n in part:
            copy = onnx.NodeProto()
            copy.CopyFrom(n)
            for i, name in enumerate(n.input):
                copy.input[i] = self._operand(n, i, name, made)
            made.append(copy)
        makes = list[str]()
        for name in last.output:
            like = reads[0] if reads and first.op_type in _MOVING else None
            self._quantization(name, like)
            made.append(node("QuantizeLinear", f"{name} {name}_s {name}_z", f"{name}_q"))
            self.shapes[f"{name}_q"] = [
                a.astype(self.dtype) for a in map(np.zeros_like, self.b.reals[name])
            ]
            makes.append(f"{name}_q")
        self.nodes += made
        opened = [
            n
            for n in self.nodes
            if n.op_type == "DequantizeLinear" and n.input[0] in {f"{name}_q" for name in reads}
        ]
        self.pieces.append(
            Piece((*opened, *made), tuple(dict.fromkeys(f"{r}_q" for r in reads)), tuple(makes))
        )
        for name in last.output:
            self._dequantize(name)

    def _operand(self, n: onnx.NodeProto, index: int, name: str, made: list[onnx.NodeProto]) -> str:
        """Return the name that a node reads in place of a float tensor or constant."""
        if f"{name}_q" in self.shapes:
            return f"{name}_d"
        if name not in self.b.constants:
            return name  # made by the node before it, or absent
        array = self.b.constants[name]
        if array.dtype == np.float32 and n.op_type in _WEIGHTED and index == 1:
            axis = _WEIGHTED[n.op_type]
            turned = any(a.name == "transB" and a.i for a in n.attribute)
            axis = (0 if turned else 1) if axis is None else axis
            group = next((a.i for a in n.attribute if a.name == "group"), 1)
            plain = n.op_type != "ConvTranspose" or group == 1
            return self._weights(name, array, axis if self.per_channel and plain else None, made)
        if n.op_type in ("Conv", "ConvTranspose", "Gemm") and index == 2:
            return self._bias(name, array, f"{n.input[0]}_s", f"{n.input[1]}_s", made)
        if array.dtype == np.float32 and n.op_type in _OPERANDS:
            scale, zero = self._range(float(array.min()), float(array.max()))
            return self._constant(name, _stored(array, scale, zero), scale, zero, None, made)
        self.constants[name] = array
        return name

    def _weights(
        self, name: str, array: Array, axis: int | None, made: list[onnx.NodeProto]
    ) -> str:
        others = None if axis is None else tuple(i for i in range(array.ndim) if i != axis)
        peaks = np.maximum(np.abs(array).max(axis=others), 1e-4)
        scale = self._power(np.asarray(peaks / 127, np.float32))
        shape = [1] * array.ndim
        if axis is not None:
            shape[axis] = -1
        stored = np.clip(np.rint(array / scale.reshape(shape)), -127, 127).astype(np.int8)
        zero = np.zeros(scale.shape, np.int8)
        return self._constant(name, stored, scale, zero, axis, made)

    def _bias(self, name: str, array: Array, x: str, w: str, made: list[onnx.NodeProto]) -> str:
        scale = np.asarray(self.constants[x] * self.constants[w], np.float32)
        limit = 2**20 if self.exact else 2**28
        stored = np.clip(np.rint(array / scale), -limit, limit).astype(np.int32)
        return self._constant(name, stored, scale, np.zeros(scale.shape, np.int32),
                              0 if scale.ndim else None, made)  # fmt: skip

    def _constant(
        self, name: str, stored: Array, scale: Array, zero: Array, axis: int | None,
        made: list[onnx.NodeProto],
    ) -> str:  # fmt: skip
        self.constants |= {f"{name}_q": stored, f"{name}_s": scale, f"{name}_z": zero}
        attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
        made.append(
            node("DequantizeLinear", f"{name}_q {name}_s {name}_z", f"{name}_d", **attributes)
        )
        return f"{name}_d"

    def _quantization(self, name: str, like: str | None) -> None:
        """Return a tensor's scale and zero point: from its range, or those of another tensor."""
        if like is not None and self.draw.chance(0.8):
            pair = self.constants[f"{like}_s"], self.constants[f"{like}_z"]
        else:
            arrays = self.b.reals[name]
            low, high = (float(f([f(a) for a in arrays])) for f in (np.min, np.max))
            pair = self._range(low, high)
        self.constants[f"{name}_s"], self.constants[f"{name}_z"] = pair

    def _range(self, low: float, high: float) -> tuple[Array, Array]:
        how = self.draw.pick(("all", "all", "all", "part", "more", "symmetric"))
        factor = {"part": 0.3, "more": 5.0}.get(how, 1.0)
        low, high = min(low * factor, 0.0), max(high * factor, 0.0)
        if how == "symmetric":
            low, high = min(low, -high), max(high, -low)
        scale = self._power(np.asarray(max(high - low, 1e-2) / 255, np.float32))
        limits = np.iinfo(self.dtype)
        zero = np.clip(round(limits.min - low / float(scale)), limits.min, limits.max)
        return scale, np.asarray(zero, self.dtype)

    def _power(self, scale: Array) -> Array:
        """Return the scale, or the next power of two above it."""
        if not self.powers:
            return scale
        return np.asarray(2.0 ** np.ceil(np.log2(scale)), np.float32)

    def _dequantize(self, name: str) -> None:
        self.nodes.append(node("DequantizeLinear", f"{name}_q {name}_s {name}_z", f"{name}_d"))

    def _ends(self) -> list[str]:
        """Return the stored tensors that no piece reads, and sometimes one that a piece reads."""
        used = {name for piece in self.pieces for name in piece.reads}
        made = [name for piece in self.pieces for name in piece.makes]
        ends = [name for name in made if name not in used]
        if self.draw.chance(0.2):
            ends.append(self.draw.pick(made))
        return list(dict.fromkeys(ends))


def _stored(array: Array, scale: Array, zero: Array) -> Array:
    limits = np.iinfo(zero.dtype)
    return np.clip(np.rint(array / scale) + zero, limits.min, limits.max).astype(zero.dtype)
