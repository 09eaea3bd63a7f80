"""How a convolution is cut for Helium: into tiles, blocks of channels, strips of columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

from smelt.codegen.backends.helium.tiles import CHUNK, Tiles
from smelt.codegen.lower.kernel import Scratch
from smelt.codegen.lower.window import Window
from smelt.ir import DType, Node
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D, Padding2D, Pair
from smelt.ops.core.fully_connected import FullyConnected

SCRATCH_LIMIT = 4096
"""Bytes of working memory that a call may take, if its tensors are not much larger."""


def scratch_limit(node: Node) -> int:
    """Bytes of working memory that a call may take: an eighth of large tensors."""
    return max(SCRATCH_LIMIT, (node.input(0).type.bytes + node.output.type.bytes) // 8)


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """A convolution's sizes; an image of one column is taken for one of one row.

    Attributes:
        images: how many there are.
        size, output: height and width of input and output.
        kernel, stride, padding: of the window.
        depth, channels: of input and output.
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
        """The geometry of a node."""
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
        """Bytes from the window of one output to that of the next."""
        return self.stride[1] * self.depth

    @property
    def segment(self) -> int:
        """Bytes of a row under the window."""
        return self.kernel[1] * self.depth

    def width(self, outputs: int) -> int:
        """Columns under the windows of neighbouring outputs."""
        return (outputs - 1) * self.stride[1] + self.kernel[1]


@dataclass(frozen=True)
class TileCall:
    """C of a call of the tile function: inputs, outputs, and how many groups (and an offset)."""

    inputs: str
    outputs: str
    rest: str


@dataclass(frozen=True)
class TilePlan:
    """How a convolution is cut.

    Attributes:
        tiles: how all outputs of a block are computed.
        blocks: the first output channel of each block.
        strips: the first output column of each strip.
        columns: outputs across a strip.
        rows: of outputs whose windows are copied at a time; 0 where windows are not copied.
    """

    geometry: Geometry
    tiles: Tiles
    blocks: tuple[int, ...]
    strips: tuple[int, ...]
    columns: int
    rows: int = 0

    @property
    def form(self) -> str:
        """How inputs reach the tiles."""
        return "window" if self.rows else self.tiles.source

    @property
    def padded(self) -> bool:
        """Whether rows are kept in working memory, padded."""
        return self.tiles.source == "image" or self.rows > 0

    @property
    def row(self) -> int:
        """Bytes of a strip's row, and what may be read beyond, in whole vectors."""
        g = self.geometry
        return -(-g.width(self.columns) * g.depth // CHUNK) * CHUNK + CHUNK

    @property
    def scratch(self) -> tuple[Scratch, ...]:
        """The call's working memory."""
        found: list[Scratch] = []
        if self.padded:
            found.append(Scratch("rows", DType.INT8, self.row * self.geometry.kernel[0]))
        if self.rows:
            count = self.rows * self.copied_row + CHUNK
            found.append(Scratch("copies", DType.INT8, count))
        elif self.tiles.copies:
            found.append(Scratch("copies", DType.INT8, self.tiles.copies))
        return (*found, Scratch("sums", DType.INT32, self.tiles.sums))

    @property
    def bytes(self) -> int:
        """Of working memory."""
        return sum(s.count * s.dtype.size for s in self.scratch)

    @property
    def whole(self) -> int:
        """Whole groups of pixels in a row of a strip."""
        return self.columns // self.tiles.pixels

    @property
    def odd(self) -> bool:
        """Whether another group overlaps the last of them."""
        return self.columns % self.tiles.pixels > 0

    @property
    def back(self) -> int:
        """Bytes from the first inputs of a row to those of its last group."""
        return (self.columns - self.tiles.pixels) * self.tiles.pitch

    @property
    def output_back(self) -> int:
        """The same for outputs."""
        return (self.columns - self.tiles.pixels) * self.tiles.output_pitch

    def calls(self, inputs: str, outputs: str) -> tuple[TileCall, ...]:
        """Those for the groups of a row of a strip, or of the copied windows of several rows.

        Args:
            inputs: C of where the inputs of a row begin that are read where they are.
            outputs: the same of its outputs.
        """
        t, whole, back = self.tiles, str(self.whole), f"out + {self.output_back}"
        if self.rows > 1:
            last = f"(pixels - {t.pixels}) *"
            found = (
                TileCall("copies", "out", f"pixels / {t.pixels}"),
                TileCall(f"copies + {last} {t.pitch}", f"out + {last} {t.output_pitch}", "1"),
            )
            return found
        if self.rows:
            found = TileCall("copies", "out", whole), TileCall(f"copies + {self.back}", back, "1")
        elif self.padded:
            found = TileCall("at", "out", f"{whole}, 0"), TileCall("at", back, f"1, {self.back}")
        else:
            last = TileCall(f"{inputs} + {self.back}", f"{outputs} + {self.output_back}", "1")
            found = TileCall(inputs, outputs, whole), last
        return found if self.odd else found[:1]

    @property
    def copied_row(self) -> int:
        """Bytes of the copied windows of a row of a strip."""
        return self.columns * self.tiles.pitch

    @property
    def groups(self) -> int:
        """Groups of pixels in a row of a strip."""
        return -(-self.columns // self.tiles.pixels)

    @property
    def work(self) -> dict[str, int]:
        """What prices are for: chunks of tiles, outputs, groups of pixels, copied vectors, rows."""
        g, t = self.geometry, self.tiles
        rows = g.images * g.output[0] * len(self.strips)
        groups = rows * self.groups * len(self.blocks)
        segment = -(-g.kernel[1] * g.depth // CHUNK)
        return {
            "chunks": groups * t.count * t.chunks,
            "tiles": groups * t.count,
            "outputs": groups * t.pixels * t.channels,
            "groups": groups,
            "copies": rows * self.columns * g.kernel[0] * segment if self.rows else 0,
            "rows": rows * len(self.blocks),
            "calls": 1,
        }


def plan_of(g: Geometry, limit: int) -> TilePlan | None:
    """The cheapest cut within so many bytes of working memory, or None if there is none."""
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
        return _in_blocks(TilePlan(g, tiles, (0,), (0,), g.output[1]), limit)
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
    even = 1 if g.output[1] % pixels == 0 or g.output[0] == 1 else 2
    for tiles, rows in ((image, 0), (window, even)):
        for strips in range(1, -(-g.output[1] // pixels) + 1):
            columns = -(-g.output[1] // strips)
            if columns < g.output[1]:
                columns += columns % 2
                rows = min(rows, 1)
            starts = range(0, g.output[1], columns)
            first = tuple(min(x, g.output[1] - columns) for x in starts)
            plan = _in_blocks(TilePlan(g, tiles, (0,), first, columns, rows), limit)
            if plan is not None and tiles.fits():
                return plan
    return None


def _in_blocks(plan: TilePlan, limit: int) -> TilePlan | None:
    """The plan with output channels in as few blocks as working memory allows, four at most."""
    channels = plan.geometry.channels
    for count in range(1, 5):
        size = min(-(-channels // (CHUNK * count)) * CHUNK, channels)
        starts = tuple(min(o, channels - size) for o in range(0, channels, size))
        found = replace(plan, tiles=replace(plan.tiles, channels=size), blocks=starts)
        if found.bytes <= limit:
            return found
    return None
