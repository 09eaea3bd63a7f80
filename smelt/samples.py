"""Input and output arrays of `run` and `verify`: read from `.npz` files, and written to them."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import cast

import numpy as np

from smelt.argument_checks import as_instance, as_items, as_table, wrong
from smelt.errors import ConfigError
from smelt.ir import Array, Graph, TensorType, Value
from smelt.ir.npy import DAMAGED_ZIP, read_array, require_valid_sizes
from smelt.ops.arithmetic.fixed_point import round_half_away
from smelt.ops.case import random_array
from smelt.ops.run_time_lengths import find_marks, sizes_of

_MEMORY_BYTES, _ARRAY_BYTES = 2 * 1024**3, 160
"""Memory limit for samples, and estimated overhead of an array besides its elements, in bytes."""

Sample = tuple[Array, ...]
"""The inputs of one inference: an array for each, with exactly its shape and element type."""


def load_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of an `.npz` file by name, or that of an `.npy` file as `input_0`.

    Raises:
        ConfigError: the file is missing or is not a numpy archive.
    """
    kind = "file of arrays"
    try:
        kind = _format(path)
        if kind == ".npy file":
            return {"input_0": read_array(path.read_bytes(), path.name)}
        with zipfile.ZipFile(path) as archive:
            require_valid_sizes(archive)
            return {
                info.filename.removesuffix(".npy"): read_array(archive.read(info), info.filename)
                for info in archive.infolist()
            }
    except FileNotFoundError as error:
        raise ConfigError(f"'{path}' does not exist") from error
    except _UNREADABLE as error:
        raise ConfigError(f"'{path}' is not a readable {kind}: {error}") from error


def _format(path: Path) -> str:
    """Return `.npz file` or `.npy file`, judged by the first bytes of the file."""
    with path.open("rb") as file:
        start = file.read(8)
    if start[:2] == b"PK":
        return ".npz file"
    if start[:6] == b"\x93NUMPY":
        return ".npy file"
    how = f"begins with {start!r}" if start else "is empty"
    raise ConfigError(
        f"'{path}' is not a readable .npz or .npy file: it {how}; write arrays with numpy.savez"
    )


_UNREADABLE = (OSError, ValueError, *DAMAGED_ZIP)
"""Exceptions of `read_array` and zipfile for files that are damaged or missing."""


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write an `.npz` file completely or not at all.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        # Use a folder, because only the owner could read a temporary file.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".smelt-") as folder:
            temporary = Path(folder) / "arrays.npz"
            np.savez(temporary, **dict(arrays))  # pyright: ignore[reportArgumentType]
            temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write '{path}': {error.strerror}") from error


def bind_samples(graph: Graph, arrays: Mapping[str, Array]) -> tuple[list[Sample], bool]:
    """Return the samples in named arrays, and whether the arrays have a leading sample axis.

    Arrays are named like the graph's inputs, or `input_0`, `input_1`, … An additional leading axis
    indexes samples. If an input's leading dimension is 1, a larger one in the array also indexes
    samples. Integer arrays are used unchanged. Float arrays for an integer input are quantized
    with the input's scale and zero point.

    Raises:
        ConfigError: an input is missing, or an array's shape or type does not fit it.
    """
    samples, batched = _bind("input", graph.inputs, _arrays("input", arrays), _open_axes(graph))
    for sample in samples:
        sizes_of(graph, sample)
    return samples, batched


def check_samples(graph: Graph, samples: object) -> list[Sample]:
    """Return samples that Python code passes, after checking each array's shape and type.

    Raises:
        ConfigError: there are no samples, or an object is not of the expected type.
    """
    wanted = "a list of samples, each a tuple of one array per input"
    if isinstance(samples, np.ndarray | Mapping):
        raise wrong("samples", wanted, cast("object", samples))
    checked: list[Sample] = []
    for index, sample in enumerate(as_items(samples, "samples", wanted)):
        name = f"samples[{index}]"
        if isinstance(sample, np.ndarray | Mapping):
            raise wrong(name, "a tuple of one array per input", cast("object", sample))
        arrays = as_items(sample, name, "a tuple of one array per input")
        if len(arrays) != len(graph.inputs):
            names = ", ".join(value.name for value in graph.inputs)
            raise ConfigError(
                f"{name} must have one array for each input ({names}), but has {len(arrays)}"
            )
        checked.append(_checked(graph, name, arrays))
    if not checked:
        raise ConfigError("samples is empty: it must have at least one sample")
    return checked


