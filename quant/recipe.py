"""Recipes: the settings of the quantization steps, each of which can be switched off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

RangeMethod = Literal["minmax", "percentile", "mse", "entropy"]
WeightRounding = Literal["nearest", "compensated", "searched"]


@dataclass(frozen=True)
class Recipe:
    """Settings of post-training quantization.

    Attributes:
        ranges: method for ranges of activations; see `quant/ranges/activation_ranges.py`.
        percentile: for method `percentile`, the share of elements within the range, in percent.
        equalize: whether to rescale channels across layers; see `quant/weights/equalization.py`.
        clip_weights: whether to clip the largest weights if that reduces the noise.
        rounding: method for weights. `nearest` rounds each weight on its own. `compensated` adjusts
            later weights for the errors of earlier ones (`quant/weights/rounding.py`). `searched`
            also fits weights to the noise of their inputs first (`quant/weights/fitting.py`) and
            uses the best of several scales.
        correct_bias: whether to correct mean errors in the biases (`quant/weights/correction.py`).
        seed: seed for the random choice of elements for ranges.
    """

    ranges: RangeMethod = "mse"
    percentile: float = 99.99
    equalize: bool = True
    clip_weights: bool = True
    rounding: WeightRounding = "compensated"
    correct_bias: bool = True
    seed: int = 0


ALLOWED = ("float", "int16")
"""Types that layers may have besides int8."""

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
"""Recipes by their names for `--recipe`."""
