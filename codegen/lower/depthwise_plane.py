"""The scratch layout of a depthwise convolution's channel: two inputs in each word."""

from __future__ import annotations

from dataclasses import dataclass, replace

from smelt.codegen.lower.products_32bit import SCRATCH_BYTES
from smelt.codegen.lower.window import Window
from smelt.ir import Node
from smelt.ops.core.convolution import DepthwiseConv2D


@dataclass(frozen=True, kw_only=True)
class Plane:
    """The scratch layout for one channel, and how the assembly traverses it.

    Outputs are computed in pairs along axis `u`; `v` is the other axis. Distances in the input and
    output are in elements, distances in scratch in words.

    Attributes:
        axis: 0 if rows are paired, 1 if columns are.
        taps: Taps of the window along u and v.
        stride: Stride along u and v.
        before: Padding before the image along u and v.
        size: Size of the image along u and v.
        outputs: Outputs along u and v.
        pairs: Pairs of outputs along u in a slab.
        pitch: Words from one u, and one v, to the next.
        source: Elements from one u, and one v, of the input to the next.
        target: Elements from one u, and one v, of the output to the next.
    """

    axis: int
    taps: tuple[int, int]
    stride: tuple[int, int]
    before: tuple[int, int]
    size: tuple[int, int]
    outputs: tuple[int, int]
    pairs: int
    pitch: tuple[int, int]
    source: tuple[int, int]
    target: tuple[int, int]

    @staticmethod
    def along(node: Node[DepthwiseConv2D], axis: int) -> Plane:
        """Return the plane with `u` along this axis: one pair at a time, with lines along `v`."""
        window, x, y = Window.of(node), node.input(0).type.shape, node.output.type.shape
        taps, stride, before, size, outputs, source, target = (
            (pair[axis], pair[1 - axis])
            for pair in (
                window.kernel,
                window.stride,
                (window.padding[0][0], window.padding[1][0]),
                window.size,
                (y[1], y[2]),
                (x[2] * x[3], x[3]),
                (y[2] * y[3], y[3]),
            )
        )
        return Plane(
            axis=axis,
            taps=taps,
            stride=stride,
            before=before,
            size=size,
            outputs=outputs,
            pairs=1,
            pitch=(stride[1] * (outputs[1] - 1) + taps[1], 1),
            source=source,
            target=target,
        )

    @property
    def name(self) -> str:
        """The name of axis u: `rows` or `columns`."""
        return "columns" if self.axis else "rows"

    @property
    def odd(self) -> bool:
        """Whether the number of outputs along u is odd, so that the last one has no partner."""
        return self.outputs[0] % 2 == 1

    @property
    def rows(self) -> int:
        """Words along u that a full slab needs."""
        return self.rows_of(self.pairs)

    def rows_of(self, pairs: int) -> int:
        """Return the words along u that this number of pairs needs."""
        return 2 * self.stride[0] * (pairs - 1) + self.taps[0]

    @property
    def columns(self) -> int:
        """Words along v."""
        return self.stride[1] * (self.outputs[1] - 1) + self.taps[1]

    @property
    def words(self) -> int:
        """Words of a slab."""
        return self.rows * self.columns

    @property
    def inner(self) -> int:
        """The axis along which taps are adjacent in scratch: 0 for u, 1 for v."""
        return 0 if self.pitch[0] == 1 else 1

    @property
    def lines(self) -> int:
        """Number of lines (runs of adjacent taps) in a window."""
        return self.taps[1 - self.inner]

    @property
    def run(self) -> int:
        """Taps in a line."""
        return self.taps[self.inner]

    @property
    def to_next_line(self) -> int:
        """Bytes from the end of a line of taps to the next line."""
        return 4 * (self.pitch[1 - self.inner] - self.run)

    @property
    def to_next_pair(self) -> int:
        """Bytes from the end of a window to the window of the next pair along v."""
        window = (self.lines - 1) * self.pitch[1 - self.inner] + self.run
        return 4 * (self.stride[1] * self.pitch[1] - window)

    @property
    def to_next_row(self) -> int:
        """Bytes from the position after a row's last pair to the first pair of the next row."""
        return 4 * (self.period * self.pitch[0] - self.stride[1] * self.pitch[1] * self.outputs[1])

    @property
    def to_next_outputs(self) -> int:
        """Elements from the end of a row of outputs to the first output of the next pair."""
        return 2 * self.target[0] - self.target[1] * self.outputs[1]

    @property
    def whole(self) -> bool:
        """Whether scratch holds the channel's whole plane."""
        return 2 * self.pairs >= self.outputs[0]

    @property
    def begin(self) -> int:
        """First word along v that contains the image instead of its padding."""
        return min(self.before[1], self.columns)

    @property
    def filled(self) -> int:
        """Words along v that contain the image."""
        return max(min(self.size[1], self.columns - self.before[1]), 0)

    @property
    def period(self) -> int:
        """Scratch rows from one pair to the next."""
        return 2 * self.stride[0]


def plane_of(node: Node[DepthwiseConv2D]) -> Plane | None:
    """Return the plane of a depthwise convolution; None if no slab of it fits into scratch."""
    found: list[Plane] = []
    for plane in (Plane.along(node, 0), Plane.along(node, 1)):
        words = SCRATCH_BYTES // 4 // plane.columns
        most = (words - plane.taps[0]) // plane.period + 1
        if most < 1:
            continue
        pairs = -(-plane.outputs[0] // 2)
        slabs = -(-pairs // most)
        plane = replace(plane, pairs=-(-pairs // slabs))
        # In a square window, taps are adjacent along columns whichever axis is paired. So the
        # constants are the same for both axes, and calls for other numbers of rows share them.
        if plane.taps[0] > plane.taps[1] or (plane.axis == 1 and plane.taps[0] == plane.taps[1]):
            plane = replace(plane, pitch=(1, plane.rows))
        found.append(plane)
    # The last output of an odd line costs as much as a pair.
    return min(
        found, key=lambda p: (-(-p.outputs[0] // 2) * 2 * p.outputs[1], p.axis), default=None
    )


def overwrites(node: Node[DepthwiseConv2D]) -> tuple[tuple[int, int], ...]:
    """Return `KernelCall.in_place` of a kernel that packs all inputs of a channel at once.

    The outputs of a channel then overwrite only inputs of the same channel.
    """
    x, y = node.input(0).type, node.output.type
    return ((0, 0),) if x.shape[3] == y.shape[3] and y.size <= x.size else ()


def input_channel(node: Node[DepthwiseConv2D]) -> str:
    """Return the C expression of the input channel that output channel `o` reads."""
    multiplier = node.output.type.shape[3] // node.input(0).type.shape[3]
    return f"o / {multiplier}" if multiplier > 1 else "o"
