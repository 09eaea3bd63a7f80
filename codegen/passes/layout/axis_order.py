"""Layouts: the order in which the elements of a tensor are stored in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod

from smelt.ir import Array, Shape
from smelt.ops.run_time_lengths import Mark

AxisPermutation = tuple[int, ...]
Key = tuple[Shape, AxisPermutation]


@dataclass(frozen=True)
class Layout:
    """A tensor reshaped to `view`, transposed by `order`, then reshaped to `shape`.

    A *plain* layout only permutes the tensor's own axes. If permuted axes have been merged since,
    for example by a flattening, `view` has the shape before the merge.
    """

    view: Shape
    order: AxisPermutation
    shape: Shape

    @staticmethod
    def plain(shape: Shape, order: AxisPermutation) -> Layout:
        """Return the layout that stores the axes of a tensor in the given order."""
        return Layout(shape, order, tuple(shape[axis] for axis in order))

    @staticmethod
    def natural(shape: Shape) -> Layout:
        """Return the row-major layout of a tensor."""
        return Layout(shape, tuple(range(len(shape))), shape)

    @cached_property
    def key(self) -> Key:
        """A key that is equal for layouts of a tensor that store every element at the same place.

        Axes of size 1 are ignored, and adjacent axes that stay adjacent count as one.
        """
        runs: list[list[int]] = []
        axes = [axis for axis, size in enumerate(self.view) if size != 1]
        rank = {axis: index for index, axis in enumerate(axes)}
        for index in (rank[axis] for axis in self.order if axis in rank):
            if runs and runs[-1][-1] + 1 == index:
                runs[-1].append(index)
            else:
                runs.append([index])
        firsts = sorted(run[0] for run in runs)
        sizes = dict.fromkeys(firsts, 1)
        for run in runs:
            for index in run:
                sizes[run[0]] *= self.view[axes[index]]
        return tuple(sizes.values()), tuple(firsts.index(run[0]) for run in runs)

    @property
    def is_natural(self) -> bool:
        """Whether the elements are stored in the tensor's own order, possibly in another shape."""
        return len(self.key[0]) <= 1

    def apply(self, array: Array) -> Array:
        """Return the array in this layout."""
        return array.reshape(self.view).transpose(self.order).reshape(self.shape)

    def after(self, shape: Shape) -> Layout:
        """Return the layout of the same memory for the tensor reshaped to `shape`.

        It is plain if every axis of `shape` is still contiguous.
        """
        if self.is_natural:
            return Layout.natural(shape)
        factors = common_factors(self.view, shape)
        if factors is None:
            return replace(self, shape=shape)
        groups = _groups(factors, self.view)
        order = [index for axis in self.order for index in groups[axis]]
        place = {index: position for position, index in enumerate(order)}
        axes = {
            axis: place[group[0]]
            for axis, group in enumerate(_groups(factors, shape))
            if shape[axis] != 1
            and [place[i] for i in group] == list(range(place[group[0]], place[group[-1]] + 1))
        }
        if len(axes) < sum(size != 1 for size in shape):
            return Layout(factors, tuple(order), shape)
        moved = iter(sorted(axes, key=axes.__getitem__))
        return Layout.plain(
            shape, tuple(axis if n == 1 else next(moved) for axis, n in enumerate(shape))
        )


def common_factors(a: Shape, b: Shape) -> Shape | None:
    """Return the coarsest common refinement of both shapes, without ones; None if there is none."""
    tails = sorted({*_products(a), *_products(b)}, reverse=True)
    if 0 in tails or any(x % y for x, y in pairwise(tails)):
        return None
    return tuple(x // y for x, y in pairwise(tails))


def _products(shape: Shape) -> list[int]:
    """Return the product of every tail of a shape."""
    products = [1]
    for size in reversed(shape):
        products.append(products[-1] * size)
    return products


def _groups(factors: Shape, shape: Shape) -> list[list[int]]:
    """Return, for each axis of a shape, the indices of the factors that it is the product of."""
    groups: list[list[int]] = []
    index = 0
    for size in shape:
        group: list[int] = []
        while size > 1:
            size //= factors[index]
            group.append(index)
            index += 1
        groups.append(group)
    return groups


def permutation(source: Layout, target: Layout) -> tuple[Shape, AxisPermutation] | None:
    """Return the shape and the transposition that convert one layout of a tensor into another.

    Returns None if no single transposition can do it.
    """
    if source.view == target.view:
        factors, a, b = source.view, source.order, target.order
    else:
        common = common_factors(source.view, target.view)
        if common is None:
            return None
        factors, a, b = common, _refined(common, source), _refined(common, target)
    return tuple(factors[index] for index in a), tuple(a.index(index) for index in b)


def _refined(factors: Shape, layout: Layout) -> AxisPermutation:
    groups: Sequence[Sequence[int]] = _groups(factors, layout.view)
    return tuple(index for axis in layout.order for index in groups[axis])


def is_outermost(mark: Mark, layout: Layout) -> bool:
    """Return whether the length is the outermost dimension in memory for a value in this layout."""
    before = 1
    for axis, size in enumerate(layout.view):
        if mark.outer % before == 0 and size % (mark.outer // before * mark.length.maximum) == 0:
            first = layout.order[: layout.order.index(axis)]
            return mark.outer // before * prod(layout.view[other] for other in first) == 1
        before *= size
    return False


def rows_first(mark: Mark, shape: Shape) -> Layout:
    """Return the layout of a tensor with the axis of its length first."""
    others = (axis for axis in range(len(shape)) if axis != mark.axis)
    return Layout.plain(shape, (mark.axis, *others))
