"""Each package's docstring names the packages that it imports and that import it, exactly."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.repository.sources import ROOT, modules

PACKAGES = [path.parent for path in modules() if path.name == "__init__.py"]
SENTENCE = re.compile(r"May import (.+?); (.+?) may import it\b")
SHARED = frozenset({"smelt"})
"""Packages whose own modules everything may import."""


def name_of(path: Path) -> str:
    """Return the dotted name by which a module or package is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(part for part in parts if part != "__init__")
    return name if parts[0] in ("bench", "smelt") else f"smelt.{name}"


def within(name: str, package: str) -> bool:
    """Return whether a module is in the package; `smelt` contains only its own files."""
    if package in SHARED:
        return name == package or name in own_files()
    return name == package or name.startswith(f"{package}.")


@cache
def own_files() -> frozenset[str]:
    """Return the modules directly in `smelt/`."""
    return frozenset(f"smelt.{path.stem}" for path in (ROOT / "smelt").glob("*.py"))


@cache
def imports() -> tuple[tuple[str, str], ...]:
    """Return all imports among our modules, as pairs of importing and imported module."""
    known = {name_of(path) for path in modules()}
    return tuple(
        (name_of(path), target)
        for path in modules()
        for target in imported(ast.parse(path.read_text(encoding="utf-8")), known)
    )


def imported(tree: ast.Module, known: set[str]) -> Iterator[str]:
    """Yield the modules of `known` that a file imports anywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (
                name if name in known else node.module
                for name in whole
                if name in known or node.module in known
            )


def allowed(words: str) -> tuple[bool, list[str]]:
    """Return whether "everything" is allowed, and the named packages.

    The names are exceptions if everything is allowed, else the allowed packages.
    """
    named = re.findall(r"`([\w.]+)`", words)
    packages = [name if name in ("bench", "tests") else f"smelt.{name}" for name in named]
    return words.startswith("everything"), packages


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_docstrings_of_packages_name_their_imports_and_importers(package: Path) -> None:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    said = SENTENCE.search(" ".join((text or "").split()))
    assert said is not None, text
    name = name_of(package)
    others = [
        (source, target)
        for source, target in imports()
        if within(source, name) != within(target, name)
    ]
    for words, used in (
        (said[1], {target for source, target in others if within(source, name)}),
        (said[2], {source for source, target in others if within(target, name)}),
    ):
        everything, packages = allowed(words)
        unsaid = {
            module
            for module in used
            if any(within(module, other) for other in packages) == everything
            and not any(within(module, other) for other in SHARED)
        }
        assert unsaid == set(), words
        assert everything or unused(packages, used) == [], words


def unused(packages: list[str], used: set[str]) -> list[str]:
    """Return the named packages of which no module is used; imports by tests are not known."""
    return [
        package
        for package in packages
        if package != "tests" and not any(within(module, package) for module in used)
    ]
