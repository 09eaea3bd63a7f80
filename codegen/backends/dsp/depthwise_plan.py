"""Plans of depthwise convolutions on cores with the DSP extension, and how inputs are widened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from smelt.codegen.backends.dsp.assembly import add, repeated
from smelt.codegen.backends.dsp.convolution import DspProducts
from smelt.codegen.backends.dsp.depthwise_assembly import SCRATCH_WORDS, ChannelWalk
from smelt.codegen.backends.dsp.depthwise_products import input_words
from smelt.codegen.backends.dsp.scaling import DspScaling
from smelt.codegen.lower.window import Window
from smelt.ir import Node
from smelt.targets import Optimize

_PAIRED = (
    "sxtb16 r6, r4",
    "sxtb16 r7, r5",
    "sxtb16 r4, r4, ror #8",
    "sxtb16 r5, r5, ror #8",
    "pkhbt r8, r6, r7, lsl #16",
    "pkhtb r9, r7, r6, asr #16",
    "pkhbt r6, r4, r5, lsl #16",
    "pkhtb r7, r5, r4, asr #16",
)
"""Makes words of two rows for each channel in r8, r6, r9, r7: of four channels in r4 and in r5."""

_WIDENED = len(_PAIRED) + 6
"""Instructions that widen a column of two rows of four channels, with two loads and four stores."""

_MOST = {1: 8, 2: 4}
"""Elements of a group by rows of outputs: there are eight registers for sums."""


@dataclass(frozen=True)
class DepthwisePlan:
    """How a depthwise convolution is computed.

    Attributes:
        walk: how the outputs of a channel are gone through.
        last: the same for a last row without a partner; None where that is not needed.
        band: strips of outputs whose inputs are in working memory at once.
        zero_point: of the input.
        optimize: what to weigh.
    """

    walk: ChannelWalk
    last: ChannelWalk | None
    band: int
    zero_point: int
    optimize: Optimize

    @property
    def window(self) -> Window:
        """Its geometry."""
        return self.walk.window

    @property
    def columns(self) -> int:
        """Columns of inputs in working memory, padding included."""
        return (self.width - 1) * self.window.stride[1] + self.window.kernel[1]

    @property
    def width(self) -> int:
        """Of the output."""
        return self.walk.size[1]

    @property
    def plane(self) -> int:
        """Words of a channel's inputs."""
        return self.columns * self.walk.stored

    @property
    def left(self) -> int:
        """Columns of padding before the image."""
        return self.window.padding[1][0]

    @property
    def inside(self) -> int:
        """Columns that lie in the image."""
        return min(self.columns - self.left, self.window.size[1])

    @property
    def first(self) -> int:
        """Where the image begins in a channel's inputs."""
        return self.left * self.walk.stored

    @property
    def outside(self) -> tuple[tuple[int, int], ...]:
        """Stretches of a channel's inputs that lie beside the image."""
        end = (self.left + self.inside) * self.walk.stored
        return tuple((a, b) for a, b in ((0, self.first), (end, self.plane)) if a < b)

    @property
    def padding(self) -> int:
        """A word of padding."""
        return (self.zero_point & 0xFFFF) + self.zero_point * 65536

    @property
    def row(self) -> int:
        """Bytes of a row of the input."""
        return self.window.size[1] * self.window.outputs

    @property
    def rows(self) -> int:
        """Input rows from one strip of outputs to the next."""
        return 2 * self.walk.advance

    @property
    def full(self) -> int:
        """Strips that have all their rows."""
        return self.walk.size[0] // self.walk.rows

    @property
    def strip_bytes(self) -> int:
        """Outputs of a strip, all channels."""
        return self.walk.rows * self.walk.row_bytes

    @property
    def bands(self) -> int:
        """How often working memory is filled for one channel."""
        return -(-self.walk.strips // self.band)

    @property
    def guarded(self) -> bool:
        """Whether the last band may have but a row without a partner."""
        return self.last is not None and self.full % self.band == 0

    @property
    def edges(self) -> bool:
        """Whether pairs of rows lie partly outside of the image."""
        top = self.window.padding[0][0]
        pairs = (self.bands - 1) * self.band * self.walk.advance + self.walk.stored
        return top > 0 or 2 * pairs - top > self.window.size[0]

    @property
    def widen(self) -> list[str]:
        """Instructions that widen pairs of rows of four channels.

        r0: inputs, r3 bytes before those of the row below; r1: pairs; r2: rows; r10: turns.
        """
        each = min(self.inside, 8 if self.optimize == "speed" else 1)
        turns, rest = divmod(self.inside, each)
        lines = repeated(each, self._widen_column)
        if turns > 1:
            lines = [f"mov r10, #{turns}", "2:", *lines, "subs r10, r10, #1", "bne 2b"]
        lines += repeated(rest, self._widen_column)
        lines += add("r0", 2 * self.row - self.inside * self.window.outputs)
        lines += add("r1", 4 - 4 * self.inside * self.walk.stored)
        lines += ["subs r2, r2, #1", "bne 1b"]
        return ["push {r4-r10, lr}", "1:", *lines, "pop {r4-r10, pc}"]

    @property
    def _widen_column(self) -> list[str]:
        """Instructions that widen a column of two rows of four channels."""
        by, column = self.window.outputs, 4 * self.walk.stored
        pixel = [f"ldr r4, [r0], #{by}"] if by < 256 else ["ldr r4, [r0]", *add("r0", by)]
        first = [f"str r8, [r1], #{column}"]
        if column >= 256:
            first = ["str r8, [r1]", *add("r1", column)]
        others = [
            f"str {r}, [r1, #{4 * i * self.plane}]" for i, r in ((1, "r6"), (2, "r9"), (3, "r7"))
        ]
        return ["ldr r5, [r0, r3]", *pixel, *_PAIRED, *others, *first]

    @property
    def cost(self) -> int:
        """Instructions of one channel, about."""
        widened = self.bands * self.walk.stored * (self.inside * _WIDENED + 20) // 4
        last = self.last.cost + 25 if self.last else 0
        return widened + self.bands * (self.walk.cost + 30) // self.bands + last


def plans(found: DspProducts, node: Node, optimize: Optimize) -> Iterator[DepthwisePlan]:
    """All plans that fit."""
    window, scaling = found.window, found.scaling
    size = node.output.type.shape[1], node.output.type.shape[2]
    zero_point = node.input(0).type.zero_point
    draft = ChannelWalk(window, scaling, size, 1, False, 1)
    words = input_words(window.kernel[0], draft.rows)
    columns = (size[1] - 1) * window.stride[1] + window.kernel[1]
    whole = (draft.strips - 1) * draft.advance + words
    room = SCRATCH_WORDS // 4 // columns
    for most in range(1, _MOST[draft.rows] + 1):
        if whole <= room and most <= size[0] // draft.rows:
            walk = ChannelWalk(window, scaling, size, whole, True, most)
            if walk.fits:
                yield DepthwisePlan(walk, None, draft.strips, zero_point, optimize)
        if most <= size[1]:
            yield from _horizontal(window, scaling, size, most, room, zero_point, optimize)


def _horizontal(
    window: Window,
    scaling: DspScaling,
    size: tuple[int, int],
    most: int,
    room: int,
    zero_point: int,
    optimize: Optimize,
) -> Iterator[DepthwisePlan]:
    """The plan of horizontal groups that holds as much as there is room for, if one fits."""
    draft = ChannelWalk(window, scaling, size, 1, False, most)
    words = input_words(window.kernel[0], draft.rows)
    for band in range(draft.strips, 0, -1):
        stored = (band - 1) * draft.advance + words
        walk = ChannelWalk(window, scaling, size, stored, False, most)
        if stored <= room and walk.fits:
            odd = size[0] % walk.rows == 1
            last = (
                ChannelWalk(window, scaling, size, stored, False, most, single=True)
                if odd
                else None
            )
            yield DepthwisePlan(walk, last, band, zero_point, optimize)
            return
