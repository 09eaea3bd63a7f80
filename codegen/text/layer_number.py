"""Numbers of a layer that print as C expressions."""

from __future__ import annotations

from typing_extensions import override


class LayerNumber(int):
    """A positive number that C code reads from a layer's struct, or gets as an argument.

    Its text is a C expression.

    Python code decides by the number's value. Products and quotients have a text too. The results
    of all other operations are plain numbers, which print as literals. A text is therefore right
    for the layer in any case, and layers with equal texts can share a function.
    """

    text: str

    def __new__(cls, value: int, text: str) -> LayerNumber:
        """Return the number with this text: names, numbers, `*` and `/`, without parentheses."""
        number = super().__new__(cls, value)
        number.text = text
        return number

    @override
    def __str__(self) -> str:
        return self.text

    @override
    def __mul__(self, other: int, /) -> LayerNumber:
        return self._combined(int(self) * int(other), "*", str(other))

    @override
    def __rmul__(self, other: int, /) -> LayerNumber:
        return self * other

    @override
    def __floordiv__(self, other: int, /) -> LayerNumber:
        return self._combined(int(self) // int(other), "/", str(other))

    def _combined(self, value: int, operator: str, other: str) -> LayerNumber:
        """Return the result of an operator; its text has no literal 1."""
        if " " in other and (operator == "/" or "/" in other):
            other = f"({other})"
        return LayerNumber(value, self.text if other == "1" else f"{self} {operator} {other}")


def repeats(end: int, first: int = 0, step: int = 1) -> bool:
    """Return whether a loop from `first` to before `end` may have several iterations.

    It may always if the end is a number of a layer that C code reads.
    """
    return end - first > step or isinstance(end, LayerNumber)
