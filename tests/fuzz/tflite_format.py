"""Damaged TFLite files: tables, vectors, fields and options, then the bytes of the flatbuffer."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import numpy as np

from tests.frontend.tflite import test_import as test_tflite_import
from tests.frontend.tflite import test_indexing as test_tflite_indexing
from tests.frontend.tflite import test_lstm
from tests.fuzz import models
from tests.fuzz.case import Format, Step
from tests.fuzz.raw import hostile_name, scratched
from tests.support.shared import SHARED
from tests.support.tflite_networks import DIGITS, pack

INTEGERS = (0, 1, -1, 2, 3, 4, 7, 8, 16, 127, 128, 255, 256, 65535, 2**16, 2**31 - 1, -(2**31))
LARGE = (2**31, 2**32 - 1, 2**63 - 1, -(2**63))
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-45,
    1e-30,
    1e30,
    3.4e38,
    *map(float, ("nan", "inf", "-inf")),
)

_ENUMS = {
    "builtinCode": schema.BuiltinOperator,
    "deprecatedBuiltinCode": schema.BuiltinOperator,
    "type": schema.TensorType,
    "outputType": schema.TensorType,
    "fusedActivationFunction": schema.ActivationFunctionType,
    "padding": schema.Padding,
    "detailsType": schema.QuantizationDetails,
    "weightsFormat": schema.FullyConnectedOptionsWeightsFormat,
}
"""By field, the enumeration of its numbers: they are exchanged for others of it."""


@cache
def seeds() -> Mapping[str, bytes]:
    """Return networks of one operator each, recurrent ones, and the example's."""
    found = dict(test_tflite_import.NETWORKS)
    for name, build in test_tflite_indexing.NETWORKS.items():
        found |= {f"{name} float": build(np.float32), f"{name} int8": build(np.int8)}
    for name in ("plain", "clipped"):
        found[f"lstm {name}"] = test_lstm.LAYERS[name].file(np.float32)
        found[f"lstm {name} int8"] = test_lstm.LAYERS[name].file(np.int8)
    return found | {path.name: path.read_bytes() for path in sorted(DIGITS.glob("*.tflite"))}


@cache
def more() -> Mapping[str, bytes]:
    """Return small shared networks."""
    paths = sorted((SHARED / "models").glob("*/*.tflite"))
    return {f"{p.parent.name}/{p.name}": p.read_bytes() for p in paths if p.stat().st_size < 80_000}


def damage(data: bytes, steps: Sequence[Step]) -> bytes:
    """Apply the steps: those that change tables come first, whatever their order."""
    tables = [step for step in steps if Random(step).random() < 0.85]
    changed = _with_tables_damaged(data, tables)
    for step in steps:
        if step not in tables:
            changed = scratched(changed, Random(step))
    return changed


def _with_tables_damaged(data: bytes, steps: Sequence[Step]) -> bytes:
    if not steps:
        return data
    model = copy.deepcopy(_unpacked(data))
    for rng in map(Random, steps):
        # After earlier steps a field may have any type, so that a later step may not apply.
        with suppress(TypeError, ValueError, AttributeError, LookupError):
            rng.choice(DAMAGES)(model, rng)
    try:
        return pack(model)
    except Exception:  # noqa: BLE001 - a number does not fit into its field: apply fewer steps
        return _with_tables_damaged(data, steps[:-1])


@cache
def _unpacked(data: bytes) -> Any:
    return schema.ModelT.InitFromPackedBuf(bytearray(data))


# Any field of any table


def _tables(root: Any) -> Iterator[Any]:
    """Yield all tables of a model."""
    waiting = [root]
    while waiting:
        table = waiting.pop()
        yield table
        for value in vars(table).values():
            inner = value if isinstance(value, list) else [value]
            waiting += [one for one in inner if hasattr(one, "Pack")]


