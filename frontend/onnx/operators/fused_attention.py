"""Converters of onnxruntime's own attention operators, with or without projections.

Their masks are integers. To the score of a masked key, a large negative number is added, not
-infinity as in the standard. In `unidirectional` attention, the lowest float is added to the scores
of later keys, so that they count less than masked keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from smelt.frontend.onnx.operation import Declared, OnnxConverter, Operation
from smelt.frontend.onnx.operators.attention import Heads, attend
from smelt.frontend.onnx.operators.elementwise import binary
from smelt.frontend.onnx.operators.integer_products import integer_product, scaled_sums
from smelt.frontend.onnx.operators.matmul import product
from smelt.ir import Array, Value

_MASKED = -10000.0
_APART = (0, 2, 1, 3)
"""Order of the axes in `[batch, sequence, heads, size]`: batch, heads, sequence, size."""


def _attention(operation: Operation) -> Value:
    """Convert Attention: input, weights and bias of all projections, mask, past, score bias."""
    _refuse_cache(operation, (4, 6))
    x, weights = operation.image(0, 3), operation.weights(1)
    sizes = _sizes(operation, operation.image(1, 2).type.shape[1])
    biases: Sequence[Value | None] = (None, None, None)
    if operation.optional(2) is not None:
        biases = _split(operation, operation.weights(2, "bias"), sizes)
    projections: list[Value] = []
    for part, bias in zip(_split(operation, weights, sizes), biases, strict=True):
        y = product(operation, x, part)
        projections.append(y if bias is None else binary(operation, "add", y, bias))
    return _mixed(operation, projections, mask=3, bias=5)


def _quantized_attention(operation: Operation) -> Value:
    """Convert QAttention: quantized operands with scale and zero point; the mask is sixth."""
    _refuse_cache(operation, (8,))
    x, weights = operation.image(0, 3), operation.image(1, 2)
    zeros = operation.optional(6), operation.optional(7)
    sums = integer_product(operation, x, weights, *zeros)
    y = scaled_sums(operation, sums, (operation.value(3), operation.value(4)), 2)
    sizes = _sizes(operation, weights.type.shape[1])
    return _mixed(operation, _split(operation, y, sizes), mask=5, bias=None)


def _mixed(
    operation: Operation, projections: Sequence[Value], mask: int, bias: int | None
) -> Value:
    q, k, v = (_heads(operation, x) for x in projections)
    return attend(operation, q, k, v, _bias(operation, q, k, mask, bias), joined=True)


def _multi_head_attention(operation: Operation) -> list[Value]:
    """Convert MultiHeadAttention: queries, keys, values, their bias, mask, score bias."""
    _refuse_cache(operation, (6, 7, 8, 9))
    q, k, v = _unpacked(operation)
    y = attend(operation, q, k, v, _bias(operation, q, k, 4, 5), joined=True)
    return [y, *(operation.transpose(h.value, h.order) for h in (k, v))]


def _unpacked(operation: Operation) -> list[Heads]:
    """Return queries, keys and values, which may be packed in fewer operands."""
    query, key, value = operation.value(0), operation.optional(1), operation.optional(2)
    if key is None:
        return _packed(operation, query, 3)
    if value is None:
        return [_heads(operation, query), *_packed(operation, key, 2)]
    parts = [query, key, value]
    if operation.optional(3) is not None:
        sizes = [int(np.prod(part.type.shape[2:])) for part in parts]
        if any(len(part.type.shape) != 3 for part in parts):
            raise operation.refuse(
                "a bias is not supported if keys and values are already divided into heads"
            )
        biases = _split(operation, operation.weights(3, "bias"), sizes)
        parts = [binary(operation, "add", p, b) for p, b in zip(parts, biases, strict=True)]
    return [_heads(operation, part) for part in parts]


def _packed(operation: Operation, x: Value, count: int) -> list[Heads]:
    """Split `[batch, sequence, heads, count, size]` along `count`."""
    if len(x.type.shape) != 5 or x.type.shape[3] != count:
        raise operation.wrong(
            f"'{x.name}' is {x.type}, but must be [batch, sequence, heads, {count}, size]"
        )
    if operation.optional(3) is not None:
        raise operation.refuse("a bias of packed queries, keys and values is not supported")
    shape = (*x.type.shape[:3], x.type.shape[4])
    parts = operation.apply("Split", x, axis=3, outputs=count, num_outputs=count)
    return [Heads(operation.reshape(part, shape), _APART) for part in parts]


def _heads(operation: Operation, x: Value) -> Heads:
    """Return heads of `[batch, sequence, heads * size]` or `[batch, heads, sequence, size]`."""
    if len(x.type.shape) == 4:
        return Heads(x, (0, 1, 2, 3))
    heads = operation.integer("num_heads")
    if len(x.type.shape) != 3 or heads < 1 or x.type.shape[2] % heads:
        raise operation.wrong(
            f"the last axis of '{x.name}' {x.type} cannot be divided into {heads} heads"
        )
    shape = (*x.type.shape[:2], heads, x.type.shape[2] // heads)
    return Heads(operation.reshape(x, shape), _APART)


def _sizes(operation: Operation, total: int) -> tuple[int, ...]:
    """Return how many columns of the projections are queries, keys and values."""
    sizes = operation.integers("qkv_hidden_sizes", ()) or (total // 3,) * 3
    if len(sizes) != 3 or min(sizes) < 1 or sum(sizes) != total:
        raise operation.wrong(
            f"qkv_hidden_sizes {list(sizes)} must be three sizes of at least 1 with sum {total}, "
            "the columns of its weights"
        )
    return sizes


def _split(operation: Operation, x: Value, sizes: Sequence[int]) -> Sequence[Value]:
    """Split along the last axis."""
    if x.type.shape[-1:] != (sum(sizes),):
        raise operation.wrong(
            f"the last axis of '{x.name}' {x.type} cannot be split into {list(sizes)}"
        )
    ends = operation.literal(np.asarray(sizes, np.int64))
    return operation.apply("Split", x, ends, axis=-1, outputs=len(sizes))


def _refuse_cache(operation: Operation, operands: Sequence[int]) -> None:
    if any(operation.has_operand(index) for index in operands):
        raise operation.refuse(
            "keys and values of earlier calls (past, a cache) are not supported: export the "
            "network without them (use_cache=False)"
        )
    if operation.flag("do_rotary"):
        raise operation.refuse("rotary embeddings (do_rotary) are not supported")


# What is added to the scores


def _bias(operation: Operation, q: Heads, k: Heads, mask: int, bias: int | None) -> Value | None:
    """Return the sum of masks and biases to add to scores `[batch, heads, queries, keys]`."""
    masked = operation.real("mask_filter_value", _MASKED)
    batch, queries, keys = q.size(0), q.size(2), k.size(2)
    terms: list[Value] = []
    given = operation.optional(mask)
    if given is not None:
        allowed = _allowed(operation, given, batch, queries, keys)
        numbers = (operation.literal(np.asarray(n, np.float32)) for n in (0.0, masked))
        terms += operation.apply("Where", allowed, *numbers)
    if operation.flag("unidirectional"):
        operation.afford((queries, keys))
        never = np.full((queries, keys), np.finfo(np.float32).min)
        terms.append(operation.literal(np.triu(never, keys - queries + 1)[None, None]))
    if bias is not None and operation.optional(bias) is not None:
        terms.append(operation.value(bias))
    return reduce(lambda a, b: binary(operation, "add", a, b), terms) if terms else None


def _allowed(operation: Operation, mask: Value, batch: int, queries: int, keys: int) -> Value:
    """Return which keys are not masked, with shape `[batch, 1, 1 or queries, keys]`."""
    shape = mask.type.shape
    if shape in ((batch,), (2 * batch,)):
        operation.afford((keys,))
        known = mask.data if mask.data is None else mask.data[:batch]
        if known is not None and known.min(initial=0) < 0:
            raise operation.wrong(
                f"its mask '{mask.name}' has {known.min()} as a number of keys; it must be at "
                "least 0"
            )
    if shape == (batch,):
        return _compared(operation, "Less", np.arange(keys), mask, (batch, 1, 1, 1))
    if shape == (2 * batch,):
        # The first half has the end of the keys, the second half their beginning.
        halves = operation.apply("Split", mask, axis=0, outputs=2, num_outputs=2)
        sides = [
            _compared(operation, kind, np.arange(keys), half, (batch, 1, 1, 1))
            for kind, half in zip(("Less", "GreaterOrEqual"), halves, strict=True)
        ]
        (both,) = operation.apply("And", *sides)
        return both
    forms: dict[tuple[int, ...], tuple[int, ...]] = {
        (batch, keys): (batch, 1, 1, keys),
        (batch, queries, keys): (batch, 1, queries, keys),
    }
    if shape in forms:
        return _compared(operation, "Less", np.zeros(1), mask, forms[shape])
    raise operation.refuse(
        f"mask {mask.type} for {batch} batches of {queries} queries and {keys} keys is not "
        "supported; use the number of keys, their end and beginning, or a mask for each key"
    )


def _compared(
    operation: Operation, kind: str, numbers: Array, mask: Value, shape: Sequence[int]
) -> Value:
    """Compare constant numbers with those of a mask, reshaped to `shape`."""
    stored = operation.literal(numbers.astype(mask.type.dtype.numpy))
    (result,) = operation.apply(kind, stored, operation.reshape(mask, shape))
    return result


_HEADS = ("mask_filter_value", "num_heads", "scale", "unidirectional")
_CACHE = ("do_rotary", "past_present_share_buffer")

CONVERTERS: dict[str, OnnxConverter] = {
    "com.microsoft::Attention": Declared(
        _attention, (*_HEADS, *_CACHE, "qkv_hidden_sizes", "rotary_embedding_dim")
    ),
    "com.microsoft::QAttention": Declared(_quantized_attention, (*_HEADS, *_CACHE)),
    "com.microsoft::MultiHeadAttention": Declared(_multi_head_attention, _HEADS),
}
