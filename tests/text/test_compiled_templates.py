"""Tests of the cache of compiled templates."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jinja2 import Environment, FileSystemLoader

from smelt.codegen.text.template_cache import BesideTemplates


@pytest.fixture(autouse=True)
def bytecode_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)


def rendered(folder: Path) -> str:
    """Return the rendered template, loaded as by a new process."""
    loader = FileSystemLoader(str(folder))
    env = Environment(loader=loader, bytecode_cache=BesideTemplates(folder), autoescape=False)
    return env.get_template("t.j2").render(x=7)


def cache_files(folder: Path) -> list[Path]:
    return sorted((folder / "__pycache__").glob("*"))


def test_a_template_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.j2").write_text("x is {{ x }}")
    assert rendered(tmp_path) == "x is 7"
    assert len(cache_files(tmp_path)) == 1
    monkeypatch.setattr(Environment, "_parse", None)
    assert rendered(tmp_path) == "x is 7"


def test_a_changed_template_is_compiled_again(tmp_path: Path) -> None:
    (tmp_path / "t.j2").write_text("x is {{ x }}")
    rendered(tmp_path)
    (tmp_path / "t.j2").write_text("x was {{ x }}")
    assert rendered(tmp_path) == "x was 7"


@pytest.mark.parametrize("data", [b"", b"damaged", None])
def test_damaged_files_are_replaced(tmp_path: Path, data: bytes | None) -> None:
    (tmp_path / "t.j2").write_text("x is {{ x }}")
    rendered(tmp_path)
    (file,) = cache_files(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) - 20] if data is None else data)
    assert rendered(tmp_path) == "x is 7"
    assert file.read_bytes() == whole


def test_no_file_is_written_if_forbidden_or_impossible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.j2").write_text("x is {{ x }}")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert rendered(tmp_path) == "x is 7"
    assert not cache_files(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "__pycache__").write_text("a file in its place")
    assert rendered(tmp_path) == "x is 7"


def test_files_are_written_to_pythons_cache_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, prefix = tmp_path / "source", tmp_path / "prefix"
    source.mkdir()
    (source / "t.j2").write_text("x is {{ x }}")
    monkeypatch.setattr(sys, "pycache_prefix", str(prefix))
    assert rendered(source) == "x is 7"
    assert not cache_files(source)
    assert len(list(prefix.rglob("*.bin"))) == 1
