"""Damaged ONNX files: random fields of every message, meaningful changes, then raw bytes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import helper, numpy_helper

from tests.fuzz import models
from tests.fuzz.case import Format, Step
from tests.fuzz.onnx_seeds import more, seeds
from tests.fuzz.raw import hostile_name, scratched

SIZES = (0, -1, 1, 2, 3, 4, 7, 64, 2**16, 2**31 - 1, 2**31, -(2**31), -(2**63), 2**63 - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e30, 3.4e38, *map(float, ("nan", "inf", "-inf")))
EXTERNAL = ("model.onnx", "../model.onnx", "/etc/passwd", "/dev/zero", "", ".", "x" * 300, "a\0b")


_UNWRITABLE = (
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RuntimeError),
    *(DecodeError, onnx.checker.ValidationError),
)
"""Errors if a number does not fit its field or an array its shape, or nothing can be damaged."""


def damage(data: bytes, steps: Sequence[Step]) -> bytes:
    """Apply the steps: those that change messages come first, whatever their order."""
    chosen = [(Random(step), Random(step).random() < 0.9) for step in steps]
    messages = [rng for rng, structural in chosen if structural]
    changed = _with_messages_damaged(data, messages) if messages else data
    for rng in (rng for rng, structural in chosen if not structural):
        changed = scratched(changed, rng)
    return changed


def _with_messages_damaged(data: bytes, steps: Sequence[Random]) -> bytes:
    model = onnx.ModelProto()
    with suppress(DecodeError):
        model.ParseFromString(data)
    for rng in steps:
        with suppress(*_UNWRITABLE):
            rng.choice(DAMAGES)(model, rng)
    try:
        return model.SerializeToString()
    except ValueError:  # a name that UTF-8 cannot encode
        return data


def graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    """Return the graph and its sub-graphs."""
    found: list[onnx.GraphProto] = []
    waiting = [model.graph]
    while waiting:
        graph = waiting.pop()
        found.append(graph)
        for node in (n for n in graph.node if n.attribute):
            waiting += [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
            waiting += [g for a in node.attribute for g in a.graphs]
    return found


def _nodes(model: onnx.ModelProto) -> list[Any]:
    """Return the node lists of graphs and functions."""
    return [g.node for g in graphs(model)] + [f.node for f in model.functions]


def _graph(model: onnx.ModelProto, rng: Random) -> onnx.GraphProto:
    return rng.choice(graphs(model))


def _node(model: onnx.ModelProto, rng: Random) -> onnx.NodeProto:
    found = [node for nodes in _nodes(model) for node in nodes]
    return rng.choice(found) if found else onnx.NodeProto()


# Any field of any message


def _messages(root: Message) -> Iterator[Message]:
    waiting = [root]
    while waiting:
        message = waiting.pop()
        yield message
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                waiting += value if field.is_repeated else [value]


def _any_field(model: onnx.ModelProto, rng: Random) -> None:
    """Change, remove or double a field of a message, or copy it from another message."""
    everything = list(_messages(model))
    message: Any = rng.choice(everything)
    field = rng.choice(message.DESCRIPTOR.fields)
    if field.is_repeated:
        _repeated(getattr(message, field.name), field, everything, rng)
    elif rng.random() < 0.2:
        message.ClearField(field.name)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        alike = [m for m in everything if m.DESCRIPTOR is field.message_type]
        if alike:
            source = type(alike[0])()
            source.CopyFrom(rng.choice(alike))
            getattr(message, field.name).CopyFrom(source)
    else:
        setattr(message, field.name, _scalar(field, getattr(message, field.name), rng))


def _repeated(values: Any, field: Any, everything: list[Message], rng: Random) -> None:
    place = rng.randrange(len(values) + 1)
    match rng.randrange(5):
        case 0 if values:
            del values[place - 1]
        case 1:
            del values[place:]
        case 2 if field.type == FieldDescriptor.TYPE_MESSAGE:
            alike = [m for m in everything if m.DESCRIPTOR is field.message_type]
            source = type(alike[0])() if alike else None
            if source is not None:
                source.CopyFrom(rng.choice(alike))
                values.add().CopyFrom(source)
            else:
                values.add()
        case 3 if len(values) > 1 and field.type == FieldDescriptor.TYPE_MESSAGE:
            values.reverse()
        case _ if field.type != FieldDescriptor.TYPE_MESSAGE:
            before = values[place - 1] if values else None
            values.insert(place, _scalar(field, before, rng))
        case _:
            pass


def _scalar(field: Any, before: Any, rng: Random) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            before = before or b""
            return rng.choice((b"", before[:-1], before + before, scratched(before, rng), b"\xff"))
        case FieldDescriptor.CPPTYPE_STRING:
            return hostile_name(rng)
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return rng.choice(FLOATS)
        case FieldDescriptor.CPPTYPE_ENUM:
            return rng.choice((*field.enum_type.values_by_number, 99))
        case FieldDescriptor.CPPTYPE_INT32:
            return rng.choice((*(n for n in SIZES if -(2**31) <= n < 2**31), *range(25)))
        case FieldDescriptor.CPPTYPE_UINT64:
            return rng.choice((0, 1, 2, 2**63, 2**64 - 1))
        case _:
            return rng.choice((*SIZES, (before or 0) + 1, (before or 0) - 1))


# What the fields mean


def _attribute(model: onnx.ModelProto, rng: Random) -> None:
    """Change an attribute's value or kind."""
    found = [a for nodes in _nodes(model) for n in nodes for a in n.attribute]
    if not found:
        return
    attribute = rng.choice(found)
    place = rng.randrange(len(attribute.ints) or 1)
    match rng.randrange(9):
        case 0 | 1 if attribute.ints:
            attribute.ints[place] = rng.choice(SIZES)
        case 2 if attribute.ints:
            attribute.ints.append(rng.choice(SIZES))
        case 3 if attribute.ints:
            del attribute.ints[-1]
        case 4 if attribute.type == onnx.AttributeProto.TENSOR:
            _damage_tensor(attribute.t, rng)
        case 5 if attribute.type == onnx.AttributeProto.FLOAT:
            attribute.f = rng.choice(FLOATS)
        case 6:
            other = rng.choice([0.5, 3, "text", b"\xff", [1.5, 2.5], [1, 2], ["some", "text"]])
            attribute.CopyFrom(helper.make_attribute(attribute.name, other))
        case 7:
            tensor = numpy_helper.from_array(_numbers(rng), "t")
            attribute.CopyFrom(helper.make_attribute(attribute.name, tensor))
        case _:
            attribute.i = rng.choice(SIZES)


