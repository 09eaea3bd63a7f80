"""Makes untrusted text safe to print: it cannot move the cursor or hide other text."""

from __future__ import annotations

import re
from unicodedata import category

_SEQUENCE = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles and links: up to BEL or ESC \
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # other strings
    r"|[\x1b\x9b][\[0-?]*[ -/]*[@-~]"  # colors, cursor movement and all others
)
_UNSAFE = re.compile(r"[^\n\t -~]")


def plain(text: str) -> str:
    """Return the text without escape sequences.

    Other control characters, and characters that reorder text, become Python escapes.
    """
    return _UNSAFE.sub(_escaped, _SEQUENCE.sub("", text.replace("\r\n", "\n")))


def one_line(text: str) -> str:
    """Return `plain(text)` on one line, so that a name cannot imitate another line of output."""
    return plain(text).replace("\n", "\\n").replace("\t", "\\t")


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable() or category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode("ascii")
