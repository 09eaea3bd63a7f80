"""Calibration data out of folders of files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from smelt.errors import ConfigError, QuantizationError
from smelt.ir import Graph
from smelt.quant import image_files, wave_files
from smelt.quant.image_files import Preprocessing, read_images
from smelt.quant.observation import Sample
from smelt.quant.wave_files import read_waves

__all__ = ["Preprocessing", "read_folder", "spread"]

T = TypeVar("T")


def read_folder(
    folder: Path, graph: Graph, preprocessing: Preprocessing, count: int | None = None
) -> list[Sample]:
    """The images, or the sounds, that a folder and those within hold.

    Args:
        folder: where the files lie.
        graph: a network of one input.
        preprocessing: of images.
        count: how many samples to take, spread evenly over the files in order of their paths; all
            where None.

    Raises:
        QuantizationError: there are no such files, too few, both kinds, or a broken one.
        ConfigError: the network does not take one image or one stretch of sound.
    """
    if len(graph.inputs) != 1:
        raise ConfigError(
            f"'{graph.name}' has {len(graph.inputs)} inputs, a folder of files gives one: give "
            "its calibration data as .npz"
        )
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    images = [path for path in files if path.suffix.lower() in image_files.SUFFIXES]
    sounds = [path for path in files if path.suffix.lower() in wave_files.SUFFIXES]
    if not images and not sounds:
        raise QuantizationError(
            f"'{folder}' holds no images ({_listed(image_files.SUFFIXES)}) and no sounds "
            f"({_listed(wave_files.SUFFIXES)})"
        )
    if images and sounds:
        raise QuantizationError(
            f"'{folder}' holds both images ('{images[0].name}') and sounds ('{sounds[0].name}'): "
            "put the calibration data into a folder of its own"
        )
    (value,) = graph.inputs
    if images:
        return [(a,) for a in read_images(spread(images, count, folder), value, preprocessing)]
    return [(frame,) for frame in spread(read_waves(sounds, value), count, folder)]


def spread(items: Sequence[T], count: int | None, source: Path) -> list[T]:
    """So many items, evenly spread: files are often sorted by what they show.

    Raises:
        QuantizationError: there are fewer.
    """
    if count is None:
        return list(items)
    if count > len(items):
        raise QuantizationError(f"'{source}' holds {len(items)} samples, {count} were asked for")
    return [items[index * len(items) // count] for index in range(count)]


def _listed(suffixes: frozenset[str]) -> str:
    return ", ".join(sorted(suffixes))
