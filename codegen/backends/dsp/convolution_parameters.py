"""Variables of the template of convolutions, on cores with the DSP extension."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from smelt.codegen.backends.dsp.groups import PixelGroups
from smelt.codegen.backends.dsp.windows import WindowSizes
from smelt.codegen.lower.kernel import Parameters
from smelt.codegen.lower.window import Window
from smelt.codegen.text.expressions import offset
from smelt.ir import Node


@dataclass(frozen=True)
class GroupLines:
    """C lines of a 1x1 convolution that compute one group of pixels, or a loop over groups.

    Attributes:
        first, end: pixels from which and before which the loop computes.
        looped: whether there is a loop.
        pixels: pixels that are computed at once.
        inputs, targets: C expressions of the addresses of a group's inputs and outputs, per pixel.
            If fewer pixels than a group are left, the last of them occurs several times, so that a
            group never reads inputs that the outputs of an earlier group may have overwritten.
        array: name of the array of the addresses of outputs.
        words: words of the patch.
        widen, tile: indices of the inner functions.
    """

    first: int
    end: int
    looped: bool
    pixels: int
    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    array: str
    words: int
    widen: int
    tile: int


@dataclass(frozen=True)
class WindowLoop:
    """The call of a loop over windows.

    Attributes:
        widen, tile, loop: indices of the inner functions.
        end: the pixel before which the loop ends; None if `DspDotParameters.pixels` is that pixel.
    """

    widen: int
    tile: int
    loop: int
    end: int | None


@dataclass(frozen=True)
class DspDotParameters(Parameters):
    """Variables of `backends/dsp/convolution.j2`.

    Attributes:
        title, note: texts of the function's comment.
        iterations: the last argument of the functions that widen inputs.
        packed: words of packed weights.
        depth, outputs: input and output channels.
        groups: the groups of pixels; empty if there are windows.
        pixels: pixels of an image that the first loop over windows computes.
        loops: loops over windows; empty if every input pixel is a window.
        windows: sizes for the loops over windows; None if every input pixel is a window.
        shared: whether numbers that depend on the height are in the layer's struct.
    """

    title: str
    note: str
    iterations: int
    packed: int
    depth: int
    outputs: int
    groups: tuple[GroupLines, ...]
    pixels: int
    loops: tuple[WindowLoop, ...]
    windows: WindowSizes | None
    shared: bool = False


def dot_parameters(
    node: Node, window: Window, groups: Sequence[PixelGroups], packed: int
) -> DspDotParameters:
    """Return the variables of the template.

    Args:
        node: the layer.
        window: its window.
        groups: the pixels of an image, or of all images of a layer without windows.
        packed: words of packed weights.
    """
    w, x, y, tile = window, node.input(0).type, node.output.type, groups[0].tile
    lines: list[GroupLines] = []
    loops: list[WindowLoop] = []
    for number, some in enumerate(groups):
        if w.pointwise:
            lines += _group_lines(w, some, 2 * number)
        else:
            first, end = 3 * number, some.end if number else None
            loops.append(WindowLoop(first, first + 1, first + 2, end))
    rest = _last_pixels(groups) if w.pointwise else ""
    return DspDotParameters(
        title=f"{node.op.name}: {x} -> {y}, {w.text}{rest}",
        note=tile.scaling.note,
        iterations=tile.widen_iterations,
        packed=packed,
        depth=w.depth,
        outputs=w.outputs,
        groups=tuple(lines),
        pixels=groups[0].end,
        loops=tuple(loops),
        windows=None if w.pointwise else WindowSizes.of(node, w),
    )


def _group_lines(window: Window, groups: PixelGroups, functions: int) -> list[GroupLines]:
    """Return the lines for whole groups, then those for a last group with fewer pixels.

    Args:
        window: the window of a 1x1 convolution.
        groups: the pixels.
        functions: index of the inner function that widens inputs; the tile's function follows.
    """
    tile, whole = groups.tile, groups.whole_end
    parts = [(groups.first, whole)] * (whole > groups.first)
    parts += [(whole, groups.end)] * (whole < groups.end)
    found: list[GroupLines] = []
    for first, end in parts:
        looped = end - first > tile.pixels
        source, target = ("in", "to") if looped else ("input", "output")
        start = 0 if looped else first
        pixels = [min(start + i, groups.end - 1) for i in range(tile.pixels)]
        found.append(
            GroupLines(
                first=first,
                end=end,
                looped=looped,
                pixels=tile.pixels,
                inputs=_steps(source, window.depth, pixels),
                targets=_steps(target, window.outputs, pixels),
                array="last" if first else "out",
                words=tile.words * tile.pixels,
                widen=functions,
                tile=functions + 1,
            )
        )
    return found


def _last_pixels(groups: Sequence[PixelGroups]) -> str:
    """Return how pixels are computed after the last whole group, for the function's comment."""
    last = groups[-1]
    if len(groups) > 1:
        count = last.end - last.first
        return f"; the last {count} pixels {'together' if count == 2 else 'two at a time'}"
    return "; the last pixel fills up the last group" if last.whole_end < last.end else ""


def _steps(name: str, step: int, indices: Iterable[int]) -> tuple[str, ...]:
    """Return C expressions of the addresses of these elements, which have a size of `step`."""
    return tuple(offset(name, i * step) for i in indices)
