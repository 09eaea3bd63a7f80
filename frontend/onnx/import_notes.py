"""Notes shown to the user after a successful import."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx

from smelt.frontend.onnx.inputs import Inputs
from smelt.frontend.onnx.tensors import DTYPES, NARROWED, type_name
from smelt.ir import Value


def import_notes(graph: onnx.GraphProto, inputs: Inputs, outputs: Sequence[Value]) -> Iterator[str]:
    """Yield notes on widened types, assumed batch sizes, and wrong declarations in the file."""
    yield from _batches(inputs)
    yield from _narrowing(graph, inputs)
    yield from _contradictions(graph, outputs)


def _batches(inputs: Inputs) -> Iterator[str]:
    for tensor in inputs.tensors:
        if tensor.name in inputs.batches:
            name = inputs.batches[tensor.name]
            called, option = (f" '{name}'", f"--dim {name}=…") if name else ("", "--shape")
            yield (
                f"the batch{called} of input '{tensor.name}', which the file leaves open, is set "
                f"to {inputs.batch}; {option} sets another"
            )


def _narrowing(graph: onnx.GraphProto, inputs: Inputs) -> Iterator[str]:
    constants = (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))
    kinds = {NARROWED[t.data_type] for t in constants if t.data_type in NARROWED}
    kinds |= inputs.narrowed
    if kinds:
        yield f"{' and '.join(sorted(kinds))} tensors are imported as float32"


def _contradictions(graph: onnx.GraphProto, outputs: Sequence[Value]) -> Iterator[str]:
    """Yield outputs with wrong declared types; the operators decide, as in other tools."""
    for info, value in zip(graph.output, outputs, strict=True):
        stored, actual = info.type.tensor_type, value.type
        if stored.elem_type and DTYPES.get(stored.elem_type) is not actual.dtype:
            yield (
                f"output '{info.name}' is declared as {type_name(stored.elem_type)}, but the "
                f"operators compute {actual.dtype.name.lower()} from the inputs"
            )
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in stored.shape.dim]
        if stored.HasField("shape") and not _fits(sizes, actual.shape):
            text = ", ".join("?" if size is None else str(size) for size in sizes)
            yield (
                f"output '{info.name}' is declared with shape [{text}], but the operators compute "
                f"{list(actual.shape)} from the inputs"
            )


def _fits(declared: Sequence[int | None], shape: Sequence[int]) -> bool:
    return len(declared) == len(shape) and all(
        size in (None, actual) for size, actual in zip(declared, shape, strict=True)
    )
