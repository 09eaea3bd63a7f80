"""The last step of generating C: breaking lines longer than 100 columns.

Templates write each statement, declaration or sentence of a comment on one line, whatever its
length. `laid_out` breaks a line of code after the opening bracket of its longest bracketed part.
The content of the brackets fills the following lines, indented by four columns. A type of an array
is broken before its name, or else before its size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from textwrap import wrap

COLUMNS = 100
"""Maximum length of a line of generated C.

Lines with text between quotes, and those without a place to break, may be longer.
"""

_INDENT = "    "
_SHORT = 12
"""Brackets around fewer characters are not broken."""
_BRACKETS = {"(": ")", "{": "}", "[": "]"}
_CHOICE = (" ? ", " : ")
_OPERATORS = (
    *(" || ", " && ", *_CHOICE, " | ", " ^ ", " & ", " == ", " != ", " < ", " > ", " <= ", " >= "),
    *(" << ", " >> ", " + ", " - ", " * ", " / ", " % "),
)
"""Operators at which an expression may be broken, preferred (loosely binding) ones first."""
_TRAILING = re.compile(r"^(?P<code>.*\S) +(?P<comment>/\* .* \*/)$")
_CALLED = re.compile(r"\w$|\w \*>$|^typedef .*\)$")
"""Matches code before a bracket that a line may end with: a name, a cast of C++, …"""
_DECLARED = re.compile(r"^(?P<type>(?:static )?const \w+) (?P<name>\w+.* = \{)$")
"""Matches the first line of the definition of a constant."""
_ARRAY_TYPE = re.compile(r"^(?P<element>typedef \w+) (?P<name>\w+)(?P<size>\[.*\];)$")
_PLACED = re.compile(r"^(?P<array>static \w+ \w+\[.*\]) (?P<attribute>__attribute__.*;)$")
"""Matches the definition of an array at a special place."""
_SENTENCE = re.compile(r"[A-Z`'-]")
"""Matches the beginning of a sentence, or of an item, of a comment."""


def laid_out(text: str) -> str:
    """Return C with all lines longer than `COLUMNS` broken; other lines do not change."""
    if all(len(line) <= COLUMNS for line in text.split("\n")):
        return text
    return "\n".join(_lines(text.split("\n")))


def aligned_comments(text: str) -> str:
    """Return C with the comments behind code in one column; lines that would be too long stay.

    A filter of templates, for the fields of a struct.
    """
    lines = [_TRAILING.match(" ".join(re.split(r" +(?=/\* )", line))) for line in text.split("\n")]
    parts = [(match["code"], match["comment"]) for match in lines if match]
    width = max(
        (len(code) for code, said in parts if len(code) + 1 + len(said) <= COLUMNS), default=0
    )
    return "\n".join(
        f"{match['code']:{width}} {match['comment']}" if match else line
        for match, line in zip(lines, text.split("\n"), strict=True)
    )


def comment(text: str, pad: str = "") -> str:
    """Return a C comment on its own lines.

    Args:
        text: text that is safe in a comment; see `c_comment`.
        pad: indentation.
    """
    return "\n".join(_comment_lines(text, pad))


def _lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines, with those longer than `COLUMNS` broken."""
    following = list(lines)[::-1]
    in_comment = False
    while following:
        line = following.pop()
        was_in_comment = in_comment
        in_comment = _opens_comment(line, in_comment)
        pad = line[: len(line) - len(line.lstrip())]
        code = line.strip()
        trailing = _TRAILING.match(code)
        if len(line) <= COLUMNS or code.startswith('"') or code.endswith("\\"):
            yield line
        elif code.startswith("#"):
            if trailing:
                yield from _comment_lines(trailing["comment"][2:-2].strip(), pad)
            yield trailing["code"] if trailing else line
        elif was_in_comment:
            first, *rest = _wrapped(code.removeprefix("* "), COLUMNS - len(pad) - 2)
            yield f"{pad}* {first}"
            if rest:
                in_comment = True  # also if the line ends the comment
                _put_back(following, " ".join(rest), pad)
        elif code.startswith("/*") and code.endswith("*/"):
            yield from _comment_lines(code[2:-2].strip(), pad)
        elif code.startswith("/*"):
            first, *rest = _wrapped(code, COLUMNS - len(pad))
            yield pad + first
            _put_back(following, " ".join(rest), pad + " ")
        elif trailing:
            yield from _comment_lines(trailing["comment"][2:-2].strip(), pad)
            yield from _broken(trailing["code"], pad)
        else:
            yield from _broken(code, pad)


def _wrapped(text: str, columns: int) -> list[str]:
    """Break a text between words into lines of at most `columns`."""
    return wrap(text, columns, break_long_words=False, break_on_hyphens=False)


