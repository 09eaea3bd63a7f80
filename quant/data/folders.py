"""Reads calibration data from folders of files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from smelt.errors import ConfigError, QuantizationError
from smelt.formatting import counted
from smelt.ir import Graph
from smelt.quant.data import image_files, wave_files
from smelt.quant.data.image_files import Preprocessing, read_images
from smelt.quant.data.wave_files import read_waves, short_waves
from smelt.samples import Sample

__all__ = ["Preprocessing", "holds_images", "not_images", "padded", "read_folder", "spread"]

T = TypeVar("T")


def read_folder(
    folder: Path, graph: Graph, preprocessing: Preprocessing | None, count: int | None = None
) -> list[Sample]:
    """Read the images or the sounds in a folder and its subfolders.

    Args:
        folder: folder of the files.
        graph: a network with one input.
        preprocessing: how images become inputs; None selects the defaults.
        count: number of samples to return, evenly spaced over the files sorted by path; None
            returns all.

    Raises:
        QuantizationError: there are no such files, or too few, or both kinds, or a damaged one.
        ConfigError: the network's input is not one image or one frame of sound, or `preprocessing`
            is given for sounds.
    """
    if len(graph.inputs) != 1:
        raise ConfigError(
            f"'{graph.name}' has {len(graph.inputs)} inputs, but a folder of files has data for "
            "one: give the calibration data as .npz"
        )
    images, sounds = (_files(folder, kind.SUFFIXES) for kind in (image_files, wave_files))
    if not images and not sounds:
        raise QuantizationError(
            f"'{folder}' contains no images ({_listed(image_files.SUFFIXES)}) and no sounds "
            f"({_listed(wave_files.SUFFIXES)})"
        )
    if images and sounds:
        raise QuantizationError(
            f"'{folder}' contains both images ('{images[0].name}') and sounds "
            f"('{sounds[0].name}'): put the calibration data into its own folder"
        )
    (value,) = graph.inputs
    if images:
        files = spread(images, count, folder)
        return [(a,) for a in read_images(files, value, preprocessing or Preprocessing())]
    if preprocessing is not None:
        raise ConfigError(not_images(folder, "sounds"))
    return [(frame,) for frame in spread(read_waves(sounds, value), count, folder)]


def padded(source: Path, graph: Graph) -> list[Path]:
    """Return the sounds of a folder that `read_folder` pads with zeros; none for other sources."""
    sounds = _files(source, wave_files.SUFFIXES) if source.is_dir() else []
    return short_waves(sounds, graph.inputs[0]) if sounds else []


def holds_images(source: Path) -> bool:
    """Return whether a source of samples is a folder of images."""
    return source.is_dir() and bool(_files(source, image_files.SUFFIXES))


def not_images(source: Path, what: str) -> str:
    """Return the message that options for images cannot be used with this source."""
    return (
        f"--mean, --std and --image-… are for folders of images, but '{source}' contains {what}, "
        "which are used unchanged: remove these options"
    )


def _files(folder: Path, suffixes: frozenset[str]) -> list[Path]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [path for path in paths if path.suffix.lower() in suffixes]


def spread(items: Sequence[T], count: int | None, source: Path) -> list[T]:
    """Return `count` items, evenly spaced, because files are often sorted by what they show.

    Raises:
        QuantizationError: there are fewer items.
    """
    if count is None:
        return list(items)
    if count > len(items):
        raise QuantizationError(
            f"'{source}' contains {counted(len(items), 'sample')}, but {count} were requested"
        )
    return [items[index * len(items) // count] for index in range(count)]


def _listed(suffixes: frozenset[str]) -> str:
    return ", ".join(sorted(suffixes))
