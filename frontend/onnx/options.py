"""What the user says of a network's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Layout = Literal["model", "nhwc"]


@dataclass(frozen=True)
class InputOptions:
    """What the user says of a network's inputs.

    Attributes:
        dims: sizes of symbolic dimensions; a pair is the least and the greatest of a size that
            is known at run time only.
        shapes: shapes of inputs, by name.
        values: inputs that are made constant, with the value of each of their elements, or one
            for all.
        layout: `nhwc` gives images channels last, whatever the file says.
        batch: size of leading dimensions that are open, called as a batch is, and not in `dims`;
            None leaves them open.
    """

    dims: Mapping[str, int | tuple[int, int]] = field(
        default_factory=dict[str, int | tuple[int, int]]
    )
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    layout: Layout = "model"
    batch: int | None = None

    def at(self, sizes: Mapping[str, int]) -> InputOptions:
        """The same with these sizes of symbolic dimensions."""
        return replace(self, dims={**self.dims, **sizes})
