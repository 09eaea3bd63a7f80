"""`smelt explore`: what less RAM costs, as a table, as JSON and as a drawing."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from smelt import boards
from smelt.cli.show.explore import drawing, table
from smelt.proof.explore import MemoryPoint
from tests.support.board_tools import simulable
from tests.support.cli_runner import Smelt
from tests.support.cli_runner import smelt as smelt
from tests.support.tflite_networks import DIGITS

MODEL = DIGITS / "digits_int8.tflite"


def point(ram: int, instructions: int | None, **known: Any) -> MemoryPoint:
    figures: dict[str, Any] = {
        "seconds": None,
        "estimated_cycles": 1_000_000,
        "flash": None,
        "stack": None,
        **known,
    }
    constant: dict[str, Any] = {"limit": "--max-ram 1", "weights": 700, "banded": 1, "layers": 2}
    return MemoryPoint(ram=ram, instructions=instructions, **constant, **figures)


def test_the_command_prints_and_draws_the_points(smelt: Smelt) -> None:
    arguments = "explore", MODEL, "--board", "mps2-an386", "--estimate", "--points", "3"
    found = smelt(*arguments, "--svg", "ram.svg", "--json").json
    assert (found["tried"], found["failed"]) == (4, [])
    root = ElementTree.fromstring(Path("ram.svg").read_text())
    circles = [one for one in root.iter() if one.tag.endswith("circle")]
    assert len(circles) == 2 * len(found["points"]) > 2
    heading, *rows = smelt(*arguments, "--jobs", "1").out.splitlines()
    assert "cycles (estimate)" in heading
    for row, one in zip(rows, found["points"], strict=True):
        assert row.split()[0] == f"{one['ram']:,}"
        assert f"{one['estimated_cycles']:,}" in row
        assert f"{one['banded']} of {one['layers']}" in row
        assert row.endswith(one["limit"] or "no limit")


@pytest.mark.qemu
def test_a_board_that_can_be_simulated_is_measured(smelt: Smelt) -> None:
    simulable(boards.load("mps2-an386"))
    found = smelt("explore", MODEL, "--board", "mps2-an386", "--points", "3", "--json").json
    assert found["failed"] == []
    assert len(found["points"]) > 1
    assert all(one["flash"] > one["weights"] and one["stack"] > 0 for one in found["points"])
    for less, more in pairwise(found["points"]):
        assert less["ram"] < more["ram"]
        assert less["instructions"] > more["instructions"] > 0


def test_the_table_shows_measurements_or_estimates_in_a_column() -> None:
    measured = table([point(10, 3_000, flash=900, stack=80), point(20, 2_000, flash=800, stack=90)])
    assert measured.records()[0] == {
        "RAM": 10,
        "RAM ratio": "0.50",
        "instructions": 3_000,
        "ratio": "1.500",
        "flash": 900,
        "stack": 80,
        "layers in bands": "1 of 2",
        "chosen by": "--max-ram 1",
    }
    (timed,) = table([point(10, None, seconds=0.0125, flash=900)]).records()
    assert (timed["milliseconds"], timed["stack"]) == ("12.5", "-")
    (estimated,) = table([point(10, None)]).records()
    assert (estimated["cycles (estimate)"], estimated["weights"]) == (1_000_000, 700)
    assert {"flash", "stack"}.isdisjoint(estimated)


def test_the_drawing_has_ram_to_the_right_and_cost_and_flash_upwards() -> None:
    points = [point(50, 300, flash=900), point(80, 250, flash=450), point(100, 200, flash=900)]
    root = ElementTree.fromstring(drawing(points))
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    circles = [one for one in root.iter() if one.tag.endswith("circle")]
    places = [(float(one.get("cx", 0)), float(one.get("cy", 0))) for one in circles]
    assert all(0 < x < width and 0 < y < height for x, y in places)
    cost, flash = places[:3], places[3:]
    assert [x for x, _ in cost] == [x for x, _ in flash] == sorted(x for x, _ in cost)
    assert cost[0][1] < cost[1][1] < cost[2][1] < flash[0][1] == flash[2][1] < flash[1][1]
    texts = [one.text for one in root.iter() if one.tag.endswith("text")]
    assert "instructions, relative to the fastest" in texts
    assert {"1.500", "1.250", "1.000", "900", "450", "50", "80", "100"} <= set(texts)


def test_builds_that_fail_make_the_command_fail(smelt: Smelt) -> None:
    """A socket is no serial port of a board that can be flashed."""
    options = "--board", "nano-33-ble", "--on", "socket://127.0.0.1:1", "--points", "3", "--json"
    ran = smelt("explore", MODEL, *options)
    assert ran.code == 1
    assert (
        "SmeltError: 4 of 4 builds failed: --optimize ram, no limit, largest --max-ram, --max-ram "
        in ran.err
    )
    assert ran.json["points"] == []
    assert [one["limit"] for one in ran.json["failed"]][:2] == ["--optimize ram", ""]


@pytest.mark.parametrize("option", [("--on", "host"), ("--device", "0")])
def test_an_estimate_runs_nowhere(smelt: Smelt, option: tuple[str, str]) -> None:
    ran = smelt("explore", MODEL, "--board", "host", "--estimate", *option)
    assert ran.code == 1
    assert "ConfigError: --estimate runs nothing: remove --on and --device" in ran.err
