"""The options of an operator, with every field checked."""

from __future__ import annotations

import math
from typing import Any

import tflite

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.tflite.file import names_of, reading
from smelt.ops.arithmetic.fixed_point import Activation

_MAX_INT16 = 2**15 - 1

_ACTIVATION_NAMES = names_of(tflite.ActivationFunctionType)
_ACTIVATIONS = {
    "NONE": Activation.NONE,
    "RELU": Activation.RELU,
    "RELU_N1_TO_1": Activation.RELU_N1_TO_1,
    "RELU6": Activation.RELU6,
}


class OperatorOptions:
    """Typed access to an operator's options; all zero where the file leaves the table out."""

    def __init__(self, where: str, table: Any | None) -> None:
        self._where = where
        self._table = table

    def integer(self, field: str) -> int:
        """An integer or enumeration field."""
        return int(self._get(field))

    def flag(self, field: str) -> bool:
        """A boolean field."""
        return bool(self._get(field))

    def real(self, field: str) -> float:
        """A float32 field; `ModelError` unless finite."""
        number = float(self._get(field))
        if not math.isfinite(number):
            raise ModelError(f"{self._where}: option {field} is {number}")
        return number

    def pair(self, height: str, width: str) -> tuple[int, int]:
        """Two numbers from 1 to what TFLite's kernels can hold; `ModelError` otherwise."""
        pair = self.integer(height), self.integer(width)
        if min(pair) < 1 or max(pair) > _MAX_INT16:
            raise ModelError(
                f"{self._where}: {height} and {width} are {pair}, not from 1 to {_MAX_INT16}"
            )
        return pair

    def activation(self) -> Activation:
        """The fused activation; `UnsupportedError` for those that only old networks use."""
        code = self.integer("FusedActivationFunction")
        name = _ACTIVATION_NAMES.get(code)
        if name is None:
            raise ModelError(f"{self._where}: unknown fused activation {code}")
        if name not in _ACTIVATIONS:
            raise UnsupportedError(
                f"{self._where}: fused activation {name} is not supported; "
                "make the activation an operator of its own"
            )
        return _ACTIVATIONS[name]

    def same_padding(self) -> bool:
        """Whether the padding is SAME rather than VALID."""
        code = self.integer("Padding")
        if code not in (tflite.Padding.SAME, tflite.Padding.VALID):
            raise ModelError(f"{self._where}: unknown padding {code}")
        return code == tflite.Padding.SAME

    def _get(self, field: str) -> Any:
        if self._table is None:
            return 0
        with reading(f"{self._where}: option {field}"):
            return getattr(self._table, field)()
