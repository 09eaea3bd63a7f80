"""What a damaged file is made of: a sound one, and steps of damage that can be left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from smelt.errors import ModelError, SmeltError, UnsupportedError

Step = int
"""Seeds the random numbers that one damage is chosen by."""

READ_FAILURES = (ModelError, UnsupportedError)
"""What a damaged model is refused with."""


@dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes:
        name: what `--format` calls it.
        suffix: of its files.
        seeds: makes sound files, by name.
        more: makes more of them, which takes long or needs what lies beside the repository.
        damage: the file after the steps.
        check: reads a file and does with it what Smelt does; raises what Smelt raises. Its number
            chooses among several ways of use, such as targets.
        variants: how many such ways there are.
        refusals: errors that are right for a damaged file.
        weight: how many of a hundred files are of this format, where none is asked for.
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
        """The sound file of that name."""
        found = self.seeds().get(name)
        return self.more()[name] if found is None else found


@dataclass(frozen=True)
class Case:
    """A file to be made and tried; `data` is the file where it was made already."""

    format: str
    seed: str
    steps: tuple[Step, ...]
    variant: int
    data: bytes | None = None


def made(case: Case, format_: Format) -> bytes:
    """The file."""
    if case.data is not None:
        return case.data
    return format_.damage(format_.sound(case.seed), case.steps)


def cases(formats: Sequence[Format], seed: int, *, wide: bool) -> Iterator[Case]:
    """Cases without end, the same for the same seed; formats as often as their weights say.

    Args:
        formats: to choose from.
        seed: of what is chosen.
        wide: whether from all sound files, `Format.more` among them.
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
