"""A damaged TFLite file is refused in time, and only by the two errors meant for it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend import load
from tests.shared import Network, networks
from tests.tflite_networks import DIGITS

SECONDS = 5.0
"""Generous: an import takes milliseconds, a run-away length takes minutes."""

FILES = {path.stem: path.read_bytes() for path in sorted(DIGITS.glob("*.tflite"))}


def _refused_or_read(data: bytes) -> bool:
    """Whether the file was read; anything but the frontend's own errors fails the test."""
    start = time.process_time()
    try:
        load(data)
    except (ModelError, UnsupportedError):
        return False
    finally:
        assert time.process_time() - start < SECONDS
    return True


def test_the_files_are_there() -> None:
    assert len(FILES) == 4
    assert all(map(_refused_or_read, FILES.values()))


@pytest.mark.parametrize("name", FILES)
def test_every_truncation_is_refused(name: str) -> None:
    """Cut at 200 places; the root table lies at the front, data and tables behind."""
    data = FILES[name]
    for end in np.linspace(0, len(data) - 1, 200).astype(int):
        with pytest.raises(ModelError):
            load(data[:end])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0xFF])
def test_a_byte_overwritten_anywhere(name: str, byte: int) -> None:
    """One byte in every 97, a prime so that it falls on every part of a field."""
    data = bytearray(FILES[name])
    for position in range(8, len(data), 97):
        kept, data[position] = data[position], byte
        _refused_or_read(bytes(data))
        data[position] = kept


_mutation = st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=8))


@given(
    st.sampled_from(sorted(FILES)), st.lists(_mutation, min_size=1, max_size=12), st.floats(0, 1)
)
def test_random_damage(name: str, mutations: list[tuple[float, bytes]], keep: float) -> None:
    data = bytearray(FILES[name])
    for place, patch in mutations:
        position = 8 + int(place * (len(data) - 8))
        data[position : position + len(patch)] = patch
    _refused_or_read(bytes(data[: max(8, int(len(data) * min(1.0, keep * 2)))]))


@given(st.binary(max_size=400))
def test_random_bytes_behind_the_identifier(tail: bytes) -> None:
    assert not _refused_or_read(b"\x08\0\0\0TFL3" + tail)


@pytest.mark.slow
@networks("mlperf_tiny/*", "ops/*", "tflm/*")
def test_words_overwritten_in_shared_networks(network: Network) -> None:
    path: Path = network.model
    original = path.read_bytes()
    rng = np.random.default_rng(len(original))
    for _ in range(300):
        data = bytearray(original)
        for position in rng.integers(2, len(data) // 4, rng.integers(1, 5)):
            word = rng.choice([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, int(rng.integers(2**32))])
            data[4 * position : 4 * position + 4] = int(word).to_bytes(4, "little")
        _refused_or_read(bytes(data))
