"""What a user should know about an import that went well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx

from smelt.frontend.onnx.inputs import Inputs
from smelt.frontend.onnx.tensors import DTYPES, NARROWED, type_name
from smelt.ir import Value


def import_notes(graph: onnx.GraphProto, inputs: Inputs, outputs: Sequence[Value]) -> Iterator[str]:
    """Types that Smelt widens, and what the file declares wrongly: a sentence each."""
    yield from _batches(inputs)
    yield from _narrowing(graph, inputs)
    yield from _contradictions(graph, outputs)


def _batches(inputs: Inputs) -> Iterator[str]:
    for tensor in inputs.tensors:
        if tensor.name in inputs.batches:
            name = inputs.batches[tensor.name]
            called, option = (f" '{name}'", f"--dim {name}=…") if name else ("", "--shape")
            yield (
                f"the batch{called} of input '{tensor.name}', which the file leaves open, is taken "
                f"as {inputs.batch}; {option} gives another"
            )


def _narrowing(graph: onnx.GraphProto, inputs: Inputs) -> Iterator[str]:
    constants = (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))
    kinds = {NARROWED[t.data_type] for t in constants if t.data_type in NARROWED}
    kinds |= inputs.narrowed
    if kinds:
        yield f"{' and '.join(sorted(kinds))} tensors are imported as float32"


def _contradictions(graph: onnx.GraphProto, outputs: Sequence[Value]) -> Iterator[str]:
    """Outputs whose declared types are wrong: the operators decide, as they do in other tools."""
    for info, value in zip(graph.output, outputs, strict=True):
        stored, actual = info.type.tensor_type, value.type
        if stored.elem_type and DTYPES.get(stored.elem_type) is not actual.dtype:
            yield (
                f"output '{info.name}' is declared as {type_name(stored.elem_type)}, but the "
                f"operators make {actual.dtype.name.lower()} of the inputs"
            )
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in stored.shape.dim]
        if stored.HasField("shape") and not _fits(sizes, actual.shape):
            text = ", ".join("?" if size is None else str(size) for size in sizes)
            yield (
                f"output '{info.name}' is declared with shape [{text}], but the operators make "
                f"{list(actual.shape)} of the inputs"
            )


def _fits(declared: Sequence[int | None], shape: Sequence[int]) -> bool:
    return len(declared) == len(shape) and all(
        size in (None, actual) for size, actual in zip(declared, shape, strict=True)
    )
