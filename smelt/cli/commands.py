"""Command group that reports invalid option values in plain words."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup
from typing_extensions import override

_PREFIX = "Value error, "
"""Prefix of messages from pydantic, which some versions of typer use to check values."""


class Commands(TyperGroup):
    """Typer group that removes pydantic's prefix from messages about invalid values."""

    @override
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix(_PREFIX)
            raise