def _added_attribute(model: onnx.ModelProto, rng: Random) -> None:
    """Add an attribute that the node lacks, with a random value of its type."""
    node = _node(model, rng)
    schema = _schemas().get(node.op_type)
    absent = sorted(set(schema.attributes if schema else ()) - {a.name for a in node.attribute})
    if schema is None or not absent:
        return
    name = rng.choice(absent)
    kind = schema.attributes[name].type.name
    values: Mapping[str, Callable[[], Any]] = {
        "INT": lambda: rng.choice((*SIZES, 0, 1, 2)),
        "INTS": lambda: [rng.choice((*SIZES, 1, 2, 3)) for _ in range(rng.randrange(1, 5))],
        "FLOAT": lambda: rng.choice(FLOATS),
        "FLOATS": lambda: [rng.choice(FLOATS) for _ in range(rng.randrange(1, 5))],
        "STRING": lambda: rng.choice(("", "linear", "SAME_UPPER", "reflect", hostile_name(rng))),
        "STRINGS": lambda: [rng.choice(("Relu", "Tanh", "Affine", "")) for _ in range(3)],
        "TENSOR": lambda: numpy_helper.from_array(_numbers(rng), "t"),
        "GRAPH": lambda: rng.choice(graphs(model)),
    }
    if kind in values:
        node.attribute.append(helper.make_attribute(name, values[kind]()))


@cache
def _schemas() -> Mapping[str, Any]:
    return {schema.name: schema for schema in onnx.defs.get_all_schemas() if not schema.domain}


def _names(model: onnx.ModelProto, rng: Random) -> None:
    """Connect edges to other tensors."""
    nodes = rng.choice(_nodes(model))
    everything = [name for n in nodes for name in (*n.input, *n.output)]
    everything += [value.name for value in (*model.graph.input, *model.graph.initializer)]
    node = rng.choice(nodes)
    side = node.input if rng.random() < 0.7 and node.input else node.output
    side[rng.randrange(len(side))] = rng.choice([*everything, "", "nowhere"])


def _operator(model: onnx.ModelProto, rng: Random) -> None:
    """Change a node's operator or operand count, or remove, repeat or move the node."""
    nodes = rng.choice(_nodes(model))
    place = rng.randrange(len(nodes))
    node = nodes[place]
    match rng.randrange(7):
        case 0 | 1:
            node.op_type = rng.choice(sorted(_schemas()))
        case 2 if node.input:
            del node.input[rng.randrange(len(node.input)) :]
        case 3:
            node.input.append(rng.choice((*node.input, "")))
        case 4:
            nodes.remove(node)
        case 5:
            nodes.append(node)
        case _:
            node.domain = rng.choice(("", "ai.onnx.ml", "com.microsoft", hostile_name(rng)))


