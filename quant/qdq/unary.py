"""QDQ export of unary functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from smelt.ops.core.unary import Unary
from smelt.quant.qdq.graph import Exporter

_NAMED = {
    "relu": "Relu",
    "tanh": "Tanh",
    "logistic": "Sigmoid",
    "hard_swish": "HardSwish",
    "softplus": "Softplus",
    "softsign": "Softsign",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "reciprocal": "Reciprocal",
    "erf": "Erf",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
    "abs": "Abs",
    "neg": "Neg",
    "sign": "Sign",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
}
_ALPHA = {
    "leaky_relu": "LeakyRelu",
    "elu": "Elu",
    "celu": "Celu",
    "thresholded_relu": "ThresholdedRelu",
}
_CLIPS = {"relu6": (0.0, 6.0), "relu_n1_to_1": (-1.0, 1.0), "relu_0_to_1": (0.0, 1.0)}


class _Terms:
    """Emits arithmetic as ONNX nodes."""

    def __init__(self, exporter: Exporter, hint: str) -> None:
        self._exporter, self._hint = exporter, hint

    def __call__(self, operator: str, *operands: str | float, **attributes: float) -> str:
        """Emit an operator and return its result's name; numbers become constants."""
        names = [
            self._exporter.constant(f"{self._hint}_constant", np.asarray(x, np.float32))
            if isinstance(x, int | float)
            else x
            for x in operands
        ]
        return self._exporter.emit(operator, names, f"{self._hint}_{operator}", **attributes)


def _gelu(terms: _Terms, x: str, alpha: float, beta: float) -> str:
    share = terms("Add", terms("Erf", terms("Mul", x, math.sqrt(0.5))), 1.0)
    return terms("Mul", terms("Mul", x, 0.5), share)


def _gelu_tanh(terms: _Terms, x: str, alpha: float, beta: float) -> str:
    cube = terms("Mul", terms("Mul", terms("Mul", x, x), x), 0.044715)
    inner = terms("Mul", terms("Add", x, cube), math.sqrt(2.0 / math.pi))
    return terms("Mul", terms("Mul", x, 0.5), terms("Add", terms("Tanh", inner), 1.0))


_COMPOSED: Mapping[str, Callable[[_Terms, str, float, float], str]] = {
    "clamp": lambda terms, x, a, b: terms("Clip", x, a, b),
    "hard_sigmoid": lambda terms, x, a, b: terms("HardSigmoid", x, alpha=a, beta=b),
    "selu": lambda terms, x, a, b: terms("Selu", x, alpha=a, gamma=b),
    "shrink": lambda terms, x, a, b: terms("Shrink", x, lambd=a, bias=b),
    "swish": lambda terms, x, a, b: terms("Mul", x, terms("Sigmoid", terms("Mul", x, a))),
    "mish": lambda terms, x, a, b: terms("Mul", x, terms("Tanh", terms("Softplus", x))),
    "square": lambda terms, x, a, b: terms("Mul", x, x),
    "rsqrt": lambda terms, x, a, b: terms("Reciprocal", terms("Sqrt", x)),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}

SERVED = frozenset((*_NAMED, *_ALPHA, *_CLIPS, *_COMPOSED))
"""Kinds of unary functions that can be exported."""


def emit_unary(exporter: Exporter, op: Unary, x: str, hint: str) -> str:
    """Emit a unary function of `x` and return its result's name; the kind must be in `SERVED`."""
    terms = _Terms(exporter, hint)
    if op.kind in _NAMED:
        return terms(_NAMED[op.kind], x)
    if op.kind in _ALPHA:
        return terms(_ALPHA[op.kind], x, alpha=op.alpha)
    if op.kind in _CLIPS:
        return terms("Clip", x, *_CLIPS[op.kind])
    return _COMPOSED[op.kind](terms, x, op.alpha, op.beta)
