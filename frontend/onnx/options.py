"""The user's options for a network's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, cast

import numpy as np

from smelt.argument_checks import as_choice, as_integer, as_items, as_table, wrong

OnnxLayout = Literal["model", "nhwc"]


@dataclass(frozen=True)
class InputOptions:
    """The user's options for a network's inputs.

    Attributes:
        dims: sizes of symbolic dimensions, by name. A pair is the smallest and largest size of a
            dimension with a size known only at run time.
        shapes: shapes of inputs, by name.
        values: inputs that are made constant, by name, with a value for each element or one for
            all.
        layout: `nhwc` if images are passed with channels last, whatever the file's layout is.
        batch: size of open leading dimensions that are a batch by their name, and are not in
            `dims`; None leaves them open.

    Raises:
        ConfigError: an option has the wrong type.
    """

    dims: Mapping[str, int | tuple[int, int]] = field(
        default_factory=dict[str, int | tuple[int, int]]
    )
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    layout: OnnxLayout = "model"
    batch: int | None = None

    def __post_init__(self) -> None:
        dims = as_table(self.dims, "dims", "sizes by the names of dimensions")
        shapes = as_table(self.shapes, "shapes", "shapes by the names of inputs")
        values = as_table(self.values, "values", "numbers by the names of inputs")
        as_choice(self.layout, "input_layout", OnnxLayout)
        # Convert lists and numpy numbers to tuples and Python numbers.
        object.__setattr__(self, "dims", {n: _size(d, f"dims['{n}']") for n, d in dims.items()})
        object.__setattr__(
            self, "shapes", {n: _shape(s, f"shapes['{n}']") for n, s in shapes.items()}
        )
        object.__setattr__(
            self, "values", {n: _numbers(v, f"values['{n}']") for n, v in values.items()}
        )

    def at(self, sizes: Mapping[str, int]) -> InputOptions:
        """Return the options with these sizes of symbolic dimensions."""
        return replace(self, dims={**self.dims, **sizes})


def _size(given: object, name: str) -> int | tuple[int, int]:
    if not isinstance(given, tuple | list):
        return as_integer(given, name)
    found = as_items(cast("object", given), name, "a size")
    if len(found) != 2:
        raise wrong(name, "a size, or a pair of the smallest and largest size", found)
    least, greatest = found
    # Invalid ranges are refused later, with the network's names of dimensions.
    return as_integer(least, name, None), as_integer(greatest, name, None)


def _shape(given: object, name: str) -> tuple[int, ...]:
    return tuple(as_integer(size, name) for size in as_items(given, name, "a shape, as (1, 64)"))


def _numbers(given: object, name: str) -> tuple[float, ...]:
    if isinstance(given, int | float | np.number):
        return (_number(cast("object", given), name),)
    items = as_items(given, name, "a number, or one for each element")
    return tuple(_number(item, name) for item in items)


def _number(given: object, name: str) -> float:
    number: object = cast("np.generic", given).item() if isinstance(given, np.generic) else given
    if not isinstance(number, int | float):
        raise wrong(name, "numbers", number)
    return number
