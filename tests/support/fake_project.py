"""Projects around the hand-written network of `firmware/fake_net.c`: the firmware alone."""

import shutil
import struct
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path

from smelt.codegen.emit.firmware import Firmware, MlperfProtocol
from smelt.codegen.text.render import render
from smelt.targets import Optimize, Platform

SOURCES = Path(__file__).parent / "firmware"
WEIGHTS = bytes(range(1, 17))

NOTHING, UNDEFINED_INSTRUCTION, ENDLESS_RECURSION, ABORT, DEEP_STACK = range(5)


@dataclass(frozen=True)
class FakeTensor:
    dtype: str
    zero_point: int | None = None


@dataclass(frozen=True)
class FakeNetwork:
    title: str = "fake"
    name: str = "fake_net"
    macro: str = "FAKE_NET"
    inputs: tuple[FakeTensor, ...] = (FakeTensor("int8", -3), FakeTensor("int32"))
    outputs: tuple[FakeTensor, ...] = (
        FakeTensor("int8", 1),
        FakeTensor("float32"),
        FakeTensor("int32"),
    )
    sources: tuple[str, ...] = ("fake_net.c",)
    has_state: bool = True
    lengths: tuple[object, ...] = ()
    weights_binary: str = ""
    device: object = None
    libraries: tuple[str, ...] = ()
    external: tuple[object, ...] = ()
    cpu_fallback: bool = False

    @cached_property
    def files(self) -> tuple[str, ...]:
        return (*self.sources, "fake_net.h")


def write_project(
    directory: Path,
    platform: Platform,
    optimize: Optimize = "speed",
    mlperf: MlperfProtocol | None = None,
) -> None:
    network = FakeNetwork()
    firmware = Firmware(platform, mlperf)
    variables: dict[str, object] = {
        "net": network,
        "platform": platform,
        "firmware": firmware,
        "optimize": optimize,
        "mlperf": mlperf,
    }
    for template, path in firmware.files:
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if template.endswith(".j2"):
            target.write_text(render(template, variables))
        else:
            target.write_text(files("smelt.templates").joinpath(template).read_text())
    for name in network.files:
        shutil.copy(SOURCES / name, directory)


def inputs(first: bytes = bytes(16), turns: int = 0, mishap: int = NOTHING) -> list[bytes]:
    """`turns` of an empty loop, two instructions each; then `mishap`."""
    return [first, struct.pack("<ii", turns, mishap)]


def expected_output(first: bytes) -> bytes:
    return bytes((a + b) & 0xFF for a, b in zip(reversed(first), WEIGHTS, strict=True))
