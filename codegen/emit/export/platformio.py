"""PlatformIO: a library with its manifest, `library.json`, and an example project."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from smelt.codegen.emit.export.base import Format, Library
from smelt.codegen.text.parameters import Parameters

_BOARDS = {
    "cortex-m0": ("ststm32", "nucleo_f030r8"),
    "cortex-m0plus": ("ststm32", "nucleo_l053r8"),
    "cortex-m3": ("ststm32", "nucleo_f103rb"),
    "cortex-m4": ("ststm32", "nucleo_f446re"),
    "cortex-m7": ("ststm32", "nucleo_f767zi"),
}
"""The PlatformIO platform and board name of a well-known board for each target."""


@dataclass(frozen=True)
class PlatformIOParameters(Parameters):
    """The board of the example and its platform; both empty if there is no well-known board."""

    example_platform: str
    example_board: str


class PlatformIO(Format):
    """A folder for a project's `lib/`."""

    name = "platformio"
    summary = "a PlatformIO library with an example project"
    folder = "src/"

    @override
    def parameters(self, library: Library) -> PlatformIOParameters:
        return PlatformIOParameters(*_BOARDS.get(library.platform.target.name, ("", "")))


FORMAT = PlatformIO()
