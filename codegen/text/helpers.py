"""Dependencies of generated C: helper functions and macros, and headers.

Each helper is one block of `text/helpers.c.j2`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache

from smelt.codegen.text.render import environment

TEMPLATE = "text/helpers.c.j2"

FLOAT = "float"
"""The name in `uses` for code that computes in floating point."""

_LIBRARY = {
    "string.h": "memcpy memmove memset",
    "math.h": "acos acosh asin asinh atan atanh ceil copysign cos cosh erf erfc exp expm1 fabs "
    "floor fma fmod log log1p pow rint round sin sinh sqrt tan tanh INFINITY NAN",
}
"""The headers of the C library, in the order of inclusion, and the names that kernels use."""

_NEEDS: dict[str, tuple[str, ...]] = {
    "SMELT_DSP": ("SMELT_NAKED",),
    "move_words": ("string.h",),
    "logistic_int16": ("sampled_sigmoid",),
    "tanh_int16": ("sampled_sigmoid",),
    "position": ("bounded",),
    "saturated": ("clamp",),
    "at_least": (FLOAT,),
    "rectified": (FLOAT, "string.h"),
    "clamp_float": (FLOAT,),
    "float16_as_float": (FLOAT, "string.h", "math.h", "either"),
    "bfloat16_as_float": (FLOAT, "string.h", "either"),
    "nearest": (FLOAT, "string.h"),
    "rounded": (FLOAT, "nearest"),
    "float_from_bits": (FLOAT, "string.h"),
    "within": (FLOAT,),
    "reflected": (FLOAT, "math.h"),
    "cubic_weights": (FLOAT,),
    "reciprocal": ("doubling_high_multiply",),
    "inverse_sqrt": ("doubling_high_multiply",),
    "quantized_quotient": (
        "leading_zeros",
        "doubling_high_multiply",
        "reciprocal",
        "rounding_shift_right",
    ),
    "log_of_sum": (
        "leading_zeros",
        "doubling_high_multiply",
        "reciprocal",
        "rounding_shift_right",
    ),
    "align": ("rounding_shift_right",),
    "sum_of_8": (FLOAT,),
    "either": (FLOAT, "string.h"),
    "power_of_two": (FLOAT, "string.h"),
    "exp_reduced": (FLOAT, "string.h"),
    "exp_float": (FLOAT, "math.h", "either", "power_of_two", "exp_reduced"),
    "expm1_float": (FLOAT, "either", "power_of_two", "exp_reduced"),
    "tanh_float": (FLOAT, "math.h", "either", "power_of_two", "exp_reduced"),
    "logistic_float": (FLOAT, "math.h", "either", "exp_float"),
    "log1p_float": (FLOAT,),
    "log_float": (FLOAT, "string.h", "math.h", "either", "log1p_float"),
    "softplus_float": (FLOAT, "math.h", "either", "exp_float", "log1p_float"),
    "log_erfc": (FLOAT, "either"),
    "erf_float": (FLOAT, "math.h", "expm1_float", "log_erfc"),
    "gelu_float": (FLOAT, "math.h", "either", "exp_float", "log_erfc"),
    "mish_float": (FLOAT, "either", "exp_float"),
    "sum_of": (FLOAT, "math.h"),  # calls no function of math.h
    "sum_of_squares": (FLOAT,),
}
"""The helpers and headers that each helper uses. Helpers come before their users in the C file."""


@dataclass(frozen=True)
class Preamble:
    """The includes and helpers before the functions of a C file.

    Attributes:
        headers: Header names in the order of inclusion.
        helpers: C texts, callees first.
        floats: Whether a function or a helper computes in floating point.
        naked: Whether a function is in assembly, so that the file must end `SMELT_NAKED`'s pragma.
    """

    headers: tuple[str, ...]
    helpers: tuple[str, ...]
    floats: bool
    naked: bool = False


def preamble(*uses: AbstractSet[str]) -> Preamble:
    """Return the includes and helpers for functions with these `uses`.

    Raises:
        KeyError: There is no helper or header of that name.
    """
    blocks, names = helper_blocks(), sorted(frozenset[str]().union(*uses))
    for name in names:
        if name not in blocks and name != FLOAT and not name.endswith(".h"):
            raise KeyError(f"{TEMPLATE} has no block '{name}', and it is no header")
    needed = needed_first(names, needs)
    others = (name for name in needed if name.endswith(".h") and name not in _LIBRARY)
    return Preamble(
        (*(header for header in _LIBRARY if header in needed), *others),
        tuple(blocks[name] for name in needed if name in blocks),
        FLOAT in needed,
        "SMELT_NAKED" in needed,
    )


def needed_first(names: Iterable[str], needs: Callable[[str], tuple[str, ...]]) -> tuple[str, ...]:
    """Return the names in order, each after its dependencies."""
    found: dict[str, None] = {}
    for name in names:
        if name not in found:
            found |= dict.fromkeys((*needed_first(needs(name), needs), name))
    return tuple(found)


def needs(helper: str) -> tuple[str, ...]:
    """Return the helpers and headers that a helper uses."""
    return _NEEDS.get(helper, ())


def uses_in(fragments: Iterable[str]) -> frozenset[str]:
    """Return the helpers and headers that these lines and expressions of C use."""
    known = _known()
    words = (word for text in fragments for word in _NAME.findall(text))
    return frozenset(known[word] for word in words if word in known)


def when(condition: object, *uses: str) -> frozenset[str]:
    """Return the names if the condition holds, else the empty set."""
    return frozenset(uses if condition else ())


_NAME = re.compile(r"\b(?:\w+(?=\()|[A-Z]\w+)")
"""Matches the name of a called function, or a macro."""


@cache
def _known() -> dict[str, str]:
    """Map each name that a line of C may use to the helper or header that defines it."""
    found = {name: name for name in helper_blocks()}
    for header, names in _LIBRARY.items():
        for name in names.split():
            found[name] = header
            if header == "math.h":
                found[f"{name}f"] = header
    return found


@cache
def helper_blocks() -> dict[str, str]:
    """Return every helper's C text by name, in the order of the file: one Jinja block each."""
    template = environment().get_template(TEMPLATE)
    context = template.new_context()
    return {name: "".join(block(context)).strip() + "\n" for name, block in template.blocks.items()}