def _checked(graph: Graph, name: str, arrays: Sequence[object]) -> Sample:
    open_ = _open_axes(graph)
    found: list[Array] = []
    for value, given in zip(graph.inputs, arrays, strict=True):
        array = as_instance(given, f"{name}, input '{value.name}',", np.ndarray, "a numpy array")
        fits = _fits(array.shape, value.type.shape, open_.get(value, frozenset()))
        if not fits or array.dtype != value.type.dtype.numpy:
            raise wrong(f"{name}, input '{value.name}',", f"an array of {value.type}", array)
        found.append(array)
    sizes_of(graph, tuple(found))
    return tuple(found)


def bind_expected(graph: Graph, arrays: Mapping[str, Array]) -> list[Sample]:
    """Return the expected outputs of each sample in named arrays, as `bind_samples` does.

    Raises:
        ConfigError: an output is missing, or an array's shape or type does not fit it.
    """
    marks = find_marks(graph)
    open_ = {v: {marks[v].axis} for v in graph.outputs if v in marks}
    return _bind("output", graph.outputs, _arrays("output", arrays), open_)[0]


def random_samples(graph: Graph, count: int, seed: int) -> list[Sample]:
    """Return `count` random samples: integers over their whole range, floats in [-1, 1].

    In the first sample, every dimension with a size known only at run time has its largest size.

    Raises:
        ConfigError: the samples and their outputs would take too much memory.
    """
    most = _MEMORY_BYTES // sum(
        value.type.bytes + _ARRAY_BYTES for value in (*graph.inputs, *graph.outputs, *graph.outputs)
    )
    if count > most:
        raise ConfigError(
            f"{count:,} random samples, with their outputs, take more than "
            f"{_MEMORY_BYTES // 1024**3} GB of memory; use at most {most:,} for this network "
            "(--samples), and repeat with another --seed"
        )
    rng = np.random.default_rng(seed)
    samples = [tuple(random_array(v.type, rng) for v in graph.inputs) for _ in range(count)]
    if not graph.lengths:
        return samples
    return [samples[0], *(_shortened(graph, sample, rng) for sample in samples[1:])]


def dequantize(array: Array, type_: TensorType) -> Array:
    """Return the real numbers that stored integers represent, as float32; floats unchanged."""
    if type_.quant is None:
        return array
    scale, zero_point = type_.quant.scalar
    return ((array.astype(np.float64) - zero_point) * scale).astype(np.float32)


def named_outputs(
    graph: Graph, outputs: Sequence[Sequence[Array]], *, batched: bool, real: bool = False
) -> dict[str, Array]:
    """Return arrays `output_0`, `output_1`, … from the outputs of each sample.

    Args:
        graph: the graph that computed the outputs.
        outputs: for each sample, an array for each output.
        batched: whether to put the samples along a new leading axis.
        real: whether to dequantize.
    """
    named: dict[str, Array] = {}
    for i, (value, column) in enumerate(
        zip(graph.outputs, zip(*outputs, strict=True), strict=True)
    ):
        array = np.stack(column) if batched else column[0]
        named[f"output_{i}"] = dequantize(array, value.type) if real else array
    return named


def _arrays(role: str, given: object) -> dict[str, Array]:
    """Return arrays by name. Raises `ConfigError` for anything else that a caller may pass."""
    table = as_table(given, f"the {role}s", f"a dict of arrays, as {{'{role}_0': array}}")
    return {
        name: as_instance(array, f"{role} '{name}'", np.ndarray, "a numpy array")
        for name, array in table.items()
    }


LengthAxes = Mapping[Value, Set[int]]
"""The axes of tensors with sizes that are known only at run time."""


def _open_axes(graph: Graph) -> LengthAxes:
    found: dict[Value, set[int]] = {}
    for length in graph.lengths:
        for index, axis in length.axes:
            found.setdefault(graph.inputs[index], set()).add(axis)
    return found