def _shape(model: onnx.ModelProto, rng: Random) -> None:
    graph = _graph(model, rng)
    info = rng.choice([*graph.input, *graph.output, *graph.value_info])
    dims = info.type.tensor_type.shape.dim
    match rng.randrange(6):
        case 0 | 1 if dims:
            rng.choice(dims).dim_value = rng.choice(SIZES)
        case 2 if dims:
            del dims[-1]
        case 3:
            dims.add().dim_value = rng.choice(SIZES)
        case 4 if dims:
            rng.choice(dims).dim_param = hostile_name(rng)
        case _:
            info.type.tensor_type.elem_type = rng.randrange(26)


def _numbers(rng: Random) -> Any:
    """Return a small array."""
    shape = [rng.choice((0, 1, 1, 2, 3)) for _ in range(rng.randrange(4))]
    kind = rng.choice((np.float32, np.int64, np.int32, np.int8, np.uint8, np.bool_, np.float64))
    values = FLOATS if kind in (np.float32, np.float64) else (*SIZES, 0, 1, 2, 3)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        numbers = np.asarray([rng.choice(values) for _ in range(int(np.prod(shape)))])
        return numbers.astype(kind).reshape(shape)


def _constant(model: onnx.ModelProto, rng: Random) -> None:
    """Damage an initializer, or make an input one."""
    graph = _graph(model, rng)
    if graph.input and (not graph.initializer or rng.random() < 0.3):
        info = rng.choice(graph.input)
        sizes = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        kind = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        if 0 <= np.prod(sizes) <= 4096:
            numbers = np.resize([rng.choice((0, 1, 2, 3, -1, 100)) for _ in range(5)], sizes)
            graph.initializer.append(numpy_helper.from_array(numbers.astype(kind), info.name))
            if rng.random() < 0.7:
                graph.input.remove(info)
        return
    if rng.random() < 0.1:
        sparse = graph.sparse_initializer.add()
        sparse.values.CopyFrom(numpy_helper.from_array(_numbers(rng), graph.initializer[0].name))
        sparse.indices.CopyFrom(numpy_helper.from_array(_numbers(rng), ""))
        sparse.dims.extend(rng.choice(SIZES) for _ in range(rng.randrange(3)))
        return
    _damage_tensor(rng.choice(graph.initializer), rng)


