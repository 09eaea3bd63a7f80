"""A damaged file as data: a valid file and steps of damage, each of which can be left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from smelt.errors import ModelError, SmeltError, UnsupportedError

Step = int
"""Seeds the random numbers that one damage is chosen by."""

READ_FAILURES = (ModelError, UnsupportedError)
"""Errors that are right for a damaged model."""


@dataclass(frozen=True)
class Format:
    """A file format to fuzz.

    Attributes:
        name: its name for `--format`.
        suffix: of files in this format.
        seeds: returns valid files, by name.
        more: returns more valid files; slow, or needs files outside of the repository.
        damage: applies the steps to a file.
        check: reads a file and does with it what Smelt does; raises what Smelt raises. Its number
            chooses one of several variants of use, such as targets.
        variants: number of such variants.
        refusals: errors that are right for a damaged file.
        weight: percentage of files in this format when `--format` is not given.
    """

    name: str
    suffix: str
    seeds: Callable[[], Mapping[str, bytes]]
    damage: Callable[[bytes, Sequence[Step]], bytes]
    check: Callable[[Path, int], None]
    variants: int = 1
    refusals: tuple[type[SmeltError], ...] = READ_FAILURES
    weight: int = 5
    more: Callable[[], Mapping[str, bytes]] = dict[str, bytes]

    def sound(self, name: str) -> bytes:
        """Return the valid file of that name."""
        found = self.seeds().get(name)
        return self.more()[name] if found is None else found


@dataclass(frozen=True)
class Case:
    """A file to make and try; `data` holds it if it has been made."""

    format: str
    seed: str
    steps: tuple[Step, ...]
    variant: int
    data: bytes | None = None


def made(case: Case, format_: Format) -> bytes:
    """Return the file's bytes."""
    if case.data is not None:
        return case.data
    return format_.damage(format_.sound(case.seed), case.steps)


def cases(formats: Sequence[Format], seed: int, *, wide: bool) -> Iterator[Case]:
    """Yield cases without end; the same seed gives the same ones. Weights choose formats.

    Args:
        formats: to choose from.
        seed: of the random choices.
        wide: whether to start from `Format.more` too.
    """
    weights = [format_.weight for format_ in formats]
    names = {f.name: sorted({*f.seeds(), *(f.more() if wide else ())}) for f in formats}
    number = 0
    while True:
        rng = Random(f"{seed} {number}")
        (format_,) = rng.choices(formats, weights)
        steps = tuple(rng.getrandbits(32) for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5, 8))))
        name = rng.choice(names[format_.name])
        yield Case(format_.name, name, steps, rng.randrange(format_.variants))
        number += 1
