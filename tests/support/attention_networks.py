"""Float networks with attention, for quantization: transformer blocks over images and sequences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from smelt.codegen.passes import run_passes
from smelt.ir import Graph, Value
from smelt.ops.core.binary import Binary
from smelt.ops.core.convolution import Conv2D
from smelt.ops.core.fully_connected import FullyConnected
from smelt.ops.core.matmul import MatMul
from smelt.ops.core.normalization import Normalization
from smelt.ops.core.reduce import Reduce
from smelt.ops.core.softmax import Softmax
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.transpose import Transpose
from tests.support.quant_networks import Builder


class _Layers:
    """Builder of transformer parts over tokens of shape `[1, count, width]`."""

    def __init__(self, make: Builder) -> None:
        self.make = make

    def dense(self, x: Value, outputs: int, gain: float = 1.0) -> Value:
        depth = x.type.shape[-1]
        weights = self.make.constant(outputs, depth, scale=gain * float(np.sqrt(1 / depth)))
        bias = self.make.constant(outputs, scale=0.1)
        return self.make.add(FullyConnected(keep_dims=True), x, weights, bias)

    def heads(self, x: Value, heads: int) -> Value:
        """Return the tokens split into heads: `[1, heads, count, width / heads]`."""
        _, count, width = x.type.shape
        split = self.make.add(Reshape((1, count, heads, width // heads)), x)
        return self.make.add(Transpose((0, 2, 1, 3)), split)

    def attention(
        self, x: Value, heads: int = 4, gain: float = 2.0, mask: float | None = None
    ) -> Value:
        """Add self-attention of all tokens; `mask` is added to the scores of later tokens."""
        make, (_, count, width) = self.make, x.type.shape
        q, k, v = (self.heads(self.dense(x, width, g), heads) for g in (gain, gain, 1.0))
        turned = make.add(Transpose((0, 1, 3, 2)), k)
        scores = make.add(MatMul(), q, turned)
        root = Value.constant(
            f"{scores.name}:root", np.array([np.sqrt(width // heads)], np.float32)
        )
        scores = make.add(Binary("div"), scores, root)
        if mask is not None:
            later = np.triu(np.full((count, count), mask, np.float32), 1)
            scores = make.add(Binary("add"), scores, Value.constant(f"{scores.name}:mask", later))
        context = make.add(MatMul(), make.add(Softmax(), scores), v)
        joined = make.add(Transpose((0, 2, 1, 3)), context)
        return self.dense(make.add(Reshape((1, count, width)), joined), width)

    def norm(self, x: Value) -> Value:
        width = x.type.shape[-1]
        scale, bias = self.make.constant(width, scale=0.2), self.make.constant(width, scale=0.1)
        scale = Value.constant(scale.name, scale.array + np.float32(1))
        return self.make.add(Normalization((2,), 1e-5), x, scale, bias)

    def block(
        self, x: Value, activation: str = "gelu", *, normed: bool = False, mask: float | None = None
    ) -> Value:
        """Add attention and two dense layers, each with a shortcut."""
        make, width = self.make, x.type.shape[-1]
        inner = self.attention(self.norm(x) if normed else x, mask=mask)
        x = make.add(Binary("add"), x, inner)
        wide = self.dense(self.norm(x) if normed else x, 2 * width)
        return make.add(Binary("add"), x, self.dense(make.add(Unary(activation), wide), width))

    def classes(self, x: Value) -> Value:
        return self.dense(self.make.add(Reduce("mean", (1,)), x), 10)

    def patches(self, width: int) -> Value:
        """Return the tokens of an image, with position embeddings."""
        make = self.make
        image = make.input(1, 16, 16, 3)
        weights, bias = make.constant(width, 4, 4, 3, scale=0.15), make.constant(width, scale=0.1)
        features = make.add(Conv2D((4, 4)), image, weights, bias)
        tokens = make.add(Reshape((1, 16, width)), features)
        return make.add(Binary("add"), tokens, make.constant(1, 16, width, scale=0.3))


def _vision(layers: _Layers) -> Value:
    x = layers.patches(32)
    for _ in range(2):
        x = layers.block(x)
    return layers.classes(x)


def _normed(layers: _Layers) -> Value:
    x = layers.patches(32)
    for _ in range(2):
        x = layers.block(x, normed=True)
    return layers.classes(layers.norm(x))


def _sequence(layers: _Layers) -> Value:
    x = layers.dense(layers.make.input(1, 24, 12), 16)
    for _ in range(2):
        x = layers.block(x, "relu")
    return layers.classes(x)


def _causal(layers: _Layers) -> Value:
    x = layers.dense(layers.make.input(1, 12, 8), 16)
    return layers.classes(layers.block(x, "relu", mask=-1e9))


def _long(layers: _Layers) -> Value:
    """Add attention with weights that are spread over many tokens."""
    x = layers.dense(layers.make.input(1, 96, 8), 16)
    return layers.classes(layers.make.add(Binary("add"), x, layers.attention(x, gain=0.7)))


ATTENTION: dict[str, Callable[[_Layers], Value]] = {
    "vision": _vision,
    "normed": _normed,
    "sequence": _sequence,
    "causal": _causal,
    "long": _long,
}
"""Kinds of networks; `normed` has layer normalization."""


def attention(kind: str) -> tuple[Graph, Builder]:
    """Return a network of random weights, after the passes.

    Args:
        kind: a key of `ATTENTION`.
    """
    make = Builder(sum(map(ord, kind)))
    result = ATTENTION[kind](_Layers(make))
    return run_passes(make.graph(result)), make
