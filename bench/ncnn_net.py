"""Conversion of a small ONNX network (convolutions, dense layers, sums, a mean) to ncnn's files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

from smelt.ir import Array

_MAGIC = "7767517"
_RAW = b"\0\0\0\0"
"""The tag before weights that are stored as float32."""


class NcnnWriter:
    """Writes a network in ncnn's format, with activations fused as ncnn's optimizer does."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._graph = model.graph
        self._weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self._names: dict[str, str] = {}
        self._layers: list[tuple[str, list[str], str, dict[int, int]]] = []
        self._data: list[bytes] = []
        self.input = next(v.name for v in self._graph.input if v.name not in self._weights)
        for node in self._graph.node:
            self._convert(node)
        self.output = self._name(self._graph.output[0].name)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write `net.param` and `net.bin`, and return their paths."""
        lines = [f"Input in 0 1 {self.input}"]
        uses = Counter(name for _, inputs, _, _ in self._layers for name in inputs)
        taken: Counter[str] = Counter()
        blobs = {self.input}

        def split(name: str) -> None:
            blobs.add(name)
            if uses[name] > 1:
                copies = [f"{name}_{i}" for i in range(uses[name])]
                blobs.update(copies)
                lines.append(f"Split split_{name} 1 {len(copies)} {name} {' '.join(copies)}")

        def use(name: str) -> str:
            number = taken[name]
            taken[name] += 1
            return f"{name}_{number}" if uses[name] > 1 else name

        split(self.input)
        for kind, inputs, output, values in self._layers:
            names = " ".join(map(use, inputs))
            fields = " ".join(f"{key}={value}" for key, value in values.items())
            lines.append(f"{kind} layer_{output} {len(inputs)} 1 {names} {output} {fields}")
            split(output)
        text = "\n".join([_MAGIC, f"{len(lines)} {len(blobs)}", *lines])
        param, binary = folder / "net.param", folder / "net.bin"
        param.write_text(text + "\n")
        binary.write_bytes(b"".join(self._data))
        return param, binary

    def _name(self, name: str) -> str:
        return self._names.get(name, name)

    def _convert(self, node: onnx.NodeProto) -> None:
        fields: dict[str, Any] = {
            a.name: onnx.helper.get_attribute_value(a) for a in node.attribute
        }
        inputs = [self._name(name) for name in node.input if name not in self._weights]
        weights = [self._weights[name] for name in node.input if name in self._weights]
        output = node.output[0]
        match node.op_type:
            case "Conv":
                self._convolution(inputs, output, fields, weights)
            case "Gemm":
                array = weights[0] if fields.get("transB", 0) else weights[0].T
                self._add("InnerProduct", inputs, output, {0: len(array), 1: 1, 2: array.size})
                self._store(array, weights[1])
            case "Relu":
                kind, operands, made, values = self._layers[-1]
                if made == inputs[0] and kind != "BinaryOp":
                    self._layers[-1] = kind, operands, made, {**values, 9: 1}
                    self._names[output] = made
                else:
                    self._add("ReLU", inputs, output, {})
            case "Add":
                self._add("BinaryOp", inputs, output, {0: 0})
            case "GlobalAveragePool":
                self._add("Pooling", inputs, output, {0: 1, 4: 1})
            case "Softmax":
                self._add("Softmax", inputs, output, {0: 0, 1: 1})
            case "Flatten":
                self._names[output] = inputs[0]
            case _:
                raise ValueError(f"{node.op_type} cannot be converted for ncnn")

    def _convolution(
        self, inputs: list[str], output: str, fields: dict[str, Any], weights: list[Array]
    ) -> None:
        kernel, group = fields["kernel_shape"], fields.get("group", 1)
        stride, pads = fields.get("strides", [1, 1]), fields.get("pads", [0, 0, 0, 0])
        values = {
            0: len(weights[0]),
            1: kernel[1],
            11: kernel[0],
            3: stride[1],
            13: stride[0],
            4: pads[1],
            14: pads[0],
            15: pads[3],
            16: pads[2],
            5: 1,
            6: weights[0].size,
        }
        kind = "Convolution" if group == 1 else "ConvolutionDepthWise"
        self._add(kind, inputs, output, values if group == 1 else {**values, 7: group})
        self._store(weights[0], weights[1])

    def _add(self, kind: str, inputs: list[str], output: str, values: dict[int, int]) -> None:
        self._layers.append((kind, inputs, output, values))

    def _store(self, weights: Array, bias: Array) -> None:
        self._data += [_RAW, weights.astype("<f4").tobytes(), bias.astype("<f4").tobytes()]
