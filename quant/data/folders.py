"""Calibration data out of folders of files."""

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
    """The images, or the sounds, that a folder and those within hold.

    Args:
        folder: where the files lie.
        graph: a network of one input.
        preprocessing: of images; the usual one where None.
        count: how many samples to take, spread evenly over the files in order of their paths; all
            where None.

    Raises:
        QuantizationError: there are no such files, too few, both kinds, or a broken one.
        ConfigError: the network does not take one image or one stretch of sound; or preprocessing
            of images was asked for, and there are sounds.
    """
    if len(graph.inputs) != 1:
        raise ConfigError(
            f"'{graph.name}' has {len(graph.inputs)} inputs, a folder of files gives one: give "
            "its calibration data as .npz"
        )
    images, sounds = (_files(folder, kind.SUFFIXES) for kind in (image_files, wave_files))
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
        files = spread(images, count, folder)
        return [(a,) for a in read_images(files, value, preprocessing or Preprocessing())]
    if preprocessing is not None:
        raise ConfigError(not_images(folder, "sounds"))
    return [(frame,) for frame in spread(read_waves(sounds, value), count, folder)]


def padded(source: Path, graph: Graph) -> list[Path]:
    """The sounds of a folder that `read_folder` fills up with zeros; none in other sources."""
    sounds = _files(source, wave_files.SUFFIXES) if source.is_dir() else []
    return short_waves(sounds, graph.inputs[0]) if sounds else []


def holds_images(source: Path) -> bool:
    """Whether a source of samples is a folder of images."""
    return source.is_dir() and bool(_files(source, image_files.SUFFIXES))


def not_images(source: Path, what: str) -> str:
    """Why options that say how images become inputs have no place."""
    return (
        f"--mean, --std and --image-… are for folders of images; '{source}' holds {what}, which "
        "are taken as they are: leave these options out"
    )


def _files(folder: Path, suffixes: frozenset[str]) -> list[Path]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [path for path in paths if path.suffix.lower() in suffixes]


def spread(items: Sequence[T], count: int | None, source: Path) -> list[T]:
    """So many items, evenly spread: files are often sorted by what they show.

    Raises:
        QuantizationError: there are fewer.
    """
    if count is None:
        return list(items)
    if count > len(items):
        raise QuantizationError(
            f"'{source}' holds {counted(len(items), 'sample')}, {count} were asked for"
        )
    return [items[index * len(items) // count] for index in range(count)]


def _listed(suffixes: frozenset[str]) -> str:
    return ", ".join(sorted(suffixes))
