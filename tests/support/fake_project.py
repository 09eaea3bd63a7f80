"""Firmware projects around `firmware/fake_net.c`, a network written by hand."""

import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from typing_extensions import override

from smelt.codegen.emit.firmware import Firmware, MlperfProtocol
from smelt.codegen.emit.group import NetworkGroup
from smelt.codegen.emit.network import EmittedNetwork, Tensor
from smelt.codegen.emit.project import project_parameters, render_firmware
from smelt.codegen.emit.statements import Statements
from smelt.codegen.text.helpers import Preamble
from smelt.targets import Optimize, Platform

SOURCES = Path(__file__).parent / "firmware"
WEIGHTS = bytes(range(1, 17))

NOTHING, UNDEFINED_INSTRUCTION, ENDLESS_RECURSION, ABORT, DEEP_STACK = range(5)


@dataclass(frozen=True, kw_only=True)
class FakeNetwork(EmittedNetwork):
    """Description of the network in `fake_net.c`."""

    @property
    @override
    def sources(self) -> tuple[str, ...]:
        return ("fake_net.c",)


def fake_tensor(dtype: str, count: int, zero_point: int | None = None) -> Tensor:
    return Tensor(
        name="x",
        dtype=dtype,
        c_type=f"{dtype}_t",
        shape=(count,),
        count=count,
        bytes=count * np.dtype(dtype).itemsize,
        scale=None if zero_point is None else 0.5,
        zero_point=zero_point,
        address="ctx->arena",
    )


NETWORK = FakeNetwork(
    title="fake",
    summary="a network written by hand",
    hash="0123456789abcdef",
    alignment=16,
    arena_bytes=96,
    arena_certificate="proved smallest for this schedule",
    state_bytes=4,
    weights_bytes=16,
    keep_inputs=False,
    inputs=(fake_tensor("int8", 16, -3), fake_tensor("int32", 2)),
    outputs=(fake_tensor("int8", 16, 1), fake_tensor("float32", 1), fake_tensor("int32", 1)),
    states=(),
    statements=Statements(
        "", uses_arena=False, copies=False, moves_up=False, moves_down=False, calls={}
    ),
    comments=(),
    preamble=Preamble((), (), floats=False),
    functions=(),
    constants=(),
)


def write_project(
    directory: Path,
    platform: Platform,
    optimize: Optimize = "speed",
    mlperf: MlperfProtocol | None = None,
) -> None:
    parameters = project_parameters(NetworkGroup((NETWORK,)), Firmware(platform, mlperf), optimize)
    for path, text in render_firmware(parameters).items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    for name in (*NETWORK.sources, "fake_net.h"):
        shutil.copy(SOURCES / name, directory)


def inputs(first: bytes = bytes(16), iterations: int = 0, mishap: int = NOTHING) -> list[bytes]:
    """Run `iterations` iterations of an empty loop, two instructions each, then `mishap`."""
    return [first, struct.pack("<ii", iterations, mishap)]


def expected_output(first: bytes) -> bytes:
    return bytes((a + b) & 0xFF for a, b in zip(reversed(first), WEIGHTS, strict=True))
