"""Converters of elementwise operators, softmax and normalization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tflite

from smelt.errors import ModelError
from smelt.frontend.tflite.operation import ARITHMETIC, Converter, TfliteOperation
from smelt.ir import DType
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.add_n import AddN
from smelt.ops.core.binary import Binary
from smelt.ops.core.l2_normalization import L2Normalization
from smelt.ops.core.prelu import PRelu
from smelt.ops.core.softmax import LogSoftmax, Softmax
from smelt.ops.core.unary import UNARY, Unary

_INTEGERS = frozenset({DType.INT32, DType.INT64})
_ANY_NUMBERS = ARITHMETIC | _INTEGERS


def _unary(kind: str) -> Converter:
    row = UNARY[kind]
    dtypes = ARITHMETIC if row.integer is not None else frozenset({DType.FLOAT32})
    dtypes |= row.plain & _INTEGERS
    return Converter(lambda operation: operation.emit(Unary(kind), operation.input(0)), dtypes)


def _binary(
    kind: str, options: Any | None = None, dtypes: frozenset[DType] = _ANY_NUMBERS
) -> Converter:
    """Return a converter; `options` is the class of options with the fused activation, if any."""

    def convert(operation: TfliteOperation) -> None:
        activation = Activation.NONE
        if options is not None:
            activation = operation.options(options, optional=True).activation()
        operation.emit(Binary(kind, activation), operation.input(0), operation.input(1))

    return Converter(convert, dtypes)


def _l2_normalization(operation: TfliteOperation) -> None:
    options = operation.options(tflite.L2NormOptions, optional=True)
    if options.activation() is not Activation.NONE:
        raise ModelError(
            f"{operation} has a fused activation, which L2_NORMALIZATION does not support; make "
            "the activation an operator of its own"
        )
    operation.emit(L2Normalization(), operation.input(0))


def _leaky_relu(operation: TfliteOperation) -> None:
    alpha = operation.options(tflite.LeakyReluOptions).real("Alpha")
    operation.emit(Unary("leaky_relu", alpha), operation.input(0))


def _gelu(operation: TfliteOperation) -> None:
    approximate = operation.options(tflite.GeluOptions, optional=True).flag("Approximate")
    operation.emit(Unary("gelu_tanh" if approximate else "gelu"), operation.input(0))


def _prelu(operation: TfliteOperation) -> None:
    operation.emit(PRelu(), operation.input(0), operation.constant(1, "slopes"))


def _softmax(operation: TfliteOperation) -> None:
    beta = operation.options(tflite.SoftmaxOptions).real("Beta")
    operation.emit(Softmax(beta), operation.input(0))


_UNARY = {
    "RELU": "relu",
    "RELU6": "relu6",
    "RELU_N1_TO_1": "relu_n1_to_1",
    "RELU_0_TO_1": "relu_0_to_1",
    "LOGISTIC": "logistic",
    "TANH": "tanh",
    "HARD_SWISH": "hard_swish",
    "ABS": "abs",
    "NEG": "neg",
    "EXP": "exp",
    "LOG": "log",
    "SQRT": "sqrt",
    "RSQRT": "rsqrt",
    "SQUARE": "square",
    "SIN": "sin",
    "COS": "cos",
    "FLOOR": "floor",
    "CEIL": "ceil",
    "ROUND": "round",
}
_BINARY: dict[str, tuple[str, Any | None]] = {
    "ADD": ("add", tflite.AddOptions),
    "SUB": ("sub", tflite.SubOptions),
    "MUL": ("mul", tflite.MulOptions),
    "DIV": ("div", tflite.DivOptions),
    "MAXIMUM": ("maximum", None),
    "MINIMUM": ("minimum", None),
    "SQUARED_DIFFERENCE": ("squared_difference", None),
}
_SPECIAL: dict[str, Callable[[TfliteOperation], None]] = {
    "ELU": lambda operation: operation.emit(Unary("elu", 1.0), operation.input(0)),
    "GELU": _gelu,
    "L2_NORMALIZATION": _l2_normalization,
    "LEAKY_RELU": _leaky_relu,
    "LOG_SOFTMAX": lambda operation: operation.emit(LogSoftmax(), operation.input(0)),
    "PRELU": _prelu,
    "SOFTMAX": _softmax,
}
_PLAIN = frozenset({DType.FLOAT32, DType.INT32})
CONVERTERS = {
    **{name: _unary(kind) for name, kind in _UNARY.items()},
    **{name: _binary(kind, options) for name, (kind, options) in _BINARY.items()},
    **{name: Converter(convert) for name, convert in _SPECIAL.items()},
    "ADD_N": Converter(lambda operation: operation.emit(AddN(), *operation.inputs()), _PLAIN),
    "FLOOR_DIV": _binary("floor_div", dtypes=_PLAIN),
    "FLOOR_MOD": _binary("mod", dtypes=_PLAIN | {DType.INT64}),
}