def _put_back(following: list[str], rest: str, pad: str) -> None:
    """Put the rest of a broken comment line before the lines that follow.

    If the sentence continues on the next line, that line is appended to the rest.

    Args:
        following: the lines that follow, the next one last.
        rest: the rest of the broken line.
        pad: indentation.
    """
    next_line = following[-1].strip().removeprefix("* ") if following else "*/"
    new = next_line in ("*", "*/") or _SENTENCE.match(next_line) or rest.endswith((".", "*/"))
    if not new:
        following.pop()
        rest = f"{rest} {next_line}"
    following.append(f"{pad}* {rest}")


def _comment_lines(text: str, pad: str) -> list[str]:
    """Return a comment in as many lines as it needs."""
    if len(pad) + len(text) + 6 <= COLUMNS:
        return [f"{pad}/* {text} */"]
    lines = _wrapped(text, COLUMNS - len(pad) - 3)
    return [f"{pad}/*", *(f"{pad} * {line}" for line in lines), f"{pad} */"]


def _opens_comment(line: str, in_comment: bool) -> bool:
    """Return whether the end of a line is inside a comment; `in_comment`: whether its start is."""
    begin, end = line.rfind("/*"), line.rfind("*/")
    return in_comment if begin == end else begin > end


def _broken(code: str, pad: str, inner: str | None = None) -> list[str]:
    """Break a line of code.

    Args:
        code: the line without its indentation.
        pad: indentation of the first line.
        inner: indentation of the lines after it; four columns more than `pad` if it is None.
    """
    inner = pad + _INDENT if inner is None else inner
    if len(pad) + len(code) <= COLUMNS:
        return [pad + code]
    if array := _ARRAY_TYPE.match(code):
        name, size = array["name"], array["size"]
        if len(inner) + len(name) + len(size) <= COLUMNS:
            return [pad + array["element"], f"{inner}{name}{size}"]
        return [f"{pad}{array['element']} {name}", *_broken(size, inner)]
    if declared := _DECLARED.match(code):
        return [pad + declared["type"], inner + declared["name"]]
    if placed := _PLACED.match(code):
        return [pad + placed["array"], inner + placed["attribute"]]
    if code.startswith("for ("):
        return _loop(code, pad)
    if two := _choice(code, pad, inner) or _in_two(code, pad, inner):
        return two
    group = _group_to_break(code, pad)
    if group is None:
        return _at_operators(code, pad, inner)
    begin, end = group
    while len(inner) + len(code) - begin - 1 > COLUMNS and (call := _only_call(code, begin, end)):
        begin, end = call
    head, body, tail = code[: begin + 1], code[begin + 1 : end], code[end:]
    if code[begin] == "{":
        # With a comma at its end, clang-format keeps a list apart from its brackets.
        filled = _wrapped(f"{body.strip()},", COLUMNS - len(inner))
        return [pad + head, *(inner + line for line in filled), pad + tail]
    if len(inner) + len(body) + len(tail) <= COLUMNS:
        return [pad + head, inner + body + tail]
    items = list(_split(body, ","))
    if len(items) == 1:
        return [pad + head, *_at_operators(body + tail, inner, inner)]
    items[-1] += tail
    return [pad + head, *(line for row in _filled(items, inner) for line in _broken(row, inner))]


def _loop(code: str, pad: str) -> list[str]:
    """Return the head of a `for`, whose parts fill lines that begin below the first part."""
    rows = _filled(_split(code[5:], ";"), pad + " " * 5)
    return [(pad + " " * 5 if i else f"{pad}for (") + row for i, row in enumerate(rows)]


def _choice(code: str, pad: str, inner: str) -> list[str]:
    """Return `condition`, `? first` and `: second` in two or three lines; empty if too long."""
    begin, end = (next(iter(_at_level(code, mark)), 0) for mark in _CHOICE)
    if not 0 < begin < end:
        return []
    below = " " * (len(pad) + begin + 1)
    two = [pad + code[:end], below + code[end + 1 :]]
    if max(map(len, two)) <= COLUMNS:
        return two
    three = [pad + code[:begin], inner + code[begin + 1 : end], inner + code[end + 1 :]]
    return three if max(map(len, three)) <= COLUMNS else []


def _in_two(code: str, pad: str, inner: str) -> list[str]:
    """Return two lines, the first of which ends with an operator; empty if they do not fit."""
    at = None if _at_level(code, " ? ") else _last_operator(code, pad, 0)
    if at is None:
        return []
    first, rest = _parted(code, *at)
    return [pad + first, inner + rest] if len(inner) + len(rest) <= COLUMNS else []


