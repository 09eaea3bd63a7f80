"""Text from elsewhere, made fit for a terminal: it may neither move the cursor nor hide a thing."""

from __future__ import annotations

import re
from unicodedata import category

_SEQUENCE = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # title, links: up to BEL or ESC \
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # other strings
    r"|[\x1b\x9b][\[0-?]*[ -/]*[@-~]"  # colours, the cursor, and the rest
)
_DOUBTFUL = re.compile(r"[^\n\t -~]")


def plain(text: str) -> str:
    """The text without escape sequences.

    Other control characters, and those that reorder text, are written as Python's escapes.
    """
    return _DOUBTFUL.sub(_written, _SEQUENCE.sub("", text.replace("\r\n", "\n")))


def one_line(text: str) -> str:
    """The text as `plain` shows it, on one line, so that a name cannot pass for another line."""
    return plain(text).replace("\n", "\\n").replace("\t", "\\t")


def _written(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable() or category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode("ascii")
