"""Random int8 networks as TFLite files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.ir import Array
from tests.differential.recipe import MOST_STEPS, Draw, Network, Recipe, UnfitError
from tests.differential.tflite_builder import TfliteBuilder
from tests.differential.tflite_elements import ELEMENTS
from tests.differential.tflite_layers import LAYERS

_TRIES = 6
STEPS = (*LAYERS, *LAYERS, *ELEMENTS)


def tflite_network(recipe: Recipe) -> Network:
    """Generate the network of a recipe."""
    b = TfliteBuilder(recipe.draw())
    stored = _add_inputs(b)
    steps = [n for n in range(b.draw.integer(2, MOST_STEPS)) if n not in recipe.without]
    _grow(b, recipe, steps)
    b.draw = recipe.draw(MOST_STEPS + 1)
    outputs = b.outputs()
    samples = tuple(tuple(arrays[i] for arrays in stored) for i in range(3))
    kinds = tuple(operator.kind for operator in b.operators)
    return Network(recipe, b.file(outputs), samples, kinds, tuple(steps))


def _grow(b: TfliteBuilder, recipe: Recipe, steps: Sequence[int]) -> None:
    """Apply steps with independent random choices; draw again those that do not fit."""
    for number in steps:
        b.draw = recipe.draw(number + 1)
        for _ in range(_TRIES):
            operators = len(b.operators)
            try:
                b.draw.pick(STEPS)(b)
            except UnfitError:
                dropped = {n for operator in b.operators[operators:] for n in operator.outputs}
                del b.operators[operators:]
                for name in dropped:
                    b.reals.pop(name, None)
                continue
            if len(b.operators) > operators:
                break
    if not b.operators:
        b.add("RELU", b.inputs[0])


def _add_inputs(b: TfliteBuilder) -> list[list[Array]]:
    """Add one or two inputs, with int8 samples."""
    shape = _first_shape(b.draw)
    stored = list[list[Array]]()
    for _ in range(1 + b.draw.chance(0.3)):
        span = b.draw.pick((0.05, 1.0, 1.0, 2.0, 6.0, 100.0))
        quant = b.range(-span, span)
        stored.append(_samples(b.draw, shape, quant[1]))
        b.input(shape, quant, stored[-1])
    return stored


def _first_shape(draw: Draw) -> tuple[int, ...]:
    """Draw the shape of an input, usually an image."""
    rank = draw.pick((2, 3, 4, 4, 4, 4, 4))
    if rank == 2:
        return (draw.pick((1, 1, 3)), draw.channels() * draw.integer(1, 3))
    if rank == 3:
        return (1, draw.integer(1, 6), draw.channels())
    side = draw.pick((1, 3, 5, 6, 7, 8, 11))
    return (1, side, draw.pick((side, side, draw.integer(1, 9))), draw.channels())


def _samples(draw: Draw, shape: tuple[int, ...], zero_point: int) -> list[Array]:
    """Draw three samples: any integers, ones near zero, and the extremes."""
    near = np.clip(zero_point + draw.rng.integers(-20, 21, shape), -128, 127)
    return [
        draw.rng.integers(-128, 128, shape).astype(np.int8),
        near.astype(np.int8),
        draw.rng.choice(np.array([-128, -128, zero_point, 127], np.int8), shape),
    ]
