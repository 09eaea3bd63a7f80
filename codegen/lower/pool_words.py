"""int8 pooling four channels a word, in C around a few instructions of the core's."""

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
from smelt.codegen.lower.pool_loops import PoolLoops, walks, work
from smelt.codegen.lower.pool_walk import PoolWalk
from smelt.codegen.lower.pooling import Pooling
from smelt.codegen.text.helpers import uses_in, when


def words_at_once(channels: int) -> int:
    """Words of a turn of the loop over four channels or more; the last turn may repeat some."""
    by_one, by_two = -(-channels // 4), 2 * -(-channels // 8)
    return 2 if channels >= 8 and 8 * by_two <= 9 * by_one else 1


@dataclass(frozen=True)
class WordPool:
    """What the functions that a core has for words of four channels depend on.

    Attributes:
        largest: whether maxima are taken.
        clamps: whether outputs have narrower limits than int8.
        limits, limit_bytes: of outputs, and as bytes of a word.
    """

    largest: bool
    clamps: bool
    limits: tuple[int, int]
    limit_bytes: tuple[int, int]


@dataclass(frozen=True)
class WordProduct:
    """How averages come from sums.

    Attributes:
        shift: of the product; `word_shift` is that of its upper 32 bits of 48.
        saturates: whether some result leaves int8.
    """

    shift: int
    word_shift: int
    saturates: bool


TapAddresses = tuple[str, ...]
"""C of where the words of a pixel under a window stand."""


@dataclass(frozen=True, kw_only=True)
class WordPoolFunction:
    """A function that pools pixels side by side.

    Attributes:
        name: what its name ends with, "run" or "edge".
        parameters: in C.
        straight: all taps, where they are written out.
        rows: C of the rows of a window; None for one row.
        turns: C of the turns of a loop over columns; None for no loop.
        step: elements from one turn to the next.
        looped, rest: taps of a turn, and those behind the loop.
    """

    name: str
    parameters: tuple[str, ...]
    straight: tuple[TapAddresses, ...]
    rows: str | None
    turns: str | None
    step: int
    looped: tuple[TapAddresses, ...]
    rest: tuple[TapAddresses, ...]

    @staticmethod
    def of(name: str, loops: PoolLoops, p: Pooling, words: int) -> WordPoolFunction:
        """The function that loops over the taps of windows so."""
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
                turns=None,
                step=0,
                looped=(),
                rest=(),
            )
        looped = columns is None or loops.turns > 1
        turn, behind = loops.unrolled, loops.rest
        if not looped:
            turn, behind = 0, turn + behind
        return WordPoolFunction(
            name=name,
            parameters=parameters,
            straight=(),
            rows="rows" if rows is None else str(rows) if rows > 1 else None,
            turns=None if not looped else "columns" if columns is None else str(loops.turns),
            step=turn * p.channels,
            looped=tuple(_tap(i * p.channels, words) for i in range(turn)),
            rest=tuple(_tap(i * p.channels, words) for i in range(behind)),
        )


def _tap(offset: int, words: int) -> TapAddresses:
    places = range(offset, offset + 4 * words, 4)
    return tuple(f"at + {place}" if place else "at" for place in places)


@dataclass(frozen=True)
class WordPoolParameters(Parameters):
    """Of `lower/word_pool.j2`.

    Attributes:
        instructions: the template of what the core does with words.
        p: what its functions depend on.
        q: how averages come from sums; None for maxima, and where `finish` does it.
        finish: C of an average from its sum where no product is right.
        aligned: see `pool_words`.
        walk: loops over windows.
        notes: of the comment.
        functions: what the loops call.
        channels: of a pixel.
        step: elements from one window to the next.
        lanes: channels at a time.
        last: the first of the last ones, where those overlap with others.
        targets: C of where the words of outputs go.
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
    targets: tuple[str, ...]
    scale: str


@dataclass(frozen=True)
class WordCore:
    """What differs between cores that pool words of four channels.

    Attributes:
        instructions: the template of what the core does with words.
        form: what the names of its forms begin with.
        quotients: of a pool, how averages come from sums as one product; None where none does.
        start: of a pool, what all sums are increased by.
    """

    instructions: str
    form: str
    quotients: Callable[[Pooling], Quotients | None]
    start: Callable[[Pooling], int]


def pool_words(
    p: Pooling, request: Request, core: WordCore, *, aligned: bool = False
) -> KernelCall | Refusal:
    """The call that pools words of four channels, or why none does.

    Args:
        p: what is computed.
        request: target and preference.
        core: that does it.
        aligned: whether words must lie at multiples of their size, as they do.
    """
    quotients = None if p.largest else core.quotients(p)
    finish = None if p.largest or quotients is not None else p.finish(core.start(p))
    if not p.largest and quotients is None and finish is None:
        return Refusal(f"{p.node.op.name} is not one exact product of the sum.")
    form = "max_pool" if p.largest else "average_pool" + ("_steps" if finish else "")
    words, found = words_at_once(p.channels), walks(p, request.optimize)
    operands: list[Operand] = [Input(0, "input")]
    notes = [f"{4 * words} channels at a time" + ("." if p.largest else ", sums of two in a word.")]
    product, scale = None, ""
    if quotients is not None:
        product = WordProduct(quotients.shift, quotients.word_shift, quotients.saturates)
        scale = ", " + ", ".join(map(str, quotients.table.tolist()))
        notes.append("Results: one product, proved equal to the model's for every sum.")
        if p.varies:
            operands.append(Packed("scales", quotients.table))
            scale = ", scale[0], scale[1]"
    lanes = 4 * words
    return KernelCall(
        template="lower/word_pool.j2",
        stem=p.stem,
        parameters=WordPoolParameters(
            instructions=core.instructions,
            p=WordPool(p.largest, p.clamps, p.limits, p.limit_bytes),
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
            last=p.channels - lanes if p.channels % lanes else None,
            targets=("out + c", *(f"out + c + {4 * word}" for word in range(1, words))),
            scale=scale,
        ),
        operands=(*operands, Output(0, "output")),
        uses=uses_in([finish or ""]) | {"string.h"} | when(aligned, "SMELT_ASSUME_ALIGNED"),
        summary=f"{4 * words} channels at a time, four a word",
        form=f"{core.form}_{form}",
        work=work(p, found, 4 * words, 4, written_out=True),
    )
