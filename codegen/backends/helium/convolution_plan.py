"""The split of a convolution for Helium: into tiles, blocks of channels and strips of columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from smelt.codegen.backends.helium.tiles import CHUNK, Tiles
from smelt.codegen.lower.kernel import Scratch
from smelt.codegen.lower.window import Window
from smelt.ir import DType, Node
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D, Padding2D, Pair
from smelt.ops.core.fully_connected import FullyConnected

_MOST_BLOCKS = 4
"""Most blocks into which output channels are cut, if rows can be cut into strips instead."""

SCRATCH_LIMIT = 4096
"""Upper limit of a call's scratch in bytes, unless its tensors are much larger."""


def scratch_limit(node: Node) -> int:
    """Return the upper limit of a call's scratch: an eighth of its tensors if they are large."""
    return max(SCRATCH_LIMIT, (node.input(0).type.bytes + node.output.type.bytes) // 8)


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The sizes of a convolution. An image of one column is treated as an image of one row.

    Attributes:
        images: number of images.
        size: height and width of the input.
        output: height and width of the output.
        kernel: height and width of the window.
        stride: vertical and horizontal stride.
        padding: pixels above and below, left and right.
        depth: input channels.
        channels: output channels.
    """

    images: int
    size: Pair
    output: Pair
    kernel: Pair
    stride: Pair
    padding: Padding2D
    depth: int
    channels: int

    @staticmethod
    def of(node: Node[Conv2D | DepthwiseConv2D | FullyConnected]) -> Geometry:
        """Return the geometry of a node.

        The pixels of a dense layer or a 1x1 convolution without stride become one row.
        """
        x, y = node.input(0).type, node.output.type
        if isinstance(node.op, FullyConnected):
            outputs, depth = node.input(1).type.shape
            rows = x.size // depth
            none = ((0, 0), (0, 0))
            return Geometry(
                images=1,
                size=(1, rows),
                output=(1, rows),
                kernel=(1, 1),
                stride=(1, 1),
                padding=none,
                depth=depth,
                channels=outputs,
            )
        w = Window.of(node)
        size, output, kernel = w.size, (y.shape[1], y.shape[2]), w.kernel
        stride, padding = w.stride, w.padding
        if size[1] == kernel[1] == 1 and not any(padding[1]):
            size, output, kernel = (1, size[0]), (1, output[0]), (1, kernel[0])
            stride, padding = (1, stride[0]), (padding[1], padding[0])
        if size == output and kernel == stride == (1, 1):
            pixels = y.shape[0] * output[0] * output[1]
            return Geometry(
                images=1,
                size=(1, pixels),
                output=(1, pixels),
                kernel=kernel,
                stride=stride,
                padding=padding,
                depth=x.shape[3],
                channels=y.shape[3],
            )
        return Geometry(
            images=y.shape[0],
            size=size,
            output=output,
            kernel=kernel,
            stride=stride,
            padding=padding,
            depth=x.shape[3],
            channels=y.shape[3],
        )

    @property
    def pitch(self) -> int:
        """Bytes from one window to the next in a row."""
        return self.stride[1] * self.depth

    @property
    def segment(self) -> int:
        """Bytes of one row of a window."""
        return self.kernel[1] * self.depth

    def width(self, outputs: int) -> int:
        """Return how many input columns lie under the windows of `outputs` neighbors."""
        return (outputs - 1) * self.stride[1] + self.kernel[1]


@dataclass(frozen=True)
class TileCall:
    """Arguments of a call of the tile function, as C.

    Attributes:
        inputs: the inputs.
        outputs: the outputs.
        groups: number of groups.
        sizes: the struct of sizes: `sizes`, or `last` for a group that consists of the last pixel.
    """

    inputs: str
    outputs: str
    groups: str
    sizes: str = "sizes"


@dataclass(frozen=True)
class TilePlan:
    """The split of a convolution.

    Attributes:
        geometry: sizes of the convolution.
        tiles: how the outputs of a block are computed.
        blocks: the first output channel of each block.
        strips: the first output column of each strip.
        columns: output columns of a strip.
        copied_rows: output rows whose windows are copied at once; 0 if windows are not copied.
    """

    geometry: Geometry
    tiles: Tiles
    blocks: tuple[int, ...]
    strips: tuple[int, ...]
    columns: int
    copied_rows: int = 0

    @property
    def form(self) -> str:
        """Source of the inputs: "row" (the tensor), "window" (copies), "image" (padded rows)."""
        return "window" if self.copied_rows else self.tiles.source

    @property
    def padded(self) -> bool:
        """Whether scratch holds padded rows of the image."""
        return self.tiles.source == "image" or self.copied_rows > 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a strip's row in scratch: whole vectors, and one more that may be read."""
        g = self.geometry
        return -(-g.width(self.columns) * g.depth // CHUNK) * CHUNK + CHUNK

    @property
    def reach(self) -> int:
        """Bytes that are read for the windows of a strip, from its first input in the image on.

        They end with a whole vector, which may lie beyond the strip. The result is 0 if windows are
        not copied row by row, or if no strip lies within the image.
        """
        g = self.geometry
        if self.copied_rows != 1 or (len(self.strips) == 1 and any(g.padding[1])):
            return 0
        segment = -(-g.segment // CHUNK) * CHUNK
        last = (g.kernel[0] - 1) * g.size[1] * g.depth + (self.columns - 1) * g.pitch
        return last + segment

    @property
    def scratch(self) -> tuple[Scratch, ...]:
        """The call's scratch."""
        found: list[Scratch] = []
        if self.padded:
            found.append(Scratch("rows", DType.INT8, self.row_bytes * self.geometry.kernel[0]))
        if self.copied_rows:
            count = self.copied_rows * self.copied_row_bytes + CHUNK
            found.append(Scratch("copies", DType.INT8, count))
        elif self.tiles.copies:
            found.append(Scratch("copies", DType.INT8, self.tiles.copies))
        return (*found, Scratch("sums", DType.INT32, self.tiles.sums))

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch."""
        return sum(s.count * s.dtype.size for s in self.scratch)

    @property
    def whole_groups(self) -> int:
        """Number of groups of pixels in a row of a strip that do not overlap."""
        return self.columns // self.tiles.pixels

    @property
    def has_last_group(self) -> bool:
        """Whether a row ends with one more group, for the last pixel.

        If inputs are in scratch, that group overlaps the whole ones. Otherwise it computes the last
        pixel twice, because the inputs of the pixel before may be overwritten.
        """
        return self.columns % self.tiles.pixels > 0

    @property
    def in_place(self) -> bool:
        """Whether the output of a 1x1 convolution or dense layer may have the address of its input.

        The sums of all channels of a group are computed before its first output is stored.
        """
        g = self.geometry
        pointwise = g.kernel == (1, 1) == g.stride and self.form == "row"
        return pointwise and len(self.blocks) == 1 and g.channels <= g.depth

    @property
    def last_input(self) -> int:
        """Offset of the last group's inputs in a row, in bytes."""
        return (self.columns - self.tiles.pixels) * self.tiles.pitch

    @property
    def last_output(self) -> int:
        """Offset of the last group's outputs in a row, in bytes."""
        return (self.columns - self.tiles.pixels) * self.tiles.output_pitch

    def calls(self, inputs: str, outputs: str) -> tuple[TileCall, ...]:
        """Return the calls for a row of a strip, or for the copied windows of several rows.

        Args:
            inputs: C expression: address of a row's inputs, if they are read in place.
            outputs: C expression: address of the row's outputs, in the same case.
        """
        t, whole, offset = self.tiles, str(self.whole_groups), self.last_input
        last_out = f"out + {self.last_output}"
        if self.copied_rows > 1:
            last = f"(pixels - {t.pixels}) *"
            found = (
                TileCall("copies", "out", f"pixels / {t.pixels}"),
                TileCall(f"copies + {last} {t.pitch}", f"out + {last} {t.output_pitch}", "1"),
            )
            return found
        if self.copied_rows:
            found = TileCall("copies", "out", whole), TileCall(f"copies + {offset}", last_out, "1")
        elif self.padded:
            found = TileCall("in", "out", whole), TileCall(f"in + {offset}", last_out, "1")
        else:
            pixel = self.columns - 1
            last = TileCall(
                f"{inputs} + {pixel * t.pitch}",
                f"{outputs} + {pixel * t.output_pitch}",
                "1",
                "last",
            )
            found = TileCall(inputs, outputs, whole), last
        return found if self.has_last_group else found[:1]

    @property
    def copied_row_bytes(self) -> int:
        """Bytes of the copied windows of a row of a strip."""
        return self.columns * self.tiles.pitch

    @property
    def groups(self) -> int:
        """Number of groups of pixels in a row of a strip, the last one included."""
        return -(-self.columns // self.tiles.pixels)

    @property
    def work(self) -> dict[str, int]:
        """The counts that have prices; `copies` are the vectors that copy windows."""
        g, t = self.geometry, self.tiles
        rows = g.images * g.output[0] * len(self.strips)
        groups = rows * self.groups * len(self.blocks)
        segment = -(-g.kernel[1] * g.depth // CHUNK)
        return {
            "chunks": groups * t.count * t.chunks,
            "tiles": groups * t.count,
            "outputs": groups * t.pixels * t.channels,
            "groups": groups,
            "copies": rows * self.columns * g.kernel[0] * segment if self.copied_rows else 0,
            "rows": rows * len(self.blocks),
            "calls": 1,
        }


def plan_of(g: Geometry, limit: int) -> TilePlan | None:
    """Return the cheapest plan with at most `limit` bytes of scratch; None if there is none."""
    return next((plan for plan in _plans(g) if plan.scratch_bytes <= limit), None)


def smallest_plan(g: Geometry) -> TilePlan | None:
    """Return the plan with the least scratch; None if there is no plan."""
    return min(_plans(g), key=_scratch_bytes, default=None)


def _scratch_bytes(plan: TilePlan) -> int:
    return plan.scratch_bytes


def _plans(g: Geometry) -> Iterator[TilePlan]:
    """Yield all plans, the cheapest first.

    Channels are cut into more and more blocks. If inputs are copied, so are rows into strips; for
    each number of strips there are at most `_MOST_BLOCKS` blocks.
    """
    pixels = 1 if g.output[1] == 1 else 2
    if g.kernel[0] == 1 and not any(map(any, g.padding)):
        tiles = Tiles(
            source="row",
            pixels=pixels,
            kernel=(1, 1),
            depth=g.segment,
            pitch=g.pitch,
            channels=g.channels,
            output_pitch=g.channels,
        )
        yield from _in_blocks(TilePlan(g, tiles, (0,), (0,), g.output[1]), -(-g.channels // CHUNK))
        return
    length = -(-g.kernel[0] * g.segment // CHUNK) * CHUNK
    image = Tiles(
        source="image",
        pixels=pixels,
        kernel=g.kernel,
        depth=g.depth,
        pitch=g.pitch,
        channels=g.channels,
        output_pitch=g.channels,
    )
    window = Tiles(
        source="row",
        pixels=pixels,
        kernel=(1, 1),
        depth=length,
        pitch=length,
        channels=g.channels,
        output_pitch=g.channels,
    )
    # If a row has an odd number of pixels, the pixels of two rows are still divided evenly.
    copied = 1 if g.output[1] % pixels == 0 or g.output[0] == 1 else 2
    for tiles, rows in ((image, 0), (window, copied)):
        if not tiles.fits():
            continue
        for strips in range(1, -(-g.output[1] // pixels) + 1):
            columns = -(-g.output[1] // strips)
            if columns < g.output[1]:
                columns += columns % 2
                rows = min(rows, 1)
            starts = range(0, g.output[1], columns)
            first = tuple(min(x, g.output[1] - columns) for x in starts)
            plan = TilePlan(g, tiles, (0,), first, columns, rows)
            yield from _in_blocks(plan, _MOST_BLOCKS)


def _in_blocks(plan: TilePlan, most: int) -> Iterator[TilePlan]:
    """Yield the plan with all output channels in one block, in two and so on, up to `most`."""
    channels = plan.geometry.channels
    for count in range(1, most + 1):
        size = min(-(-channels // (CHUNK * count)) * CHUNK, channels)
        starts = tuple(min(o, channels - size) for o in range(0, channels, size))
        yield replace(plan, tiles=replace(plan.tiles, channels=size), blocks=starts)
