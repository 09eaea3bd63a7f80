"""Tests of the drawing of the arena on the pages of `smelt verify` and `smelt profile`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from smelt.api.options import Options
from smelt.cli.show import verify
from smelt.cli.show.memory import pictures
from smelt.ir import Graph, Value
from tests.support.banded_networks import RandomNetwork
from tests.support.graphs import compile_graph
from tests.support.projects import digits, unary_chain

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</title></svg><script>alert('&\"')</script>\x1b[31m\x00\ufffe{{ memory }}"


def drawn(report: dict[str, Any]) -> ElementTree.Element:
    """Return the drawing on a page, as parsed from XML."""
    judged = {"verification": {"passed": True, "message": "equal"}}
    page = verify.html({**report, **judged})
    assert page.count("<svg") == page.count("</svg>") == 1
    assert "href" not in page
    assert "url(" not in page
    start, end = page.index("<svg"), page.index("</svg>") + len("</svg>")
    return ElementTree.fromstring(page[start:end])


def titles(svg: ElementTree.Element) -> list[str]:
    return [str(path.findtext(f"{SVG}title")) for path in svg.iter(f"{SVG}path")]


def texts(svg: ElementTree.Element) -> str:
    return "\n".join(str(text.text) for text in svg.iter(f"{SVG}text"))


@pytest.mark.parametrize("optimize", ["speed", "ram"])
def test_it_has_every_buffer(optimize: Any) -> None:
    """With `ram`, layers are computed a few rows at a time, and buffers are live in parts."""
    options = Options("cortex-m4", optimize=optimize)
    report: dict[str, Any] = {**compile_graph(RandomNetwork(0).chain(4), options).report}
    placed = report["arena"]["map"]
    svg = drawn(report)
    assert any("spans" in buffer for buffer in placed) == (optimize == "ram")
    assert [title.split(": ")[0] for title in titles(svg)] == [p["name"] for p in placed]
    kinds = [path.get("class") == "scratch" for path in svg.iter(f"{SVG}path")]
    assert kinds == [p["scratch"] for p in placed]
    assert (True in kinds) == (optimize == "speed")
    assert f"(red) in: {report['arena']['peak']['call']}" in texts(svg)


def test_outlines_follow_the_live_bytes() -> None:
    """A buffer that is not live for a while has two outlines."""
    spans = [
        {"start": 0, "end": 1, "low": 0, "high": 8},
        {"start": 1, "end": 2, "low": 4, "high": 8},
        {"start": 3, "end": 4, "low": 0, "high": 4},
    ]
    placed = {"name": "x", "offset": 8, "size": 8, "start": 0, "end": 4, "scratch": False}
    arena = {"bytes": 16, "limit": None, "peak": {"slot": 0, "call": "x"}, "others": []}
    (made,) = pictures({"arena": {**arena, "map": [{**placed, "spans": spans}]}})
    (area,) = made.areas
    assert area.outline == (
        "M90.0,220.0V40.0H302.5V40.0H515.0V130.0H302.5V220.0H90.0Z "
        "M727.5,220.0V130.0H940.0V220.0H727.5Z"
    )
    assert (made.peak_x, made.peak_width, made.arena_y) == (90.0, 212.5, 40.0)


def test_a_limit_near_the_arena_is_drawn_as_a_line() -> None:
    near = dict(digits(Options("cortex-m4", max_ram=3000)).report)
    far = dict(digits(Options("cortex-m4", max_ram=300_000)).report)
    none = dict(digits(Options("cortex-m4")).report)
    lines = [len(list(drawn(report).iter(f"{SVG}line"))) for report in (near, far, none)]
    assert lines == [3, 2, 2]
    assert "limit: 3,000 bytes" in texts(drawn(near))
    assert "the limit, 300,000 bytes, is far above" in texts(drawn(far))
    assert "limit" not in texts(drawn(none))


def test_hostile_names_are_escaped() -> None:
    chain = unary_chain()
    (x,) = chain.inputs
    hostile = Value(HOSTILE, x.type)
    first = replace(chain.nodes[0], inputs=(hostile,))
    graph = Graph("chain", (hostile,), chain.outputs, (first, *chain.nodes[1:]))
    report = dict(compile_graph(graph).report)
    (title, *_) = titles(drawn(report))
    assert title.startswith(
        "</title></svg><script>alert('&\"')</script>\\x00\\ufffe{{ memory }}: 16 "
    )