def _group_to_break(code: str, pad: str) -> tuple[int, int] | None:
    """Return the longest brackets that a line may be broken in, or None if that is no use."""
    groups = (group for group in _groups(code) if _may_break(code, group[0]))
    begin, end = max(groups, key=lambda g: g[1] - g[0], default=(0, 0))
    return None if end - begin < _SHORT or len(pad) + begin >= COLUMNS else (begin, end)


def _only_call(code: str, begin: int, end: int) -> tuple[int, int] | None:
    """Return the brackets of the call that is all that some brackets contain, or None."""
    opened = re.match(r"\w+\(", code[begin + 1 : end])
    if opened is None:
        return None
    first = begin + opened.end()
    groups = [(b, e) for b, e in _groups(code[first:end])]
    return (first, end - 1) if groups[:1] == [(0, end - 1 - first)] else None


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
    """Return whether a line may end after this bracket: of a list, of arguments, of `for` or `if`.

    `bracket` is the bracket's index in `code`.
    """
    return code[bracket] == "{" or bool(_CALLED.search(code[:bracket]))


def _at_operators(code: str, pad: str, inner: str) -> list[str]:
    """Break an expression into lines that end with an operator, or begin with `?` or `:`.

    Operators inside of brackets are used only if there is no other place.
    """
    if len(pad) + len(code) <= COLUMNS:
        return [pad + code]
    at = _last_operator(code, pad, 0)
    if at is not None:
        first, rest = _parted(code, *at)
        return [pad + first, *_at_operators(rest, inner, inner)]
    if _group_to_break(code, pad) is not None:
        deeper = inner if len(inner) > len(pad) else pad + _INDENT
        at = next(((i, o) for o in _OPERATORS for i in _at_level(code, o)), None)
        if at is None or at[1] in _CHOICE:
            return _broken(code, pad, deeper)
        first, rest = _parted(code, *at)
        return [*_broken(first, pad, deeper), *_at_operators(rest, inner, inner)]
    right = code.find(" = ") + 3 if " = " in code else 0
    at = _last_operator(code, pad, 1, right)
    in_index = at is not None and code[_unclosed(code[: at[0]])] == "["
    if at is None or (in_index and right and len(inner) + len(code) - right <= COLUMNS):
        if not right:
            return [pad + code]
        return [pad + code[: right - 1], *_at_operators(code[right:], inner, inner)]
    first, rest = _parted(code, *at)
    aligned = " " * (len(pad) + _unclosed(first) + 1)
    return [pad + first, *_at_operators(rest, aligned, aligned)]


def _last_operator(code: str, pad: str, level: int, begin: int = 0) -> tuple[int, str] | None:
    """Return the last operator, with its index, after which the first line is short enough.

    Loosely binding operators go before others.

    Args:
        code: the expression.
        pad: indentation of the first line.
        level: number of brackets around the operator.
        begin: index from which to look for the operator.
    """
    for operator in _OPERATORS:
        most = COLUMNS - len(pad) - (0 if operator in _CHOICE else len(operator) - 1)
        places = [at for at in _at_level(code, operator, level) if begin <= at <= most]
        if places:
            return places[-1], operator
    return None


def _parted(code: str, at: int, operator: str) -> tuple[str, str]:
    """Return the code up to an operator, and the rest, which begins with `?` and `:`."""
    end = at if operator in _CHOICE else at + len(operator)
    return code[:end].rstrip(), code[end:].lstrip()


def _unclosed(code: str) -> int:
    """Return the index of the last bracket that is not closed."""
    opened: list[int] = []
    for i, c in enumerate(code):
        if c in _BRACKETS:
            opened.append(i)
        elif c in ")}]":
            opened.pop()
    return opened[-1]


def _split(text: str, separator: str) -> Iterator[str]:
    """Yield the parts between separators outside of all brackets, each with its separator."""
    begin = 0
    for at in _at_level(text, separator):
        yield text[begin : at + 1].strip()
        begin = at + 1
    yield text[begin:].strip()


def _at_level(text: str, wanted: str, level: int = 0) -> list[int]:
    """Return the indices at which a string occurs inside `level` brackets."""
    depth, found = 0, list[int]()
    for i, c in enumerate(text):
        depth += (c in _BRACKETS) - (c in ")}]")
        if depth == level and text.startswith(wanted, i):
            found.append(i)
    return found


def _groups(code: str) -> Iterator[tuple[int, int]]:
    """Yield the indices at which each outermost pair of parentheses or braces opens and closes."""
    opened: list[int] = []
    for i, c in enumerate(code):
        if c in _BRACKETS:
            opened.append(i)
        elif c in ")}]" and opened:
            begin = opened.pop()
            if not opened and c != "]":
                yield begin, i
