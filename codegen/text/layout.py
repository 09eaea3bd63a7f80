"""The last step in the making of C: lines of at most 100 columns.

Templates write a statement, a declaration or a sentence of a comment on one line, however long its
names and numbers make it. `laid_out` breaks such a line behind the opening bracket of its longest
part, and fills the following lines, indented by four columns, with what the brackets contain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from textwrap import wrap

COLUMNS = 100
"""The longest line of generated C, but for names that leave no room and text between quotes."""

_INDENT = "    "
_BRACKETS = {"(": ")", "{": "}", "[": "]"}
_OPERATORS = (" || ", " && ", " ? ", " : ", " | ", " & ", " + ", " - ", " = ", " << ", " >> ")
"""Where an expression is broken, the most loosely binding first."""
_TRAILING = re.compile(r"^(?P<code>.*\S) +(?P<comment>/\* .* \*/)$")
_CALLED = re.compile(r"\w$|\b(?:for|if|while|switch) $|^typedef .*\)$")
"""What stands before the brackets of arguments."""
_SENTENCE = re.compile(r"[A-Z`'-]")
"""What begins a new sentence, or an item, of a comment."""


def laid_out(text: str) -> str:
    """C whose lines are broken where they are longer than `COLUMNS`; all others stay."""
    if all(len(line) <= COLUMNS for line in text.split("\n")):
        return text
    return "\n".join(_lines(text.split("\n")))


def comment(text: str, pad: str = "") -> str:
    """A comment of C on lines of its own, whose text is safe in one (see `c_comment`)."""
    return "\n".join(_comment_lines(text, pad))


def _lines(lines: Iterable[str]) -> Iterator[str]:
    waiting = list(lines)[::-1]
    commented = False
    while waiting:
        line = waiting.pop()
        was_commented = commented
        commented = _opens_comment(line, commented)
        pad = line[: len(line) - len(line.lstrip())]
        code = line.strip()
        if len(line) <= COLUMNS or code.startswith(("#", '"')) or code.endswith("\\"):
            yield line
        elif was_commented:
            first, *rest = _wrapped(code.removeprefix("* "), COLUMNS - len(pad) - 2)
            yield f"{pad}* {first}"
            if rest:
                _put_back(waiting, " ".join(rest), pad)
        elif code.startswith("/*") and code.endswith("*/"):
            yield from _comment_lines(code[2:-2].strip(), pad)
        elif code.startswith("/*"):
            first, *rest = _wrapped(code, COLUMNS - len(pad))
            yield pad + first
            _put_back(waiting, " ".join(rest), pad + " ")
        elif trailing := _TRAILING.match(code):
            yield from _comment_lines(trailing["comment"][2:-2].strip(), pad)
            yield from _broken(trailing["code"], pad)
        else:
            yield from _broken(code, pad)


def _wrapped(text: str, columns: int) -> list[str]:
    """The words of a text in lines of so many columns."""
    return wrap(text, columns, break_long_words=False, break_on_hyphens=False)


def _put_back(waiting: list[str], rest: str, pad: str) -> None:
    """Put the rest of a comment's line before the next line, if its sentence goes on there."""
    following = waiting[-1].strip().removeprefix("* ") if waiting else "*/"
    new = following in ("*", "*/") or _SENTENCE.match(following) or rest.endswith(".")
    if not new:
        waiting.pop()
        rest = f"{rest} {following}"
    waiting.append(f"{pad}* {rest}")


def _comment_lines(text: str, pad: str) -> list[str]:
    """A comment of its own, in as many lines as it takes."""
    if len(pad) + len(text) + 6 <= COLUMNS:
        return [f"{pad}/* {text} */"]
    lines = _wrapped(text, COLUMNS - len(pad) - 3)
    return [f"{pad}/*", *(f"{pad} * {line}" for line in lines), f"{pad} */"]


def _opens_comment(line: str, commented: bool) -> bool:
    """Whether a comment is open behind a line."""
    begin, end = line.rfind("/*"), line.rfind("*/")
    return commented if begin == end else begin > end


def _broken(code: str, pad: str, inner: str | None = None) -> list[str]:
    """A line of code in several; what follows the first is indented by `inner`."""
    inner = pad + _INDENT if inner is None else inner
    if len(pad) + len(code) <= COLUMNS:
        return [pad + code]
    groups = (group for group in _groups(code) if _may_break(code, group[0]))
    begin, end = max(groups, key=lambda g: g[1] - g[0], default=(0, 0))
    if end - begin < 12 or len(pad) + begin >= COLUMNS:
        return _at_operators(code, pad, inner)
    head, body, tail = code[: begin + 1], code[begin + 1 : end], code[end:]
    if code[begin] == "{":
        filled = _wrapped(body.strip(), COLUMNS - len(inner))
        return [pad + head, *(inner + line for line in filled), pad + tail]
    if len(inner) + len(body) + len(tail) <= COLUMNS:
        return [pad + head, inner + body + tail]
    items = list(_split(body, ";" if head == "for (" else ","))
    if len(items) == 1:
        return [pad + head, *_at_operators(body + tail, inner, inner)]
    items[-1] += tail
    return [pad + head, *(line for row in _filled(items, inner) for line in _broken(row, inner))]


def _filled(items: Iterable[str], pad: str) -> Iterator[str]:
    """Yield the items in order, as many in a row as fit into a line."""
    row = ""
    for item in items:
        if row and len(pad) + len(row) + 1 + len(item) <= COLUMNS:
            row = f"{row} {item}"
        else:
            if row:
                yield row
            row = item
    yield row


def _may_break(code: str, bracket: int) -> bool:
    """Whether a line may end with a bracket: of a list, of arguments, or behind `for` and `if`."""
    return code[bracket] == "{" or bool(_CALLED.search(code[:bracket]))


def _at_operators(code: str, pad: str, inner: str) -> list[str]:
    """An expression in lines that end with an operator, or begin with `?` or `:`."""
    if len(pad) + len(code) <= COLUMNS:
        return [pad + code]
    for operator in _OPERATORS:
        places = [at for at in _top_level(code, operator) if len(pad) + at < COLUMNS - 2]
        if places:
            at = places[-1]
            first = code[:at] if operator in (" ? ", " : ") else code[: at + len(operator)].rstrip()
            rest = code[len(first) :].lstrip()
            return [pad + first, *_at_operators(rest, inner, inner)]
    return [pad + code]


def _split(text: str, separator: str) -> Iterator[str]:
    """The parts between separators outside of all brackets, each with the one that follows it."""
    begin = 0
    for at in _top_level(text, separator):
        yield text[begin : at + 1].strip()
        begin = at + 1
    yield text[begin:].strip()


def _top_level(text: str, wanted: str) -> list[int]:
    """Where a string stands outside of all brackets."""
    depth, found = 0, list[int]()
    for i, c in enumerate(text):
        depth += (c in _BRACKETS) - (c in ")}]")
        if depth == 0 and text.startswith(wanted, i):
            found.append(i)
    return found


def _groups(code: str) -> Iterator[tuple[int, int]]:
    """Where parentheses and braces open and close that stand in no other ones."""
    opened: list[int] = []
    for i, c in enumerate(code):
        if c in _BRACKETS:
            opened.append(i)
        elif c in ")}]" and opened:
            begin = opened.pop()
            if not opened and c != "]":
                yield begin, i
