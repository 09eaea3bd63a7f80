"""Assembly in C: functions whose body is one string, written line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator

LONGEST = 4095
"""Characters that C compilers need to take in a string (C99, section 5.2.4.1)."""

_LINE = r'"[^"]*"(?: /\*.*\*/)?'
_STATEMENT = re.compile(rf"^( *)__asm__ volatile\($((?:\n *(?:{_LINE}|/?\*.*))*)\n *\);$", re.M)
_STRING = re.compile(r'^ *"([^"]*)"')
_ESCAPE = re.compile(r"\\.")
_SYNTAX = r'".syntax unified\n"'


def in_short_strings(source: str) -> str:
    """C source whose statements of assembly are cut so that no string is longer than `LONGEST`.

    Only statements without operands are cut, and those follow each other in functions that consist
    of nothing else (`naked`): no code comes between them. What `.rept` repeats stays together.
    """
    return _STATEMENT.sub(_cut, source)


def _cut(statement: re.Match[str]) -> str:
    indent, body = statement[1], statement[2]
    if len(body) <= LONGEST or _length(body) <= LONGEST:
        return statement[0]
    parts, size = [""], 0
    for piece in _pieces(body):
        length = _length(piece)
        if size and size + length > LONGEST - len(_SYNTAX):
            parts.append(f"\n{indent}    {_SYNTAX}")
            size = 0
        parts[-1] += piece
        size += length
    return "\n".join(f"{indent}__asm__ volatile({part}\n{indent});" for part in parts)


def _pieces(body: str) -> Iterator[str]:
    """Lines, each with the line break before it; what is repeated in one piece."""
    held, depth = "", 0
    for line in body.split("\n")[1:]:
        held += "\n" + line
        text = _STRING.match(line)
        word = text[1].split(" ")[0] if text else ""
        depth += (word == ".rept") - (word == r".endr\n")
        if depth == 0:
            yield held
            held = ""


def _length(text: str) -> int:
    """Characters of the strings in lines of C."""
    strings = (_STRING.match(line) for line in text.split("\n"))
    return sum(len(_ESCAPE.sub("x", found[1])) for found in strings if found)
