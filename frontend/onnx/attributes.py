"""Attributes of an ONNX node; their types are checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, overload

import onnx

from smelt.errors import ModelError

T = TypeVar("T")
_ATTRIBUTE = onnx.AttributeProto


class _Required:
    """Marks an attribute without a default."""


_REQUIRED = _Required()


@dataclass(frozen=True)
class Attributes:
    """Named attributes of an operator.

    Every reader takes the attribute's name and a default; without a default, the attribute is
    required. It raises `ModelError` if a required attribute is missing or has another type.
    """

    attributes: dict[str, onnx.AttributeProto]

    def has(self, name: str) -> bool:
        """Return whether the file has the attribute."""
        return name in self.attributes

    @overload
    def integer(self, name: str) -> int: ...
    @overload
    def integer(self, name: str, default: T) -> int | T: ...
    def integer(self, name: str, default: object = _REQUIRED) -> object:
        """Return an integer."""
        return self._read(name, _ATTRIBUTE.INT, "i", default)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return an integer as a bool."""
        return bool(self.integer(name, int(default)))

    @overload
    def real(self, name: str) -> float: ...
    @overload
    def real(self, name: str, default: T) -> float | T: ...
    def real(self, name: str, default: object = _REQUIRED) -> object:
        """Return a real number."""
        return self._read(name, _ATTRIBUTE.FLOAT, "f", default)

    @overload
    def text(self, name: str) -> str: ...
    @overload
    def text(self, name: str, default: T) -> str | T: ...
    def text(self, name: str, default: object = _REQUIRED) -> object:
        """Return a string."""
        found = self._read(name, _ATTRIBUTE.STRING, "s", default)
        return found.decode(errors="replace") if isinstance(found, bytes) else found

    @overload
    def integers(self, name: str) -> tuple[int, ...]: ...
    @overload
    def integers(self, name: str, default: T) -> tuple[int, ...] | T: ...
    def integers(self, name: str, default: object = _REQUIRED) -> object:
        """Return a list of integers."""
        return self._list(name, _ATTRIBUTE.INTS, "ints", default)

    @overload
    def reals(self, name: str) -> tuple[float, ...]: ...
    @overload
    def reals(self, name: str, default: T) -> tuple[float, ...] | T: ...
    def reals(self, name: str, default: object = _REQUIRED) -> object:
        """Return a list of real numbers."""
        return self._list(name, _ATTRIBUTE.FLOATS, "floats", default)

    def texts(self, name: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return a list of strings."""
        found: Any = self._list(name, _ATTRIBUTE.STRINGS, "strings", default)
        return tuple(t.decode(errors="replace") if isinstance(t, bytes) else t for t in found)

    def stored_tensor(self, name: str) -> onnx.TensorProto:
        """Return a tensor as the file has it."""
        found: Any = self._read(name, _ATTRIBUTE.TENSOR, "t", _REQUIRED)
        return found

    def stored_sparse_tensor(self, name: str) -> onnx.SparseTensorProto:
        """Return a sparse tensor as the file has it."""
        found: Any = self._read(name, _ATTRIBUTE.SPARSE_TENSOR, "sparse_tensor", _REQUIRED)
        return found

    def graph(self, name: str) -> onnx.GraphProto:
        """Return a graph."""
        found: Any = self._read(name, _ATTRIBUTE.GRAPH, "g", _REQUIRED)
        return found

    def _list(self, name: str, kind: int, field: str, default: object) -> object:
        found: Any = self._read(name, kind, field, default)
        return found if found is default else tuple(found)

    def _read(self, name: str, kind: int, field: str, default: object) -> object:
        if name not in self.attributes:
            if default is _REQUIRED:
                raise ModelError(f"{self} has no attribute '{name}': the file is damaged")
            return default
        attribute = self.attributes[name]
        if attribute.type != kind:
            found, wanted = (_ATTRIBUTE.AttributeType.Name(k) for k in (attribute.type, kind))
            raise ModelError(
                f"{self}: attribute '{name}' is {found.lower()}, but must be {wanted.lower()}"
            )
        return getattr(attribute, field)
