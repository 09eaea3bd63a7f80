"""int8 pooling with four channels per word: C around a few core-specific instructions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from smelt.codegen.lower.exact_division import Quotients
from smelt.codegen.lower.kernel import (
    Input,
    KernelCall,
    Operand,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.lower.loop_heads import loop_head
from smelt.codegen.lower.nested_loops import total
from smelt.codegen.lower.pool_loops import PoolLoops, walks, work
from smelt.codegen.lower.pool_walk import PoolWalk
from smelt.codegen.lower.pooling import Pooling
from smelt.codegen.text.expressions import offset
from smelt.codegen.text.helpers import uses_in, when


def words_at_once(channels: int) -> int:
    """Return the words per iteration for at least four channels; the last one may overlap."""
    by_one, by_two = -(-channels // 4), 2 * -(-channels // 8)
    return 2 if channels >= 8 and 8 * by_two <= 9 * by_one else 1


@dataclass(frozen=True)
class WordPool:
    """Parameters of a core's functions for words of four channels.

    Attributes:
        is_max: Whether maxima are computed.
        clamps: Whether the limits of outputs are narrower than int8.
        limits: Smallest and largest output.
        limit_bytes: The same as bytes of a word.
    """

    is_max: bool
    clamps: bool
    limits: tuple[int, int]
    limit_bytes: tuple[int, int]


@dataclass(frozen=True)
class WordProduct:
    """The computation of averages from sums.

    Attributes:
        shift: The right shift of the product.
        word_shift: The right shift of its upper 32 of 48 bits.
        saturates: Whether some result is outside of int8.
    """

    shift: int
    word_shift: int
    saturates: bool


TapAddresses = tuple[str, ...]
"""C of the addresses of the words of one pixel under a window."""


@dataclass(frozen=True, kw_only=True)
class WordPoolFunction:
    """A function that pools windows of adjacent pixels.

    Attributes:
        name: The suffix of its name: "run" or "edge".
        parameters: Its parameters in C.
        straight: All taps, if there are no loops.
        rows: C of the number of rows of a window; None for one row.
        iterations: C of the iterations of a loop over columns; None for no loop.
        step: Elements from one iteration to the next.
        looped, rest: Taps of an iteration, and taps after the loop.
    """

    name: str
    parameters: tuple[str, ...]
    straight: tuple[TapAddresses, ...]
    rows: str | None
    iterations: str | None
    step: int
    looped: tuple[TapAddresses, ...]
    rest: tuple[TapAddresses, ...]

    @staticmethod
    def of(name: str, loops: PoolLoops, p: Pooling, words: int) -> WordPoolFunction:
        """Return the function with these loops."""
        rows, columns = loops.rows, loops.columns
        parameters = loops.parameters(varies=p.varies)
        if loops.written_out and rows is not None and columns is not None:
            places = [y * p.row + x * p.channels for y in range(rows) for x in range(columns)]
            taps = tuple(_tap(place, words) for place in places)
            return WordPoolFunction(
                name=name,
                parameters=parameters,
                straight=taps,
                rows=None,
                iterations=None,
                step=0,
                looped=(),
                rest=(),
            )
        looped = columns is None or loops.iterations > 1
        unrolled, behind = loops.unrolled, loops.rest
        if not looped:
            unrolled, behind = 0, unrolled + behind
        return WordPoolFunction(
            name=name,
            parameters=parameters,
            straight=(),
            rows="rows" if rows is None else str(rows) if rows > 1 else None,
            iterations=None
            if not looped
            else "columns"
            if columns is None
            else str(loops.iterations),
            step=unrolled * p.channels,
            looped=tuple(_tap(i * p.channels, words) for i in range(unrolled)),
            rest=tuple(_tap(i * p.channels, words) for i in range(behind)),
        )


def _tap(offset: int, words: int) -> TapAddresses:
    places = range(offset, offset + 4 * words, 4)
    return tuple(f"at + {place}" if place else "at" for place in places)


@dataclass(frozen=True)
class WordPoolParameters(Parameters):
    """Variables of `lower/word_pool.j2`.

    Attributes:
        instructions: The template with the core's operations on words.
        p: Parameters of these operations.
        q: The computation of averages from sums; None for maxima, or if `finish` computes them.
        finish: C of an average from its sum if no product is exact, else None.
        aligned: See `pool_words`.
        walk: The loops over windows.
        notes: Lines of the comment.
        functions: The functions that the loops call.
        channels: Channels of a pixel.
        step: Elements from one window to the next.
        lanes: Channels at a time.
        last: The first channel of the last iteration if it overlaps with the one before, or None.
        each_block: The line that opens the loop over blocks of channels; empty for one block.
        position: C of a block's first channel.
        targets: C of the addresses of the output words.
        scale: C of the arguments that scale sums.
    """

    instructions: str
    p: WordPool
    q: WordProduct | None
    finish: str | None
    aligned: bool
    walk: PoolWalk
    notes: tuple[str, ...]
    functions: tuple[WordPoolFunction, ...]
    channels: int
    step: int
    lanes: int
    last: int | None
    each_block: str
    position: str
    targets: tuple[str, ...]
    scale: str


@dataclass(frozen=True)
class WordCore:
    """The differences between cores that pool words of four channels.

    Attributes:
        instructions: The template with the core's operations on words.
        form: The prefix of its forms' names.
        quotients: Returns how averages come from sums as one product; None if they do not.
        start: Returns the number by which all sums are increased.
        uses: The helpers that the template uses besides those of all cores.
    """

    instructions: str
    form: str
    quotients: Callable[[Pooling], Quotients | None]
    start: Callable[[Pooling], int]
    uses: frozenset[str] = frozenset()


def pool_words(
    p: Pooling, request: Request, core: WordCore, *, aligned: bool = False
) -> KernelCall | Refusal:
    """Return the call that pools words of four channels, or why there is none.

    Args:
        p: The pooling.
        request: Target and preference.
        core: The core's operations.
        aligned: Word accesses must be aligned, and are.
    """
    quotients = None if p.is_max else core.quotients(p)
    finish = None if p.is_max or quotients is not None else p.finish(core.start(p))
    if not p.is_max and quotients is None and finish is None:
        return Refusal(f"{p.node.op.name} has averages that no product of the sum gives exactly.")
    form = "max_pool" if p.is_max else "average_pool" + ("_steps" if finish else "")
    words, found = words_at_once(p.channels), walks(p, request.optimize)
    operands: list[Operand] = [Input(0, "input")]
    notes = [f"{4 * words} channels at a time" + ("." if p.is_max else ", sums of two in a word.")]
    product, scale = None, ""
    if quotients is not None:
        product = WordProduct(quotients.shift, quotients.word_shift, quotients.saturates)
        scale = ", " + ", ".join(map(str, quotients.table.tolist()))
        notes.append("Results: one product, proved equal to the model's for every sum.")
        if p.varies:
            operands.append(Packed("scales", quotients.table))
            scale = ", scale[0], scale[1]"
    lanes = 4 * words
    partial = p.channels % lanes > 0
    each_block = loop_head("i" if partial else "c", p.channels, step=lanes)
    position = "c" if each_block else "0"
    return KernelCall(
        template="lower/word_pool.j2",
        stem=p.stem,
        parameters=WordPoolParameters(
            instructions=core.instructions,
            p=WordPool(p.is_max, p.clamps, p.limits, p.limit_bytes),
            q=product,
            finish=finish,
            aligned=aligned,
            walk=PoolWalk.of(p),
            notes=tuple(notes),
            functions=tuple(
                WordPoolFunction.of(name, loops, p, words) for name, loops in found.items()
            ),
            channels=p.channels,
            step=p.columns.stride * p.channels,
            lanes=lanes,
            last=p.channels - lanes if partial else None,
            each_block=each_block,
            position=position,
            targets=tuple(total(("out", offset(position, 4 * word))) for word in range(words)),
            scale=scale,
        ),
        operands=(*operands, Output(0, "output")),
        uses=uses_in([finish or ""])
        | {"string.h"}
        | core.uses
        | when(aligned, "SMELT_ASSUME_ALIGNED"),
        summary=f"{4 * words} channels at a time, four a word",
        form=f"{core.form}_{form}",
        work=work(p, found, 4 * words, 4, written_out=True),
    )
