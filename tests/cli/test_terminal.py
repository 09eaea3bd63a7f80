"""Tests that text from files and devices cannot control the terminal."""

from __future__ import annotations

import pytest
from rich.console import Console

from smelt.cli.output import say
from smelt.cli.show.tables import TextTable
from smelt.terminal import one_line, plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07b", "b"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0\x1b\\a\x1b(Bb\x9b2Jc\x1bMd", "abcd"),
        ("a\rb\x08c\x00d\x7f", "a\\rb\\x08c\\x00d\\x7f"),
        ("\u202etxt.exe\u200b", "\\u202etxt.exe\\u200b"),
        ("a\r\nb\tc", "a\nb\tc"),
        ("é ü 漢\u3000字 \U0001f600", "é ü 漢\u3000字 \U0001f600"),
        ("a\u2028b\u2029c\x85d\xa0e", "a\\u2028b\\u2029c\\x85d\xa0e"),
        ("unfinished \x1b", "unfinished \\x1b"),
        ("\ud800", "\\ud800"),
    ],
)
def test_control_sequences_are_removed_or_escaped(text: str, shown: str) -> None:
    assert plain(text) == shown
    assert plain(shown) == shown


def test_tables_and_lines_show_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(force_terminal=True, color_system=None, width=80)
    TextTable(("name",), (("\x1b[2Jlayer\x1b]0;t\x07",), ("[red]x[/]",))).print(console)
    say(console, "a \x1b[31mnote\r of [b]\u202eit")
    say(console, "one\r\nline\tonly")
    shown = capsys.readouterr().out
    assert "\x1b[2J" not in shown
    assert "layer" in shown
    assert "[red]x[/]" in shown
    assert "a note\\r of [b]\\u202eit" in shown
    assert "one\\nline\\tonly" in shown
    assert one_line("\x1b[1ma\n b") == "a\\n b"