def _any_field(model: Any, rng: Random) -> None:
    """Change or remove a field of a table, or copy it from another table."""
    everything = list(_tables(model))
    table = rng.choice(everything)
    if not vars(table):
        return
    name = rng.choice(sorted(vars(table)))
    value = getattr(table, name)
    alike = [
        getattr(other, name)
        for other in everything
        if type(other) is type(table) and getattr(other, name) is not None
    ]
    if rng.random() < 0.2:
        value = rng.choice([None, *alike, copy.deepcopy(rng.choice(alike)) if alike else None])
    elif name in _ENUMS and rng.random() < 0.7:
        value = rng.choice(_numbers(_ENUMS[name]))
    else:
        value = _changed(value, rng)
    setattr(table, name, value)


def _changed(value: Any, rng: Random) -> Any:
    """Return another value of a similar type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((*INTEGERS, value + 1, value - 1, 2 * value))
    if isinstance(value, float):
        return rng.choice((*FLOATS, 2 * value, -value))
    if isinstance(value, bytes | str):
        return hostile_name(rng)
    if isinstance(value, np.ndarray):
        return _changed_array(value, rng)
    if isinstance(value, list):
        return _changed_list(value, rng)
    return None if value is not None else rng.choice(([], [0], [1, 1]))


def _changed_array(array: Any, rng: Random) -> Any:
    size = len(array)
    match rng.randrange(6):
        case 0 if size:
            return array[: rng.randrange(size)]
        case 1:
            return np.concatenate([array, array[: rng.randrange(1, size + 2)]])
        case 2 if size:
            return np.roll(array, 1)
        case 3:
            return None
        case _ if size:
            changed = array.copy()
            real = array.dtype.kind == "f"
            number = rng.choice(FLOATS if real else (*INTEGERS, *LARGE))
            with np.errstate(all="ignore"):
                changed[rng.randrange(size)] = np.asarray(number).astype(array.dtype)
            return changed
        case _:
            return np.asarray([rng.choice(INTEGERS)] * rng.randrange(3)).astype(array.dtype)


def _changed_list(values: list[Any], rng: Random) -> list[Any]:
    changed = list(values)
    place = rng.randrange(len(changed) + 1)
    match rng.randrange(6):
        case 0 if changed:
            del changed[place - 1]
        case 1 if changed:
            changed.insert(place, changed[rng.randrange(len(changed))])
        case 2:
            rng.shuffle(changed)
        case 3:
            changed = changed[:place]
        case 4 if changed and isinstance(changed[0], int | float):
            changed[place - 1] = rng.choice((*INTEGERS, *LARGE))
        case _ if changed and isinstance(changed[0], int | float):
            changed.insert(place, rng.choice(INTEGERS))
        case _:
            pass
    return changed


# What the fields mean


def _tensor_type(model: Any, rng: Random) -> None:
    _tensor(model, rng).type = rng.choice(_numbers(schema.TensorType))


def _tensor_shape(model: Any, rng: Random) -> None:
    tensor = _tensor(model, rng)
    shape = [] if tensor.shape is None else [int(size) for size in tensor.shape]
    match rng.randrange(5):
        case 0 if shape:
            shape[rng.randrange(len(shape))] = rng.choice(INTEGERS)
        case 1:
            shape.insert(rng.randrange(len(shape) + 1), rng.choice((0, 1, 1, 2, -1)))
        case 2 if shape:
            del shape[rng.randrange(len(shape))]
        case 3:
            rng.shuffle(shape)
        case _:
            shape = [rng.choice((0, 1, 2, 3, 5)) for _ in range(rng.randrange(7))]
    if rng.random() < 0.2:
        tensor.shapeSignature = [rng.choice((-1, size)) for size in shape]
    tensor.shape = shape


def _tensor_quantization(model: Any, rng: Random) -> None:
    tensor = _tensor(model, rng)
    size = max([1, *(int(n) for n in (() if tensor.shape is None else tensor.shape))])
    count = rng.choice((0, 1, 1, 2, min(size, 64), min(size, 64)))
    tensor.quantization = schema.QuantizationParametersT(
        scale=[rng.choice((0.05, 0.1, *FLOATS)) for _ in range(count)],
        zeroPoint=[rng.choice((0, 0, 3, -128, *INTEGERS, *LARGE)) for _ in range(count)],
        quantizedDimension=rng.choice((0, 0, 1, 2, 3, *INTEGERS)),
    )
    if rng.random() < 0.5:
        integers = (schema.TensorType.INT8, schema.TensorType.UINT8, schema.TensorType.INT16)
        tensor.type = rng.choice((*integers, schema.TensorType.INT32))


def _all_quantized(model: Any, rng: Random) -> None:
    """Make all float tensors quantized, whatever the operators."""
    kind = rng.choice((schema.TensorType.INT8, schema.TensorType.INT16, schema.TensorType.UINT8))
    for graph in model.subgraphs or []:
        for tensor in graph.tensors or []:
            if tensor.type == schema.TensorType.FLOAT32 and rng.random() < 0.95:
                tensor.type = kind
                tensor.quantization = schema.QuantizationParametersT(
                    scale=[rng.choice((0.05, 0.02, 1 / 128))], zeroPoint=[rng.choice((0, 0, -3))]
                )


def _data(model: Any, rng: Random) -> None:
    """Change the length or values of a constant, or make a tensor constant."""
    tensor = _tensor(model, rng)
    buffers = model.buffers or []
    if rng.random() < 0.3 or not 0 < tensor.buffer < len(buffers):
        tensor.buffer = rng.choice((0, len(buffers) - 1, len(buffers), rng.randrange(1000)))
        return
    buffer = buffers[tensor.buffer]
    data = b"" if buffer.data is None else bytes(np.asarray(buffer.data, np.uint8))
    words = np.asarray([rng.choice(INTEGERS) for _ in range(rng.randrange(5))], np.int32)
    data = rng.choice((data[:-1], data[:-4], data + data, words.tobytes(), b"", data + b"\0"))
    buffer.data = np.frombuffer(data, np.uint8)
    if rng.random() < 0.1:
        buffer.offset, buffer.size = rng.choice((1, 8, 2**40)), rng.choice((1, 64, 2**62))


def _kind(model: Any, rng: Random) -> None:
    """Change an operator's kind; in half of the files, its options as well."""
    operator = _operator(model, rng)
    codes = model.operatorCodes or []
    if operator is None or not 0 <= operator.opcodeIndex < len(codes):
        return
    code = codes[operator.opcodeIndex]
    code.builtinCode = rng.choice(_numbers(schema.BuiltinOperator))
    code.deprecatedBuiltinCode = min(code.builtinCode, 127)
    if rng.random() < 0.5:
        _options(model, rng)


