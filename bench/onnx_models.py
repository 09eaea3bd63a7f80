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
    source = str(proto) if isinstance(proto, Path) else proto.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
