"""Steps of random ONNX networks: elementwise operators, reductions, data movement."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.differential.onnx_builder import OnnxBuilder
from tests.differential.recipe import UnfitError

UNARY = (
    *("Relu", "Sigmoid", "Tanh", "HardSwish", "Abs", "Neg", "Softsign", "Softplus", "Erf", "Mish"),
    *("Elu", "Selu", "LeakyRelu", "HardSigmoid", "ThresholdedRelu", "Celu", "Gelu", "Sin", "Cos"),
    *("Exp", "Sqrt", "Reciprocal", "Log", "Atan"),
)
_POSITIVE = ("Sqrt", "Reciprocal", "Log")
_ALPHA = {"Elu": 0.7, "LeakyRelu": 0.3, "HardSigmoid": 0.3, "Celu": 1.5}
BINARY = ("Add", "Add", "Mul", "Sub", "Div", "Max", "Min", "Pow")
REDUCTIONS = (
    *("ReduceMean", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2"),
    *("ReduceSumSquare", "ReduceLogSumExp"),
)


def unary(b: OnnxBuilder) -> None:
    """Apply a function of one tensor; keep its operand away from poles."""
    x, kind = b.pick(list(b.reals)), b.draw.pick(UNARY)
    if kind in _POSITIVE:
        x = b.add("Add", b.add("Abs", x), b.const(0.5))
    if kind == "Exp":
        x = b.add("Clip", x, b.const(-10), b.const(3))
    attributes: dict[str, Any] = {"alpha": _ALPHA[kind]} if kind in _ALPHA else {}
    b.add(kind, x, **attributes)


def prelu(b: OnnxBuilder) -> None:
    """Apply PRelu with a slope for each channel, or one for all."""
    x = b.pick(b.of_rank(3, 4))
    shape = b.draw.pick(((b.shape(x)[1], *[1] * (len(b.shape(x)) - 2)), (1,)))
    b.add("PRelu", x, b.const(b.draw.real(shape)))


def binary(b: OnnxBuilder) -> None:
    """Apply a binary operator with an earlier tensor or a broadcast constant, in either order."""
    x, kind = b.pick(list(b.reals)), b.draw.pick(BINARY)
    if kind == "Pow":
        b.add("Pow", x, b.const(b.draw.pick((2.0, 3.0))))
        return
    if kind == "Div":
        divisor = np.abs(b.draw.real(_broadcast(b, x))) + np.float32(0.5)
        b.add("Div", x, b.const(divisor))
        return
    fitting = [n for n in b.reals if _broadcasts(b.shape(n), b.shape(x))]
    constant = b.draw.chance(0.5)
    other = b.const(b.draw.real(_broadcast(b, x), 1.5)) if constant else b.draw.pick(fitting)
    b.add(kind, *((x, other) if b.draw.chance(0.5) else (other, x)))


def where(b: OnnxBuilder) -> None:
    """Select elements of two tensors by a constant condition."""
    x = b.pick(list(b.reals))
    chosen = b.draw.real(_broadcast(b, x)) > 0
    b.add("Where", b.const(chosen, bool), x, b.const(b.draw.real(_broadcast(b, x))))


def softmax(b: OnnxBuilder) -> None:
    """Apply a softmax along any axis."""
    x = b.pick(b.of_rank(2, 3, 4))
    kind = b.draw.pick(("Softmax", "Softmax", "LogSoftmax"))
    b.add(kind, x, axis=b.draw.integer(-1, len(b.shape(x)) - 1))


def reduce(b: OnnxBuilder) -> None:
    """Reduce over some axes."""
    x, kind = b.pick(b.of_rank(2, 3, 4, 5)), b.draw.pick(REDUCTIONS)
    rank = len(b.shape(x))
    axes = [axis for axis in range(rank) if b.draw.chance(0.5)] or [rank - 1]
    b.add(kind, x, b.const(axes, np.int64), keepdims=int(b.draw.chance(0.7) or len(axes) == rank))


def concat(b: OnnxBuilder) -> None:
    """Concatenate with earlier tensors that differ in one axis at most, or with itself."""
    x = b.pick(list(b.reals))
    shape = b.shape(x)
    if not shape:
        raise UnfitError("a scalar has no axis")
    axis = b.draw.integer(0, len(shape) - 1)
    fitting = [
        name
        for name in b.reals
        if len(b.shape(name)) == len(shape)
        and all(i == axis or b.shape(name)[i] == n for i, n in enumerate(shape))
    ]
    others = [b.draw.pick(fitting) for _ in range(b.draw.integer(1, 2))]
    b.add("Concat", *others, x, axis=axis)


def split(b: OnnxBuilder) -> None:
    """Split into parts of any sizes."""
    x = b.pick(b.of_rank(2, 3, 4))
    axes = [axis for axis, n in enumerate(b.shape(x)) if n > 1]
    if not axes:
        raise UnfitError("nothing to split")
    axis = b.draw.pick(axes)
    first = b.draw.integer(1, b.shape(x)[axis] - 1)
    sizes = b.const([first, b.shape(x)[axis] - first], np.int64)
    b.add("Split", x, sizes, axis=axis, count=2)


def slice_(b: OnnxBuilder) -> None:
    """Slice with steps, also negative ones."""
    x = b.pick(b.of_rank(2, 3, 4))
    starts, ends, steps = list[int](), list[int](), list[int]()
    for n in b.shape(x):
        begin = b.draw.integer(0, n - 1)
        end = b.draw.integer(begin, n - 1)
        step = b.draw.pick((1, 1, 1, 2, -1))
        starts.append(end if step < 0 else begin)
        ends.append((begin - 1 if begin else -n - 1) if step < 0 else end + 1)
        steps.append(step)
    b.add("Slice", x, *(b.const(v, np.int64) for v in (starts, ends, range(len(steps)), steps)))


def pad(b: OnnxBuilder) -> None:
    """Pad with a constant, a reflection or the edge."""
    x, mode = b.pick(b.of_rank(2, 3, 4)), b.draw.pick(("constant", "constant", "reflect", "edge"))
    room = [min(2, n - 1) if mode == "reflect" else 2 for n in b.shape(x)]
    pads = [b.draw.integer(0, r) for r in room * 2]
    operands = [b.const(pads, np.int64)]
    if mode == "constant" and b.draw.chance(0.5):
        operands.append(b.const(b.draw.pick((0.0, -1.5, 2.0))))
    b.add("Pad", x, *operands, mode=mode)


def transpose(b: OnnxBuilder) -> None:
    """Permute the axes."""
    x = b.pick(b.of_rank(2, 3, 4, 5))
    b.add("Transpose", x, perm=[int(i) for i in b.draw.rng.permutation(len(b.shape(x)))])


def reshape(b: OnnxBuilder) -> None:
    """Reshape to two to four dimensions."""
    x = b.pick(list(b.reals))
    size = int(np.prod(b.shape(x)))
    shape = [1]
    for _ in range(b.draw.integer(0, 2)):
        shape.append(b.draw.pick([n for n in range(1, 17) if size % n == 0]))
        size //= shape[-1]
    b.add("Reshape", x, b.const([*shape, size], np.int64))


def unsqueeze(b: OnnxBuilder) -> None:
    """Insert an axis of length 1, or remove all of them but two."""
    x = b.pick(b.of_rank(1, 2, 3))
    b.add("Unsqueeze", x, b.const([b.draw.integer(0, len(b.shape(x)))], np.int64))


def expand(b: OnnxBuilder) -> None:
    """Repeat along axes of length 1, or of any length."""
    x = b.pick(b.of_rank(2, 3, 4))
    if b.draw.chance(0.5):
        b.add("Tile", x, b.const([b.draw.pick((1, 1, 2, 3)) for _ in b.shape(x)], np.int64))
        return
    shape = [b.draw.pick((1, 2, 4)) if n == 1 else n for n in b.shape(x)]
    b.add("Expand", x, b.const(shape, np.int64))


def resize(b: OnnxBuilder) -> None:
    """Resize by factors or to a size, in every mode."""
    x = b.pick(b.images())
    mode = b.draw.pick(("nearest", "linear", "linear", "cubic"))
    transform = b.draw.pick(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": transform}
    if mode == "nearest":
        attributes["nearest_mode"] = b.draw.pick(("floor", "ceil", "round_prefer_floor"))
    size = [*b.shape(x)[:2], *(b.draw.integer(1, 2 * n + 1) for n in b.shape(x)[2:])]
    b.add("Resize", x, "_", "_", b.const(size, np.int64), **attributes)


def blocks(b: OnnxBuilder) -> None:
    """Move blocks of pixels into channels, or back."""
    x = b.pick(b.images())
    _, channels, height, width = b.shape(x)
    if height % 2 == width % 2 == 0 and b.draw.chance(0.6):
        b.add("SpaceToDepth", x, blocksize=2)
    elif channels % 4 == 0:
        b.add("DepthToSpace", x, blocksize=2, mode=b.draw.pick(("DCR", "CRD")))


def gather(b: OnnxBuilder) -> None:
    """Gather by constant indices, also negative ones."""
    x = b.pick(b.of_rank(2, 3, 4))
    axis = b.draw.integer(0, len(b.shape(x)) - 1)
    n = b.shape(x)[axis]
    indices = [b.draw.integer(-n, n - 1) for _ in range(b.draw.integer(1, 5))]
    b.add("Gather", x, b.const(indices, np.int64), axis=axis)


def cumulative(b: OnnxBuilder) -> None:
    """Compute cumulative sums in either direction."""
    x = b.pick(b.of_rank(2, 3, 4))
    axis = b.const(b.draw.integer(0, len(b.shape(x)) - 1), np.int64)
    b.add("CumSum", x, axis, exclusive=int(b.draw.chance(0.5)), reverse=int(b.draw.chance(0.5)))


def einsum(b: OnnxBuilder) -> None:
    """Multiply by a constant and sum over the channels."""
    x = b.pick(b.images())
    channels = b.shape(x)[1]
    w = b.const(b.draw.real((channels, b.draw.integer(1, 6)), channels**-0.5))
    b.add("Einsum", x, w, equation="bchw,cd->bdhw")


def _broadcast(b: OnnxBuilder, x: str) -> tuple[int, ...]:
    """Return a shape that broadcasts to the tensor's."""
    shape = tuple(1 if b.draw.chance(0.5) else n for n in b.shape(x))
    return shape[b.draw.integer(0, len(shape)) :] if b.draw.chance(0.3) else shape


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(a[::-1], b[::-1], strict=False))


ELEMENTS = (
    *(unary, unary, unary, prelu, binary, binary, binary, where, softmax, reduce, reduce),
    *(concat, split, slice_, pad, transpose, transpose, reshape, unsqueeze, expand, resize),
    *(blocks, gather, cumulative, einsum),
)
