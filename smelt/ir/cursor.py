"""Tokenizer of the text format: reads token by token, and reports errors with line and column."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, NoReturn, TypeVar

from smelt.errors import ModelError
from smelt.ir.literal import BARE_NAME, WORD, enum_word

T = TypeVar("T")
E = TypeVar("E", bound=Enum)

_STRING = r'"(?:[^"\\\x00-\x1f]|\\.)*"'
_TOKEN = re.compile(
    rf"""\s*(?:
    (?P<name>%(?:{BARE_NAME}|{_STRING}))
  | (?P<string>{_STRING})
  | (?P<digest>@[0-9a-f]+)
  | (?P<number>-?(?:inf\b|nan\b|0x[0-9a-f.]+p[+-]?[0-9]+|[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?))
  | (?P<word>{WORD})
  | (?P<punctuation>[][(){{}},:=\#])
  | (?P<end>\Z)
    )""",
    re.VERBOSE | re.ASCII,
)


class Token(NamedTuple):
    """A token: its kind (the name of a group of `_TOKEN`), its text and its offset in the text."""

    kind: str
    text: str
    offset: int


class Cursor:
    """A position in the tokens of a text."""

    def __init__(self, text: str, offset: int) -> None:
        self._text = text
        self._tokens: list[Token] = []
        self._next = 0
        while not self._tokens or self._tokens[-1].kind != "end":
            match = _TOKEN.match(text, offset)
            if match is None or match.lastgroup is None:
                offset += len(text[offset:]) - len(text[offset:].lstrip())
                self.fail(f"{text[offset]!r} cannot begin a token of the text format", offset)
            kind = match.lastgroup
            self._tokens.append(Token(kind, match[kind], match.start(kind)))
            offset = match.end()

    @property
    def token(self) -> Token:
        """The next token."""
        return self._tokens[self._next]

    def fail(self, message: str, offset: int | None = None) -> NoReturn:
        """Raise `ModelError` at an offset; by default, at the next token."""
        raise ModelError(f"{self.where(offset)}: {message}")

    def where(self, offset: int | None = None) -> str:
        """Return line and column of an offset; by default, of the next token."""
        offset = self.token.offset if offset is None else offset
        line = self._text.count("\n", 0, offset) + 1
        return f"line {line}, column {offset - self._text.rfind(chr(10), 0, offset)}"

    def unexpected(self, wanted: str) -> NoReturn:
        """Raise `ModelError`: the next token is something other than `wanted`."""
        found = "the end" if self.token.kind == "end" else f"'{self.token.text:.40}'"
        self.fail(f"expected {wanted}, found {found}")

    def expect(self, kind: str, wanted: str) -> str:
        """Consume a token of the given kind and return its text."""
        if self.token.kind != kind:
            self.unexpected(wanted)
        self._next += 1
        return self._tokens[self._next - 1].text

    def accept(self, text: str) -> bool:
        """Consume the next token if it is this word or punctuation; return whether it was."""
        found = self.token.kind in ("punctuation", "word") and self.token.text == text
        self._next += found
        return found

    def require(self, *texts: str) -> None:
        """Consume these punctuation marks or words, in this order."""
        for text in texts:
            if not self.accept(text):
                self.unexpected(f"'{text}'")

    def attempt(self, parse: Callable[[], T]) -> T | ModelError:
        """Call `parse`; return its result, or its error if it failed without consuming a token."""
        start = self._next
        try:
            return parse()
        except ModelError as error:
            if self._next > start:
                raise
            return error

    def items(self, opening: str, closing: str, parse: Callable[[], T]) -> list[T]:
        """Parse a bracketed list of items, separated by commas; it may be empty."""
        found: list[T] = []
        self.require(opening)
        while not self.accept(closing):
            if found:
                self.require(",")
            found.append(parse())
        return found

    def string(self) -> str:
        """Parse a string in JSON's quotes."""
        return self._unquote(self.token, self.expect("string", "a quoted string"))

    def name(self) -> str:
        """Parse a value's name and return it without `%` and quotes."""
        token = self.token
        text = self.expect("name", "a value, as %name")[1:]
        return self._unquote(token, text) if text.startswith('"') else text

    def _unquote(self, token: Token, text: str) -> str:
        try:
            return str(json.loads(text))
        except ValueError as error:
            self.fail(f"not a JSON string: {error}", token.offset)

    def integer(self) -> int:
        """Parse a decimal integer that fits in 64 bits, signed or unsigned."""
        token = self.token
        if not re.fullmatch(r"-?[0-9]+", token.text):
            self.unexpected("an integer")
        text = self.expect("number", "an integer")
        if len(text) > 20 or not -(2**63) <= int(text) < 2**64:
            self.fail("the integer does not fit in 64 bits", token.offset)
        return int(text)

    def real(self) -> float:
        """Parse a decimal or hexadecimal floating-point number."""
        text = self.expect("number", "a number")
        return float.fromhex(text) if "0x" in text else float(text)

    def boolean(self) -> bool:
        """Parse `true` or `false`."""
        if self.accept("true"):
            return True
        if not self.accept("false"):
            self.unexpected("'true' or 'false'")
        return False

    def member(self, kind: type[E]) -> E:
        """Parse the word of a member of an enumeration, and return the member."""
        words = {enum_word(member): member for member in kind}
        if self.token.text not in words:
            self.unexpected(f"one of {', '.join(words)}")
        return words[self.expect("word", "a word")]
