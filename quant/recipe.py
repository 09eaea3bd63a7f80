"""What the quantizer does, step by step; every step can be switched off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

RangeMethod = Literal["minmax", "percentile", "mse", "entropy"]
WeightRounding = Literal["nearest", "compensated", "searched"]


@dataclass(frozen=True)
class Recipe:
    """The steps of a quantization after training.

    Attributes:
        ranges: how the range of each activation is chosen; see `quant/ranges/activation_ranges.py`.
        percentile: of the method of that name: the part of the elements that is represented, in %.
        equalize: whether channels are rescaled across layers; see `quant/weights/equalization.py`.
        clip_weights: whether the largest weights may be clipped where that lessens the noise.
        rounding: of weights: each to its nearest; each so that it makes up for the errors of those
            before it; or that, of weights that are fitted to the noise of their inputs first, with
            the best of several scales; see `quant/weights/rounding.py` and `fitting.py` there.
        correct_bias: whether biases take up the mean of the errors; see `correction.py` there.
        seed: of the choice of elements that ranges are found on.
    """

    ranges: RangeMethod = "mse"
    percentile: float = 99.99
    equalize: bool = True
    clip_weights: bool = True
    rounding: WeightRounding = "compensated"
    correct_bias: bool = True
    seed: int = 0


ALLOWED = ("float", "int16")
"""What layers may be besides int8, where it is allowed."""

RECIPES: Mapping[str, Recipe] = {
    "fast": Recipe(
        ranges="minmax",
        equalize=False,
        clip_weights=False,
        rounding="nearest",
        correct_bias=False,
    ),
    "default": Recipe(),
    "best": Recipe(rounding="searched"),
}
"""By the name that `--recipe` takes."""
