"""Attention with constant masks: two products of matrices with a Softmax between them.

Heads stay at the axis where the file has them. Groups of heads share keys and values by
broadcasting. Other forms are replaced by the function that the standard defines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt.errors import ModelError
from smelt.frontend.onnx.operation import OnnxConverter, Operation
from smelt.ir import Array, DType, Value
from smelt.ops.core.binary import Binary
from smelt.ops.core.matmul import MatMul
from smelt.ops.core.softmax import Softmax
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.concat import Concat

_HEADS, _SEQUENCE, _SIZE = 1, 2, 3
_OFFSET_SINCE = 25
"""First operator set in which a cache shifts the causal mask."""


@dataclass(frozen=True)
class Heads:
    """Queries, keys or values. `order` lists the axes of batch, heads, sequence and size."""

    value: Value
    order: tuple[int, ...]

    def size(self, axis: int) -> int:
        """Return the size of an axis of `[batch, heads, sequence, size]`."""
        return self.value.type.shape[self.order[axis]]

    def grouped(self, operation: Operation, groups: int) -> Heads:
        """Return heads in groups; `order` then lists batch, groups, heads, sequence and size."""
        at = self.order[_HEADS]
        shape = list(self.value.type.shape)
        shape[at : at + 1] = [groups, shape[at] // groups]
        moved = [axis + (axis > at) for axis in self.order]
        order = (moved[0], at, at + 1, *moved[_SEQUENCE:])
        return Heads(operation.reshape(self.value, shape), order)


def _attention(operation: Operation) -> list[Value] | None:
    mask, nonpad = operation.optional(3), operation.optional(6)
    causal = operation.flag("is_causal")
    known = all(v is None or v.is_constant for v in (mask, nonpad))
    cached = nonpad is not None or operation.optional(4) is not None
    old = causal and cached and operation.version < _OFFSET_SINCE
    listed = len(operation.outputs) > 3 and bool(operation.outputs[3])
    if not known or old or listed or operation.value(0).type.dtype is not DType.FLOAT32:
        return None
    q = _heads(operation, 0, "q_num_heads")
    k, v = (_cached(operation, _heads(operation, i, "kv_num_heads"), i + 3) for i in (1, 2))
    _require_shared(operation, q, k, v)
    if 0 in (*q.value.type.shape, *k.value.type.shape, *v.value.type.shape):
        return None
    bias = _bias(operation, q, k)
    present = [operation.transpose(h.value, h.order) for h in (k, v)]
    joined = len(operation.value(0).type.shape) == 3
    return [attend(operation, q, k, v, bias, joined=joined), *present]


def _require_shared(operation: Operation, q: Heads, k: Heads, v: Heads) -> None:
    """Raise `ModelError` unless the queries' heads can share those of the keys and values."""
    heads, groups = q.size(_HEADS), k.size(_HEADS)
    if v.size(_HEADS) != groups or not groups or heads % groups:
        raise operation.wrong(
            f"queries have {heads} heads, which must be a multiple of the heads of keys "
            f"({groups}) and of values ({v.size(_HEADS)})"
        )


def attend(
    operation: Operation, q: Heads, k: Heads, v: Heads, bias: Array | Value | None, *, joined: bool
) -> Value:
    """Return sums of values, weighted by the products of queries and keys.

    Args:
        operation: the operator to convert; its attributes `scale` and `softcap` apply.
        q: the queries.
        k: the keys, with as many heads as the values; groups of the queries' heads share them.
        v: the values.
        bias: added to the scores, with a shape that can be broadcast to `[batch, heads, queries,
            keys]`.
        joined: whether the results of all heads are joined to `[batch, queries, heads * size]`.
    """
    _require_shared(operation, q, k, v)
    if 0 in (*q.value.type.shape, *k.value.type.shape, *v.value.type.shape):
        raise operation.refuse("its queries, keys or values are empty")
    groups = k.size(_HEADS)
    shape = (q.size(0), q.size(_HEADS), q.size(_SEQUENCE), k.size(_SEQUENCE))
    known = bias.data if isinstance(bias, Value) and bias.is_constant else bias
    weights = _weights(operation, q, k, groups, shape, known)
    return _output(operation, weights, v, groups, joined)


