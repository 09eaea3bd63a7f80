"""Random float networks as ONNX files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from smelt.ir import Array
from tests.differential.onnx_builder import OnnxBuilder
from tests.differential.onnx_elements import ELEMENTS
from tests.differential.onnx_layers import LAYERS
from tests.differential.recipe import MOST_STEPS, Draw, Network, Recipe, UnfitError

_TRIES = 6
STEPS = (*LAYERS, *LAYERS, *ELEMENTS)


def float_network(recipe: Recipe) -> Network:
    """Generate the network of a recipe."""
    b = OnnxBuilder(recipe.draw())
    add_inputs(b)
    steps = [n for n in range(b.draw.integer(2, MOST_STEPS)) if n not in recipe.without]
    grow(b, recipe, steps)
    b.draw = recipe.draw(MOST_STEPS + 1)
    outputs = b.outputs()
    samples = tuple(tuple(b.reals[name][i] for name in b.inputs) for i in range(3))
    kinds = tuple(node.op_type for node in b.nodes)
    data = b.model(outputs).SerializeToString()
    return Network(recipe, data, samples, kinds, tuple(steps))


def grow(
    b: OnnxBuilder,
    recipe: Recipe,
    steps: Sequence[int],
    choices: Sequence[Callable[[OnnxBuilder], None]] = STEPS,
) -> None:
    """Apply steps with independent random choices; draw again those that do not fit."""
    for number in steps:
        b.draw = recipe.draw(number + 1)
        for _ in range(_TRIES):
            nodes = len(b.nodes)
            try:
                b.draw.pick(choices)(b)
            except UnfitError:
                dropped = {name for node in b.nodes[nodes:] for name in node.output}
                del b.nodes[nodes:]
                for name in dropped:
                    b.reals.pop(name, None)
                continue
            if len(b.nodes) > nodes:
                break
    if not b.nodes:
        b.add("Relu", b.inputs[0])


def add_inputs(b: OnnxBuilder) -> None:
    """Add one or two inputs with samples: small, large and extreme numbers."""
    shape = first_shape(b.draw)
    for _ in range(1 + b.draw.chance(0.3)):
        b.input(samples_of(b.draw, shape))


def first_shape(draw: Draw) -> tuple[int, ...]:
    """Draw the shape of an input, usually an image."""
    rank = draw.pick((2, 3, 3, 4, 4, 4, 4, 5))
    if rank == 2:
        return (draw.pick((1, 1, 3)), draw.channels() * draw.integer(1, 3))
    if rank == 3:
        return (draw.pick((1, 2, 5)), draw.pick((1, 3)), draw.channels())
    if rank == 5:
        return (1, min(draw.channels(), 6), *(draw.integer(1, 5) for _ in range(3)))
    side = draw.pick((1, 3, 5, 6, 7, 8, 11))
    return (1, draw.channels(), side, draw.pick((side, side, draw.integer(1, 9))))


def samples_of(draw: Draw, shape: tuple[int, ...]) -> list[Array]:
    """Draw three samples: ordinary numbers, larger ones, and repeated extremes."""
    extremes = np.array([-16, -1, 0, 0, 1, 16], np.float32)
    return [draw.real(shape), draw.real(shape, 8), draw.rng.choice(extremes, shape)]
