"""Build an int8 TFLite network; LiteRT's float kernels give shapes and ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from smelt.ir import Array
from tests.differential.recipe import Draw, UnfitError
from tests.support.tflite_networks import O, T, const, litert, network

LARGEST = 3000
"""Most elements of a computed tensor."""
QuantPair = tuple[float, int]
"""Scale and zero point."""
_LOW, _HIGH = -128, 127


@dataclass
class TfliteBuilder:
    """Tensors and operators, and the real values of the quantized tensors.

    Attributes:
        draw: random choices for the current step.
        tensors: tensors of the file, by name.
        reals: by name of a computed tensor, its float values for each sample.
        constants: by name of a constant, its value in a float network.
    """

    draw: Draw
    inputs: list[str] = field(default_factory=list[str])
    operators: list[O] = field(default_factory=list[O])
    tensors: dict[str, T] = field(default_factory=dict[str, T])
    reals: dict[str, list[Array]] = field(default_factory=dict[str, list[Array]])
    constants: dict[str, T] = field(default_factory=dict[str, T])
    names: int = 0

    def name(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def quant(self, name: str) -> QuantPair:
        tensor = self.tensors[name]
        return tensor.scale[0], tensor.zero_point[0]

    def input(self, shape: tuple[int, ...], quant: QuantPair, stored: Sequence[Array]) -> str:
        """Add a network input with these int8 samples."""
        name = self.name("x")
        self.inputs.append(name)
        self.tensors[name] = _int8(name, shape, quant)
        self.reals[name] = [_real(array, quant) for array in stored]
        return name

    def integers(self, data: Any) -> str:
        """Add an int32 constant: a shape, axes or indices."""
        name = self.name("n")
        self.tensors[name] = self.constants[name] = const(name, data, np.int32)
        return name

    def data(self, real: Array, quant: QuantPair | None = None) -> str:
        """Add an int8 constant with one scale."""
        quant = quant or covering(float(real.min()), float(real.max()))
        name, stored = self.name("k"), _stored(real, quant)
        scale, zero_point = quant
        self.tensors[name] = const(name, stored, np.int8, scale=(scale,), zero_point=(zero_point,))
        self.constants[name] = const(name, _real(stored, quant))
        return name

    def weights(self, x: str, real: Array, axis: int | None, bias_of: int | None) -> list[str]:
        """Add symmetric weights with a scale per channel of `axis`, and an int32 bias for each."""
        others = None if axis is None else tuple(i for i in range(real.ndim) if i != axis)
        peaks = np.maximum(np.atleast_1d(np.abs(real).max(axis=others)), 1e-4)
        scales = (peaks / 127).astype(np.float32)
        shape = [1] * real.ndim
        shape[axis or 0] = -1
        spread = scales.reshape(shape)
        stored = np.clip(np.rint(real / spread), -127, 127).astype(np.int8)
        name = self.name("w")
        self.tensors[name] = const(
            name, stored, np.int8, scale=tuple(map(float, scales)), axis=axis or 0
        )
        self.constants[name] = const(name, stored.astype(np.float32) * spread)
        if bias_of is None or self.draw.chance(0.1):
            return [name]
        steps = (np.float32(self.quant(x)[0]) * scales).astype(np.float32)
        real_bias = self.draw.real((bias_of,))
        limit = 2**24
        stored_bias = np.clip(np.rint(real_bias / steps), -limit, limit).astype(np.int32)
        bias = self.name("b")
        self.tensors[bias] = const(bias, stored_bias, np.int32, scale=tuple(map(float, steps)))
        self.constants[bias] = const(bias, stored_bias.astype(np.float32) * steps)
        return [name, bias]

    def add(
        self,
        kind: str,
        *inputs: str,
        options: Any = None,
        quant: QuantPair | Literal["free", "same"] = "free",
        count: int = 1,
        **fields: Any,
    ) -> str:
        """Append an operator; return the name of its first output.

        `quant` says how to quantize the output: as the first quantized input, or by a drawn range.

        Raises:
            UnfitError: LiteRT refuses the operator, or its results are too large.
        """
        outputs = [self.name("v") for _ in range(count)]
        operator = O(kind, inputs, outputs, options, fields)
        results = self._shadow(operator)
        if results[0][0].size > LARGEST or results[0][0].size == 0 or results[0][0].ndim > 5:
            raise UnfitError(f"{kind} makes {results[0][0].shape}")
        made = [
            self._output(name, arrays, inputs, quant)
            for name, arrays in zip(outputs, results, strict=True)
        ]
        self.tensors |= zip(outputs, made, strict=True)
        self.reals |= zip(outputs, results, strict=True)
        self.operators.append(operator)
        return outputs[0]

    def _output(
        self,
        name: str,
        arrays: Sequence[Array],
        inputs: Sequence[str],
        quant: QuantPair | Literal["free", "same"],
    ) -> T:
        shape = arrays[0].shape
        if arrays[0].dtype != np.float32:
            return T(name, shape, arrays[0].dtype.type)
        if not all(np.isfinite(array).all() for array in arrays):
            raise UnfitError("not finite")
        if quant == "same":
            quant = self.quant(next(n for n in inputs if self.tensors[n].scale))
        elif quant == "free":
            low, high = (float(f([f(a) for a in arrays])) for f in (np.min, np.max))
            quant = self.range(low, high)
        return _int8(name, shape, quant)

    def range(self, low: float, high: float) -> QuantPair:
        """Draw a quantization that covers all of a range, a part, or far more."""
        high = max(high, low + 0.1)
        how = self.draw.pick(("all", "all", "all", "part", "more", "above", "below", "symmetric"))
        if how == "part":
            low, high = 0.3 * low, 0.3 * high
        elif how == "more":
            low, high = 5 * low, 5 * high
        elif how == "above":
            low = 0.0
            high = max(high, 0.1)
        elif how == "below":
            high = 0.0
            low = min(low, -0.1)
        elif how == "symmetric":
            return float(np.float32(max(-low, high) / 127)), 0
        return covering(low, high)

    def _shadow(self, operator: O) -> list[list[Array]]:
        """Compute the operator in float; return results by output and sample."""
        fed = [n for n in dict.fromkeys(operator.inputs) if n in self.reals]
        tensors = [T(n, self.reals[n][0].shape, self.reals[n][0].dtype.type) for n in fed]
        tensors += [
            self.constants[n] for n in dict.fromkeys(operator.inputs) if n in self.constants
        ]
        index = np.int32 if operator.kind.startswith("ARG_") else np.float32
        tensors += [T(n, (), index) for n in operator.outputs]
        data = network(tensors, [operator], fed, operator.outputs)
        try:
            runs = [
                litert(data, *(self.reals[n][i] for n in fed))
                for i in range(len(next(iter(self.reals.values()))))
            ]
        except (RuntimeError, ValueError) as error:
            raise UnfitError(f"LiteRT refuses {operator.kind}: {error}") from error
        return [list(arrays) for arrays in zip(*runs, strict=True)]

    def of_rank(self, *ranks: int) -> list[str]:
        """Return the computed int8 tensors of these ranks."""
        return [
            n
            for n in self.reals
            if self.reals[n][0].ndim in ranks and self.reals[n][0].dtype == np.float32
        ]

    def images(self) -> list[str]:
        return self.of_rank(4)

    def computed(self) -> list[str]:
        return self.of_rank(1, 2, 3, 4, 5)

    def pick(self, names: Sequence[str]) -> str:
        if not names:
            raise UnfitError("no tensor of that rank")
        return self.draw.recent(names)

    def like(self, x: str, other: str) -> str:
        """Return the tensor, requantized as another one."""
        if self.quant(x) == self.quant(other):
            return x
        name = self.name("v")
        self.tensors[name] = _int8(name, self.shape(x), self.quant(other))
        self.reals[name] = self.reals[x]
        self.operators.append(O("QUANTIZE", [x], [name]))
        return name

    def outputs(self) -> list[str]:
        """Return the tensors that no operator reads, and sometimes one that an operator reads."""
        used = {name for operator in self.operators for name in operator.inputs}
        made = [name for operator in self.operators for name in operator.outputs]
        ends = [name for name in made if name not in used]
        if made and self.draw.chance(0.2):
            ends.append(self.draw.pick(made))
        return list(dict.fromkeys(ends))

    def file(self, outputs: Sequence[str]) -> bytes:
        """Return the bytes of the TFLite file."""
        names = [n for operator in self.operators for n in (*operator.inputs, *operator.outputs)]
        used = dict.fromkeys([*self.inputs, *(n for n in names if n is not None)])
        return network([self.tensors[n] for n in used], self.operators, self.inputs, outputs)


def covering(low: float, high: float) -> QuantPair:
    """Return the quantization of a range, extended to include zero."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32(max(high - low, 1e-3) / 255))
    return scale, int(np.clip(round(_LOW - low / scale), _LOW, _HIGH))


def _int8(name: str, shape: tuple[int, ...], quant: QuantPair) -> T:
    return T(name, shape, np.int8, scale=(quant[0],), zero_point=(quant[1],))


def _real(stored: Array, quant: QuantPair) -> Array:
    return ((stored.astype(np.int32) - quant[1]) * np.float32(quant[0])).astype(np.float32)


def _stored(real: Array, quant: QuantPair) -> Array:
    return np.clip(np.rint(real / quant[0]) + quant[1], _LOW, _HIGH).astype(np.int8)