def _heads(operation: Operation, index: int, attribute: str) -> Heads:
    x = operation.value(index)
    if len(x.type.shape) == 4:
        return Heads(x, (0, 1, 2, 3))
    x = operation.image(index, 3)
    batch, sequence, width = x.type.shape
    heads = operation.integer(attribute)
    if heads < 1 or width % heads:
        raise operation.wrong(
            f"the last axis of '{x.name}' {x.type} cannot be divided into {heads} heads"
        )
    shape = (batch, sequence, heads, width // heads)
    return Heads(operation.reshape(x, shape), (0, 2, 1, 3))


def _cached(operation: Operation, heads: Heads, past: int) -> Heads:
    """Return keys or values appended to those of earlier calls."""
    before = operation.optional(past)
    if before is None:
        return heads
    value = operation.transpose(heads.value, heads.order)
    return Heads(operation.emit(Concat(_SEQUENCE), before, value), (0, 1, 2, 3))


def _bias(operation: Operation, q: Heads, k: Heads) -> Array | None:
    """Return the bias that the masks add to the scores; None if it is 0 everywhere.

    Its elements are 0 or -inf, unless the mask has float elements.
    """
    queries, keys = q.size(_SEQUENCE), k.size(_SEQUENCE)
    past = operation.optional(4)
    offset = np.asarray(0 if past is None else past.type.shape[_SEQUENCE]).reshape(-1, 1, 1, 1)
    mask = None if operation.optional(3) is None else operation.constant(3, "mask")
    valid = None if operation.optional(6) is None else operation.constant(6, "number of keys")
    if mask is not None and (not mask.ndim or mask.shape[-1] > keys):
        raise ModelError(
            f"{operation} has a mask of shape {list(mask.shape)} for {keys} keys: its last "
            "dimension must not be larger"
        )
    masked = () if mask is None else (*mask.shape[:-1], keys)
    counts = () if valid is None else (valid.size, 1, 1, 1)
    try:
        shape = np.broadcast_shapes((1, 1, queries, keys), masked, counts)
    except ValueError as error:
        raise operation.wrong(
            f"its mask of shape {list(masked)} cannot be broadcast to {queries} queries and "
            f"{keys} keys"
        ) from error
    operation.afford(shape, 8)
    allowed = np.ones((1, 1, queries, keys), np.bool_)
    if valid is not None:
        valid = valid.reshape(counts)
        allowed = allowed & (np.arange(keys) < valid)
        offset = valid - queries if past is None else offset
    ahead = np.arange(keys) - (np.arange(queries)[:, None] + offset)
    right = operation.integer("right_window_size", -1)
    left = operation.integer("left_window_size", -1)
    if operation.flag("is_causal"):
        allowed = allowed & (ahead <= 0)
    allowed = allowed & ((ahead <= right) | (right < 0)) & ((-ahead <= left) | (left < 0))
    added: Array = np.zeros(1, np.float32)
    if mask is not None:
        missing = [(0, 0)] * (mask.ndim - 1) + [(0, keys - mask.shape[-1])]
        if mask.dtype == np.bool_:
            allowed = allowed & np.pad(mask, missing)
        else:
            added = np.pad(mask, missing, constant_values=-np.inf)
    bias = np.where(allowed, added, -np.inf).astype(np.float32)
    return bias if bias.any() else None


def _weights(
    operation: Operation,
    q: Heads,
    k: Heads,
    groups: int,
    shape: tuple[int, ...],
    bias: Array | Value | None,
) -> Value:
    """Return the weights `[batch, heads, queries, keys]`; 0 where all keys are masked."""
    scale = operation.real("scale", None) or 1 / np.sqrt(q.size(_SIZE))
    cap = operation.real("softcap", 0.0)
    grouped_q, grouped_k = q.grouped(operation, groups), k.grouped(operation, groups)
    turned = (*grouped_k.order[:3], grouped_k.order[4], grouped_k.order[3])
    product = MatMul(grouped_q.order, turned)
    if cap <= 0 and bias is None:
        # The multiplication by `scale` is part of Softmax.
        scores = operation.emit(product, grouped_q.value, grouped_k.value)
        return operation.emit(Softmax(float(scale)), operation.reshape(scores, shape))
    factor = operation.scalar(scale / cap if cap > 0 else scale, q.value)
    scaled = operation.emit(Binary("mul"), grouped_q.value, factor)
    scores = operation.reshape(operation.emit(product, scaled, grouped_k.value), shape)
    if cap > 0:
        limited = operation.emit(Unary("tanh"), scores)
        scores = operation.emit(Binary("mul"), limited, operation.scalar(cap, limited))
    if bias is None:
        return operation.emit(Softmax(), scores)
    if isinstance(bias, Value):
        return operation.emit(Softmax(), operation.emit(Binary("add"), scores, bias))
    kept = np.asarray(bias.max(axis=-1, keepdims=True) > -np.inf)
    masked = operation.literal(np.where(kept, bias, 0).astype(np.float32))
    weights = operation.emit(Softmax(), operation.emit(Binary("add"), scores, masked))
    if kept.all():
        return weights
    return operation.emit(Binary("mul"), weights, operation.literal(kept.astype(np.float32)))


def _output(operation: Operation, weights: Value, v: Heads, groups: int, joined: bool) -> Value:
    """Return the weighted sums of the values, with heads at the axis of the queries' heads."""
    grouped = Heads(weights, (0, 1, 2, 3)).grouped(operation, groups)
    values = v.grouped(operation, groups)
    batch, heads, queries, _ = weights.type.shape
    product = MatMul((), values.order, (0, 3, 1, 2, 4) if joined else ())
    y = operation.emit(product, grouped.value, values.value)
    size = v.size(_SIZE)
    shape = (batch, queries, heads * size) if joined else (batch, heads, queries, size)
    return operation.reshape(y, shape)


CONVERTERS: dict[str, OnnxConverter] = {"Attention": _attention}
