"""The name of a network: C identifiers begin with it, and C files are called by it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from smelt.errors import ConfigError


def network_name(wanted: str | None, stem: str, files: Iterable[str]) -> str:
    """The name that is wanted, which is taken or refused; or one from the model file's stem.

    Args:
        wanted: by the user; None where it is not.
        stem: of the model file. It is changed where something else has the name already.
        files: paths in the project, whose names are taken.

    Raises:
        ConfigError: the name is not an identifier, or taken.
    """
    paths = map(PurePosixPath, files)
    taken = {path.stem for path in paths if path.suffix in (".c", ".h")} | _RESERVED
    name = stem if wanted is None else wanted
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ConfigError(
            f"the name '{name}' is not a C identifier (letters, digits, underscores); "
            "choose another with --name"
        )
    if name.lower() not in taken and not _RESERVED_FORM.match(name.lower()):
        return name
    if wanted is None:
        return f"{name}_network"
    raise ConfigError(
        f"the name '{name}' is taken, by a file of the project, by C's library or by the firmware; "
        "choose another with --name"
    )


_RESERVED = frozenset(
    {"assert", "ctype", "double", "errno", "features", "float", "intmax", "intptr", "limits"}
    | {"math", "max_align", "null", "poll", "ptrdiff", "size", "stddef", "stdint", "stdio"}
    | {"stdlib", "string", "time", "uintmax", "uintptr", "unistd", "wchar"}
)
"""Names whose header would hide the system's, or whose type `NAME_t` is C's own."""

_RESERVED_FORM = re.compile(r"smelt(_|$)|_|u?int(_least|_fast)?\d+")
"""Names that begin like the firmware's, like the compiler's, or like C's integer types."""
