"""The options of quantization, which `quantize` has and every command that builds."""

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
    """What a float network is quantized to."""

    int8 = "int8"


class RecipeName(StrEnum):
    """Which steps quantization takes."""

    fast = "fast"
    default = "default"
    best = "best"


class Ranges(StrEnum):
    """How ranges of activations are found."""

    minmax = "minmax"
    percentile = "percentile"
    mse = "mse"
    entropy = "entropy"


class RoundingOption(StrEnum):
    """How weights are rounded."""

    nearest = "nearest"
    compensated = "compensated"
    searched = "searched"


class Interface(StrEnum):
    """Element type of inputs and outputs."""

    int8 = "int8"
    float = "float"


class ImageLayout(StrEnum):
    """Where a network has the channels of images."""

    nchw = "nchw"
    nhwc = "nhwc"


class ImageColours(StrEnum):
    """Order of channels."""

    rgb = "rgb"
    bgr = "bgr"


class ImageFit(StrEnum):
    """What is done to images of another aspect ratio."""

    stretch = "stretch"
    crop = "crop"


def _option(name: str, text: str) -> Any:
    return typer.Option(name, help=text, rich_help_panel=PANEL)


@dataclass(frozen=True)
class QuantGroup:
    """How a float network is quantized."""

    calibration: Annotated[
        Path | None,
        _option(
            "--calibration",
            "Samples of what the device will see: .npz, .npy, or a folder of images or wav files.",
        ),
    ] = None
    recipe: Annotated[
        RecipeName | None, _option("--recipe", "Steps of quantization [default: default].")
    ] = None
    ranges: Annotated[
        Ranges | None, _option("--ranges", "How ranges of activations are found.")
    ] = None
    percentile: Annotated[
        float | None,
        _option("--percentile", "Part of the elements in range, in %; with --ranges percentile."),
    ] = None
    no_equalize: Annotated[
        bool, _option("--no-equalize", "Do not rescale channels across layers.")
    ] = False
    no_weight_clipping: Annotated[
        bool, _option("--no-weight-clipping", "Keep the largest weight of each channel in range.")
    ] = False
    weight_rounding: Annotated[
        RoundingOption | None, _option("--weight-rounding", "How weights are rounded.")
    ] = None
    no_bias_correction: Annotated[
        bool, _option("--no-bias-correction", "Do not take mean errors out by the biases.")
    ] = False
    allow: Annotated[
        list[str] | None,
        _option(
            "--allow",
            "What layers may be: `float` where they have no int8 form or the outputs are poor "
            "without, `int16` where that makes the outputs better; or `float,int16`.",
        ),
    ] = None
    io: Annotated[
        Interface | None,
        _option("--io", "Type of inputs and outputs; float: converted in C [default: int8]."),
    ] = None
    image_layout: Annotated[
        ImageLayout | None,
        _option("--image-layout", "Where the network has channels [default: by its shape]."),
    ] = None
    image_colours: Annotated[
        ImageColours | None, _option("--image-colours", "Order of channels [default: rgb].")
    ] = None
    image_fit: Annotated[
        ImageFit | None,
        _option("--image-fit", "For images of another aspect ratio [default: stretch]."),
    ] = None
    mean: Annotated[
        list[str] | None,
        _option("--mean", "Subtracted from pixels of 0 to 255, as `0` or `123.7,116.3,103.5`."),
    ] = None
    std: Annotated[
        list[str] | None, _option("--std", "What pixels are divided by then [default: 255].")
    ] = None

    def settings(self, samples: int | None, seed: int = 0) -> Settings:
        """The same, read.

        Raises:
            ConfigError: an option is missing, of another form, or contradicts another.
        """
        if self.calibration is None:
            raise ConfigError(
                "quantization needs --calibration: an .npz with samples of the inputs, or a folder "
                "of images or wav files"
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
        """How images become inputs; None where nothing is said of it."""
        fields = (self.image_layout, self.image_colours, self.image_fit, self.mean, self.std)
        if all(given is None for given in fields):
            return None
        default = Preprocessing()
        return Preprocessing(
            None if self.image_layout is None else self.image_layout.value,
            default.colours if self.image_colours is None else self.image_colours.value,
            default.fit if self.image_fit is None else self.image_fit.value,
            default.mean if self.mean is None else numbers("--mean", self.mean),
            default.std if self.std is None else numbers("--std", self.std),
        )

    def given(self) -> list[str]:
        """The options that were given."""
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
                raise ConfigError("--percentile changes --ranges percentile only: give that too")
            if not 50.0 < self.percentile <= 100.0:
                raise ConfigError(
                    f"--percentile {self.percentile:g}: give more than 50 %, at most 100, as 99.99"
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
                f"--allow {','.join(texts or ())}: only {', '.join(ALLOWED)} can be allowed, not "
                f"'{name}'"
            )
    return frozenset(names)
