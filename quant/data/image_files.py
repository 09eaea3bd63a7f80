"""Reads calibration data from image files with Pillow (the extra `images`)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from smelt.errors import ConfigError, QuantizationError
from smelt.ir import Array, Value

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
)

PixelLayout: TypeAlias = Literal["nchw", "nhwc"]
Colors: TypeAlias = Literal["rgb", "bgr"]
Fit: TypeAlias = Literal["stretch", "crop"]

_CHANNELS = (1, 3)
_MOST_PIXELS = 1 << 25
"""Maximum number of pixels of an image: a small file may decode to gigabytes."""


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes the input of a network: `(pixel - mean) / std`, with pixels 0 to 255.

    Attributes:
        layout: position of the channels; None selects the dimension of size 1 or 3.
        colors: order of three channels.
        fit: for images of another aspect ratio, whether to stretch them or to crop both sides.
        mean, std: one number for all channels, or one per channel.
    """

    layout: PixelLayout | None = None
    colors: Colors = "rgb"
    fit: Fit = "stretch"
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (255.0,)

    def __post_init__(self) -> None:
        """Check that mean and std are usable.

        Raises:
            ConfigError: a number is not finite, or a `std` is 0.
        """
        for option, numbers in (("--mean", self.mean), ("--std", self.std)):
            for number in numbers:
                if not np.isfinite(number):
                    raise ConfigError(f"{option} {number:g}: give finite numbers")
        if 0.0 in self.std:
            raise ConfigError(
                "--std 0: every channel is divided by it; give 1 to leave pixels unscaled"
            )


def read_images(files: Sequence[Path], value: Value, preprocessing: Preprocessing) -> list[Array]:
    """Read each file as one float32 array with the shape of `value`.

    Raises:
        QuantizationError: a file is not an image.
        ConfigError: the input does not take images, the preprocessing does not match it, or Pillow
            is not installed.
    """
    layout, (height, width, channels) = image_shape(value, preprocessing.layout)
    mean = _per_channel("--mean", preprocessing.mean, channels)
    std = _per_channel("--std", preprocessing.std, channels)
    arrays: list[Array] = []
    for file in files:
        pixels = _pixels(file, (width, height), channels, preprocessing)
        scaled = ((pixels - mean) / std).astype(np.float32)
        ordered = scaled.transpose(2, 0, 1) if layout == "nchw" else scaled
        arrays.append(np.ascontiguousarray(ordered.reshape(value.type.shape)))
    return arrays


def image_shape(
    value: Value, layout: PixelLayout | None
) -> tuple[PixelLayout, tuple[int, int, int]]:
    """Return the layout and `(height, width, channels)` of an input that takes one image.

    Raises:
        ConfigError: it does not take an image, or the layout is ambiguous.
    """
    shape = value.type.shape
    sizes = shape[1:] if len(shape) == 4 and shape[0] == 1 else shape
    if len(sizes) == 2:
        sizes, layout = (*sizes, 1), "nhwc"
    if len(sizes) != 3:
        raise ConfigError(
            f"input '{value.name}' is {value.type}, which is not one image ([1,h,w,c], [1,c,h,w], "
            "[h,w,c], [c,h,w] or [h,w]); give its calibration data as .npz"
        )
    first, last = sizes[0] in _CHANNELS, sizes[2] in _CHANNELS
    if layout is None:
        if first == last:
            raise ConfigError(
                f"input '{value.name}' is {value.type}: its channels could be the first or the "
                "last dimension; choose with --image-layout nchw or nhwc"
            )
        layout = "nchw" if first else "nhwc"
    height, width, channels = sizes if layout == "nhwc" else (*sizes[1:], sizes[0])
    if channels not in _CHANNELS:
        raise ConfigError(
            f"input '{value.name}' is {value.type}: it has {channels} channels with --image-layout "
            f"{layout}, but images have 1 or 3; give its calibration data as .npz"
        )
    if 1 in (height, width):
        raise ConfigError(
            f"input '{value.name}' is {value.type}: one row or column is not an image; give its "
            "calibration data as .npz, or a folder of WAV files if it takes sound"
        )
    return layout, (height, width, channels)


def _per_channel(option: str, numbers: tuple[float, ...], channels: int) -> Array:
    if len(numbers) not in (1, channels):
        raise ConfigError(
            f"{option} has {len(numbers)} numbers, but the input has {channels} channels: give one "
            "for all, or one per channel"
        )
    return np.asarray(numbers, np.float64)


def _pixels(
    file: Path, size: tuple[int, int], channels: int, preprocessing: Preprocessing
) -> Array:
    """Return the pixels of one file as float64 `[height, width, channels]`, 0 to 255."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ConfigError(
            "reading images needs Pillow, which is not installed: python -m pip install pillow, or "
            "give the calibration data as .npz"
        ) from error
    try:
        # Read the bytes first: a header may claim more data than the file contains.
        with Image.open(io.BytesIO(file.read_bytes())) as opened:
            if opened.width * opened.height > _MOST_PIXELS:
                raise ValueError(
                    f"{opened.width} x {opened.height} pixels; the maximum is {_MOST_PIXELS:,}"
                )
            image = _eight_bits(opened)
            image = image.convert("L" if channels == 1 else "RGB")
            if preprocessing.fit == "crop":
                image = _cropped(image, size)
            image = image.resize(size, Image.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        # Pillow's own message would contain the repr of the BytesIO object.
        unknown = isinstance(error, UnidentifiedImageError)
        reason = "not a format that Pillow can read" if unknown else error
        raise QuantizationError(
            f"'{file}' is not a readable image: {reason}; remove it from the calibration data"
        ) from error
    pixels = np.asarray(image, np.float64).reshape(size[1], size[0], channels)
    return pixels[:, :, ::-1] if preprocessing.colors == "bgr" else pixels


def _eight_bits(image: Image) -> Image:
    """Convert 16-bit gray levels to 8 bits; Pillow's conversion would clip them."""
    from PIL import Image

    if not image.mode.startswith("I"):
        return image
    levels = np.asarray(image).astype(np.float32)
    levels /= 257.0
    np.rint(levels, levels)
    return Image.fromarray(np.clip(levels, 0, 255, levels).astype(np.uint8))


def _cropped(image: Image, size: tuple[int, int]) -> Image:
    """Return the center of an image, cropped to the aspect ratio of `size`."""
    width, height = image.size
    scale = min(width / size[0], height / size[1])
    across, down = max(round(size[0] * scale), 1), max(round(size[1] * scale), 1)
    left, top = (width - across) // 2, (height - down) // 2
    return image.crop((left, top, left + across, top + down))
