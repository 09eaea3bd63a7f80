"""Names with terminal controls or markup, which all output must escape."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any
from unicodedata import category
from unittest.mock import patch

import onnx

from smelt.api.compile import compile_model
from smelt.cli.app import main
from smelt.cli.show import profile as show_profile
from smelt.cli.show import verify as show_verify
from smelt.errors import ConfigError
from smelt.frontend import load
from tests.fuzz import models, onnx_format
from tests.fuzz.case import READ_FAILURES, Format, Step
from tests.fuzz.onnx_seeds import SMALL
from tests.fuzz.raw import NAMES

COMMANDS = (
    ("inspect",),
    ("inspect", "--json"),
    ("inspect", "--ir"),
    ("partition",),
    ("partition", "--json"),
    ("partition", "--target", "cortex-m4"),
    ("build", "-o", "{folder}/out", "--force"),
    ("build", "-o", "{folder}/out", "--force", "--board", "nucleo-f446re", "--max-arena", "1"),
    ("run", "--inputs", "none.npz"),
    ("quantize", "-o", "{folder}/out.smelt", "--calibration", "none.npz"),
)


class Unfit(Exception):
    """A name was printed or written unescaped."""


@cache
def seeds() -> Mapping[str, bytes]:
    """Return small ONNX networks."""
    return {name: proto.SerializeToString() for name, proto in SMALL.items()}


def damage(data: bytes, steps: Sequence[Step]) -> bytes:
    """Put hostile names everywhere; further steps damage the file in other ways."""
    model = onnx.ModelProto()
    model.ParseFromString(data)
    rng = Random(steps[0] if steps else 0)
    renamed: dict[str, str] = {}

    def new(name: str) -> str:
        if name and name not in renamed:
            hostile = rng.choice([text for text in NAMES if len(text) < 100])
            renamed[name] = f"{hostile}{len(renamed)}" if rng.random() < 0.8 else name
        return renamed.get(name, name)

    for graph in onnx_format.graphs(model):
        graph.name = new(graph.name)
        for node in graph.node:
            node.name = new(node.name or "node")
            for side in (node.input, node.output):
                for place, name in enumerate(side):
                    side[place] = new(name)
        for value in (*graph.input, *graph.output, *graph.initializer):
            value.name = new(value.name)
    changed = model.SerializeToString()
    return onnx_format.damage(changed, steps[1:])


def check(path: Path, variant: int) -> None:
    """Run a command on the file, or write pages of HTML about it."""
    if variant < len(COMMANDS):
        name, *options = (text.format(folder=path.parent) for text in COMMANDS[variant])
        fit_for_terminal(_printed([name, str(path), *options]))
        return
    imported = load(path)
    if models.small(imported.graph):
        report = compile_model(imported).report
        for page in _pages(report):
            fit_for_browser(page)


def _printed(arguments: Sequence[str]) -> str:
    """Return what a command prints to either stream."""
    printed = io.StringIO()
    with (
        patch.object(sys, "argv", ["smelt", *arguments]),
        redirect_stdout(printed),
        redirect_stderr(printed),
    ):
        try:
            main()
        except SystemExit as ended:
            if ended.code not in (0, 1, 2, None):
                raise Unfit(f"exit code {ended.code}") from ended
    return printed.getvalue()


def fit_for_terminal(text: str) -> None:
    """Raise `Unfit` for control characters and those that reorder text."""
    for character in text:
        if character != "\n" and category(character) in ("Cc", "Cs", "Cf"):
            raise Unfit(f"{character!r} reaches the terminal, in {text[:300]!r}")


def _pages(report: Mapping[str, Any]) -> Sequence[str]:
    """Return pages about a network, with made-up figures."""
    counted = {"instructions": 7, "share": 0.5, "instructions_per_mac": 1.0, "ticks": 3}
    layers = [{**layer, **counted, "seconds": 0.1} for layer in report["layers"]]
    profile = {"instructions": 9, "outside": counted}
    whole = {**report, "layers": layers}
    verified = {"passed": False, "message": "".join(NAMES[:9]), "samples": 1, "seconds": 1.0}
    said = {**verified, "tolerance": None, "memory": None}
    timer = {"hz": 1000, "simulated": False}
    return (
        show_profile.html({**whole, "profile": profile}),
        show_verify.html({**whole, "verification": said, "timer": timer}),
    )


class _Tags(HTMLParser):
    """A parser that raises `Unfit` for tags and attributes that come from a hostile name."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Check a tag and its attributes."""
        if tag in ("script", "b") or any(name.startswith("on") for name, _ in attrs):
            raise Unfit(f"<{tag} {attrs}> is in the page")


def fit_for_browser(page: str) -> None:
    """Raise `Unfit` for tags and attributes of hostile names, and for control characters."""
    _Tags().feed(page)
    found = re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", page)
    if found:
        raise Unfit(f"{found[0]!r} is in the page")


FORMAT = Format(
    *("terminal", ".onnx", seeds, damage, check),
    variants=len(COMMANDS) + 3,
    refusals=(*READ_FAILURES, ConfigError),
    weight=3,
)
