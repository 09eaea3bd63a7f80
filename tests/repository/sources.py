"""The Python files of the product and its benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("bench", "boards", "codegen", "frontend", "quant", "smelt", "targets", "templates")


def modules() -> Iterator[Path]:
    """Yield all Python files once; links are not followed."""
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any((ROOT / parent).is_symlink() for parent in path.relative_to(ROOT).parents):
                yield path
