"""Small GLSL functions that shaders share; each is a block of `functions.j2`."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from functools import cache

from smelt.codegen.text.helpers import needed_first
from smelt.codegen.text.render import environment

TEMPLATE = "backends/vulkan/functions.j2"

_NEEDS: dict[str, tuple[str, ...]] = {
    "requantize": ("doubling_high_multiply", "rounding_shift_right"),
    "reciprocal": ("doubling_high_multiply",),
    "quantized_quotient": (
        "doubling_high_multiply",
        "rounding_shift_right",
        "leading_zeros",
        "reciprocal",
    ),
    "log_of_sum": (
        "doubling_high_multiply",
        "rounding_shift_right",
        "leading_zeros",
        "reciprocal",
    ),
    "inverse_sqrt": ("doubling_high_multiply",),
    "exp_float": ("bounded", "exp_reduced", "power_of_two"),
    "expm1_float": ("exp_reduced", "power_of_two"),
    "tanh_float": ("exp_reduced", "power_of_two"),
    "logistic_float": ("exp_float",),
    "log_float": ("log1p_float",),
    "softplus_float": ("exp_float", "log1p_float"),
    "erf_float": ("expm1_float", "log_erfc"),
    "gelu_float": ("exp_float", "log_erfc"),
    "mish_float": ("exp_float",),
    "acos_float": ("asin_float",),
    "cosh_float": ("exp_float",),
    "sinh_float": ("exp_float", "expm1_float"),
    "asinh_float": ("log_float",),
    "acosh_float": ("log_float",),
    "atanh_float": ("log_float",),
}
"""The shared functions that each shared function calls."""


def definitions(*called: AbstractSet[str]) -> str:
    """Return the GLSL of shared functions and of those that they call, callees first."""
    names = frozenset[str]().union(*called)
    ordered = needed_first((name for name in blocks() if name in names), needs)
    return "\n".join(blocks()[name] for name in ordered)


def needs(function: str) -> tuple[str, ...]:
    """Return the shared functions that a shared function calls."""
    return _NEEDS.get(function, ())


def called_in(*fragments: str) -> frozenset[str]:
    """Return the shared functions that lines and expressions of GLSL call."""
    words = (word for text in fragments for word in re.findall(r"\b(\w+)\(", text))
    return frozenset(word for word in words if word in blocks())


@cache
def blocks() -> dict[str, str]:
    """Return every shared function's GLSL by name, in the order of the file."""
    template = environment().get_template(TEMPLATE)
    context = template.new_context()
    return {name: "".join(block(context)).strip() + "\n" for name, block in template.blocks.items()}
