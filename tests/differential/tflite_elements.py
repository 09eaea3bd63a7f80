"""Steps of random int8 TFLite networks: elementwise operators and data movement."""

from __future__ import annotations

import ai_edge_litert.schema_py_generated as schema
import numpy as np

from tests.differential.recipe import UnfitError
from tests.differential.tflite_builder import QuantPair, TfliteBuilder
from tests.differential.tflite_layers import ACTIVATIONS

_FIXED: dict[str, QuantPair] = {
    "LOGISTIC": (1 / 256, -128),
    "TANH": (1 / 128, 0),
    "SOFTMAX": (1 / 256, -128),
    "LOG_SOFTMAX": (16 / 256, 127),
    "L2_NORMALIZATION": (1 / 128, 0),
}
"""Quantizations that TensorFlow Lite prescribes."""
_UNARY = ("RELU", "LOGISTIC", "TANH", "HARD_SWISH", "LEAKY_RELU", "ELU", "ABS")
_ARITHMETIC = {
    "ADD": schema.AddOptionsT,
    "SUB": schema.SubOptionsT,
    "MUL": schema.MulOptionsT,
}


def unary(b: TfliteBuilder) -> None:
    """Apply a function of one tensor."""
    x, kind = b.pick(b.computed()), b.draw.pick(_UNARY)
    if kind == "LEAKY_RELU":
        alpha = b.draw.pick((0.1, 0.3, 0.01))
        b.add(kind, x, options=schema.LeakyReluOptionsT, alpha=alpha)
        return
    b.add(kind, x, quant=_FIXED.get(kind, "free"))


def prelu(b: TfliteBuilder) -> None:
    """Append PRELU with a slope for each channel."""
    x = b.pick(b.images())
    b.add("PRELU", x, b.data(b.draw.real((1, 1, b.shape(x)[3]))))


def softmax(b: TfliteBuilder) -> None:
    """Append SOFTMAX, LOG_SOFTMAX or L2_NORMALIZATION over the last axis."""
    x = b.pick(b.of_rank(2, 4))
    kind = b.draw.pick(("SOFTMAX", "SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION"))
    if kind == "SOFTMAX":
        beta = b.draw.pick((1.0, 1.0, 0.5))
        b.add(kind, x, options=schema.SoftmaxOptionsT, quant=_FIXED[kind], beta=beta)
    else:
        b.add(kind, x, quant=_FIXED[kind])


