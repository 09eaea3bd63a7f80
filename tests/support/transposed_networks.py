"""ONNX networks with random weights that enlarge images by transposed convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from smelt.ir import Array
from tests.support.onnx_networks import graph, model, node


class _Maker:
    """Builder of consecutive nodes; weights preserve the variance of inputs, channels differ."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}

    def conv(self, x: str, y: str, depth: int, outputs: int, size: int = 3, stride: int = 1) -> str:
        """Add a convolution and ReLU; padding keeps the image's size, divided by the stride."""
        self._weights(y, (outputs, depth, size, size), outputs, depth * size**2)
        pads = [size // 2] * 4
        self._add("Conv", f"{x} {y}_w {y}_b", f"{y}_s", strides=[stride] * 2, pads=pads)
        return self._add("Relu", f"{y}_s", y)

    def grow(
        self,
        x: str,
        y: str,
        depth: int,
        outputs: int,
        size: int,
        *,
        pad: int = 0,
        extra: int = 0,
        groups: int = 1,
        activation: str = "Relu",
    ) -> str:
        """Add a transposed convolution of stride 2 and its activation."""
        shape = (depth, outputs // groups, size, size)
        self._weights(y, shape, outputs, depth // groups * size**2 / 4)
        self._add(
            "ConvTranspose",
            f"{x} {y}_w {y}_b",
            f"{y}_s",
            strides=[2, 2],
            pads=[pad] * 4,
            output_padding=[extra] * 2,
            group=groups,
        )
        return self._add(activation, f"{y}_s", y)

    def join(self, a: str, b: str, y: str) -> str:
        """Concatenate channels."""
        return self._add("Concat", f"{a} {b}", y, axis=1)

    def model(self, shape: tuple[int, ...], result: str) -> onnx.ModelProto:
        """Return the network."""
        return model(graph(self.nodes, {"x": shape}, result, self.constants), 17)

    def _add(self, kind: str, inputs: str, y: str, **attributes: Any) -> str:
        self.nodes.append(node(kind, inputs, y, **attributes))
        return y

    def _weights(self, y: str, shape: tuple[int, ...], outputs: int, taps: float) -> None:
        uneven = 2.0 ** self.rng.uniform(-2, 1, shape[0]).reshape(-1, 1, 1, 1)
        weights = self.rng.normal(size=shape) * uneven * np.sqrt(2 / taps)
        self.constants[f"{y}_w"] = weights.astype(np.float32)
        self.constants[f"{y}_b"] = self.rng.normal(0, 0.2, outputs).astype(np.float32)


def unet(seed: int = 0) -> onnx.ModelProto:
    """Reduce `x[1,3,16,16]` twice and enlarge it by 2x2 taps, with shortcuts at each size."""
    make = _Maker(seed)
    first = make.conv("x", "c1", 3, 8)
    second = make.conv(first, "c2", 8, 16, stride=2)
    third = make.conv(second, "c3", 16, 24, stride=2)
    up = make.join(make.grow(third, "t1", 24, 16, 2), second, "k1")
    up = make.conv(up, "c4", 32, 16)
    up = make.join(make.grow(up, "t2", 16, 8, 2), first, "k2")
    up = make.conv(up, "c5", 16, 8)
    return make.model((1, 3, 16, 16), make.conv(up, "c6", 8, 2, size=1))


def autoencoder(seed: int = 0) -> onnx.ModelProto:
    """Reduce `x[1,3,16,16]` to 4x4 and back, by overlapping taps: 4x4, 3x3 and per channel."""
    make = _Maker(seed)
    x = make.conv("x", "c1", 3, 12, stride=2)
    x = make.conv(x, "c2", 12, 16, stride=2)
    x = make.grow(x, "t1", 16, 12, 4, pad=1)
    x = make.grow(x, "t2", 12, 12, 4, pad=1, groups=12, activation="Identity")
    x = make.conv(x, "c3", 12, 8, stride=2)
    return make.model(
        (1, 3, 16, 16), make.grow(x, "t3", 8, 3, 3, pad=1, extra=1, activation="Sigmoid")
    )


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {"unet": unet, "autoencoder": autoencoder}
"""The networks by name."""
