"""The C name of a network, which prefixes its identifiers and files."""

from __future__ import annotations

import re

from smelt.errors import ConfigError

_ENDING = "_net"
LONGEST = 200
"""Largest number of characters of a title, so that file names stay within 255 bytes.

Most file systems have this limit; prefixes and suffixes are included.
"""


def c_name(title: str) -> str:
    """Return the C name of a network: `pid_net` for the title `pid`.

    No header of a C library, an operating system or a board declares names such as `..._net_init`,
    so that with this suffix a network may have any name. Without it, `pid` would declare POSIX's
    `pid_t`, and `time` would hide `<time.h>`. A title that already ends in `_net` is unchanged.

    Raises:
        ConfigError: The title is no C identifier, is reserved for the compiler, or is too long.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", title):
        raise ConfigError(
            f"the name '{title}' is not a C identifier (letters, digits, underscores); "
            "choose another with --name (in Python name=)"
        )
    if title.startswith("_"):
        raise ConfigError(
            f"the name '{title}' begins with an underscore, and C reserves such names; "
            "choose another with --name (in Python name=)"
        )
    if len(title) > LONGEST:
        raise ConfigError(
            f"the name '{title[:20]}…' has {len(title)} characters, too many for file names: "
            f"choose one of at most {LONGEST} with --name (in Python name=)"
        )
    return title if title.endswith(_ENDING) else title + _ENDING
