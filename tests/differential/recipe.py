"""The few numbers that determine a random network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar, get_args

import numpy as np

from smelt.samples import Sample

Kind = Literal["float", "qdq", "tflite"]
KINDS: tuple[Kind, ...] = get_args(Kind)
CHANNELS = 40
"""Most channels of a layer, unless a recipe asks for fewer."""
MOST_STEPS = 7
Item = TypeVar("Item")


class UnfitError(Exception):
    """A drawn step cannot be applied; the caller draws another one or none."""


@dataclass(frozen=True)
class Recipe:
    """Everything that determines a network.

    Attributes:
        kind: kind of file: float ONNX, ONNX with QuantizeLinear, or int8 TFLite.
        seed: seed of the campaign.
        index: number of the network in the campaign.
        without: numbers of the steps to leave out; the others stay the same.
        channels: most channels of a layer.
    """

    kind: Kind
    seed: int
    index: int
    without: frozenset[int] = frozenset()
    channels: int = CHANNELS

    def draw(self, *step: int) -> Draw:
        """Return random choices for one step, independent of those for other steps."""
        key = (self.seed, KINDS.index(self.kind), self.index, *step)
        return Draw(np.random.default_rng(key), self.channels)

    @property
    def name(self) -> str:
        """Return the network's C identifier."""
        return f"{self.kind}_{self.index}"

    @property
    def command(self) -> str:
        """Return the command that makes this network again and runs it."""
        words = ["python -m tests.differential", f"--kind {self.kind}", f"--seed {self.seed}"]
        words.append(f"--only {self.index}")
        if self.without:
            words.append(f"--without {','.join(map(str, sorted(self.without)))}")
        if self.channels != CHANNELS:
            words.append(f"--channels {self.channels}")
        return " ".join(words)


@dataclass
class Draw:
    """Random choices."""

    rng: np.random.Generator
    most_channels: int = CHANNELS

    def integer(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, both included."""
        return int(self.rng.integers(low, high + 1))

    def pick(self, items: Sequence[Item]) -> Item:
        """Return one of the items."""
        return items[self.integer(0, len(items) - 1)]

    def recent(self, items: Sequence[Item]) -> Item:
        """Return one of the items, more often a late one."""
        back = min(int(self.rng.geometric(0.5)), len(items))
        return items[-back]

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return bool(self.rng.random() < probability)

    def channels(self) -> int:
        """Return a number of channels, often one near the size of a register block."""
        near = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 20, 24, 32, 36)
        count = self.pick(near) if self.chance(0.5) else self.integer(1, CHANNELS)
        return min(count, self.most_channels)

    def real(
        self, shape: Sequence[int], spread: float = 1.0
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Return uniform float32 numbers of at most this magnitude."""
        return self.rng.uniform(-spread, spread, tuple(shape)).astype(np.float32)

    def weights(
        self, shape: Sequence[int], axis: int, fan_in: int
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Return weights; some channels of `axis` are zero, or far smaller than the rest."""
        array = self.real(shape, 1.5 / fan_in**0.5)
        along = np.moveaxis(array, axis, 0)
        if self.chance(0.3):
            along[self.rng.random(len(along)) < 0.3] = 0
        if self.chance(0.2):
            factors = (2.0 ** self.rng.integers(-6, 1, len(along))).astype(np.float32)
            along *= factors.reshape(-1, *[1] * (along.ndim - 1))
        return array


@dataclass(frozen=True)
class Network:
    """A model file with its samples and operators.

    Attributes:
        steps: numbers of the steps in the network, for shrinking it.
        details: data for comparing networks of this kind.
    """

    recipe: Recipe
    data: bytes
    samples: tuple[Sample, ...]
    operators: tuple[str, ...]
    steps: tuple[int, ...]
    details: object = field(default=None, repr=False)

    @property
    def suffix(self) -> str:
        """Return the file's suffix."""
        return ".tflite" if self.recipe.kind == "tflite" else ".onnx"
