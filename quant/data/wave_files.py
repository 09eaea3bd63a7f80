"""Reads calibration data from WAV files as samples in [-1, 1]."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from smelt.errors import ConfigError, QuantizationError
from smelt.ir import Array, Value

SUFFIXES = frozenset({".wav", ".wave"})
_WIDEST = 4
"""Maximum size of a sample in bytes."""


def read_waves(files: Sequence[Path], value: Value) -> list[Array]:
    """Cut each file into consecutive frames of the size of `value`, and drop the remainder.

    A file that is shorter than a frame is padded with zeros (see `short_waves`). Multiple channels
    are averaged.

    Raises:
        QuantizationError: a file is not PCM, is empty, or has another sampling rate than the rest.
        ConfigError: the input does not take raw samples.
    """
    length = _length(value)
    rates: dict[int, Path] = {}
    frames: list[Array] = []
    for file in files:
        rate, samples = _read(file)
        rates.setdefault(rate, file)
        if len(rates) > 1:
            (one, first), (other, second) = rates.items()
            raise QuantizationError(
                f"'{first}' has {one} samples per second, but '{second}' has {other}: convert all "
                "files to the sampling rate of the training data"
            )
        if not len(samples):
            raise QuantizationError(
                f"'{file}' contains no samples: remove it from the calibration data"
            )
        if len(samples) < length:
            samples = np.pad(samples, (0, length - len(samples)))
        for start in range(0, len(samples) - length + 1, length):
            frames.append(samples[start : start + length].reshape(value.type.shape))
    return frames


def short_waves(files: Sequence[Path], value: Value) -> list[Path]:
    """Return the files that are shorter than a frame of the size of `value`.

    Raises:
        QuantizationError: a file is not PCM.
        ConfigError: the input does not take raw samples.
    """
    length = _length(value)
    return [file for file in files if len(_read(file)[1]) < length]


def _length(value: Value) -> int:
    """Return the number of samples in an input; all dimensions but one must be 1."""
    shape = value.type.shape
    if sum(size > 1 for size in shape) != 1:
        raise ConfigError(
            f"input '{value.name}' is {value.type}, so it does not take raw sound samples. Smelt "
            "does not compute features such as spectrograms: give them as .npz, computed by the "
            "same code as the training data"
        )
    return value.type.size


def _read(file: Path) -> tuple[int, Array]:
    """Return the sampling rate and the samples as float32 in [-1, 1]."""
    try:
        with wave.open(str(file), "rb") as sound:
            width, channels = sound.getsampwidth(), sound.getnchannels()
            if width > _WIDEST:
                raise wave.Error(f"{8 * width} bits per sample; the maximum is {8 * _WIDEST}")
            # A header may claim more samples than the file contains, so limit the allocation.
            most = file.stat().st_size // (width * channels)
            rate, data = sound.getframerate(), sound.readframes(min(sound.getnframes(), most))
    except (wave.Error, EOFError, OSError, RuntimeError, ZeroDivisionError) as error:
        raise QuantizationError(
            f"'{file}' is not a readable PCM WAV file: {error or 'it ends too early'}; remove it "
            "from the calibration data, or convert it to 16-bit PCM"
        ) from error
    whole = len(data) // (width * channels) * width * channels
    samples = _pcm(data[:whole], width).reshape(-1, channels).mean(axis=1)
    return rate, samples.astype(np.float32)


def _pcm(data: bytes, width: int) -> Array:
    """Convert PCM samples to real numbers; 8-bit samples are unsigned, wider ones signed."""
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float64) - 128.0) / 128.0
    # Copy to the upper bytes of 32-bit integers, so that the sign bit is in place.
    stored = np.zeros((len(data) // width, 4), np.uint8)
    stored[:, 4 - width :] = np.frombuffer(data, np.uint8).reshape(-1, width)
    return stored.view("<i4").ravel() / 2.0**31
