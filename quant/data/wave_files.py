"""Calibration data out of wav files: raw samples in [-1, 1]."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from smelt.errors import ConfigError, QuantizationError
from smelt.ir import Array, Value

SUFFIXES = frozenset({".wav", ".wave"})
_WIDEST = 4
"""Bytes of a sample."""


def read_waves(files: Sequence[Path], value: Value) -> list[Array]:
    """Frames of the length of `value`: of each file one after the other, the rest left out.

    A file that is shorter than a frame is one, followed by zeros (see `short_waves`). Several
    channels are averaged.

    Raises:
        QuantizationError: a file is no PCM recording, has no samples, or is of another sampling
            rate than the others.
        ConfigError: the input takes no raw samples.
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
                f"'{first}' has {one} samples a second, '{second}' has {other}: bring all to the "
                "rate that the network was trained with"
            )
        if not len(samples):
            raise QuantizationError(
                f"'{file}' holds no samples: remove it from the calibration data"
            )
        if len(samples) < length:
            samples = np.pad(samples, (0, length - len(samples)))
        for start in range(0, len(samples) - length + 1, length):
            frames.append(samples[start : start + length].reshape(value.type.shape))
    return frames


def short_waves(files: Sequence[Path], value: Value) -> list[Path]:
    """The files that are shorter than a frame of the length of `value`.

    Raises:
        QuantizationError: a file is no PCM recording.
        ConfigError: the input takes no raw samples.
    """
    length = _length(value)
    return [file for file in files if len(_read(file)[1]) < length]


def _length(value: Value) -> int:
    """Samples that an input takes at once; all of its dimensions but one are 1."""
    shape = value.type.shape
    if sum(size > 1 for size in shape) != 1:
        raise ConfigError(
            f"input '{value.name}' is {value.type}: it takes no raw samples of sound. Features "
            "such as a spectrogram are not computed here: give them as .npz, made by the same code "
            "that made the training data"
        )
    return value.type.size


def _read(file: Path) -> tuple[int, Array]:
    """Samples a second, and the samples: float32 in [-1, 1]."""
    try:
        with wave.open(str(file), "rb") as sound:
            width, channels = sound.getsampwidth(), sound.getnchannels()
            if width > _WIDEST:
                raise wave.Error(f"samples of {8 * width} bits, {8 * _WIDEST} are the most")
            # A header may speak of more than there is, and memory is taken for as much as is read.
            most = file.stat().st_size // (width * channels)
            rate, data = sound.getframerate(), sound.readframes(min(sound.getnframes(), most))
    except (wave.Error, EOFError, OSError, RuntimeError, ZeroDivisionError) as error:
        raise QuantizationError(
            f"'{file}' is not a readable wav file of PCM samples: {error or 'it ends too early'}; "
            "remove it from the calibration data, or convert it to 16 bits"
        ) from error
    whole = len(data) // (width * channels) * width * channels
    samples = _pcm(data[:whole], width).reshape(-1, channels).mean(axis=1)
    return rate, samples.astype(np.float32)


def _pcm(data: bytes, width: int) -> Array:
    """Real numbers of PCM samples, which are unsigned in one byte and signed in more."""
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float64) - 128.0) / 128.0
    # Into the upper bytes of 32 bits, so that the sign is where it belongs.
    stored = np.zeros((len(data) // width, 4), np.uint8)
    stored[:, 4 - width :] = np.frombuffer(data, np.uint8).reshape(-1, width)
    return stored.view("<i4").ravel() / 2.0**31
