"""How the commands of the command line are invoked."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup
from typing_extensions import override

_PREFIX = "Value error, "
"""What pydantic, with which some versions of typer check values, says before a message."""


class Commands(TyperGroup):
    """The commands; a value that one refuses is refused in plain words."""

    @override
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix(_PREFIX)
            raise
