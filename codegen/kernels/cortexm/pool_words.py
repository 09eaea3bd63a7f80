"""int8 pooling four channels a word, in C around a few instructions of the core's."""

from __future__ import annotations

from smelt.codegen.kernels.base import Input, KernelCall, Operand, Output, Packed, Request
from smelt.codegen.kernels.c.store import helpers_in
from smelt.codegen.kernels.cortexm.pool_loops import walks, work
from smelt.codegen.kernels.cortexm.pool_quotients import Quotients
from smelt.codegen.kernels.cortexm.pool_walk import PoolWalk
from smelt.codegen.kernels.cortexm.pooling import Pooling


def words_at_once(channels: int) -> int:
    """Words of a turn of the loop over four channels or more; the last turn may repeat some."""
    by_one, by_two = -(-channels // 4), 2 * -(-channels // 8)
    return 2 if channels >= 8 and 8 * by_two <= 9 * by_one else 1


def pool_words(
    p: Pooling,
    quotients: Quotients | None,
    request: Request,
    *,
    instructions: str,
    form: str,
    finish: str | None,
    aligned: bool = False,
) -> KernelCall:
    """The call that pools words of four channels.

    Args:
        p: what is computed.
        quotients: how averages come from sums; None for maxima, and where `finish` does it.
        request: target and preference.
        instructions: the template of what the core does with words.
        form: of the call.
        finish: C of an average from its sum where no product is right.
        aligned: whether words must lie at multiples of their size, as they do.
    """
    words, found = words_at_once(p.channels), walks(p, request.optimize)
    operands: list[Operand] = [Input(0, "input")]
    notes = [f"{4 * words} channels at a time" + ("." if p.largest else ", sums of two in a word.")]
    if quotients is not None:
        notes.append("Results: one product, proved equal to the model's for every sum.")
        if p.varies:
            operands.append(Packed("scales", quotients.table))
    return KernelCall(
        template="cortexm/word_pool.j2",
        stem=p.stem,
        parameters={
            "instructions": instructions,
            "p": p,
            "walk": PoolWalk.of(p),
            "q": quotients,
            "walks": found,
            "words": words,
            "scale": [] if quotients is None else quotients.table.tolist(),
            "finish": finish,
            "notes": notes,
            "aligned": aligned,
        },
        operands=(*operands, Output(0, "output")),
        helpers=helpers_in([finish or ""]),
        summary=f"{4 * words} channels at a time, four a word",
        form=form,
        work=work(p, found, 4 * words, 4, written_out=True),
    )
