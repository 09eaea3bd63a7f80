"""The firmware's description of itself, and the request for it on a line in any state."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from smelt.boards.transport import Line, Lost, checked
from smelt.errors import DeviceError
from smelt.terminal import plain

VERSION = 5
"""Version of the wire protocol."""


@dataclass(frozen=True)
class TensorInfo:
    """Type and size of an input or output, as reported by the device."""

    dtype: str
    bytes: int


@dataclass(frozen=True)
class Region:
    """Memory of a device that does not change while the program runs, at its linked address."""

    address: int
    bytes: int


@dataclass(frozen=True)
class DeviceInfo:
    """The firmware's description of itself.

    Attributes:
        name, hash: name and hash of the network.
        arena_bytes: size of the network's arena.
        timer_hz: frequency of the timer that measures inferences.
        trace: whether the firmware can send each step's output, and time each step.
        count: number of inferences since the start.
        inputs, outputs: inputs and outputs of the network, in order.
        accelerator: name of the accelerator in use, or empty if none was found; None if the network
            is for a CPU only.
        regions: memory regions for which the device can compute a CRC.
    """

    name: str
    hash: str
    arena_bytes: int
    timer_hz: int
    trace: bool
    count: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    accelerator: str | None = None
    regions: tuple[Region, ...] = ()


def ask_info(line: Line, doubt: str = "") -> DeviceInfo:
    """Wait for the device to start, and return the firmware's description of itself.

    Args:
        line: line to the device.
        doubt: another possible cause for the message if there is no response.

    Raises:
        DeviceError: there is no response, or it has another version of the protocol.
    """
    return _read_info(_ask(line, doubt))


def _ask(line: Line, doubt: str) -> list[str]:
    """Return the contents of the `m-info-[…]` lines, whatever state the line is in.

    Raises:
        DeviceError: there is no response, or two in a row have another version of the protocol.
    """
    found: dict[str, str] = {}
    before = VERSION
    deadline = line.now() + line.timeout_s
    while line.now() < deadline:
        line.send("smelt info")
        version = VERSION
        try:
            while (said := line.read_line(1.0)) != "m-ready" or not found:
                if match := _VERSION.fullmatch(said):
                    version = int(match[1])
                if said.startswith("m-info-["):
                    with suppress(Lost):
                        text = checked(said, "m-info-[")
                        found[text.rpartition(" ")[0]] = text
                if line.now() > deadline or version != VERSION:
                    break
        except Lost:
            line.resynchronize(0)
        if found.get("lines") == f"lines {len(found)}":
            return list(found.values())
        if version != VERSION:
            _refuse_version(version, before)
            line.resynchronize(0)
        before = version
    raise DeviceError(
        f"no response from the device in {line.timeout_s:g} s: check that the port is right, that "
        f"the firmware is flashed and undamaged, and that it runs.{doubt}"
    )


_VERSION = re.compile(r"m-info-\[version (\d{1,9})\]")


def _refuse_version(version: int, before: int) -> None:
    """Raise if two versions in a row are equal; a single one may be a transmission error."""
    if version == before:
        raise DeviceError(
            f"the firmware uses version {version} of the wire protocol, not {VERSION}: build and "
            "flash it again"
        )


def _read_info(lines: Sequence[str]) -> DeviceInfo:
    fields: dict[str, str] = {}
    tensors: dict[str, dict[int, TensorInfo]] = {"input": {}, "output": {}}
    regions: dict[int, Region] = {}
    try:
        for line in lines:
            key, _, value = line.partition(" ")
            if key in tensors:
                index, dtype, size = value.split()
                tensors[key][int(index)] = TensorInfo(dtype, int(size))
            elif key == "region":
                number, address, size = map(int, value.split())
                regions[number] = Region(address, size)
            else:
                fields[key] = value
        if int(fields["timer"]) <= 0:
            raise ValueError("its timer frequency is not positive")
        return DeviceInfo(
            name=plain(fields["name"]),
            hash=fields["hash"],
            arena_bytes=int(fields["arena"]),
            timer_hz=int(fields["timer"]),
            trace=fields["trace"] == "1",
            count=int(fields["count"]),
            inputs=tuple(tensors["input"][i] for i in range(len(tensors["input"]))),
            outputs=tuple(tensors["output"][i] for i in range(len(tensors["output"]))),
            accelerator=None if "gpu" not in fields else fields["gpu"].removesuffix("none"),
            regions=tuple(regions[i] for i in range(len(regions))),
        )
    except (KeyError, ValueError) as error:
        raise DeviceError(
            f"the device's description of itself is invalid: {error}; its code may be damaged or "
            "from another build: build and flash it again"
        ) from error
