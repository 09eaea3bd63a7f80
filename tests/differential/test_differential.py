"""Tests of random model files, compiled by Smelt and several compilers, against other engines.

Runs 60 networks; `python -m tests.differential` runs any number, in all builds. Planted faults
check that the fuzzer finds and locates faults, and continues after crashes.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from jinja2 import Environment, FileSystemLoader

from smelt.codegen.text import helpers, render
from tests.differential import __main__ as command
from tests.differential.builds import BUILDS, OPTIMIZES, available
from tests.differential.campaign import Finding, run_batch, settings_of, shrunk
from tests.differential.kinds import generate
from tests.differential.recipe import KINDS, Kind, Recipe

SEED = 18
BATCH = 10
MICRO = importlib.util.find_spec("tflite_micro") is not None
TEMPLATES = Path(render.__file__).parents[2] / "templates"
Planter = Callable[[str, str, str], None]


def _recipes(kind: Kind, first: int, count: int = BATCH) -> list[Recipe]:
    return [Recipe(kind, SEED, index) for index in range(first, first + count)]


def _require_engine(kind: Kind) -> None:
    if kind == "tflite" and not MICRO:
        pytest.skip("TensorFlow Lite Micro (PyPI: tflite-micro) is not installed")
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")


@pytest.mark.quick(batch=(0,), every=3)
@pytest.mark.parametrize(
    ("batch", "names"), [(0, ("gcc-O2", "m4-gcc")), (1, ("gcc-v4", "clang-O2", "m55-gcc"))]
)
@pytest.mark.parametrize("kind", KINDS)
def test_random_networks_are_right(kind: Kind, batch: int, names: tuple[str, ...]) -> None:
    _require_engine(kind)
    builds, _ = available(names)
    optimizes = OPTIMIZES[batch:] + OPTIMIZES[:batch]
    settings = list(zip(builds, optimizes, strict=False))
    tally = run_batch(_recipes(kind, batch * BATCH), settings)
    assert not tally.findings, "\n".join(f"{f.what}\n{f.command}" for f in tally.findings)
    assert sum(tally.networks.values()) >= 0.8 * BATCH, tally.refused
    assert tally.engines.keys() <= {
        "onnxruntime",
        "onnxruntime, operator by operator",
        "TensorFlow Lite Micro",
    }
    assert sum(tally.builds.values()) == sum(tally.networks.values()) * len(settings)


class _ChangedTemplate(FileSystemLoader):
    """A loader of templates that changes one of them."""

    def __init__(self, template: str, right: str, wrong: str) -> None:
        super().__init__(str(TEMPLATES))
        self._template, self._right, self._wrong = template, right, wrong

    def get_source(
        self, environment: Environment, template: str
    ) -> tuple[str, str, Callable[[], bool]]:
        text, path, current = super().get_source(environment, template)
        if template == self._template:
            assert self._right in text
            text = text.replace(self._right, self._wrong)
        return text, path, current


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Iterator[Planter]:
    """Yield a function that replaces a piece of a template during a test."""

    def planted(template: str, right: str, wrong: str) -> None:
        whole, loader = render.environment(), _ChangedTemplate(template, right, wrong)
        spoiled = whole.overlay(loader=loader, bytecode_cache=None, cache_size=100)
        for module in (render, helpers):
            monkeypatch.setattr(module, "environment", cache(lambda: spoiled))
        helpers.helper_blocks.cache_clear()

    yield planted
    helpers.helper_blocks.cache_clear()


GCC = BUILDS["gcc-O0"]


def _found(recipes: list[Recipe]) -> list[Finding]:
    return run_batch(recipes, [(GCC, "speed")]).findings


def test_a_wrong_number_is_found_and_shrunk(plant: Planter) -> None:
    _require_engine("tflite")
    recipes = _recipes("tflite", 0)
    assert not _found(recipes)
    plant("text/helpers.c.j2", "return x < low ? low : (x > high ? high : x);",
          "return x < low ? low : (x >= high ? high - 1 : x);")  # fmt: skip
    findings = _found(recipes)
    assert findings
    assert all("elements differ, first [" in finding.what for finding in findings)
    largest = max(findings, key=lambda finding: len(finding.operators))
    small = shrunk(largest, GCC)
    assert len(small.operators) < len(largest.operators)
    (again,) = _found([small.recipe])
    assert again.what == small.what


def test_a_crash_is_attributed_to_its_network(plant: Planter) -> None:
    _require_engine("float")
    inside = "//% if net.uses_arena\n    uint8_t *const arena = ctx->arena;\n"
    spoiled = """//% if net.title == "float_2"
    *(volatile float *)1 = 0.0f;
//% endif
//% if net.title == "float_3"
    *(uint8_t *){{ net.name }}_input(ctx, 0) ^= 1;
//% endif
//% if net.title == "float_4"
    ctx->arena[{{ net.macro }}_ARENA_BYTES] = 0;
//% endif
"""
    recipes = _recipes("float", 0, 6)
    plant("emit/network/network.c.j2", inside, spoiled + inside)
    tally = run_batch(recipes, [(GCC, "speed")])
    assert {finding.recipe.index: finding.what for finding in tally.findings} == {
        2: "ends with SIGSEGV",
        3: "overwrites its inputs, though asked to keep them",
        4: "writes behind its memory",
    }
    assert tally.builds == {"gcc-O0 speed": 6}


@pytest.mark.parametrize("kind", KINDS)
def test_a_recipe_always_gives_the_same_network(kind: Kind) -> None:
    for recipe in _recipes(kind, 0, 5):
        network = generate(recipe)
        assert generate(recipe).data == network.data
        assert generate(Recipe(kind, SEED + 1, recipe.index)).data != network.data
        fewer = generate(Recipe(kind, SEED, recipe.index, frozenset({network.steps[-1]})))
        assert len(fewer.operators) <= len(network.operators)


def test_every_build_gets_every_goal_of_optimization() -> None:
    builds = list(BUILDS.values())
    met = {setting for batch in range(36) for setting in settings_of(batch, builds)}
    assert met == {(build, optimize) for build in builds for optimize in OPTIMIZES}


def test_the_command_reports_what_it_ran(
    plant: Planter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"--kind float --seed {SEED} --only 3 --builds gcc-O0 --optimize size".split()
    assert command.main([*words, "--keep", str(tmp_path)]) == 0
    assert '"findings": []' in capsys.readouterr().out
    assert (tmp_path / "float_3.onnx").read_bytes() == generate(Recipe("float", SEED, 3)).data
