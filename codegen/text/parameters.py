"""The base class of template parameters."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Parameters:
    """Variables of templates: one subclass per template, or for a few that share it.

    Fields contain what is printed, already computed: text, numbers, tuples of them, or dataclasses
    of such fields. Templates read attributes and call no methods. Two functions from one kernel's
    template are equal if, and only if, their parameters are equal.
    """

    @property
    def variables(self) -> dict[str, object]:
        """The fields by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True)
class NoParameters(Parameters):
    """Variables of templates that have none."""
