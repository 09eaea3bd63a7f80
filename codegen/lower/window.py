"""The geometry of a convolution's window; dense layers are 1x1 convolutions."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.text.expressions import advance, minus, offset, times
from smelt.ir import Node
from smelt.ops.core.convolution import NO_PADDING, Conv2D, DepthwiseConv2D, Padding2D, Pair
from smelt.ops.core.fully_connected import FullyConnected


@dataclass(frozen=True, kw_only=True)
class Window:
    """A window that slides over an image.

    Attributes:
        kernel: Height and width, in taps.
        stride, padding, dilation: As in the operator.
        size: Height and width of the input.
        depth: Input channels per output channel.
        outputs: Output channels.
        groups: Groups of channels; 1 for a depthwise convolution.
    """

    kernel: Pair
    stride: Pair
    padding: Padding2D
    dilation: Pair
    size: Pair
    depth: int
    outputs: int
    groups: int = 1

    @staticmethod
    def of(node: Node[Conv2D | DepthwiseConv2D | FullyConnected]) -> Window:
        """Return the window of a node; for a dense layer, a single tap."""
        op = node.op
        x, weights, y = node.input(0).type, node.input(1).type, node.output.type
        if isinstance(op, FullyConnected):
            outputs, depth = weights.shape
            return Window.dense(x.size // depth, depth, outputs)
        return Window(
            kernel=(weights.shape[1], weights.shape[2]),
            stride=op.stride,
            padding=op.padding,
            dilation=op.dilation,
            size=(x.shape[1], x.shape[2]),
            depth=weights.shape[3] if isinstance(op, Conv2D) else 1,
            outputs=y.shape[3],
            groups=op.groups if isinstance(op, Conv2D) else 1,
        )

    @staticmethod
    def dense(rows: int, depth: int, outputs: int) -> Window:
        """Return the window of a dense layer: a 1x1 convolution of an image with one row."""
        return Window(
            kernel=(1, 1),
            stride=(1, 1),
            padding=NO_PADDING,
            dilation=(1, 1),
            size=(1, rows),
            depth=depth,
            outputs=outputs,
        )

    @property
    def taps(self) -> int:
        """Pixels under the window."""
        return self.kernel[0] * self.kernel[1]

    @property
    def end(self) -> Pair:
        """Upper bounds of loops over the taps that step by the dilation."""
        return self.kernel[0] * self.dilation[0], self.kernel[1] * self.dilation[1]

    @property
    def padded(self) -> bool:
        """Whether the window can be partly outside of the image."""
        return any(map(any, self.padding))

    @property
    def pointwise(self) -> bool:
        """Whether every output pixel depends only on the input pixel at the same position."""
        return self.taps == 1 and self.stride == (1, 1) and not self.padded

    @property
    def outside(self) -> str:
        """The C condition that pixel (y, x) is outside of the image."""
        height, width = self.size
        return f"y < 0 || y >= {height} || x < 0 || x >= {width}"

    @property
    def text(self) -> str:
        """The window in words, for example `3x3, stride 2x2, padding 0+1 rows`."""
        parts = [f"{self.kernel[0]}x{self.kernel[1]}"]
        if self.stride != (1, 1):
            parts.append(f"stride {self.stride[0]}x{self.stride[1]}")
        if self.padded:
            rows, columns = ("+".join(map(str, pair)) for pair in self.padding)
            parts.append(f"padding {rows} rows, {columns} columns")
        if self.dilation != (1, 1):
            parts.append(f"dilation {self.dilation[0]}x{self.dilation[1]}")
        if self.groups > 1:
            parts.append(f"{self.groups} groups")
        return ", ".join(parts)

    def title(self, node: Node) -> str:
        """Return the description of a function that computes the node."""
        return f"{node.op.name}: {node.input(0).type} -> {node.output.type}, {self.text}"

    def loop(self, axis: int, variable: str) -> str:
        """Return the C line that opens a loop over the window's rows (axis 0) or columns (1)."""
        end, step = self.end[axis], self.dilation[axis]
        return f"for (int32_t {variable} = 0; {variable} < {end}; {advance(variable, step)}) {{"

    def origin(self, axis: int, output: str) -> str:
        """Return the C expression of the first row (axis 0) or column (1) under the window."""
        return self.tap(axis, output, "")

    def tap(self, axis: int, output: str, tap: str) -> str:
        """Return the C expression of the input row (axis 0) or column (1) under a tap.

        Without a tap, it is the first row or column.
        """
        stride, dilation = self.stride[axis], self.dilation[axis]
        before = self.padding[axis][0]
        text = times(output, stride)
        if tap and self.kernel[axis] > 1:
            text = offset(text, times(tap, dilation))
        return minus(text, before)
