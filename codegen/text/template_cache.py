"""A cache of compiled templates in `__pycache__`, like Python's cache of modules.

Jinja would otherwise parse a template again in every process, which takes longer than rendering it.
A cache file's name has the versions of Jinja and Python, and it is used while the template's text
is unchanged. If the folder cannot be written, or Python must not write bytecode, nothing is cached.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket, BytecodeCache


class BesideTemplates(BytecodeCache):
    """Caches the compiled templates of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "__pycache__"
        if sys.pycache_prefix is not None:
            self._folder = Path(sys.pycache_prefix) / folder.relative_to(folder.anchor)

    def load_bytecode(self, bucket: Bucket) -> None:
        """Load the bucket from the cache; it stays empty if the file is missing or outdated."""
        try:
            with self._file(bucket).open("rb") as file:
                bucket.load_bytecode(file)
        except (OSError, EOFError, ValueError, TypeError):
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write the bucket to the cache, atomically for concurrent readers and writers."""
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
