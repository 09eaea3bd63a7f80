"""Operators without a converter: replaced by the standard's function, or computed at import."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from smelt.errors import ModelError
from smelt.frontend.onnx.file import STANDARD_DOMAINS
from smelt.frontend.onnx.operation import Operation
from smelt.frontend.onnx.scope import OnnxValue, TensorSequence
from smelt.frontend.onnx.tensors import PROTO_TYPES, array_of
from smelt.ir import Array

_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"}
    | {"RandomUniformLike"}
)
_STRUCTURAL = frozenset({"If", "Loop", "Scan"})


@dataclass(frozen=True)
class FunctionBody:
    """A function's nodes with its attributes filled in, and the opset versions that it uses."""

    inputs: Sequence[str]
    outputs: Sequence[str]
    nodes: Sequence[onnx.NodeProto]
    opsets: Mapping[str, int]


def is_computable(node: onnx.NodeProto) -> bool:
    """Return whether ONNX's own reference may compute the operator on constants."""
    return node.op_type in _EFFORTS and node.domain in STANDARD_DOMAINS


def has_function(node: onnx.NodeProto) -> bool:
    """Return whether the ONNX standard defines the operator by a function of others."""
    schema = _schema(node, None)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def constant_only() -> set[str]:
    """Return the names of operators that are supported only on constants."""
    return set(_EFFORTS)


def defined() -> set[str]:
    """Return the names of standard operators that are replaced by their function."""
    schemas: Sequence[Any] = onnx.defs.get_all_schemas()
    return {
        str(schema.name)
        for schema in schemas
        if schema.domain == "" and schema.name not in _RANDOM and not schema.deprecated
        if schema.has_function or schema.has_context_dependent_function
    }


def body(node: onnx.NodeProto, operation: Operation) -> FunctionBody | None:
    """Return the function that defines an operator, or None if the standard has none."""
    schema = _schema(node, operation.version)
    if schema is None:
        return None
    function = onnx.FunctionProto()
    if schema.has_context_dependent_function:
        versions = schema.context_dependent_function_opset_versions
        chosen = max((v for v in versions if v <= operation.version), default=max(versions))
        types = [_type_proto(value) for value in operation.operands]
        try:
            text: bytes = schema.get_context_dependent_function_with_opset_version(
                chosen, node.SerializeToString(), types
            )
        except (ValueError, RuntimeError, onnx.shape_inference.InferenceError) as error:
            raise ModelError(
                f"{operation}: ONNX does not define it for these operands: {error}"
            ) from error
        function.ParseFromString(text)
    elif schema.has_function:
        versions = schema.function_opset_versions
        chosen = max((v for v in versions if v <= operation.version), default=max(versions))
        text = schema.get_function_with_opset_version(chosen)
        function.ParseFromString(text)
    if not function.node:
        return None
    opsets = {
        "" if o.domain in STANDARD_DOMAINS else o.domain: o.version for o in function.opset_import
    }
    attributes = {a.name: a for a in function.attribute_proto}
    attributes |= _defaults(schema) | {a.name: a for a in node.attribute}
    nodes = [_with_attributes(step, attributes) for step in function.node]
    return FunctionBody(function.input, function.output, nodes, opsets)


def _size(operation: Operation) -> int:
    return operation.value(0).type.size


def _overlaps(operation: Operation) -> int:
    """Return the number of comparisons of a box with every other, for each class."""
    scores = operation.value(1).type
    return scores.size * max(scores.shape, default=0)


def _filters(operation: Operation) -> int:
    """Return the size of the matrix of triangular filters for the bins of a spectrum."""
    bins = operation.whole_number(0, "number of bins")
    return max(bins, 0) * max(operation.whole_number(1, "length of the transform"), 0)


_EFFORTS: Mapping[str, Callable[[Operation], int]] = {
    "NonZero": _size,
    "Unique": _size,
    "NonMaxSuppression": _overlaps,
    "MelWeightMatrix": _filters,
}
"""Operators that ONNX's reference computes on constants, with the number of elements it visits.

The reference has no limits of its own, so it is used only if this number is within the budget.
"""

_EACH = 1 << 7
"""Elementary operations for each element, because the reference loops in Python."""


def computed(node: onnx.NodeProto, operation: Operation) -> list[Array]:
    """Return the results of an operator with constant operands, by ONNX's own reference.

    Raises:
        ModelError: the reference failed.
        UnsupportedError: it would take more operations than the budget allows.
    """
    operation.afford((_EFFORTS[node.op_type](operation),), _EACH)
    fed = {name: operation.value(index) for index, name in enumerate(node.input) if name}
    types = [
        helper.make_tensor_value_info(name, PROTO_TYPES[value.type.dtype], value.type.shape)
        for name, value in fed.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "constant", types, results)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(node.domain, operation.version)]
    )
    # Imported here because it takes long to import, and few networks need it.
    from onnx.reference import ReferenceEvaluator

    try:
        made: Any = ReferenceEvaluator(model).run(
            None, {name: value.array for name, value in fed.items()}
        )
    except Exception as error:
        raise ModelError(
            f"{operation}: ONNX's reference failed to compute it from its constants: {error}"
        ) from error
    named = dict(zip([n for n in node.output if n], made, strict=True))
    return [_array(named[n], n, operation) if n else np.zeros(0, np.float32) for n in node.output]


def _array(made: object, name: str, operation: Operation) -> Array:
    array: Array = np.zeros(0, np.object_) if isinstance(made, list) else np.asarray(made)
    if array.dtype.kind in "OSU":
        raise operation.refuse(
            f"its output '{name}' is not a tensor of numbers (but a sequence, optional or strings)"
        )
    return array_of(numpy_helper.from_array(array), f"output '{name}' of {operation}")


def _schema(node: onnx.NodeProto, version: int | None) -> Any:
    domain = "" if node.domain in STANDARD_DOMAINS else node.domain
    if node.op_type in _STRUCTURAL:
        return None
    try:
        if version is None:
            return onnx.defs.get_schema(node.op_type, domain)
        return onnx.defs.get_schema(node.op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


def _type_proto(operand: OnnxValue | None) -> bytes:
    proto = onnx.TypeProto()
    if isinstance(operand, TensorSequence):
        element = helper.make_tensor_type_proto(PROTO_TYPES[operand.dtype], None)
        proto = helper.make_sequence_type_proto(element)
    elif operand is not None:
        proto = helper.make_tensor_type_proto(PROTO_TYPES[operand.type.dtype], operand.type.shape)
    return proto.SerializeToString()


def _defaults(schema: Any) -> dict[str, onnx.AttributeProto]:
    found: dict[str, onnx.AttributeProto] = {}
    for name, attribute in schema.attributes.items():
        if attribute.default_value.type:
            found[name] = onnx.AttributeProto()
            found[name].CopyFrom(attribute.default_value)
            found[name].name = name
    return found


def _with_attributes(
    node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]
) -> onnx.NodeProto:
    """Return the node with references to the function's attributes replaced by their values."""
    result = onnx.NodeProto()
    result.CopyFrom(node)
    del result.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in given:
                filled = result.attribute.add()
                filled.CopyFrom(given[attribute.ref_attr_name])
                filled.name = attribute.name
            continue
        kept = result.attribute.add()
        kept.CopyFrom(attribute)
        if attribute.type == onnx.AttributeProto.GRAPH:
            inner = [_with_attributes(step, given) for step in attribute.g.node]
            del kept.g.node[:]
            kept.g.node.extend(inner)
    return result
