"""Converter of Einsum to transposes, sums and products of matrices.

An axis that is summed and that only one operand has is summed first. The remaining operands are
multiplied in order. If both have an axis, there is one product for each of its indices if the axis
is needed later; otherwise the product sums over it. Axes of one element are removed: an operand
lacks the axes along which it is broadcast.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from smelt.frontend.onnx.operation import OnnxConverter, Operation
from smelt.ir import Value
from smelt.ops.core.binary import Binary
from smelt.ops.core.matmul import MatMul
from smelt.ops.core.reduce import Reduce
from smelt.ops.tensor.slice import Slice

_TERM = re.compile(r"([A-Za-z]*)(\.\.\.)?([A-Za-z]*)")


@dataclass(frozen=True)
class _Term:
    """A tensor with a label for each of its axes."""

    value: Value
    labels: tuple[str, ...]

    def size(self, label: str) -> int:
        return self.value.type.shape[self.labels.index(label)]


def _einsum(operation: Operation) -> Value:
    equation = operation.text("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    names = left.split(",")
    if len(names) != operation.count:
        raise operation.wrong(
            f"equation '{equation}' has {len(names)} operands, but the operator has "
            f"{operation.count}"
        )
    ellipsis = max(
        (len(v.type.shape) - len(n) + 3 for n, v in _pairs(names, operation) if "..." in n),
        default=0,
    )
    labels = [
        _labels(operation, name, len(value.type.shape), ellipsis)
        for name, value in _pairs(names, operation)
    ]
    if arrow:
        result = _labels(operation, right, None, ellipsis)
    else:
        letters = re.sub(r"[^A-Za-z]", "", left)
        once = "".join(letter for letter in sorted(set(letters)) if letters.count(letter) == 1)
        result = (*_ellipsis(ellipsis, ellipsis), *once)
    sizes = _sizes(operation, labels)
    unknown = [label for label in result if label not in sizes]
    if unknown or len(set(result)) != len(result):
        raise operation.wrong(
            f"equation '{equation}' cannot have output '{right}': labels must occur in an operand, "
            "and only once in the output"
        )
    terms = [
        _squeezed(operation, _diagonal(operation, _Term(value, own)))
        for (_, value), own in zip(_pairs(names, operation), labels, strict=True)
    ]
    kept = tuple(label for label in result if sizes[label] != 1)
    total = _summed(operation, terms[0], _needed(kept, terms[1:]))
    for index, term in enumerate(terms[1:], start=2):
        needed = _needed(kept, terms[index:])
        total = _multiplied(operation, total, term, needed)
    total = _summed(operation, total, set(kept))
    y = operation.transpose(total.value, [total.labels.index(label) for label in kept])
    return operation.reshape(y, [sizes[label] for label in result])


def _pairs(names: Sequence[str], operation: Operation) -> list[tuple[str, Value]]:
    return list(zip(names, operation.values(), strict=True))


def _ellipsis(count: int, rank: int) -> tuple[str, ...]:
    """Return labels for the last `count` of the `rank` axes that an ellipsis stands for."""
    return tuple(f".{i}" for i in range(rank - count, rank))


def _labels(operation: Operation, term: str, rank: int | None, ellipsis: int) -> tuple[str, ...]:
    """Return a label for each axis of a term; `ellipsis` is the most axes that any has."""
    match = _TERM.fullmatch(term)
    if match is None:
        raise operation.wrong(f"'{term}' in its equation is not a list of letters")
    before, dots, after = match.groups()
    count = ellipsis if rank is None else rank - len(before) - len(after)
    if count < 0 or (count and not dots):
        raise operation.wrong(
            f"'{term}' in its equation does not fit an operand with {rank} dimensions"
        )
    return (*before, *(_ellipsis(count, ellipsis) if dots else ()), *after)


def _sizes(operation: Operation, labels: Sequence[tuple[str, ...]]) -> dict[str, int]:
    """Return the size of each label; operands may have size 1 instead in an ellipsis."""
    sizes: dict[str, int] = {}
    for value, own in zip(operation.values(), labels, strict=True):
        for label, size in zip(own, value.type.shape, strict=True):
            known = sizes.setdefault(label, size)
            if 1 not in (known, size) and known != size:
                raise operation.wrong(
                    f"'{label}' in its equation has two different sizes, {known} and {size}"
                )
            sizes[label] = size if known == 1 else known
    return sizes


def _needed(kept: Sequence[str], others: Sequence[_Term]) -> set[str]:
    """Return the labels that the output or a later term has."""
    return {*kept, *(label for term in others for label in term.labels)}


def _diagonal(operation: Operation, term: _Term) -> _Term:
    """Select the elements at which axes with the same label have the same index."""
    for label in dict.fromkeys(term.labels):
        while term.labels.count(label) > 1:
            axes = [i for i, own in enumerate(term.labels) if own == label][:2]
            size = term.value.type.shape[axes[0]]
            if term.value.type.shape[axes[1]] != size:
                raise operation.wrong(f"'{label}' in its equation has two sizes in one operand")
            others = [i for i in range(len(term.labels)) if i not in axes]
            value = operation.transpose(term.value, [*others, *axes])
            shape = (*value.type.shape[:-2], size * size)
            diagonal = Slice.along(len(others), 0, size, shape, size + 1)
            value = operation.emit(diagonal, operation.reshape(value, shape))
            term = _Term(value, (*(term.labels[i] for i in others), label))
    return term


def _squeezed(operation: Operation, term: _Term) -> _Term:
    """Remove axes of one element."""
    kept = tuple(label for label in term.labels if term.size(label) != 1)
    return _Term(operation.reshape(term.value, [term.size(label) for label in kept]), kept)


def _summed(operation: Operation, term: _Term, needed: set[str]) -> _Term:
    """Sum over all axes with labels that are not needed."""
    axes = tuple(i for i, label in enumerate(term.labels) if label not in needed)
    if not axes:
        return term
    kept = tuple(label for label in term.labels if label in needed)
    return _Term(operation.emit(Reduce("sum", axes), term.value), kept)


def _arranged(operation: Operation, term: _Term, groups: Sequence[Sequence[str]]) -> Value:
    """Transpose and reshape a term so that each group of labels becomes one axis."""
    order = [term.labels.index(label) for group in groups for label in group]
    value = operation.transpose(term.value, order)
    return operation.reshape(value, [prod(term.size(label) for label in group) for group in groups])


def _multiplied(operation: Operation, a: _Term, b: _Term, needed: set[str]) -> _Term:
    """Multiply two terms, and sum over labels that are not needed afterwards."""
    a = _summed(operation, a, needed | set(b.labels))
    b = _summed(operation, b, needed | set(a.labels))
    common = [label for label in a.labels if label in b.labels]
    stack = [label for label in common if label in needed]
    inner = [label for label in common if label not in needed]
    rows = [label for label in a.labels if label not in common]
    columns = [label for label in b.labels if label not in common]
    labels = (*stack, *rows, *columns)
    singles = [[label] for label in stack]
    shape = [(a if label in a.labels else b).size(label) for label in labels]
    if inner:
        left = _arranged(operation, a, (*singles, rows, inner))
        right = _arranged(operation, b, (*singles, inner, columns))
        y = operation.emit(MatMul(), left, right)
    else:
        # An empty group becomes an axis of one element, along which the factor is broadcast.
        left = _arranged(operation, a, (*singles, *([r] for r in rows), *([] for _ in columns)))
        right = _arranged(operation, b, (*singles, *([] for _ in rows), *([c] for c in columns)))
        y = operation.emit(Binary("mul"), left, right)
    return _Term(operation.reshape(y, shape), labels)


CONVERTERS: dict[str, OnnxConverter] = {"Einsum": _einsum}