def binary(b: TfliteBuilder) -> None:
    """Apply a binary operator with an earlier tensor or a broadcast constant, in either order."""
    x = b.pick(b.computed())
    kind = b.draw.pick(
        ("ADD", "ADD", "SUB", "MUL", "MUL", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE")
    )
    fitting = [n for n in b.computed() if _broadcasts(b.shape(n), b.shape(x))]
    constant = b.draw.chance(0.4)
    compared = kind in ("MAXIMUM", "MINIMUM")
    if constant:
        shape = tuple(1 if b.draw.chance(0.4) else n for n in b.shape(x))
        shape = shape[b.draw.integer(0, len(shape) - 1) :] if b.draw.chance(0.4) else shape
        other = b.data(b.draw.real(shape, 1.5), b.quant(x) if compared else None)
    else:
        other = b.draw.pick(fitting)
        other = b.like(other, x) if compared else other
    operands = (x, other) if b.draw.chance(0.5) else (other, x)
    if compared:
        b.add(kind, *operands, options=schema.MaximumMinimumOptionsT, quant="same")
    elif kind in _ARITHMETIC:
        fused = b.draw.pick(ACTIVATIONS)
        b.add(kind, *operands, options=_ARITHMETIC[kind], fusedActivationFunction=fused)
    else:
        b.add(kind, *operands, options=schema.SquaredDifferenceOptionsT)


def concat(b: TfliteBuilder) -> None:
    """Concatenate with earlier tensors that differ in one axis at most, or with itself."""
    x = b.pick(b.of_rank(2, 3, 4))
    shape = b.shape(x)
    axis = b.draw.integer(0, len(shape) - 1)
    fitting = [
        name
        for name in b.of_rank(len(shape))
        if all(i == axis or b.shape(name)[i] == n for i, n in enumerate(shape))
    ]
    others = [b.like(b.draw.pick(fitting), x) for _ in range(b.draw.integer(1, 2))]
    options = schema.ConcatenationOptionsT
    b.add("CONCATENATION", *others, x, options=options, quant="same", axis=axis)


def split(b: TfliteBuilder) -> None:
    """Append SPLIT into equal parts, or SPLIT_V into any parts."""
    x = b.pick(b.of_rank(2, 3, 4))
    axes = [axis for axis, n in enumerate(b.shape(x)) if n > 1]
    if not axes:
        raise UnfitError("nothing to split")
    axis = b.draw.pick(axes)
    size = b.shape(x)[axis]
    if size % 2 == 0 and b.draw.chance(0.5):
        options = schema.SplitOptionsT
        b.add("SPLIT", b.integers(axis), x, options=options, quant="same", count=2, numSplits=2)
        return
    first = b.draw.integer(1, size - 1)
    operands = b.integers([first, size - first]), b.integers(axis)
    b.add(
        "SPLIT_V", x, *operands, options=schema.SplitVOptionsT, quant="same", count=2, numSplits=2
    )


def slice_(b: TfliteBuilder) -> None:
    """Append SLICE, or STRIDED_SLICE with steps."""
    x = b.pick(b.of_rank(2, 3, 4))
    shape = b.shape(x)
    begins = [b.draw.integer(0, n - 1) for n in shape]
    sizes = [b.draw.integer(1, n - begin) for n, begin in zip(shape, begins, strict=True)]
    if b.draw.chance(0.5):
        b.add("SLICE", x, b.integers(begins), b.integers(sizes), quant="same")
        return
    ends = [begin + size for begin, size in zip(begins, sizes, strict=True)]
    strides = [b.draw.pick((1, 1, 2)) for _ in shape]
    operands = (b.integers(v) for v in (begins, ends, strides))
    mask = b.draw.integer(0, 2 ** len(shape) - 1) if b.draw.chance(0.3) else 0
    options = schema.StridedSliceOptionsT
    fields = {"beginMask": mask, "endMask": 0, "shrinkAxisMask": 0}
    fields |= {"ellipsisMask": 0, "newAxisMask": 0}
    b.add("STRIDED_SLICE", x, *operands, options=options, quant="same", **fields)


def pad(b: TfliteBuilder) -> None:
    """Append PAD, PADV2 or MIRROR_PAD."""
    x = b.pick(b.of_rank(2, 3, 4))
    kind = b.draw.pick(("PAD", "PAD", "PADV2", "MIRROR_PAD"))
    room = [min(2, n - 1) if kind == "MIRROR_PAD" else 2 for n in b.shape(x)]
    counts = b.integers([[b.draw.integer(0, r), b.draw.integer(0, r)] for r in room])
    if kind == "PADV2":
        value = b.data(np.asarray([0.5], np.float32), b.quant(x))
        b.add(kind, x, counts, value, quant="same")
    elif kind == "MIRROR_PAD":
        mode = b.draw.integer(0, 1)
        b.add(kind, x, counts, options=schema.MirrorPadOptionsT, quant="same", mode=mode)
    else:
        b.add(kind, x, counts, quant="same")


def transpose(b: TfliteBuilder) -> None:
    """Permute the axes."""
    x = b.pick(b.of_rank(2, 3, 4))
    order = [int(i) for i in b.draw.rng.permutation(len(b.shape(x)))]
    b.add("TRANSPOSE", x, b.integers(order), quant="same")


def reshape(b: TfliteBuilder) -> None:
    """Reshape to two to four dimensions."""
    x = b.pick(b.computed())
    size = int(np.prod(b.shape(x)))
    shape = [1]
    for _ in range(b.draw.integer(0, 2)):
        shape.append(b.draw.pick([n for n in range(1, 17) if size % n == 0]))
        size //= shape[-1]
    b.add("RESHAPE", x, b.integers([*shape, size]), quant="same")


def resize(b: TfliteBuilder) -> None:
    """Append RESIZE_BILINEAR or RESIZE_NEAREST_NEIGHBOR, in any coordinate mode."""
    x = b.pick(b.images())
    kind, options = b.draw.pick(
        (
            ("RESIZE_BILINEAR", schema.ResizeBilinearOptionsT),
            ("RESIZE_NEAREST_NEIGHBOR", schema.ResizeNearestNeighborOptionsT),
        )
    )
    corners, centers = b.draw.pick(((False, False), (True, False), (False, True)))
    size = b.integers([b.draw.integer(1, 2 * n + 1) for n in b.shape(x)[1:3]])
    fields = {"alignCorners": corners, "halfPixelCenters": centers}
    b.add(kind, x, size, options=options, quant="same", **fields)


def blocks(b: TfliteBuilder) -> None:
    """Append SPACE_TO_DEPTH or DEPTH_TO_SPACE."""
    x = b.pick(b.images())
    _, height, width, channels = b.shape(x)
    if height % 2 == width % 2 == 0 and b.draw.chance(0.6):
        options = schema.SpaceToDepthOptionsT
        b.add("SPACE_TO_DEPTH", x, options=options, quant="same", blockSize=2)
    elif channels % 4 == 0:
        options = schema.DepthToSpaceOptionsT
        b.add("DEPTH_TO_SPACE", x, options=options, quant="same", blockSize=2)


def gather(b: TfliteBuilder) -> None:
    """Append GATHER with constant indices."""
    x = b.pick(b.of_rank(2, 3, 4))
    axis = b.draw.integer(0, len(b.shape(x)) - 1)
    n = b.shape(x)[axis]
    indices = b.integers([b.draw.integer(0, n - 1) for _ in range(b.draw.integer(1, 5))])
    b.add("GATHER", x, indices, options=schema.GatherOptionsT, quant="same", axis=axis)


def pack(b: TfliteBuilder) -> None:
    """Append PACK of a tensor with itself, or UNPACK of a short axis."""
    x = b.pick(b.of_rank(2, 3))
    short = [axis for axis, n in enumerate(b.shape(x)) if n <= 4]
    if short and b.draw.chance(0.5):
        axis = b.draw.pick(short)
        count = b.shape(x)[axis]
        options = schema.UnpackOptionsT
        b.add("UNPACK", x, options=options, quant="same", count=count, num=count, axis=axis)
        return
    axis = b.draw.integer(0, len(b.shape(x)))
    b.add("PACK", x, x, options=schema.PackOptionsT, quant="same", valuesCount=2, axis=axis)


def requantize(b: TfliteBuilder) -> None:
    """Append QUANTIZE to another scale."""
    x = b.pick(b.computed())
    low, high = (float(f([f(a) for a in b.reals[x]])) for f in (np.min, np.max))
    other = b.data(np.zeros(1, np.float32), b.range(low, high))
    b.like(x, other)


def arg_max(b: TfliteBuilder) -> None:
    """Append ARG_MAX or ARG_MIN, whose results no other step reads."""
    x = b.pick(b.of_rank(2, 3, 4))
    axis = b.integers([b.draw.integer(0, len(b.shape(x)) - 1)])
    if b.draw.chance(0.5):
        options = schema.ArgMaxOptionsT
        b.add("ARG_MAX", x, axis, options=options, outputType=schema.TensorType.INT32)
    else:
        options = schema.ArgMinOptionsT
        b.add("ARG_MIN", x, axis, options=options, outputType=schema.TensorType.INT32)


def broadcast(b: TfliteBuilder) -> None:
    """Append BROADCAST_TO along axes of length one."""
    x = b.pick(b.of_rank(2, 3, 4))
    shape = [b.draw.pick((1, 2, 4)) if n == 1 else n for n in b.shape(x)]
    b.add("BROADCAST_TO", x, b.integers(shape), options=schema.BroadcastToOptionsT, quant="same")


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(a[::-1], b[::-1], strict=False))


ELEMENTS = (
    *(unary, unary, unary, prelu, softmax, binary, binary, binary, concat, split, slice_, pad),
    *(transpose, reshape, resize, blocks, gather, pack, requantize, arg_max, broadcast),
)
