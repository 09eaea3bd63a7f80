"""The files of a project around the network: build files, startup, drivers, the protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smelt.targets import Platform

_REGIONS = "regions.c"
"""The C file that lists regions of memory, some of which depend on the network."""


@dataclass(frozen=True)
class MlperfProtocol:
    """MLPerf Tiny's protocol, which benchmark firmware supports besides Smelt's own.

    Attributes:
        id: The name of the benchmark that the firmware reports to the runner.
        sent: The format in which the runner sends an input. `raw` is the format of the network's
            input. `unsigned` is uint8; the firmware subtracts 128. `float` is float32; the firmware
            compares the network's output with it.
        quantizes: Whether the firmware quantizes float32 inputs for the network.
    """

    id: str
    sent: Literal["raw", "unsigned", "float"]
    quantizes: bool


@dataclass(frozen=True)
class Firmware:
    """The files around the network in a project, for one platform.

    Attributes:
        platform: The platform that the firmware runs on.
        mlperf: The benchmark that the firmware is for, or None.
    """

    platform: Platform
    mlperf: MlperfProtocol | None = None

    @property
    def linker_script(self) -> str:
        """The path of the linker script in the project; empty if the system's default is used."""
        return f"firmware/{self.platform.name}.ld" if self.platform.is_bare_metal else ""

    @property
    def sources(self) -> tuple[str, ...]:
        """The paths of the C files other than `main.c` and the network's own."""
        board = ("firmware/board.c",) if self.platform.setup else ()
        return (*(f"firmware/{name}" for name in self._sources()), *board)

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """`(template, path in the project)` of all files except the network's own.

        Templates that do not end in `.j2` are copied unchanged.
        """
        p = self.platform
        build = [(f"emit/project/{name}.j2", name) for name in ("Makefile", "CMakeLists.txt")]
        if p.target.cross:
            build.append(("emit/project/toolchain.cmake.j2", "toolchain.cmake"))
        if p.firmware is None:
            return tuple(build)
        headers = ["command.h", "port.h", "text.h", "wire.h"]
        if self.mlperf is not None:
            headers.append("mlperf.h")
        if p.is_bare_metal:
            headers.append("receive.h")
        copied = [(f"emit/project/{name}", f"firmware/{name}") for name in headers]
        names = [name for name in self._sources() if name != _REGIONS]
        copied += [(f"emit/project/{name}", f"firmware/{name}") for name in names]
        rendered = [("emit/project/main.c.j2", "main.c")]
        if p.is_bare_metal:
            copied.append((f"emit/project/core_{p.firmware}.h", "firmware/core.h"))
            rendered.append(("emit/project/board.h.j2", "firmware/board.h"))
            rendered.append((f"emit/project/{p.firmware}.ld.j2", self.linker_script))
            rendered.append((f"emit/project/{_REGIONS}.j2", f"firmware/{_REGIONS}"))
        if p.setup:
            rendered.append(("emit/project/board.c.j2", "firmware/board.c"))
        return (*build, *rendered, *copied)

    def _sources(self) -> tuple[str, ...]:
        p = self.platform
        if p.firmware is None:
            return ()
        mlperf = () if self.mlperf is None else ("mlperf.c",)
        common = ("wire.c", *mlperf, "command.c", "text.c", "hooks.c")
        if p.uart is None or p.timer is None:
            return (*common, "port_host.c")
        boot = (f"boot_{p.boot}.c",) if p.boot else ()
        drivers = (f"uart_{p.uart.driver}.c", f"timer_{p.timer.driver}.c")
        return (
            *common,
            f"startup_{p.firmware}.c",
            *boot,
            _REGIONS,
            "stack.c",
            "receive.c",
            *drivers,
        )
