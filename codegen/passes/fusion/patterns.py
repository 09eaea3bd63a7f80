"""Recognition of activation functions that exporters write as several operators.

Products are compared by their factors, so that the order of factors and constants is irrelevant.
"""

from __future__ import annotations

import math
from dataclasses import replace

from smelt.codegen.passes.context import DEFAULT, PassContext
from smelt.codegen.passes.fusion.expressions import (
    argument_of,
    near,
    other_summand,
    product,
    product_of,
    summand,
)
from smelt.codegen.passes.rewriting import Matcher, is_float, replace_nodes
from smelt.ir import Graph, Node, Value
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.binary import Binary
from smelt.ops.core.unary import Unary


def recognize_functions(graph: Graph, _: PassContext = DEFAULT) -> Graph:
    """Replace operators that together compute GELU, swish, hard swish or mish by one operator."""
    return replace_nodes(graph, _recognized)


def _recognized(node: Node, matcher: Matcher) -> Node | None:
    if not isinstance(node.op, Binary) or node.op.kind not in ("mul", "div"):
        return None
    if not is_float(node.output) or node.op.activation is not Activation.NONE:
        return None
    whole = product(node, matcher)
    if len(whole.factors) != 2:
        return None
    for x, other in (whole.factors, whole.factors[::-1]):
        if x.type != node.output.type or other.type != x.type:
            continue
        # Each function returns the operator that computes `constant · x · other`, or None.
        for recognize in (_swish, _mish, _hard_swish, _gelu, _gelu_tanh):
            op = recognize(x, other, whole.constant, matcher)
            if op is not None:
                return replace(node, op=op, inputs=(x,))
    return None


def _swish(x: Value, other: Value, constant: float, matcher: Matcher) -> Unary | None:
    """Match `x · logistic(alpha · x)`."""
    argument = argument_of("logistic", other, matcher)
    alpha = None if argument is None else product_of(argument, matcher).over(x)
    return Unary("swish", alpha) if alpha is not None and constant == 1 else None


def _mish(x: Value, other: Value, constant: float, matcher: Matcher) -> Unary | None:
    """Match `x · tanh(softplus(x))`."""
    argument = argument_of("tanh", other, matcher)
    inner = None if argument is None else argument_of("softplus", argument, matcher)
    return Unary("mish") if inner is x and constant == 1 else None


def _hard_swish(x: Value, other: Value, constant: float, matcher: Matcher) -> Unary | None:
    """Match `x · hardsigmoid(x)` or `x · relu6(x + 3) / 6`."""
    node = matcher.producer(other)
    if node is None:
        return None
    match node.op:
        case Unary("hard_sigmoid", alpha, beta) if node.input(0) is x:
            known = near(alpha, 1 / 6) and near(beta, 0.5) and constant == 1
        case Unary("relu6"):
            known = summand(node.input(0), 3.0, matcher) is x and near(constant, 1 / 6)
        case Unary("clamp", 0.0, 6.0):
            known = summand(node.input(0), 3.0, matcher) is x and near(constant, 1 / 6)
        case _:
            known = False
    return Unary("hard_swish") if known else None


def _gelu(x: Value, other: Value, constant: float, matcher: Matcher) -> Unary | None:
    """Match `½ x · (1 + erf(x / √2))` (Hendrycks and Gimpel, "Gaussian error linear units")."""
    grown = summand(other, 1.0, matcher)
    argument = None if grown is None else argument_of("erf", grown, matcher)
    factor = None if argument is None else product_of(argument, matcher).over(x)
    known = factor is not None and near(factor, math.sqrt(0.5)) and near(constant, 0.5)
    return Unary("gelu") if known else None


def _gelu_tanh(x: Value, other: Value, constant: float, matcher: Matcher) -> Unary | None:
    """Match `½ x · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`, also with `x` factored out."""
    grown = summand(other, 1.0, matcher)
    argument = None if grown is None else argument_of("tanh", grown, matcher)
    if argument is None or not near(constant, 0.5):
        return None
    outer = product_of(argument, matcher)
    if not near(outer.constant, math.sqrt(2 / math.pi)):
        return None
    if len(outer.factors) == 1:
        cube = other_summand(outer.factors[0], x, matcher)
        known = cube is not None and _is_cube(cube, x, 3, matcher)
    elif len(outer.factors) == 2 and x in outer.factors:
        square = summand(outer.without(x).factors[0], 1.0, matcher)
        known = square is not None and _is_cube(square, x, 2, matcher)
    else:
        known = False
    return Unary("gelu_tanh") if known else None


def _is_cube(value: Value, x: Value, power: int, matcher: Matcher) -> bool:
    factor = product_of(value, matcher).over(x, power)
    return factor is not None and near(factor, 0.044715)
