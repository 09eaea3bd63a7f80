"""The name of a network in C: what every identifier and file of its own begins with."""

from __future__ import annotations

import re

from smelt.errors import ConfigError

_ENDING = "_net"


def c_name(title: str) -> str:
    """What the network called `title` is called in C: `pid_net` for `pid`.

    No header of a C library, an operating system or a board declares `..._net_init` and its like,
    so that with this ending a network may have any name: without it, `pid` would declare POSIX's
    `pid_t`, and `time` would hide `<time.h>`. A title that ends so already is taken as it is.

    Raises:
        ConfigError: the title is not an identifier, or C keeps it for the compiler.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", title):
        raise ConfigError(
            f"the name '{title}' is not a C identifier (letters, digits, underscores); "
            "choose another with --name"
        )
    if title.startswith("_"):
        raise ConfigError(
            f"the name '{title}' begins with an underscore, and such names belong to the compiler; "
            "choose another with --name"
        )
    return title if title.endswith(_ENDING) else title + _ENDING
