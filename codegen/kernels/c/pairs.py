"""int8 convolutions with two products in one 64-bit multiply-add.

An input of one pixel plus 2^23 times that of another, times a weight, is the product for the one
plus 2^23 times the product for the other; so are sums of such products, as long as the lower one
stays below 2^22. Processors that multiply 32 by 32 bits into 64 get two multiply-accumulates out
of one instruction.
"""

from __future__ import annotations

import numpy as np

from smelt.codegen.kernels.base import Input, KernelCall, Output, Packed, Scratch
from smelt.codegen.kernels.c.finish import Finish
from smelt.codegen.kernels.c.images import Frame, pixel_offset
from smelt.codegen.kernels.c.requantization import sum_range
from smelt.codegen.kernels.c.window import Window
from smelt.ir import Array, DType, Node

_LIMIT = 2**22
"""What the sum of the lower pixel must stay below."""


def fits_pairs(weights: Array) -> bool:
    """Whether no sum of centred weights times int8 inputs leaves its 23 bits."""
    low, high = sum_range(np.zeros(len(weights), np.int64), weights)
    return bool((low > -_LIMIT).all() and (high < _LIMIT).all())


def pairs(
    node: Node, window: Window, frame: Frame, finish: Finish, weights: Array, *, stem: str
) -> KernelCall:
    """The call that computes an int8 convolution of one group.

    Args:
        node: what is computed.
        window: its geometry.
        frame: the output pixels to compute.
        finish: what follows each sum; its bias holds the input's zero point.
        weights: int8 `[o, kh, kw, i]`.
        stem: of the function's name.
    """
    x, y = node.input(0).type, node.output.type
    products = window.taps * window.depth
    packed = products * 4 <= SCRATCH
    count = 2 if products * 8 <= SCRATCH else 1
    outputs = min(4 // count, window.outputs)
    rest = window.outputs % outputs
    depth = products if packed else window.depth
    unrolled = max(min(depth // 2, 8), 1)
    parameters: dict[str, object] = {
        **frame.variables,
        "title": f"{node.op.name}: {x} -> {y}",
        "notes": [window.text],
        "w": window,
        "f": finish,
        "packed": packed,
        "pairs": count,
        "outputs": outputs,
        "whole": window.outputs - rest,
        "rest": rest,
        "depth": depth,
        "unrolled": unrolled,
        "looped": depth - depth % unrolled if depth > unrolled else 0,
        "step": _step(window.depth),
        "pixels": _pixels(node, frame),
        "top": window.origin(0, "y"),
        "side": window.origin(1, "x"),
        "pixel": pixel_offset(frame.source, "y", "x"),
        "output_pixel": pixel_offset(frame.target, "y", "x"),
    }
    padding = np.full(window.depth, x.zero_point, np.int8)
    return KernelCall(
        template="c/convolution_pairs.j2",
        stem=stem,
        parameters=parameters,
        operands=(
            Input(0, "input"),
            *((Packed("padding", padding),) if window.padded else ()),
            Packed("weights", blocks(weights.reshape(window.outputs, -1), outputs)),
            *finish.operands,
            *((Scratch("patch", DType.INT32, products * count),) if packed else ()),
            Output(0, "output"),
        ),
        helpers=finish.helpers | {"low_sum", "high_sum"},
        summary=f"pairs of pixels in one multiply-add, {2 * count} pixels x {outputs} channels",
    )


SCRATCH = 512
"""Bytes that a patch may take."""


def blocks(weights: Array, outputs: int) -> Array:
    """`[o, k]` weights in the order in which blocks of `outputs` channels read them."""
    whole = len(weights) - len(weights) % outputs
    first = weights[:whole].reshape(-1, outputs, weights.shape[1]).transpose(0, 2, 1)
    return np.concatenate([first.ravel(), weights[whole:].T.ravel()])


def _pixels(node: Node, frame: Frame) -> str:
    """The C expression of how many output pixels there are."""
    if frame.rectangle:
        return "(y_end - y_begin) * (x_end - x_begin)"
    y = node.output.type
    return str(y.size // y.shape[-1] // frame.batch)


def _step(depth: int) -> int:
    """How many channels of a pixel are packed without a loop."""
    if depth <= 4:
        return depth
    return 4 if depth % 4 == 0 else 1