def _shortened(graph: Graph, sample: Sample, rng: np.random.Generator) -> Sample:
    """Return the sample with a random size of every dimension that is known only at run time."""
    arrays = list(sample)
    for length in graph.lengths:
        size = int(rng.integers(length.minimum, length.maximum, endpoint=True))
        for index, axis in length.axes:
            arrays[index] = np.ascontiguousarray(arrays[index].take(range(size), axis))
    return tuple(arrays)


def _bind(
    role: str, values: Sequence[Value], arrays: Mapping[str, Array], open_: LengthAxes
) -> tuple[list[Sample], bool]:
    columns = [
        _find(f"{role}_{i}", role, v, arrays, open_.get(v, frozenset()))
        for i, v in enumerate(values)
    ]
    stacked = {several for _, several in columns}
    if len(stacked) > 1:
        raise ConfigError(
            f"some {role}s have a leading sample axis and others have not: give it to all, or none"
        )
    counts = {len(array) for array, _ in columns}
    if len(counts) > 1:
        raise ConfigError(f"the {role}s have different numbers of samples: {sorted(counts)}")
    tensors = [
        [_stored(role, value, sample) for sample in array]
        for value, (array, _) in zip(values, columns, strict=True)
    ]
    if counts == {0}:
        raise ConfigError(f"the {role}s have no samples: their leading axis is 0")
    return list(zip(*tensors, strict=True)), stacked == {True}


def _find(
    default: str, role: str, value: Value, arrays: Mapping[str, Array], open_: Set[int]
) -> tuple[Array, bool]:
    """Return the samples in the array for a value, and whether it has a sample axis."""
    name = value.name if value.name in arrays else default
    if name not in arrays:
        raise ConfigError(
            f"no array for {role} '{value.name}': name one '{value.name}' or '{default}'. Given: "
            f"{', '.join(sorted(arrays)) or 'none'}"
        )
    array, shape = arrays[name], value.type.shape
    if _fits(array.shape, shape, open_):
        return array[None], False
    if _fits(array.shape[1:], shape, open_):
        return array, True
    batch = shape[:1] == (1,)
    if batch and array.ndim and _fits((1, *array.shape[1:]), shape, open_):
        return array[:, None], True
    sizes = [f"{'at most ' if a in open_ else ''}{n}" for a, n in enumerate(shape)]
    shapes = [["samples", *sizes[1:]], ["samples", *sizes]] if batch else [["samples", *sizes]]
    raise ConfigError(
        f"{role} '{value.name}' has shape {list(array.shape)}; it must be [{', '.join(sizes)}] or "
        + " or ".join(f"[{', '.join(axes)}]" for axes in shapes)
    )


def _fits(sizes: Sequence[int], shape: Sequence[int], open_: Set[int]) -> bool:
    return len(sizes) == len(shape) and all(
        size == most or (axis in open_ and size < most)
        for axis, (size, most) in enumerate(zip(sizes, shape, strict=True))
    )


def _stored(role: str, value: Value, array: Array) -> Array:
    """Return a sample in the tensor's element type."""
    dtype = value.type.dtype
    if array.dtype == dtype.numpy:
        return np.ascontiguousarray(array)
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise ConfigError(f"{role} '{value.name}' contains NaN or infinity")
        if dtype.is_float:
            return array.astype(dtype.numpy)
        if value.type.quant is not None:
            scale, zero_point = value.type.quant.scalar
            stored = round_half_away(array.astype(np.float64) / scale) + zero_point
            return np.clip(stored, *dtype.limits).astype(dtype.numpy)
    if array.dtype.kind in "iu" and dtype.is_integer:
        low, high = dtype.limits
        if array.size and (array.min() < low or array.max() > high):
            raise ConfigError(
                f"{role} '{value.name}' is {dtype.value}, but its array of {array.dtype} has "
                f"values from {array.min()} to {array.max()}"
            )
        return array.astype(dtype.numpy)
    raise ConfigError(
        f"{role} '{value.name}' is {value.type}; an array of {array.dtype} cannot be converted "
        "to it"
    )
