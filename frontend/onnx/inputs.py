"""Inputs of an ONNX network: their shapes, from the file and from the user's options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx

from smelt.errors import ConfigError, ModelError, UnsupportedError
from smelt.frontend.onnx.options import InputOptions
from smelt.frontend.onnx.tensors import NARROWED, dtype_of
from smelt.ir import Array, DType, Length, TensorType
from smelt.ir.budget import spend

_CHANNELS_FIRST = (0, 3, 1, 2)
"""Permutation from an image with channels last to the layout of the file."""

_BATCH = re.compile(r"n|b|bs|.*batch.*", re.IGNORECASE)
"""Names that exporters give to a batch dimension."""

_UNNAMED = re.compile(r"(none|\?|unk__\d+|dynamicdimension\.\d+)?", re.IGNORECASE)
"""Names of dimensions without a name; such a dimension is the batch if it comes first."""


@dataclass(frozen=True)
class InputTensor:
    """An input of the network.

    Attributes:
        name: its name in the file.
        type: its type as the user passes it.
        permutation: permutation to the layout of the file; None if it already has that layout.
        open: names of the axes with sizes that the file leaves open, by axis.
    """

    name: str
    type: TensorType
    permutation: tuple[int, ...] | None
    open: Mapping[int, str]


class Inputs:
    """The inputs that are passed at run time, in order, and those that the user makes constant.

    Attributes:
        tensors: inputs passed at run time.
        constants: constant inputs, by name.
        narrowed: names of element types in the file that Smelt widens.
        batch: size of an open batch dimension; None if it must not be assumed.
        batches: the file's name of the batch dimension of each input whose batch was open, by the
            input's name.

    Raises:
        ModelError: the file does not declare the type of an input.
        UnsupportedError: an input is not a tensor, or has open dimensions.
        ConfigError: the options name an input or dimension that the network does not have.
    """

    def __init__(self, graph: onnx.GraphProto, options: InputOptions) -> None:
        constants = {tensor.name for tensor in graph.initializer}
        constants |= {sparse.values.name for sparse in graph.sparse_initializer}
        fed = [i for i in graph.input if i.name not in constants]
        self._options = options
        self.narrowed: set[str] = set()
        self.batch = options.batch
        self.batches: dict[str, str] = {}
        self._check_options(fed)
        self.tensors = tuple(self._tensor(i) for i in fed if i.name not in options.values)
        self.constants = {
            i.name: self._constant(i, options.values[i.name])
            for i in fed
            if i.name in options.values
        }
        self._check_lengths()
        if options.layout == "nhwc" and all(t.permutation is None for t in self.tensors):
            raise ConfigError(
                "--input-layout nhwc is for images, which have 4 dimensions; the network's inputs "
                f"are {', '.join(f'{t.name} {t.type}' for t in self.tensors) or 'all constant'}"
            )

    def _tensor(self, info: onnx.ValueInfoProto) -> InputTensor:
        kind = info.type.WhichOneof("value")
        if kind != "tensor_type":
            raise UnsupportedError(
                f"input '{info.name}' is a {(kind or 'thing').removesuffix('_type')}; Smelt "
                "supports only tensors as inputs"
            )
        code = info.type.tensor_type.elem_type
        dtype = dtype_of(code, f"input '{info.name}'")
        if code in NARROWED:
            self.narrowed.add(NARROWED[code])
        shape, names = self._shape(info), self._names(info)
        try:
            type_ = TensorType(shape, dtype)
        except UnsupportedError as error:
            raise UnsupportedError(f"input '{info.name}': {error}") from error
        if self._options.layout == "nhwc" and len(shape) == 4:
            n, c, h, w = shape
            moved = {_CHANNELS_FIRST[axis]: name for axis, name in names.items()}
            return InputTensor(info.name, type_.with_shape((n, h, w, c)), _CHANNELS_FIRST, moved)
        return InputTensor(info.name, type_, None, names)

    def _names(self, info: onnx.ValueInfoProto) -> dict[int, str]:
        """Return the names of the axes that are open and that --shape does not fix."""
        dims = () if info.name in self._options.shapes else info.type.tensor_type.shape.dim
        return {axis: dim.dim_param for axis, dim in enumerate(dims) if dim.dim_param}

    @property
    def lengths(self) -> tuple[Length, ...]:
        """The dimensions with sizes that are known only at run time."""
        found: list[Length] = []
        for name, size in self._options.dims.items():
            axes = tuple(
                (index, axis)
                for index, tensor in enumerate(self.tensors)
                for axis, called in sorted(tensor.open.items())
                if called == name
            )
            if axes and not isinstance(size, int) and size[0] < size[1]:
                found.append(Length(name, *size, axes))
        return tuple(found)

    def _check_lengths(self) -> None:
        """Check that every dimension with a range of sizes belongs to an input at run time."""
        found = {length.name for length in self.lengths}
        for name, size in self._options.dims.items():
            if not isinstance(size, int) and size[0] < size[1] and name not in found:
                raise ConfigError(
                    f"--dim gives '{name}' sizes from {size[0]} to {size[1]}, but no input that is "
                    "passed at run time has that dimension: give it a single size"
                )

    def _constant(self, info: onnx.ValueInfoProto, values: tuple[float, ...]) -> Array:
        """Return an input as a constant, in the layout of the file."""
        dtype = dtype_of(info.type.tensor_type.elem_type, f"input '{info.name}'")
        shape = self._shape(info)
        spend(f"--value {info.name}", prod(shape))
        try:
            with np.errstate(all="ignore"):  # changed values are refused below
                array = np.asarray(values).astype(dtype.numpy)
        except OverflowError as error:
            raise ConfigError(
                f"--value {info.name}: {list(values)} cannot be converted to {dtype.numpy}"
            ) from error
        words = any(isinstance(value, bool) for value in values) and dtype is not DType.BOOL
        if words or not np.array_equal(array, values):
            raise ConfigError(
                f"--value {info.name}: {list(values)} cannot be converted to {array.dtype}"
            )
        if array.size not in (1, prod(shape)):
            raise ConfigError(
                f"--value gives input '{info.name}' {array.size} elements; its shape "
                f"{list(shape)} needs {prod(shape)}, or one for all"
            )
        return np.broadcast_to(array.reshape(shape if array.size > 1 else ()), shape).copy()

    def _shape(self, info: onnx.ValueInfoProto) -> tuple[int, ...]:
        """Return the input's shape in the layout of the file."""
        stored = info.type.tensor_type
        given = self._options.shapes.get(info.name)
        if not stored.HasField("shape"):
            if given is None:
                raise UnsupportedError(
                    f"the file declares no shape for input '{info.name}': give one with "
                    f"{_option('--shape', info.name, '1x3x96x96')}"
                )
            return given
        dims = stored.shape.dim
        if given is not None and len(given) != len(dims):
            raise ConfigError(
                f"--shape gives input '{info.name}' {len(given)} dimensions, but the network's "
                f"input has {len(dims)}"
            )
        return tuple(
            self._size(info.name, axis, dim, None if given is None else given[axis])
            for axis, dim in enumerate(dims)
        )

    def _size(
        self, name: str, axis: int, dim: onnx.TensorShapeProto.Dimension, given: int | None
    ) -> int:
        if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
            if given not in (None, dim.dim_value):
                raise ConfigError(
                    f"--shape gives dimension {axis} of input '{name}' size {given}, but the "
                    f"network fixes it at {dim.dim_value}"
                )
            return dim.dim_value
        if dim.WhichOneof("value") == "dim_value" and dim.dim_value < -1:
            raise ModelError(
                f"dimension {axis} of input '{name}' is {dim.dim_value}: the file is damaged"
            )
        size = self._options.dims.get(dim.dim_param)
        free = size is None and given is None
        if self.batch is not None and free and _is_batch(axis, dim.dim_param):
            self.batches[name] = dim.dim_param
            return self.batch
        if given is not None and size not in (None, given):
            text = str(size) if isinstance(size, int) else f"{size[0]} to {size[1]}"
            raise ConfigError(
                f"--shape gives dimension {axis} of input '{name}' size {given}, but --dim "
                f"gives it size {text}, as '{dim.dim_param}'"
            )
        if given is not None:
            return given
        if size is None:
            raise UnsupportedError(
                f"dimension {axis} of input '{name}' is open{_remedy(name, dim.dim_param)}"
            )
        return size if isinstance(size, int) else size[1]

    def _check_options(self, fed: list[onnx.ValueInfoProto]) -> None:
        names = [info.name for info in fed]
        for option, table in (("shape", self._options.shapes), ("value", self._options.values)):
            for name in table:
                if name not in names:
                    raise ConfigError(
                        f"--{option} names input '{name}', which the network does not have; its "
                        f"inputs are {', '.join(names) or 'all constant'}"
                    )
        open_ = {d.dim_param for i in fed for d in i.type.tensor_type.shape.dim if d.dim_param}
        for name, size in self._options.dims.items():
            if not isinstance(size, int) and not 1 <= size[0] <= size[1]:
                raise ConfigError(
                    f"--dim gives '{name}' sizes from {size[0]} to {size[1]}; it needs "
                    "1 <= smallest <= largest"
                )
            if name not in open_:
                raise ConfigError(
                    f"--dim names dimension '{name}', which the network's inputs do not have; "
                    f"their open dimensions are {', '.join(sorted(open_)) or 'none'}"
                )


def _remedy(name: str, dimension: str) -> str:
    """Return what the user can do about an open dimension of an input."""
    shape = _option("--shape", name, "…")
    if not dimension:
        return f": fix the shape with {shape}"
    one, some = (_option("--dim", dimension, size) for size in ("1", "1..64"))
    return (
        f" (called '{dimension}'): fix it with {one} or the shape with {shape}, or allow sizes "
        f"up to a maximum at run time with {some}"
    )


def _option(option: str, name: str, given: str) -> str:
    """Return a command-line option, quoted for a shell."""
    quoted = name if re.fullmatch(r"[\w.:/@%+,-]+", name, re.ASCII) else shlex.quote(name)
    return f"{option} {quoted}={given}"


def _is_batch(axis: int, name: str) -> bool:
    return bool(_BATCH.fullmatch(name) or (axis == 0 and _UNNAMED.fullmatch(name)))
