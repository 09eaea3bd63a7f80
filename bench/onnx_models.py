"""Functions that build ONNX models and run them with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from smelt.ir import Array

OPSET = 21
DeclaredShape = Sequence[int | str | None] | None
_TYPES: dict[str, int] = {
    "f": onnx.TensorProto.FLOAT,
    "d": onnx.TensorProto.DOUBLE,
    "h": onnx.TensorProto.FLOAT16,
    "i": onnx.TensorProto.INT32,
    "l": onnx.TensorProto.INT64,
    "b": onnx.TensorProto.BOOL,
    "u8": onnx.TensorProto.UINT8,
    "i8": onnx.TensorProto.INT8,
    "s": onnx.TensorProto.STRING,
}


def node(
    kind: str, inputs: str, outputs: str, domain: str = "", **attributes: Any
) -> onnx.NodeProto:
    """Return a node; names are separated by spaces, and `_` is an absent input."""
    names = ["" if name == "_" else name for name in inputs.split()]
    return helper.make_node(kind, names, outputs.split(), domain=domain, **attributes)


def tensor_info(name: str, shape: DeclaredShape, kind: str = "f") -> onnx.ValueInfoProto:
    """Return the description of an input or output; `kind` is a key of `_TYPES`."""
    return helper.make_tensor_value_info(name, _TYPES[kind], shape)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, DeclaredShape] | Sequence[onnx.ValueInfoProto],
    outputs: str | Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, Array] | None = None,
    name: str = "net",
) -> onnx.GraphProto:
    """Return a graph; inputs given by shape are float, outputs given by name float of any shape."""
    if isinstance(inputs, Mapping):
        inputs = [tensor_info(n, shape) for n, shape in inputs.items()]
    if isinstance(outputs, str):
        outputs = [tensor_info(n, None) for n in outputs.split()]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    return helper.make_graph(nodes, name, inputs, outputs, tensors)


def model(graph_: onnx.GraphProto, opset: int = OPSET, **domains: int) -> onnx.ModelProto:
    """Return a model of a graph; `domains` gives further operator sets with their versions."""
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(n.replace("_", "."), v) for n, v in domains.items()]
    return helper.make_model(graph_, opset_imports=opsets, ir_version=10)


def session(proto: onnx.ModelProto | Path, *, optimize: bool = False) -> Any:
    """Return a session of ONNX Runtime with one thread, by default without optimizations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    if isinstance(proto, Path):
        source = str(proto)
    else:
        source = _with_unsigned_weights(proto).SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


_QUANTIZED_PRODUCTS: dict[str, tuple[int | None, int, int]] = {
    "QLinearConv": (2, 3, 5),
    "QLinearMatMul": (2, 3, 5),
    "QGemm": (2, 3, 5),
    "ConvInteger": (2, 1, 3),
    "MatMulInteger": (2, 1, 3),
    "QAttention": (6, 1, 7),
    "DynamicQuantizeMatMul": (None, 1, 3),
}
"""Positions of three operands: the activations' zero point, the weights and their zero point.

DynamicQuantizeMatMul quantizes its activations itself, to uint8.
"""


def _with_unsigned_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return an equal model in which uint8 activations meet uint8 weights, not int8 weights.

    ONNX Runtime adds products of uint8 and int8 in pairs. On x86 processors without VNNI the sum of
    a pair saturates at 16 bits. Sums of products of two uint8 values are exact on all processors.
    """
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    stored = {tensor.name: tensor for tensor in changed.graph.initializer}

    def is_int8(name: str) -> bool:
        return name in stored and stored[name].data_type == onnx.TensorProto.INT8

    for step in changed.graph.node:
        if step.op_type not in _QUANTIZED_PRODUCTS:
            continue
        activations, *weights = _QUANTIZED_PRODUCTS[step.op_type]
        if len(step.input) <= weights[1] or not all(is_int8(step.input[i]) for i in weights):
            continue
        if activations is not None and is_int8(step.input[activations]):
            continue
        for i in weights:
            name = f"{step.input[i]}_unsigned"
            if name not in stored:
                array = numpy_helper.to_array(stored[step.input[i]]).astype(np.int16) + 128
                stored[name] = numpy_helper.from_array(array.astype(np.uint8), name)
                changed.graph.initializer.append(stored[name])
            step.input[i] = name
    return changed
