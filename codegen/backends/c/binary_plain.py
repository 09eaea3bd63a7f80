"""C code of binary operators on floats, and on integers that are not quantized.

Integers wrap around, so the C code computes with unsigned types. Results that C leaves undefined,
such as those of a division by zero, are as in `smelt.ops.core.binary_plain`.
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.lower.c_expressions import in_precision_of
from smelt.ir import DType

_COMPARISONS = {
    "equal": "==",
    "greater": ">",
    "greater_equal": ">=",
    "less": "<",
    "less_equal": "<=",
}
_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*"}
_BITWISE = {"and": "&", "or": "|", "xor": "^"}


@dataclass(frozen=True)
class BinaryFormula:
    """C code of one operator.

    Attributes:
        loads: expressions of the operands `left` and `right`, with `%s` for the stored element.
        result: expression of the result, given `left` and `right`.
        lines: statements before it.
        exceeds: whether the result may exceed the element type, so that it must be clamped.
        operand_type: C type of `left` and `right`; None for int32_t if the node is quantized, and
            the type of the elements if not.
    """

    loads: tuple[str, str]
    result: str
    lines: tuple[str, ...] = ()
    exceeds: bool = False
    operand_type: str | None = None


def plain_formula(kind: str, dtype: DType) -> BinaryFormula:
    """Return the formula for elements that are not quantized, or need not be scaled."""
    lines: tuple[str, ...] = ()
    if kind in ("maximum", "minimum"):
        better = f"left {'<>'[kind == 'maximum']} right"
        # A NaN on the left is the result, too.
        better = f"(({better}) | (left != left))" if dtype.is_float else better
        result = f"{better} ? left : right"
    elif kind in _COMPARISONS:
        result = f"left {_COMPARISONS[kind]} right"
    elif kind in _BITWISE:
        result = f"({dtype.c_name})(left {_BITWISE[kind]} right)"
    elif dtype.is_float:
        lines, result = _real(kind, dtype)
    elif kind in ("div", "floor_div", "mod", "fmod"):
        lines, result = _quotient(kind, dtype)
    else:
        lines, result = _integer(kind, dtype)
    return BinaryFormula(("%s", "%s"), result, lines)


def _real(kind: str, dtype: DType) -> tuple[tuple[str, ...], str]:
    match kind:
        case "pow":
            return (), in_precision_of(dtype, "powf(left, right)")
        case "floor_div":
            # In float32, a quotient just below an integer would be rounded up to it before floor.
            wide = "left / right" if dtype is DType.FLOAT64 else "(double)left / (double)right"
            return (), f"({dtype.c_name})floor({wide})"
        case "fmod":
            return (), in_precision_of(dtype, "fmodf(left, right)")
        case "mod":
            remainder = in_precision_of(dtype, "fmodf(left, right)")
            line = f"const {dtype.c_name} rest = {remainder};"
            other = "rest != 0.0f && (rest < 0.0f) != (right < 0.0f)"
            return (line,), in_precision_of(dtype, f"{other} ? rest + right : rest")
        case "squared_difference":
            return (), "(left - right) * (left - right)"
        case _:
            return (), f"left {_ARITHMETIC.get(kind, '/')} right"


def _integer(kind: str, dtype: DType) -> tuple[tuple[str, ...], str]:
    wide = "uint64_t" if dtype.size == 8 else "uint32_t"
    name, signed = dtype.c_name, dtype.limits[0] < 0
    match kind:
        case "squared_difference":
            line = f"const {wide} difference = ({wide})left - ({wide})right;"
            return (line,), f"({name})(difference * difference)"
        case "shift_left" | "shift_right":
            inside = f"right < {8 * dtype.size}"
            if signed:
                inside = f"right >= 0 && {inside}"
            if kind == "shift_left":
                return (), f"{inside} ? ({name})(({wide})left << right) : ({name})0"
            rest = f"({name})(left < 0 ? -1 : 0)" if signed else f"({name})0"
            return (), f"{inside} ? ({name})(left >> right) : {rest}"
        case "pow":
            power = f"({name})integer_power((uint64_t)left, (uint64_t)right)"
            if not signed:
                return (), power
            line = f"const {name} inverse = left == 1 || (left == -1 && right % 2 == 0);"
            odd = "left == -1 && right % 2 != 0"
            return (line,), f"right >= 0 ? {power} : ({odd} ? ({name})-1 : inverse)"
        case _:
            return (), f"({name})(({wide})left {_ARITHMETIC[kind]} ({wide})right)"


def _quotient(kind: str, dtype: DType) -> tuple[tuple[str, ...], str]:
    wide = "uint64_t" if dtype.size == 8 else "uint32_t"
    name, signed = dtype.c_name, dtype.limits[0] < 0
    operator = "/" if kind in ("div", "floor_div") else "%"
    value = f"({name})(left {operator} right)"
    if not signed:
        return (), f"right == 0 ? ({name})0 : {value}"
    if kind == "div":
        line = f"const {name} negated = ({name})(0u - ({wide})left);"
        return (line,), f"right == 0 ? ({name})0 : (right == -1 ? negated : {value})"
    if kind == "floor_div":
        lines = (
            f"const {name} negated = ({name})(0u - ({wide})left);",
            f"const {name} whole = right == 0 ? ({name})0 : (right == -1 ? negated : {value});",
            f"const int inexact = ({wide})whole * ({wide})right != ({wide})left;",
        )
        below = "inexact && right != 0 && (left < 0) != (right < 0)"
        return lines, f"{below} ? ({name})(whole - 1) : whole"
    rest = f"right == 0 || right == -1 ? ({name})0 : {value}"
    if kind == "fmod":
        return (), rest
    line = f"const {name} rest = {rest};"
    other = "rest != 0 && (rest < 0) != (right < 0)"
    return (line,), f"{other} ? ({name})(rest + right) : rest"
