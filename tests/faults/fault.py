"""The description of a planted fault."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """A right piece of text and a wrong one to replace it.

    Attributes:
        part: part of the project, as in the table.
        says: a short description of the fault.
        file: path in the tree.
        old: the right text, which occurs exactly once in the file.
        new: the wrong one.
        tests: arguments of pytest that choose quick tests, one of which must fail.
    """

    part: str
    says: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, tree: Path) -> str:
        """Plant the fault in a tree; return the file's original text.

        Raises:
            ValueError: the right text does not occur exactly once.
        """
        path = tree / self.file
        text = path.read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"'{self.old}' occurs {count} times in {self.file}, not once")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")
        return text
