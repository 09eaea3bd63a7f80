"""Options of an operator in a TFLite file; every field is checked."""

from __future__ import annotations

import math
from typing import Any

import tflite

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.tflite.file import names_of, printable, reading
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
    """Typed access to an operator's options; all fields are 0 if the file omits the table."""

    def __init__(self, where: str, table: Any | None) -> None:
        self._where = where
        self._table = table

    def integer(self, field: str) -> int:
        """Return an integer or enumeration field."""
        return int(self._get(field))

    def flag(self, field: str) -> bool:
        """Return a boolean field."""
        return bool(self._get(field))

    def real(self, field: str) -> float:
        """Return a float32 field. Raises `ModelError` if it is not finite."""
        number = float(self._get(field))
        if not math.isfinite(number):
            raise ModelError(f"{self._where}: option {field} is {number}; it must be finite")
        return number

    def text(self, field: str) -> str:
        """Return a text field as printable text; empty if the file omits it."""
        return printable(self._get(field) or b"")

    def pair(self, height: str, width: str) -> tuple[int, int]:
        """Return two numbers. Raises `ModelError` unless they are from 1 to 32767."""
        pair = self.integer(height), self.integer(width)
        if min(pair) < 1 or max(pair) > _MAX_INT16:
            raise ModelError(
                f"{self._where}: {height} and {width} are {pair}; they must be from 1 to "
                f"{_MAX_INT16}"
            )
        return pair

    def activation(self) -> Activation:
        """Return the fused activation. Raises `UnsupportedError` for SIGN_BIT and TANH."""
        code = self.integer("FusedActivationFunction")
        name = _ACTIVATION_NAMES.get(code)
        if name is None:
            raise ModelError(
                f"{self._where}: unknown fused activation {code}: the file is corrupted, or newer "
                "than this Smelt"
            )
        if name not in _ACTIVATIONS:
            raise UnsupportedError(
                f"{self._where}: fused activation {name} is not supported; "
                "make the activation an operator of its own"
            )
        return _ACTIVATIONS[name]

    def same_padding(self) -> bool:
        """Return whether the padding is SAME; else it is VALID."""
        code = self.integer("Padding")
        if code not in (tflite.Padding.SAME, tflite.Padding.VALID):
            raise ModelError(f"{self._where}: unknown padding {code}: the file is corrupted")
        return code == tflite.Padding.SAME

    def _get(self, field: str) -> Any:
        if self._table is None:
            return 0
        with reading(f"{self._where}: option {field}"):
            return getattr(self._table, field)()
