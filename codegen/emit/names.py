"""The name of a network in C: what every identifier and file of its own begins with."""

from __future__ import annotations

import re

from smelt.errors import ConfigError

_ENDING = "_net"
LONGEST = 200
"""Characters of a title: with what is put before and behind it, no file's name exceeds 255 bytes,
the most that file systems take."""


def c_name(title: str) -> str:
    """What the network called `title` is called in C: `pid_net` for `pid`.

    No header of a C library, an operating system or a board declares `..._net_init` and its like,
    so that with this ending a network may have any name: without it, `pid` would declare POSIX's
    `pid_t`, and `time` would hide `<time.h>`. A title that ends so already is taken as it is.

    Raises:
        ConfigError: the title is not an identifier, C keeps it for the compiler, or it is too long.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", title):
        raise ConfigError(
            f"the name '{title}' is not a C identifier (letters, digits, underscores); "
            "choose another with --name (in Python name=)"
        )
    if title.startswith("_"):
        raise ConfigError(
            f"the name '{title}' begins with an underscore, and such names belong to the compiler; "
            "choose another with --name (in Python name=)"
        )
    if len(title) > LONGEST:
        raise ConfigError(
            f"the name '{title[:20]}…' has {len(title)} characters, and files are named after it: "
            f"choose one of {LONGEST} at most with --name (in Python name=)"
        )
    return title if title.endswith(_ENDING) else title + _ENDING
