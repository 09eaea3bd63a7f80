"""Compiled templates beside their sources, as Python keeps its own modules.

Jinja parses a template anew in every process, which takes longer than to render it. What it makes
of one is kept in `__pycache__`, under the version of Jinja and of Python, and used as long as the
template's text is the same. Where nothing can be written there, and where Python is told not to, it
goes as it would without.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket, BytecodeCache


class BesideTemplates(BytecodeCache):
    """Keeps the templates of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "__pycache__"
        if sys.pycache_prefix is not None:
            self._folder = Path(sys.pycache_prefix) / folder.relative_to(folder.anchor)

    def load_bytecode(self, bucket: Bucket) -> None:
        """Fill the bucket; it stays empty where the template was not kept, or was another one."""
        try:
            with self._file(bucket).open("rb") as file:
                bucket.load_bytecode(file)
        except (OSError, EOFError, ValueError, TypeError):
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep what is in the bucket; others that read or write meanwhile see all or none."""
        if sys.dont_write_bytecode:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                bucket.write_bytecode(file)
            Path(file.name).replace(self._file(bucket))
        except OSError:
            return

    def _file(self, bucket: Bucket) -> Path:
        tag = f"jinja-{jinja2.__version__}.{sys.implementation.cache_tag}"
        return self._folder / f"{bucket.key}.{tag}.bin"
