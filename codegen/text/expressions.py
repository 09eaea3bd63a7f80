"""C expressions of a variable and a number, for Python and as filters of templates.

The number is a constant, or the name of another variable.
"""

from __future__ import annotations


def offset(value: str, number: int | str) -> str:
    """Return the C expression of `value + number`."""
    if isinstance(number, str) and number.isdecimal():
        number = int(number)
    if number == 0:
        return value
    if isinstance(number, str):
        return number if value == "0" else f"{value} + {number}"
    if value.isdecimal():
        return str(int(value) + number)
    return f"{value} {'+' if number > 0 else '-'} {abs(number)}"


def minus(value: str, number: int | str) -> str:
    """Return the C expression of `value - number`."""
    return f"{value} - {number}" if isinstance(number, str) else offset(value, -number)


def times(value: str, number: int | str) -> str:
    """Return the C expression of `value * number`."""
    if value.isdecimal() and isinstance(number, int):
        return str(int(value) * number)
    return value if number == 1 or value == "0" else f"{value} * {number}"


def advance(value: str, number: int | str) -> str:
    """Return the C expression that adds a number to the variable `value`."""
    return f"++{value}" if str(number) == "1" else f"{value} += {number}"


def in_parentheses(expression: str) -> str:
    """Return the expression in parentheses, unless it is a name or a number."""
    single = expression.isidentifier() or expression.isdecimal()
    return expression if single else f"({expression})"
