"""`memory_frontier`: the trade between RAM and what an inference costs, measured or estimated."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from smelt import boards
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.errors import ConfigError
from smelt.proof.explore import (
    BuildResult,
    MemoryBuild,
    MemoryPoint,
    measure_build,
    memory_frontier,
    runs_on,
)
from smelt.proof.run import run
from smelt.samples import random_samples
from tests.support.board_tools import simulable
from tests.support.tflite_networks import DIGITS

MODEL = str(DIGITS / "digits_int8.tflite")
ESTIMATED = MemoryBuild(MODEL, None, Options("cortex-m4"))
FASTEST = "largest --max-ram"
ENDS = ["--optimize ram", "", FASTEST]


class Canned(Executor):
    """An executor that has the results of builds already; a worker without a result dies."""

    def __init__(self, results: Mapping[str, BuildResult]) -> None:
        self.results = results
        self.submitted: list[str] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        del fn, kwargs
        limit = args[0].limit
        self.submitted.append(limit)
        future: Future[Any] = Future()
        if limit in self.results:
            future.set_result(self.results[limit])
        else:
            future.set_exception(OSError("the worker's machine is gone"))
        return future


def canned(limit: str, ram: int, instructions: int, cycles: int = 1) -> tuple[str, BuildResult]:
    point = MemoryPoint(
        limit=limit,
        ram=ram,
        instructions=instructions,
        seconds=None,
        estimated_cycles=cycles,
        flash=5,
        stack=6,
        weights=4,
        banded=0,
        layers=1,
    )
    return limit, BuildResult(limit, ram, point)


def test_points_take_more_memory_and_fewer_cycles() -> None:
    done: list[int] = []
    with ThreadPoolExecutor(1) as executor:
        found = memory_frontier(ESTIMATED, 4, executor, done.append)
    points = found.points
    assert done == [1, 2, 3, 4, 5]
    assert (found.tried, found.failed) == (5, ())
    assert len(points) > 1
    cycles = [point.estimated_cycles or 0 for point in points]
    assert [p.ram for p in points] == sorted({p.ram for p in points})
    assert cycles == sorted(set(cycles), reverse=True)
    assert points[-1].banded == 0 < points[0].banded <= points[0].layers
    assert points[0].limit == "--optimize ram"
    assert {(p.measure, p.instructions, p.seconds, p.flash, p.stack) for p in points} == {
        ("estimated_cycles", None, None, None, None)
    }


def test_measured_numbers_decide_which_points_are_shown() -> None:
    """The estimates of these points say the opposite."""
    results = dict(
        [
            canned("--optimize ram", 100, 900, cycles=1),
            canned("--max-ram 200", 200, 500, cycles=2),
            canned("--max-ram 150", 150, 900, cycles=3),
            canned("", 300, 450, cycles=4),
            canned(FASTEST, 400, 400, cycles=5),
        ]
    )
    executor = Canned(results)
    found = memory_frontier(ESTIMATED, 4, executor)
    assert executor.submitted == [*ENDS, "--max-ram 200", "--max-ram 150"]
    assert [(p.ram, p.limit) for p in found.points] == [
        (100, "--optimize ram"),
        (200, "--max-ram 200"),
        (300, ""),
        (400, FASTEST),
    ]
    assert {point.measure for point in found.points} == {"instructions"}


def test_a_failure_loses_no_other_point() -> None:
    results = dict(
        [canned("--max-ram 300", 300, 500), canned("", 400, 400), canned(FASTEST, 400, 400)],
        **{"--optimize ram": BuildResult("--optimize ram", 100, None, "DeviceError: silence")},
    )
    found = memory_frontier(ESTIMATED, 4, Canned(results))
    assert [point.ram for point in found.points] == [300, 400]
    assert [(failed.limit, failed.error) for failed in found.failed] == [
        ("--optimize ram", "DeviceError: silence"),
        ("--max-ram 200", "the worker failed: the worker's machine is gone"),
    ]
    assert found.tried == 5


@pytest.mark.parametrize(
    ("knee", "limits"), [(120, [129, 144]), (350, [326, 363]), (None, [205, 326])]
)
def test_more_limits_are_tried_where_less_memory_costs_most(
    knee: int | None, limits: list[int]
) -> None:
    """Without known costs, the widest gaps of memory are divided."""
    results: dict[str, BuildResult] = {}
    for limit, ram in (*zip(ENDS, (100, 400, 400), strict=True), *enumerate(range(400))):
        text = limit if isinstance(limit, str) else f"--max-ram {limit}"
        _, result = canned(text, ram, 100 if knee is None or ram >= knee else 900)
        if knee is None and result.point is not None:
            unknown = replace(result.point, instructions=None, estimated_cycles=None)
            result = replace(result, point=unknown)
        results[text] = result
    executor = Canned(results)
    memory_frontier(ESTIMATED, 6, executor)
    tried = [f"--max-ram {limit}" for limit in (159, 252, *limits)]
    assert executor.submitted == [*ENDS, *tried]


def test_without_both_ends_there_are_no_limits_between_them() -> None:
    executor = Canned(dict([canned("", 400, 400), canned(FASTEST, 400, 400)]))
    found = memory_frontier(ESTIMATED, 4, executor)
    assert executor.submitted == ENDS
    assert [point.ram for point in found.points] == [400]
    assert [failed.limit for failed in found.failed] == ["--optimize ram"]


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["mps2-an386", "virt-riscv32"])
def test_a_point_equals_a_run_of_the_same_build(board: str) -> None:
    simulable(boards.load(board))
    options = Options(board=board, optimize="ram")
    build = MemoryBuild(MODEL, runs_on(options), options)
    result = pickle.loads(pickle.dumps(measure_build(pickle.loads(pickle.dumps(build)))))
    artifact = compile_model(MODEL, options)
    report = run(artifact, random_samples(artifact.graph, 1, 0)).report
    point = result.point
    assert point is not None
    assert point.measure == "instructions"
    assert point.instructions == report["inference"]["instructions"] > 0
    assert point.stack == report["inference"]["stack"] > 0
    assert point.flash == report["flash"]["network"] > point.weights
    assert result.ram == point.ram == report["arena"]["bytes"]


def test_this_computer_measures_time() -> None:
    options = Options(board="host")
    point = measure_build(MemoryBuild(MODEL, runs_on(options), options)).point
    assert point is not None
    assert point.measure == "seconds"
    assert point.seconds == point.cost
    assert (point.seconds or 0) > 0
    assert point.flash is not None
    assert point.instructions is None


@pytest.mark.parametrize("on", ["board", "/dev/none"])
def test_a_real_board_is_flashed_first(on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    result = measure_build(MemoryBuild(MODEL, on, Options(board="nucleo-f446re")))
    assert result.point is None
    assert result.ram is not None
    assert result.error.startswith("ToolError: ")
    assert "openocd" in result.error


@pytest.mark.parametrize(
    ("options", "on", "device", "place"),
    [
        (Options("cortex-m4"), None, None, None),
        (Options(board="mps2-an386"), None, None, "qemu"),
        (Options(board="nano-33-ble"), None, None, None),
        (Options(board="nano-33-ble"), "/dev/ttyACM0", None, "/dev/ttyACM0"),
        (Options(board="host"), None, None, "host"),
        (Options("vulkan"), None, None, None),
        (Options("vulkan"), None, 0, "host"),
    ],
)
def test_where_builds_run(
    options: Options, on: str | None, device: int | None, place: str | None
) -> None:
    assert runs_on(options, on, device) == place


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
        memory_frontier(MemoryBuild(MODEL, None, options), count, Canned({}))
