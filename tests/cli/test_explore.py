"""`smelt explore`: the trade between RAM and cycles."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from smelt.api.explore import memory_frontier
from smelt.api.options import Options
from smelt.errors import ConfigError
from tests.support.cli_runner import Smelt, runner
from tests.support.tflite_networks import DIGITS

MODEL = DIGITS / "digits_int8.tflite"


@pytest.fixture
def smelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Smelt:
    return runner(tmp_path, monkeypatch, capfd)


def test_points_take_more_memory_and_fewer_cycles() -> None:
    done: list[int] = []
    points = memory_frontier(MODEL, Options("cortex-m4"), 4, done.append)
    assert done == [1, 2, 3, 4]
    assert len(points) > 1
    cycles = [point.cycles or 0 for point in points]
    assert [p.ram for p in points] == sorted({p.ram for p in points})
    assert cycles == sorted(set(cycles), reverse=True)
    assert points[-1].banded == 0 < points[0].banded <= points[0].layers


@pytest.mark.parametrize(
    ("options", "count", "message"),
    [
        (Options("cortex-m4", optimize="ram"), 4, "omit them"),
        (Options("cortex-m4", max_ram=10_000), 4, "omit them"),
        (Options("cortex-m4"), 1, "--points must be at least 2, not 1"),
    ],
)
def test_options_that_choose_a_point_are_refused(
    options: Options, count: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        memory_frontier(MODEL, options, count)


def test_the_command_prints_and_draws_the_points(smelt: Smelt, tmp_path: Path) -> None:
    svg = tmp_path / "ram.svg"
    arguments = "explore", MODEL, "--target", "cortex-m4", "--points", "3"
    points = smelt(*arguments, "--svg", svg, "--json").json
    root = ElementTree.fromstring(svg.read_text())
    circles = [one for one in root.iter() if one.tag.endswith("circle")]
    assert len(circles) == len(points) > 1
    table = smelt(*arguments).out
    for point in points:
        assert f"{point['ram']:,}" in table
        assert f"{point['banded']} of {point['layers']}" in table
