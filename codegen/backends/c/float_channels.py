"""Functions that compute some output channels of a block of pixels of a float convolution.

A layer's own function contains its sizes as literals. Without vector registers, layers can share a
function that gets them as arguments; that takes a few more instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from smelt.codegen.backends.c.float_sums import CALL, REPEATED, STORE, Channels, FloatSums
from smelt.codegen.lower.function_names import channels as channels_of
from smelt.codegen.lower.function_names import steps
from smelt.codegen.lower.kernel import BodyCost, InnerFunction, Parameters
from smelt.codegen.lower.window import Window
from smelt.codegen.text.expressions import offset, times
from smelt.codegen.text.helpers import uses_in
from smelt.codegen.text.layer_number import LayerNumber
from smelt.ir import Node
from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.fully_connected import FullyConnected

FloatProduct = Node[Conv2D | DepthwiseConv2D | FullyConnected]

_ARGUMENT = 7
"""Additional instructions of a call for each argument in place of a literal, on Cortex-M4."""


@dataclass(frozen=True)
class FloatChannelsParameters(Parameters):
    """Variables of `float_channels.j2`; texts are C.

    Attributes:
        title: text of the function's comment.
        pixels: pixels of a block.
        vectors: whether neighboring channels share vector registers.
        numbers: names of the parameters after the pointers.
        first: C text added to a run's address to reach a group's first input.
        taps: runs under a window.
        pointers: run pointers of a block.
        length: inputs of a run, with vectors; else 0.
        each_block: line that opens the loop over blocks of channels; empty for a single block.
        count: channels of a block.
        output: C text added to a pixel's address to reach the block's first channel.
        begin: lines that declare the sums.
        iteration: lines of the body of the loop over inputs; empty if scalars need no loop.
        iterations: C text: iterations of this loop, with scalars.
        last: lines for the inputs after the loop.
        stores: lines that store the results, for each pixel.
    """

    title: str
    pixels: int
    vectors: bool
    numbers: tuple[str, ...]
    first: str
    taps: int
    pointers: int
    length: int
    each_block: str
    count: int
    output: str
    begin: tuple[str, ...]
    iteration: tuple[str, ...]
    iterations: str
    last: tuple[str, ...]
    stores: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ChannelsCall:
    """The call of a function for channels of a group.

    Attributes:
        arguments: C text: its arguments.
        weights: biases and weights of these channels in a group; 0 if there is one group.
    """

    arguments: str
    weights: int


@dataclass(frozen=True)
class FloatLayer:
    """What the functions for the channels of a layer have in common.

    Attributes:
        node: the convolution.
        stem: start of the names of the layer's own functions.
        sums: the sums of a block of pixels.
        window: a window in which each tap is one run.
        length: inputs of a run.
        taps: runs under a window; 1 if each window is gathered into one run.
        count: blocks of pixels.
    """

    node: FloatProduct
    stem: str
    sums: FloatSums
    window: Window
    length: int
    taps: int
    count: int

    def channels(
        self, channels: Channels, *, shared: bool = False
    ) -> tuple[InnerFunction, ChannelsCall]:
        """Return a function for channels and its call: the layer's own, or one to be shared."""
        numbers = _numbers(channels) if shared else {}
        begin, end, count = channels.begin, channels.end, channels.count
        sums, repeats = self.sums, channels.repeats
        if shared:
            begin, end = LayerNumber(begin, "first"), LayerNumber(end, "channels")
        loop = f"for (int32_t o = 0; o < {end}; o += {count}) {{" if repeats else ""
        output = " + o" if repeats else f" + {begin}" if shared or begin else ""
        arguments = ["taps", offset("weights", int(begin) * self._reads), "outputs"]
        grouped = self.window.groups > 1
        if grouped:
            each = self.window.outputs // self.window.groups
            head = f"for (const int32_t end = o + {end - begin}; o < end; o += {count}) {{"
            loop, output, arguments[1] = head * repeats, " + o", "weight"
            arguments += [times("group", self.window.depth), offset(times("group", each), begin)]
        parameters = FloatChannelsParameters(
            title=self._title(channels, shared=shared),
            pixels=sums.pixels,
            vectors=sums.vectors,
            numbers=("first", "o") if grouped else tuple(numbers),
            first=" + first" if grouped else "",
            taps=self.taps,
            pointers=self.taps * sums.pixels,
            length=self.length if sums.vectors else 0,
            each_block=loop,
            count=count,
            output=output,
            begin=sums.begin(channels),
            iteration=self._iteration(channels),
            iterations="iterations" if shared else str(channels.iterations),
            last=self._last(channels),
            stores=tuple(sums.stores(channels, pixel) for pixel in range(sums.pixels)),
        )
        call = ChannelsCall(
            arguments=", ".join((*arguments, *map(str, numbers.values()))),
            weights=channels.computed * self._reads if grouped else 0,
        )
        return self._function(parameters, channels, shared=shared), call

    def cost(self, parts: Sequence[Channels], *, shared: bool = False) -> BodyCost:
        """Return the estimated cost: instructions of the layer, and bytes of the functions."""
        instructions = code = 0
        for part in parts:
            begin, results = len(self.sums.begin(part)), part.count * self.sums.pixels
            iteration, last = len(self._iteration(part)), len(self._last(part))
            runs = part.iterations * iteration + last + self.sums.pixels
            blocks = part.computed // part.count
            instructions += CALL + blocks * (begin + self.taps * runs + STORE * results)
            code += begin + iteration + last + STORE * results
            if shared:
                instructions += _ARGUMENT * len(_numbers(part)) + REPEATED * blocks
        return BodyCost(instructions * self.count, 4 * code)

    @property
    def _reads(self) -> int:
        """The bias and the weights of a channel."""
        return 1 + self.window.taps * self.window.depth

    def _iteration(self, channels: Channels) -> tuple[str, ...]:
        """Return the lines of the body of the loop over the inputs of a run."""
        if self.sums.vectors:
            return self.sums.products(channels, "k" if self.length > 1 else "0")
        return self.sums.stretch(channels, channels.unrolled) if channels.looped else ()

    def _last(self, channels: Channels) -> tuple[str, ...]:
        """Return the lines for the inputs after that loop."""
        if self.sums.vectors or not channels.remaining:
            return ()
        return self.sums.stretch(channels, channels.remaining)

    def _title(self, channels: Channels, *, shared: bool) -> str:
        """Return the text of the comment."""
        text = channels.text
        if shared:
            one = f"{channels.real} channel{'s' * (channels.real > 1)} from `first` on"
            text = "all channels before `channels`" if channels.repeats else one
        pixels = f"{self.sums.pixels} pixel{'s' * (self.sums.pixels > 1)}"
        of_group = " of a group" * (self.window.groups > 1)
        return f"{text}{of_group} of {pixels}{f', {channels.count} at a time' * channels.repeats}"

    def _function(
        self, parameters: FloatChannelsParameters, channels: Channels, *, shared: bool
    ) -> InnerFunction:
        own = f"{self.stem}{steps(self.node)}{channels_of(self.node)}_by{channels.real}"
        lines = (parameters.begin, parameters.iteration, parameters.last, *parameters.stores)
        attribute = "SMELT_VECTORS" if self.sums.vectors else "SMELT_NOINLINE"
        return InnerFunction(
            template="backends/c/float_channels.j2",
            stem=f"outputs_{channels.real}x{self.sums.pixels}" if shared else own,
            details={
                "loop": "looped" if parameters.each_block else "single",
                "taps": f"taps{self.taps}",
                "unrolled": f"unrolled{channels.unrolled}",
                "clamp": self.node.op.activation.name.lower(),
            },
            parameters=parameters,
            uses=uses_in(chain.from_iterable(lines)) | {attribute},
        )


def _numbers(channels: Channels) -> dict[str, int]:
    """Return the numbers that a shared function gets as arguments, by name."""
    numbers = {"channels": channels.end} if channels.repeats else {"first": channels.begin}
    if channels.looped:
        numbers["iterations"] = channels.iterations
    return numbers