def _damage_tensor(tensor: onnx.TensorProto, rng: Random) -> None:
    match rng.randrange(9):
        case 0 if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(SIZES)
        case 1:
            tensor.dims.append(rng.choice((1, *SIZES)))
        case 2:
            tensor.data_type = rng.randrange(26)
        case 3:
            tensor.raw_data = rng.choice((tensor.raw_data[:-1], tensor.raw_data * 2, b""))
        case 4:
            tensor.CopyFrom(numpy_helper.from_array(_numbers(rng), tensor.name))
        case 5:
            _make_external(tensor, rng)
        case 6:
            tensor.float_data.extend(FLOATS[:3])
            tensor.int64_data.extend(SIZES[:3])
        case _:
            array = np.array(numpy_helper.to_array(tensor))
            array.reshape(-1)[: 1 + array.size // 3] = rng.choice((0, 1, -1, 2, 127, 2**31 - 1))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _make_external(tensor: onnx.TensorProto, rng: Random) -> None:
    tensor.data_location = onnx.TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, values in (
        ("location", EXTERNAL),
        ("offset", (*map(str, SIZES), "x")),
        ("length", (*map(str, SIZES), "1e9")),
        ("checksum", ("", "0")),
    ):
        if key == "location" or rng.random() < 0.4:
            tensor.external_data.add(key=key, value=rng.choice(values))
    if rng.random() < 0.7:
        tensor.ClearField("raw_data")


def _opset(model: onnx.ModelProto, rng: Random) -> None:
    if rng.random() < 0.2:
        model.ir_version = rng.choice(SIZES)
    found = rng.choice(model.opset_import)
    found.version = rng.choice((*range(1, 30), *SIZES))


def _into_branch(model: onnx.ModelProto, rng: Random) -> None:
    """Nest the graph, or one of its sub-graphs, in a branch or a loop."""
    inner = onnx.GraphProto()
    inner.CopyFrom(_graph(model, rng))
    graph = model.graph
    inputs = [value.name for value in graph.input] or [""]
    kind = rng.choice(("If", "Loop", "Scan", "SequenceMap"))
    names = ("then_branch", "else_branch") if kind == "If" else ("body",)
    attributes: dict[str, Any] = dict.fromkeys(names, inner)
    if kind == "Scan":
        attributes["num_scan_inputs"] = rng.choice((0, 1, 2, *SIZES))
    operands = [rng.choice((*inputs, "")) for _ in range(rng.randrange(1, 4))]
    outputs = [value.name for value in graph.output]
    made = helper.make_node(kind, operands, outputs, **attributes)
    if rng.random() < 0.5:
        del graph.node[:]
    graph.node.append(made)


def _function(model: onnx.ModelProto, rng: Random) -> None:
    """Replace nodes by calls of a function, which may call itself."""
    nodes = list(model.graph.node)
    chosen = rng.choice(nodes)
    opsets = [*model.opset_import, helper.make_opsetid("own", 1)]
    body = [chosen, *(rng.choice(nodes) for _ in range(rng.randrange(3)))]
    name = rng.choice(("F", chosen.op_type))
    made = helper.make_function("own", name, chosen.input, chosen.output, body, opsets)
    model.functions.append(made)
    model.opset_import.append(helper.make_opsetid("own", rng.choice((1, 1, 2))))
    place = nodes.index(chosen)
    model.graph.node[place].op_type = name
    model.graph.node[place].domain = "own"
    if rng.random() < 0.5:
        del model.graph.node[place].attribute[:]


LARGE = (2**16, 10**6, 2**24, 10**8, 2**31 - 1)
"""Sizes that fit into every field, but hardly into any memory."""


def _large_sizes(model: onnx.ModelProto, rng: Random) -> None:
    """Make sizes large: in attributes, constants and the inputs' shapes."""
    size = rng.choice(LARGE)
    attributes = [a for nodes in _nodes(model) for n in nodes for a in n.attribute]
    tensors = [t for g in graphs(model) for t in g.initializer]
    tensors = [t for t in tensors if t.data_type == onnx.TensorProto.INT64]
    dims = [d for i in model.graph.input for d in i.type.tensor_type.shape.dim]
    match rng.randrange(3):
        case 0 if tensors:
            tensor = rng.choice(tensors)
            array = np.array(numpy_helper.to_array(tensor))
            array.reshape(-1)[rng.randrange(array.size)] = size
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        case 1 if any(a.ints for a in attributes):
            ints = rng.choice([a.ints for a in attributes if a.ints])
            ints[rng.randrange(len(ints))] = size
        case _ if dims:
            rng.choice(dims).dim_value = size
        case _:
            pass


def _called_often(model: onnx.ModelProto, rng: Random) -> None:
    """Call a function with a constant repeatedly, or through a chain of functions."""
    opsets = [*model.opset_import, helper.make_opsetid("often", 1)]
    constant = numpy_helper.from_array(np.ones(rng.choice((1, 2**12, 2**17)), np.float32))
    body = [
        helper.make_node("Constant", [], ["c"], value=constant),
        helper.make_node("ReduceMax", ["c"], ["m"], keepdims=0),
        helper.make_node("Add", ["a", "m"], ["b"], doc_string="n" * rng.choice((0, 2**16))),
    ]
    levels = rng.choice((0, 1, 3, 10, 13))
    for level in range(levels + 1):
        made = helper.make_function("often", f"F{level}", ["a"], ["b"], body, opsets)
        model.functions.append(made)
        steps = (("a", "t"), ("t", "b"))
        body = [helper.make_node(f"F{level}", [a], [b], domain="often") for a, b in steps]
    model.opset_import.append(helper.make_opsetid("often", 1))
    output = rng.choice(model.graph.output)
    for index in range(rng.choice((1, 100, 600))):
        name = f"often{index}"
        call = helper.make_node(f"F{levels}", [output.name], [name], domain="often")
        model.graph.node.append(call)
        output.name = name


def _mixed(model: onnx.ModelProto, rng: Random) -> None:
    """Append the nodes of another network, applied to a tensor of this one."""
    other = onnx.ModelProto()
    other.ParseFromString(seeds()[rng.choice(sorted(seeds()))])
    made = [name for n in model.graph.node for name in n.output]
    text = f"{rng.randrange(1000)}_"
    fed = {value.name for value in other.graph.input}
    for node in other.graph.node:
        copy = model.graph.node.add()
        copy.CopyFrom(node)
        for side in (copy.input, copy.output):
            for place, name in enumerate(side):
                side[place] = rng.choice(made) if name in fed else name and text + name
    for tensor in other.graph.initializer:
        model.graph.initializer.add().CopyFrom(tensor)
        model.graph.initializer[-1].name = text + tensor.name
    for value in other.graph.output:
        model.graph.output.add().CopyFrom(value)
        model.graph.output[-1].name = text + value.name


Damage = Callable[[onnx.ModelProto, Random], None]
DAMAGES: tuple[Damage, ...] = (
    *(_any_field, _any_field, _any_field, _attribute, _attribute, _attribute, _added_attribute),
    *(_added_attribute, _names, _operator, _operator, _shape, _shape, _constant, _constant),
    *(_constant, _opset, _into_branch, _function, _mixed),
    *(_large_sizes, _large_sizes, _called_often),
)


FORMAT = Format(
    "onnx", ".onnx", seeds, damage, models.check, len(models.TARGETS), weight=42, more=more
)
