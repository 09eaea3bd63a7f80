"""Scheduled steps as C statements, with the addresses of the memory plan."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from smelt.codegen.accelerator import DeviceProgram
from smelt.codegen.emit.addresses import Addresses, bytes_of_rows
from smelt.codegen.lower.device import DeviceCall
from smelt.codegen.schedule.banded import TURN
from smelt.codegen.schedule.schedule import (
    Actions,
    Argument,
    BandCall,
    BandedSegment,
    Branch,
    Call,
    InBuffer,
    InFlash,
    Move,
    Repeat,
    RowsMove,
    SetLength,
    Step,
)
from smelt.codegen.text.layout import comment, laid_out
from smelt.codegen.text.literals import c_comment
from smelt.ir import DType, Value

_INDENT = "    "


@dataclass(frozen=True)
class Statements:
    """The statements of an inference.

    Attributes:
        text: C, indented as the body of a function.
        uses_arena: Whether they use the variable `arena` outside of the macro `STEP_DONE`.
        copies: Whether they call `memcpy` or `memmove`.
        moves_up, moves_down: Whether they call `move_up` and `move_down`, functions of the
            network's own.
        calls: The index of the called step by the number of the line in `text`, from 0.
    """

    text: str
    uses_arena: bool
    copies: bool
    moves_up: bool
    moves_down: bool
    calls: Mapping[int, int]


def statements_of(
    actions: Actions, addresses: Addresses, device: DeviceProgram | None, success: str
) -> Statements:
    """Return the statements of an inference, without copies from an address to itself.

    Args:
        actions: The outermost steps and copies.
        addresses: The addresses of the buffers.
        device: The accelerator's program; None if the CPU computes everything.
        success: The C constant that a function returns while it waits for rows of the input.
    """
    writer = _Writer(addresses, device, success)
    lines: list[str] = []
    calls: dict[int, int] = {}
    for line in writer.actions(actions, _INDENT):
        if isinstance(line, _CallStatement):
            calls[len(lines)] = line.step
        lines += laid_out(line).split("\n")
    text = "\n".join(lines)
    return Statements(
        text, writer.uses_arena, writer.copies, writer.moves_up, writer.moves_down, calls
    )


class _CallStatement(str):
    """The C statement that calls the kernel of step `step`; it may have several lines."""

    __slots__ = ("step",)
    step: int

    @classmethod
    def of(cls, text: str, step: int) -> _CallStatement:
        call = cls(text)
        call.step = step
        return call


class _Writer:
    """Writes sequences of steps, and records what the statements use."""

    def __init__(self, addresses: Addresses, device: DeviceProgram | None, success: str) -> None:
        self._addresses = addresses
        self._success = success
        self._device = device
        self.uses_arena = False
        self.copies = False
        self.moves_up = self.moves_down = False

    def actions(self, actions: Actions, pad: str) -> list[str]:
        """Return the lines of steps and copies, with an empty line between steps."""
        lines: list[str] = []
        for action in actions:
            if isinstance(action, Move):
                lines += self._move(action, pad)
                continue
            if lines:
                lines.append("")
            if isinstance(action, BandedSegment):
                lines += self._segment(action, pad)
                continue
            lines.append(comment(f"{action.index}: {c_comment(comment_of(action))}", pad))
            lines += self._step(action, pad)
        return lines

    def _step(self, step: Step, pad: str) -> list[str]:
        """Return the lines of a step, without its comment."""
        results = [(self._addresses.of(a), str(v.type.bytes)) for a, v in _results(step)]
        last: list[str] = []
        match step:
            case Call() if self._device is not None and isinstance(step.call, DeviceCall):
                lines = self._dispatched(step, self._device, pad)
                end = self._device.end(step.index)
                last = [f"{pad}{end}"] if end else []
            case Call():
                lines = self._call(step, pad)
                if step.rows is not None:
                    limit, most = _length(step.rows.length), step.rows.most
                    scale = f"(uint32_t){limit}"
                    results = [(a, _times(scale, int(n) // most)) for a, n in results]
            case SetLength():
                pointer, name = self._pointer(step.target), _length(step.op.length)
                lines = [
                    f"{pad}((int32_t *)({pointer}))[{i}] = {name};" for i in range(step.op.count)
                ]
            case Branch():
                lines = self._branch(step, pad)
            case Repeat():
                lines = self._repeat(step, pad)
        done = [f"{pad}STEP_DONE({step.index}, {address}, {size});" for address, size in results]
        return [*lines, *done, *last]

    def _dispatched(self, step: Call, device: DeviceProgram, pad: str) -> list[str]:
        """Return the statement of an accelerator's step, and its fallback call if there is one."""
        lines = [f"{pad}{device.statement(step.index)}"]
        if (fallback := step.fallback) is not None:
            call = self._called(fallback.function, fallback.arguments, pad + _INDENT)
            lines += [f"{pad}if ({device.absent}) {{", call, f"{pad}}}"]
        return lines

    def _call(self, step: Call, pad: str) -> list[str]:
        inner = pad if step.rows is None else pad + _INDENT
        call = _CallStatement.of(self._called(step.function, step.arguments, inner), step.index)
        if step.rows is None:
            return [call]
        row, limit = step.rows.counter, _length(step.rows.length)
        advance = f"++{row}" if step.rows.at_once == 1 else f"{row} += {step.rows.at_once}"
        return [
            f"{pad}for (int32_t {row} = 0; {row} < {limit}; {advance}) {{",
            call,
            f"{pad}}}",
        ]

    def _segment(self, segment: BandedSegment, pad: str) -> list[str]:
        """Return the turns of a segment: a loop whose actions are executed in some turns each."""
        inner, body = pad + _INDENT, list[str]()
        for turns, actions in groupby(segment.actions, lambda action: action.turns):
            guard = _guard(turns, segment.turns)
            within = inner + _INDENT if guard else inner
            lines = [line for action in actions for line in self._band_action(action, within)]
            if lines and guard:
                lines = [f"{inner}if ({guard}) {{", *lines, f"{inner}}}"]
            body += lines
        loop = f"for (int32_t {TURN} = 0; {TURN} < {segment.turns}; ++{TURN}) {{"
        if segment.streamed is not None:
            loop = f"for (; ctx->turn < {segment.turns}; ++ctx->turn) {{"
            wait = [
                f"{inner}const int32_t {TURN} = ctx->turn;",
                f"{inner}if (ctx->rows < rows_of_turns({TURN} + 1)) {{",
                f"{inner}{_INDENT}return {self._success};",
                f"{inner}}}",
            ]
            body = wait + body
        layers = [f"{layer.index}: {c_comment(comment_of(layer))}" for layer in segment.layers]
        comments = [comment(text, pad) for text in (_how(segment), *layers)]
        return [*comments, pad + loop, *body, f"{pad}}}"]

    def _band_action(self, action: BandCall | RowsMove, pad: str) -> list[str]:
        if isinstance(action, RowsMove):
            row = action.row_bytes
            source = InBuffer(action.source, DType.INT8, False, start=action.start, row=row)
            target = InBuffer(action.target, DType.INT8, False, start=action.to, row=row)
            if self._addresses.same(source, target):
                return []
            distance = self._addresses.distance(source, target)
            ends = self._addresses.of(target), self._addresses.of(source)
            count = bytes_of_rows(action.bytes, row)
            return [pad + self._moved(*ends, count, 0 < distance < action.bytes)]
        call = self._called(action.function, action.arguments, pad)
        lines: list[str] = [_CallStatement.of(call, action.step)]
        if action.bytes:
            result = self._addresses.of(action.result)
            count = bytes_of_rows(action.bytes, action.result.row * action.result.dtype.size)
            lines.append(f"{pad}STEP_DONE({action.step}, {result}, {count});")
        return lines

    def _branch(self, step: Branch, pad: str) -> list[str]:
        then, otherwise = (self.actions(b, pad + _INDENT) for b in (step.then, step.otherwise))
        return [
            f"{pad}if ({self._element(step.condition, DType.BOOL)}) {{",
            *(then or [""]),
            f"{pad}}} else {{",
            *(otherwise or [""]),
            f"{pad}}}",
        ]

    def _repeat(self, step: Repeat, pad: str) -> list[str]:
        counter, index = step.counter, step.index
        lines = self.actions(step.before, pad)
        conditions: list[str] = []
        kind = "int64_t"
        if step.trip_count is not None:
            kind = "int32_t" if step.trip_count < 2**31 else "int64_t"
            conditions.append(f"{counter} < {step.trip_count}{'' if kind == 'int32_t' else 'LL'}")
        if step.limit is not None:
            limit = self._element(step.limit, DType.INT64)
            lines.append(f"{pad}const int64_t limit_{index} = {limit};")
            conditions.append(f"{counter} < limit_{index}")
        continues = None if step.continues is None else self._element(step.continues, DType.BOOL)
        stop = following = ""
        if step.start is not None or (continues is not None and step.test is None):
            start = "1" if step.start is None else self._element(step.start, DType.BOOL)
            constant = "const " if continues is None else ""
            lines.append(f"{pad}{constant}uint8_t again_{index} = {start};")
            conditions.insert(0, f"again_{index}")
            following = "" if continues is None else f"again_{index} = {continues};"
        else:
            stop = "" if continues is None else f"if (!{continues}) {{"
        if conditions in ([], [f"again_{index}"]) and step.number is None:
            lines.append(f"{pad}while ({conditions[0]}) {{" if conditions else f"{pad}for (;;) {{")
        else:
            text = " && ".join(conditions)
            lines.append(f"{pad}for ({kind} {counter} = 0; {text}; ++{counter}) {{")
        inner = pad + _INDENT
        if step.number is not None:
            lines.append(f"{inner}*{self._argument(step.number)} = {counter};")
        lines += self.actions(step.test or (), inner)
        if stop:
            lines += [f"{inner}{stop}", f"{inner}    break;", f"{inner}}}"]
        lines += self.actions(step.body, inner)
        if following:
            lines.append(f"{inner}{following}")
        return [*lines, f"{pad}}}"]

    def _move(self, move: Move, pad: str) -> list[str]:
        """Return a copy; no lines if source and target have the same address."""
        if self._addresses.same(move.target, move.source) or move.bytes == 0:
            return []
        target, source = self._pointer(move.target), self._pointer(move.source)
        if move.bytes == 1:
            cast = "(uint8_t)" if isinstance(move.source, InFlash) else ""
            copied = f"*({target}) = {cast}*({source});"
        elif move.apart:
            self.copies = True
            copied = f"memcpy({target}, {source}, {move.bytes});"
        else:
            distance = self._addresses.distance(move.source, move.target)
            copied = self._moved(target, source, str(move.bytes), 0 < distance < move.bytes)
        why = "" if move.apart else ": makes room for the results of the next step"
        return [f"{pad}{copied} /* '{c_comment(move.comment)}'{why} */"]

    def _moved(self, target: str, source: str, count: str, up: bool) -> str:
        """Return the statement that moves `count` bytes up to addresses that overlap, or down.

        newlib's `memmove` moves overlapping bytes one by one if they move up, and single words if
        they move down. The network's own functions move eight words at a time on most Cortex-M.
        """
        self.copies = True
        self.moves_up |= up
        self.moves_down |= not up
        return f"{'move_up' if up else 'move_down'}({target}, {source}, {count});"

    def _called(self, function: str, arguments: Sequence[Argument], pad: str) -> str:
        return f"{pad}{function}({', '.join(map(self._argument, arguments))});"

    def _argument(self, argument: Argument) -> str:
        pointer = self._pointer(argument)
        if isinstance(argument, InFlash) or argument.dtype.c_name == "uint8_t":
            return pointer
        return f"({'const ' if argument.constant else ''}{argument.dtype.c_name} *)({pointer})"

    def _element(self, argument: Argument, dtype: DType) -> str:
        """Return the C expression of the single element that an argument points to."""
        text = self._argument(argument)
        cast = isinstance(argument, InBuffer) and dtype is not DType.BOOL
        return f"*{text}" if cast or " " not in text else f"*({text})"

    def _pointer(self, argument: Argument) -> str:
        """Return the C expression of an argument's address, without a cast."""
        if isinstance(argument, InBuffer) and self._addresses.in_arena(argument.buffer):
            self.uses_arena = True
        return self._addresses.of(argument)


