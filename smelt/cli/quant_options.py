"""Options for quantization, shared by `smelt quantize` and the commands that build."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from smelt.api.quantize import Settings
from smelt.cli.list_options import numbers, words
from smelt.errors import ConfigError
from smelt.quant.data.image_files import Preprocessing
from smelt.quant.recipe import ALLOWED, RECIPES, Recipe

PANEL = "Quantization"

E = TypeVar("E", bound=StrEnum)


class QuantizationKind(StrEnum):
    """Element type that a float network is quantized to."""

    int8 = "int8"


class RecipeName(StrEnum):
    """Named selection of quantization steps."""

    fast = "fast"
    default = "default"
    best = "best"


class Ranges(StrEnum):
    """Method that chooses the ranges of activations."""

    minmax = "minmax"
    percentile = "percentile"
    mse = "mse"
    entropy = "entropy"


class RoundingOption(StrEnum):
    """Method that rounds weights."""

    nearest = "nearest"
    compensated = "compensated"
    searched = "searched"


class Interface(StrEnum):
    """Element type of inputs and outputs."""

    int8 = "int8"
    float = "float"


class ImageLayout(StrEnum):
    """Position of the channels in a network's image input."""

    nchw = "nchw"
    nhwc = "nhwc"


class ImageColors(StrEnum):
    """Order of color channels."""

    rgb = "rgb"
    bgr = "bgr"


class ImageFit(StrEnum):
    """Method for images with another aspect ratio than the input."""

    stretch = "stretch"
    crop = "crop"


def _option(name: str, text: str) -> Any:
    return typer.Option(name, help=text, rich_help_panel=PANEL)


@dataclass(frozen=True)
class QuantGroup:
    """Options for quantizing a float network."""

    calibration: Annotated[
        Path | None,
        _option(
            "--calibration",
            "Representative inputs: an .npz or .npy file, or a folder of images or WAV files.",
        ),
    ] = None
    recipe: Annotated[
        RecipeName | None,
        _option("--recipe", "Named selection of quantization steps [default: default]."),
    ] = None
    ranges: Annotated[
        Ranges | None,
        _option(
            "--ranges", "Method that chooses the ranges of activations [default: the recipe's]."
        ),
    ] = None
    percentile: Annotated[
        float | None,
        _option(
            "--percentile",
            "With --ranges percentile: share of the elements within the range, in percent.",
        ),
    ] = None
    no_equalize: Annotated[
        bool, _option("--no-equalize", "Skip cross-layer equalization of channels.")
    ] = False
    no_weight_clipping: Annotated[
        bool, _option("--no-weight-clipping", "Do not clip the largest weights of a channel.")
    ] = False
    weight_rounding: Annotated[
        RoundingOption | None,
        _option("--weight-rounding", "Method that rounds weights [default: the recipe's]."),
    ] = None
    no_bias_correction: Annotated[
        bool, _option("--no-bias-correction", "Do not correct mean errors through the biases.")
    ] = False
    allow: Annotated[
        list[str] | None,
        _option(
            "--allow",
            "Types allowed besides int8: `float` for layers without an int8 kernel or with poor "
            "int8 outputs, `int16` where it improves the outputs, or `float,int16`.",
        ),
    ] = None
    io: Annotated[
        Interface | None,
        _option(
            "--io",
            "Type of inputs and outputs; `float` adds conversions in C [default: int8].",
        ),
    ] = None
    image_layout: Annotated[
        ImageLayout | None,
        _option("--image-layout", "Position of the channels [default: by the input's shape]."),
    ] = None
    image_colors: Annotated[
        ImageColors | None, _option("--image-colors", "Order of color channels [default: rgb].")
    ] = None
    image_fit: Annotated[
        ImageFit | None,
        _option(
            "--image-fit",
            "How to fit images with another aspect ratio [default: stretch].",
        ),
    ] = None
    mean: Annotated[
        list[str] | None,
        _option(
            "--mean",
            "Value to subtract from pixels (0 to 255), one or per channel, as `123.7,116.3,103.5` "
            "[default: 0].",
        ),
    ] = None
    std: Annotated[
        list[str] | None,
        _option(
            "--std", "Value to divide pixels by after --mean, one or per channel [default: 255]."
        ),
    ] = None

    def settings(self, samples: int | None, seed: int = 0) -> Settings:
        """Return the options in parsed form.

        Raises:
            ConfigError: an option is missing, cannot be parsed, or contradicts another.
        """
        if self.calibration is None:
            raise ConfigError(
                "quantization needs --calibration: give an .npz file of inputs, or a folder of "
                "images or WAV files"
            )
        return Settings(
            self.calibration,
            self._recipe(seed),
            _allowed(self.allow),
            self.io is Interface.float,
            samples,
            self.preprocessing(),
        )

    def preprocessing(self) -> Preprocessing | None:
        """Return how to convert images to inputs, or None if no such option is given."""
        fields = (self.image_layout, self.image_colors, self.image_fit, self.mean, self.std)
        if all(given is None for given in fields):
            return None
        default = Preprocessing()
        return Preprocessing(
            None if self.image_layout is None else self.image_layout.value,
            default.colors if self.image_colors is None else self.image_colors.value,
            default.fit if self.image_fit is None else self.image_fit.value,
            default.mean if self.mean is None else numbers("--mean", self.mean),
            default.std if self.std is None else numbers("--std", self.std),
        )

    def given(self) -> list[str]:
        """Return the names of the options that were given."""
        return [
            "--" + name.replace("_", "-")
            for name in QuantGroup.__dataclass_fields__
            if getattr(self, name) not in (None, False)
        ]

    def _recipe(self, seed: int) -> Recipe:
        recipe = replace(RECIPES[(self.recipe or RecipeName.default).value], seed=seed)
        if self.ranges is not None:
            recipe = replace(recipe, ranges=self.ranges.value)
        if self.percentile is not None:
            if recipe.ranges != "percentile":
                raise ConfigError("--percentile needs --ranges percentile")
            if not 50.0 < self.percentile <= 100.0:
                raise ConfigError(
                    f"--percentile {self.percentile:g}: give a value above 50 and up to 100, for "
                    "example 99.99"
                )
            recipe = replace(recipe, percentile=self.percentile)
        if self.weight_rounding is not None:
            recipe = replace(recipe, rounding=self.weight_rounding.value)
        return replace(
            recipe,
            equalize=recipe.equalize and not self.no_equalize,
            clip_weights=recipe.clip_weights and not self.no_weight_clipping,
            correct_bias=recipe.correct_bias and not self.no_bias_correction,
        )


def _allowed(texts: list[str] | None) -> frozenset[str]:
    names = words("--allow", texts) if texts else ()
    for name in names:
        if name not in ALLOWED:
            raise ConfigError(
                f"--allow {','.join(texts or ())}: '{name}' is unknown; choose from "
                f"{', '.join(ALLOWED)}"
            )
    return frozenset(names)
