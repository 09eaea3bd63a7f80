"""PlatformIO: a library with its manifest, `library.json`, and an example project."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.codegen.emit.export.base import Format, Library

_BOARDS = {
    "cortex-m0": ("ststm32", "nucleo_f030r8"),
    "cortex-m0plus": ("ststm32", "nucleo_l053r8"),
    "cortex-m3": ("ststm32", "nucleo_f103rb"),
    "cortex-m4": ("ststm32", "nucleo_f446re"),
    "cortex-m7": ("ststm32", "nucleo_f767zi"),
}
"""PlatformIO's platform and board of a well-known board with the target's core."""


class PlatformIO(Format):
    """A folder for a project's `lib/`."""

    name = "platformio"
    summary = "a PlatformIO library with an example project"
    folder = "src/"

    def facts(self, library: Library) -> Mapping[str, object]:
        """The board of the example, where there is a well-known one."""
        platform, board = _BOARDS.get(library.platform.target.name, ("", ""))
        return {"example_platform": platform, "example_board": board}


FORMAT = PlatformIO()