def _guard(turns: range, count: int) -> str:
    """Return the C condition of these of `count` turns; "" for all turns."""
    if len(turns) == 1:
        return f"{TURN} == {turns.start}" if count > 1 else ""
    tests: list[str] = []
    if turns.start >= turns.step:
        tests.append(f"{TURN} >= {turns.start}")
    if turns[-1] + turns.step < count:
        tests.append(f"{TURN} <= {turns[-1]}")
    if turns.step > 1:
        tests.append(f"{TURN} % {turns.step} == {turns.start % turns.step}")
    return " && ".join(tests)


def _how(segment: BandedSegment) -> str:
    """Return how the layers of a segment are computed."""
    layers = segment.layers
    turns = segment.turns
    work = [layer.bands for layer in layers if layer.bands is not None]
    rows = [part.rows for part in work]
    count = f"{rows[0]} row{'s' if rows[0] > 1 else ''}"
    if len(layers) == 1:
        return f"Step {layers[0].index} is computed {count} at a time, in {turns} turns."
    if len(set(rows)) > 1:
        count = f"{', '.join(map(str, rows[:-1]))} and {rows[-1]} rows"
    steps = f"Steps {layers[0].index} to {layers[-1].index}"
    return f"{steps} are computed together, {count} at a time, in {turns} turns."


def comment_of(step: Step) -> str:
    """Return what a step computes: origin, operator, types and quantization."""
    types = " x ".join(_quantized(v) for v in step.node.inputs if v and not v.is_constant)
    results = ", ".join(map(_quantized, step.node.outputs))
    return f"{step.node.origin}: {step.node.op.name} {types} -> {results}"


def c_word(name: str) -> str:
    """Return the name of a length as a part of C identifiers."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def _times(count: str, size: int) -> str:
    """Return the C expression of `count * size`."""
    return count if size == 1 else f"{count} * {size}u"


def _length(name: str) -> str:
    """Return the C variable of a length."""
    return f"length_{c_word(name)}"


def _results(step: Step) -> Iterable[tuple[Argument, Value]]:
    """Return the outputs of a step: locations with values."""
    return zip(step.results, step.node.outputs, strict=True)


def _quantized(value: Value) -> str:
    """Return the type of a value, with its scale and zero point if it is quantized."""
    quant = value.type.quant
    if quant is None or not quant.is_per_tensor:
        return str(value.type)
    scale, zero_point = quant.scalar
    return f"{value.type} ({scale:.6g}, zero point {zero_point})"
