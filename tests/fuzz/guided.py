"""The same formats under Atheris, which looks for files that take new paths through the code.

    python -m pip install -e '.[fuzz]'
    python -m tests.fuzz.guided onnx build/guided -max_total_time=600

The folder keeps the files that took new paths; an empty folder is filled with valid files first.
Options behind it are libFuzzer's. Atheris comes with the extra `fuzz`; without it the test of this
module is skipped.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from zlib import crc32

LIMITS = ("-timeout=5", "-rss_limit_mb=2048", "-max_len=100000")
"""Limits of one file: seconds, mebibytes of memory, and bytes."""


def main() -> None:
    """Fuzz until something fails, or as long as libFuzzer's options say."""
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    atheris: Any = import_module("atheris")
    # Only modules that are imported inside of this block are instrumented.
    with atheris.instrument_imports(include=["smelt"]):
        from tests.fuzz.formats import BY_NAME

    name, folder, *options = sys.argv[1:]
    format_, corpus = BY_NAME[name], Path(folder)
    corpus.mkdir(parents=True, exist_ok=True)
    if not any(corpus.iterdir()):
        for number, data in enumerate(format_.seeds().values()):
            (corpus / f"{number}{format_.suffix}").write_bytes(data)
    path = Path(tempfile.mkdtemp(prefix="smelt-guided-")) / f"model{format_.suffix}"

    def test_one(data: bytes) -> None:
        path.write_bytes(data)
        with suppress(*format_.refusals):
            format_.check(path, crc32(data) % format_.variants)

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        if seed % 2:
            with suppress(Exception):  # too broken for damage that parses the format
                return format_.damage(data, [seed])[:most]
        return atheris.Mutate(data, most)

    atheris.Setup([sys.argv[0], *LIMITS, *options, str(corpus)], test_one, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
