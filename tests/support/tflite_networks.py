"""Small TFLite files made or changed by hand, and LiteRT to run them.

The object API of LiteRT's own schema writes the files, so that the writer shares no code with the
reader under test.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import flatbuffers
import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from smelt.ir import Array
from tests.support.shared import ROOT

DIGITS = ROOT / "examples" / "digits"

_TYPES: dict[np.dtype[Any], int] = {
    np.dtype(np.float32): schema.TensorType.FLOAT32,
    np.dtype(np.float16): schema.TensorType.FLOAT16,
    np.dtype(np.int8): schema.TensorType.INT8,
    np.dtype(np.uint8): schema.TensorType.UINT8,
    np.dtype(np.int16): schema.TensorType.INT16,
    np.dtype(np.int32): schema.TensorType.INT32,
    np.dtype(np.int64): schema.TensorType.INT64,
    np.dtype(np.bool_): schema.TensorType.BOOL,
}


@dataclass(frozen=True)
class T:
    """A tensor; if `data` is None, it is an input or computed."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: type = np.float32
    data: Array | None = None
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    axis: int = 0


@dataclass(frozen=True)
class O:  # noqa: E742 - a short name, because tables consist of it
    """An operator: `kind` names a built-in operator, or, in lower case, a custom one."""

    kind: str
    inputs: Sequence[str | None]
    outputs: Sequence[str]
    options: Any = None
    fields: dict[str, Any] = field(default_factory=dict[str, Any])


def const(name: str, data: Any, dtype: type = np.float32, **quantization: Any) -> T:
    """Return a constant tensor."""
    array = np.asarray(data, dtype)
    return T(name, array.shape, dtype, array, **quantization)


def network(
    tensors: Sequence[T], operators: Sequence[O], inputs: Sequence[str], outputs: Sequence[str]
) -> bytes:
    """Return the bytes of a TFLite file with one subgraph."""
    model = schema.ModelT(version=3, description="made by hand")
    model.buffers = [schema.BufferT()]
    model.operatorCodes = []
    graph = schema.SubGraphT(name="main")
    model.subgraphs = [graph]
    index = {tensor.name: i for i, tensor in enumerate(tensors)}
    graph.tensors = [_tensor(model, tensor) for tensor in tensors]
    graph.operators = [_operator(model, operator, index) for operator in operators]
    graph.inputs = [index[name] for name in inputs]
    graph.outputs = [index[name] for name in outputs]
    return pack(model)


def _tensor(model: Any, tensor: T) -> Any:
    stored = schema.TensorT(shape=list(tensor.shape), name=tensor.name)
    stored.type = _TYPES[np.dtype(tensor.dtype)]
    if tensor.data is not None:
        stored.buffer = len(model.buffers)
        model.buffers.append(schema.BufferT(data=list(tensor.data.tobytes())))
    if tensor.scale:
        zero_point = list(tensor.zero_point or (0,) * len(tensor.scale))
        stored.quantization = schema.QuantizationParametersT(
            scale=list(tensor.scale), zeroPoint=zero_point, quantizedDimension=tensor.axis
        )
    return stored


def _operator(model: Any, operator: O, index: dict[str, int]) -> Any:
    custom = operator.kind.islower()
    number = schema.BuiltinOperator.CUSTOM if custom else _builtin(operator.kind)
    code = schema.OperatorCodeT(
        deprecatedBuiltinCode=min(number, 127),
        builtinCode=number,
        customCode=operator.kind if custom else None,
        version=1,
    )
    model.operatorCodes.append(code)
    stored = schema.OperatorT(opcodeIndex=len(model.operatorCodes) - 1)
    stored.inputs = [-1 if name is None else index[name] for name in operator.inputs]
    stored.outputs = [index[name] for name in operator.outputs]
    if operator.options is not None:
        kind = operator.options.__name__.removesuffix("T")
        stored.builtinOptionsType = getattr(schema.BuiltinOptions, kind)
        stored.builtinOptions = operator.options(**operator.fields)
    return stored


def _builtin(kind: str) -> int:
    return int(getattr(schema.BuiltinOperator, kind))


def pack(model: Any) -> bytes:
    """Serialize a model of the object API."""
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def edited(data: bytes, change: Callable[[Any], object]) -> bytes:
    """Return a file after `change` has changed its model of the object API."""
    model: Any = schema.ModelT.InitFromPackedBuf(bytearray(data))
    model = copy.deepcopy(model)
    change(model)
    return pack(model)


def with_subgraphs(data: bytes, *others: bytes) -> bytes:
    """Return a file with the subgraphs of other files behind its own."""

    def change(model: Any) -> None:
        for other in others:
            added: Any = schema.ModelT.InitFromPackedBuf(bytearray(other))
            for graph in added.subgraphs:
                for tensor in graph.tensors:
                    tensor.buffer += len(model.buffers) if tensor.buffer else 0
                for operator in graph.operators:
                    operator.opcodeIndex += len(model.operatorCodes)
            model.buffers += added.buffers
            model.operatorCodes += added.operatorCodes
            model.subgraphs += added.subgraphs

    return edited(data, change)


def litert(data: bytes, *inputs: Array) -> list[Array]:
    """Return the outputs of LiteRT's reference kernels."""
    interpreter: Any = Interpreter(
        model_content=data, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    for detail, array in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


def dequantized_weights(data: bytes) -> bytes:
    """Return a dynamic-range network with its weights as float32, so that no kernel is hybrid."""

    def change(model: Any) -> None:
        for tensor in model.subgraphs[0].tensors:
            buffer, quant = model.buffers[tensor.buffer], tensor.quantization
            if tensor.type != schema.TensorType.INT8 or buffer.data is None:
                continue
            stored = np.asarray(buffer.data, np.uint8).view(np.int8).reshape(tensor.shape)
            shape = [1] * stored.ndim
            shape[quant.quantizedDimension if len(quant.scale) > 1 else 0] = -1
            scale = np.asarray(quant.scale, np.float32).reshape(shape)
            zero_point = np.asarray(quant.zeroPoint, np.int32).reshape(shape)
            real = (stored.astype(np.int32) - zero_point).astype(np.float32) * scale
            buffer.data = list(real.tobytes())
            tensor.type, tensor.quantization = schema.TensorType.FLOAT32, None

    return edited(data, change)