def _options(model: Any, rng: Random) -> None:
    """Give an operator another operator's options, with random fields."""
    operator = _operator(model, rng)
    if operator is None:
        return
    number = rng.choice(_numbers(schema.BuiltinOptions))
    kind = getattr(schema, f"{_names(schema.BuiltinOptions)[number]}T", None)
    operator.builtinOptionsType, operator.builtinOptions = number, None if kind is None else kind()
    if rng.random() < 0.3:
        operator.builtinOptionsType = rng.choice(_numbers(schema.BuiltinOptions))


def _option(model: Any, rng: Random) -> None:
    """Change a field of an operator's options."""
    operator = _operator(model, rng)
    options = None if operator is None else operator.builtinOptions
    if not hasattr(options, "Pack") or not vars(options):
        return
    name = rng.choice(sorted(vars(options)))
    value = getattr(options, name)
    if name in _ENUMS and rng.random() < 0.7:
        setattr(options, name, rng.choice(_numbers(_ENUMS[name])))
    else:
        setattr(options, name, _changed(value, rng))


def _edges(model: Any, rng: Random) -> None:
    """Change, remove or add inputs or outputs of an operator or a graph."""
    graph = _graph(model, rng)
    if graph is None:
        return
    table = rng.choice([graph, *(graph.operators or [])])
    name = rng.choice(("inputs", "outputs", "intermediates"))
    if not hasattr(table, name):
        return
    found = getattr(table, name)
    indices = [] if found is None else [int(index) for index in found]
    count = len(graph.tensors or [])
    index = rng.choice(
        (rng.randrange(count + 1), rng.randrange(count + 1), -1, -2, count, 2**31 - 1)
    )
    place = rng.randrange(len(indices) + 1)
    match rng.randrange(4):
        case 0 if indices:
            indices[place - 1] = index
        case 1 if indices:
            del indices[place - 1]
        case 2:
            indices.insert(place, index)
        case _:
            rng.shuffle(indices)
    setattr(table, name, indices)


