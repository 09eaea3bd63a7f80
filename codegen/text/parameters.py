"""What templates are rendered with."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Parameters:
    """The variables of templates: a subclass for each template, or for a few that share them.

    A field holds what is printed, computed: text, numbers, tuples of them, or dataclasses of such
    fields, whose attributes templates read. They call no method. Of kernels' functions, those of
    equal parameters are equal, and those of different ones differ.
    """

    @property
    def variables(self) -> dict[str, object]:
        """The fields by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}
