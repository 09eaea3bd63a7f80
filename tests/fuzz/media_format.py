"""Damaged calibration data: images and recordings."""

from __future__ import annotations

import io
import struct
import wave
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random
from zlib import crc32

import numpy as np
from PIL import Image

from smelt.errors import ConfigError, QuantizationError
from smelt.frontend import load
from smelt.ir import Graph
from smelt.quant.data.folders import Preprocessing, padded, read_folder
from tests.fuzz.case import Format, Step
from tests.fuzz.raw import WORDS, scratched
from tests.support.onnx_networks import graph, model, node

IMAGES = ("png", "jpeg", "bmp", "gif", "webp", "tiff", "ppm")


@cache
def _image_seeds() -> Mapping[str, bytes]:
    """Return small images in all formats and several modes; readers ignore the file's name."""
    pixels = np.arange(11 * 7 * 3, dtype=np.uint8).reshape(11, 7, 3)
    found: dict[str, bytes] = {}
    for kind in IMAGES:
        for mode in ("RGB", "L", "P", "RGBA", "1", "I;16"):
            buffer = io.BytesIO()
            try:
                _in_mode(pixels, mode).save(buffer, kind)
            except OSError:  # the format has no such mode
                continue
            found[f"{kind} {mode}"] = buffer.getvalue()
    return found


def _in_mode(
    pixels: np.ndarray[tuple[int, int, int], np.dtype[np.uint8]], mode: str
) -> Image.Image:
    if mode == "I;16":
        return Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257)
    return Image.fromarray(pixels).convert(mode)


@cache
def _wave_seeds() -> Mapping[str, bytes]:
    """Return recordings with one and two channels, and with every sample width."""
    found: dict[str, bytes] = {}
    for width in (1, 2, 3, 4):
        for channels in (1, 2):
            buffer = io.BytesIO()
            with wave.open(buffer, "wb") as sound:
                sound.setnchannels(channels)
                sound.setsampwidth(width)
                sound.setframerate(16_000)
                sound.writeframes(bytes(range(240)) * channels)
            found[f"{8 * width} bits, {channels} channels"] = buffer.getvalue()
    return found


def damage(data: bytes, steps: Sequence[Step]) -> bytes:
    """Apply the steps."""
    for step in steps:
        rng = Random(step)
        data = _chunks(data, rng) if rng.random() < 0.5 else scratched(data, rng)
    return data


def _chunks(data: bytes, rng: Random) -> bytes:
    """Change a number of a header, and correct the checksums of PNG's chunks."""
    changed = bytearray(data)
    if len(data) < 16:
        return data
    size, order = rng.choice((1, 2, 4)), "<" if data[:4] in (b"RIFF", b"GIF8") else ">"
    at = rng.randrange(min(len(data) - size, 64))
    form = order + {1: "B", 2: "H", 4: "I"}[size]
    word = rng.choice((*WORDS, 3, 8, 16, 24, 32, 300, 20_000, 60_000))
    changed[at : at + size] = struct.pack(form, word % (1 << 8 * size))
    return _with_sums(bytes(changed)) if data[:4] == b"\x89PNG" else bytes(changed)


def _with_sums(data: bytes) -> bytes:
    at, fixed = 8, bytearray(data)
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        end = at + 8 + length
        if end + 4 > len(data):
            break
        struct.pack_into(">I", fixed, end, crc32(data[at + 4 : end]))
        at = end + 4
    return bytes(fixed)


@cache
def _taking(*shape: int) -> Graph:
    proto = model(graph([node("Relu", "x", "y")], {"x": list(shape)}, "y"))
    return load(proto.SerializeToString()).graph


def _check_images(path: Path, variant: int) -> None:
    taken = _taking(1, 3, 8, 8) if variant % 2 else _taking(1, 8, 8, 1)
    read_folder(path.parent, taken, Preprocessing(fit="crop" if variant >= 2 else "stretch"))


def _check_waves(path: Path, variant: int) -> None:
    taken = _taking(1, 64) if variant else _taking(1, 4000)
    read_folder(path.parent, taken, None)
    padded(path.parent, taken)


_media = partial(Format, damage=damage, refusals=(QuantizationError, ConfigError), weight=2)
IMAGE = _media("image", ".png", _image_seeds, check=_check_images, variants=4)
WAV = _media("wav", ".wav", _wave_seeds, check=_check_waves, variants=2)