def _graphs(model: Any, rng: Random) -> None:
    """Add graphs and operators that call them, possibly recursively."""
    graphs = model.subgraphs or []
    operator = _operator(model, rng)
    if not graphs or operator is None:
        return
    if rng.random() < 0.7:
        graphs.append(copy.deepcopy(rng.choice(graphs)))
    kinds = (("IF", schema.IfOptionsT), ("WHILE", schema.WhileOptionsT), ("CALL_ONCE", None))
    name, options = rng.choice(kinds)
    number = int(getattr(schema.BuiltinOperator, name))
    code = schema.OperatorCodeT(deprecatedBuiltinCode=number, builtinCode=number, version=1)
    model.operatorCodes = [*(model.operatorCodes or []), code]
    operator.opcodeIndex = len(model.operatorCodes) - 1
    if options is not None:
        operator.builtinOptionsType = int(getattr(schema.BuiltinOptions, options.__name__[:-1]))
        operator.builtinOptions = options(*(rng.randrange(len(graphs) + 1) for _ in range(2)))


def _names_of_tensors(model: Any, rng: Random) -> None:
    rng.choice((_tensor(model, rng), _graph(model, rng) or model)).name = hostile_name(rng)


def _another_operator(model: Any, rng: Random) -> None:
    """Append an operator of another network, applied to tensors of this one."""
    names = sorted(test_tflite_import.NETWORKS)
    other = copy.deepcopy(_unpacked(test_tflite_import.NETWORKS[rng.choice(names)]))
    graph, (foreign,) = _graph(model, rng), other.subgraphs
    if graph is None or not graph.tensors:
        return
    tensors, buffers, codes = (
        len(graph.tensors),
        len(model.buffers or []),
        model.operatorCodes or [],
    )
    for tensor in foreign.tensors:
        tensor.buffer += buffers
    for operator in foreign.operators:
        operator.opcodeIndex += len(codes)
        operator.outputs = [int(index) + tensors for index in operator.outputs]
        operator.inputs = [
            rng.randrange(tensors) if place == 0 else int(index) + tensors
            for place, index in enumerate(operator.inputs)
        ]
    model.buffers = [*(model.buffers or []), *other.buffers]
    model.operatorCodes = [*codes, *other.operatorCodes]
    graph.tensors = [*graph.tensors, *foreign.tensors]
    graph.operators = [*(graph.operators or []), *foreign.operators]
    graph.outputs = [int(index) + tensors for index in foreign.outputs]


Damage = Callable[[Any, Random], None]
DAMAGES: tuple[Damage, ...] = (
    *(_any_field, _any_field, _any_field, _tensor_type, _tensor_shape, _tensor_shape),
    *(_tensor_quantization, _all_quantized, _data, _kind, _options, _option, _option),
    *(_edges, _edges, _graphs, _names_of_tensors, _another_operator),
)


def _graph(model: Any, rng: Random) -> Any:
    return rng.choice(model.subgraphs or [None])


def _tensor(model: Any, rng: Random) -> Any:
    """Return a tensor of the graph, or an unused one if the graph has none."""
    graph = _graph(model, rng)
    found = [] if graph is None else graph.tensors or []
    return rng.choice(found) if found else schema.TensorT()


def _operator(model: Any, rng: Random) -> Any:
    graph = _graph(model, rng)
    found = [] if graph is None else graph.operators or []
    return rng.choice(found) if found else None


@cache
def _names(enum: type) -> Mapping[int, str]:
    """Return the names of a schema enumeration, by number."""
    found = inspect.getmembers(enum, lambda member: isinstance(member, int))
    return {number: name for name, number in found if not name.startswith("_")}


def _numbers(enum: type) -> Sequence[int]:
    return sorted(_names(enum))


FORMAT = Format(
    "tflite", ".tflite", seeds, damage, models.check, len(models.TARGETS), weight=42, more=more
)
