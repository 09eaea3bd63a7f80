"""Expression matching: how a value was computed, as a product, a sum or a function.

Constants match within a tolerance, because exporters round them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from smelt.codegen.passes.rewriting import Matcher
from smelt.ir import Node, Value
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.binary import Binary
from smelt.ops.core.unary import Unary

TOLERANCE = 1e-4
"""Relative tolerance for constants: some exporters write 1.4142 for √2, or 0.7979 for √(2/π)."""


@dataclass(frozen=True)
class Product:
    """The product of a constant and some values."""

    constant: float
    factors: tuple[Value, ...]

    def without(self, value: Value) -> Product:
        """Return the product without one occurrence of a factor."""
        rest = list(self.factors)
        rest.remove(value)
        return replace(self, factors=tuple(rest))

    def over(self, x: Value, power: int = 1) -> float | None:
        """Return the constant if the factors are exactly `x` repeated `power` times, else None."""
        return self.constant if self.factors == (x,) * power else None


def near(found: float, expected: float) -> bool:
    """Return whether a constant equals the expected one within `TOLERANCE`."""
    return abs(found - expected) <= TOLERANCE * abs(expected)


def argument_of(kind: str, value: Value, matcher: Matcher) -> Value | None:
    """Return the operand of function `kind` if that computed the value, else None."""
    node = matcher.producer(value)
    return node.input(0) if node is not None and node.op == Unary(kind) else None


def number(value: Value) -> float | None:
    """Return the value of a one-element constant, else None."""
    return float(value.array.item()) if value.is_constant and value.type.size == 1 else None


def summand(value: Value, constant: float, matcher: Matcher) -> Value | None:
    """Return `a` if the value is `a + constant`, else None."""
    node = matcher.producer(value)
    if node is None or node.op != Binary("add"):
        return None
    a, b = node.input(0), node.input(1)
    if a.is_constant:
        a, b = b, a
    return a if number(b) == constant else None


def other_summand(value: Value, x: Value, matcher: Matcher) -> Value | None:
    """Return `a` if the value is `a + x`, else None."""
    node = matcher.producer(value)
    if node is None or node.op != Binary("add") or x not in node.inputs:
        return None
    return node.input(1) if node.input(0) is x else node.input(0)


def product_of(value: Value, matcher: Matcher) -> Product:
    """Return a value as a product; a value that is no product is its own only factor."""
    node = matcher.producer(value)
    if node is None or len(node.outputs) > 1:
        return Product(1.0, (value,))
    return product(node, matcher)


def product(node: Node, matcher: Matcher) -> Product:
    """Return the result of a node as a product, following the producers of its operands."""
    match node.op:
        case Binary("mul" | "div" | "pow" as kind, Activation.NONE):
            a, b = node.input(0), node.input(1)
            known = number(b)
            if kind == "mul" and known is None:
                left, right = _factor(a, matcher), _factor(b, matcher)
                return Product(left.constant * right.constant, left.factors + right.factors)
            if kind == "pow" and known in (2.0, 3.0):
                return Product(1.0, (a,) * int(known))
            if kind != "pow" and known is not None and math.isfinite(known) and known:
                inner = _factor(a, matcher)
                scale = known if kind == "mul" else 1 / known
                return replace(inner, constant=inner.constant * scale)
        case Unary("square"):
            return Product(1.0, (node.input(0),) * 2)
        case _:
            pass
    return Product(1.0, (node.output,))


def _factor(value: Value, matcher: Matcher) -> Product:
    constant = number(value)
    return product_of(value, matcher) if constant is None else Product(constant, ())
