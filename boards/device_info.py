"""What firmware says about itself, and how it is asked for that, whatever state the line is in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from smelt.boards.transport import Line, Lost, checked
from smelt.errors import DeviceError
from smelt.terminal import plain

VERSION = 4
"""Of the protocol."""


@dataclass(frozen=True)
class TensorInfo:
    """An input or output, as the device declares it."""

    dtype: str
    bytes: int


@dataclass(frozen=True)
class Region:
    """Memory of a device that nothing writes while the program runs, at its linked address."""

    address: int
    bytes: int


@dataclass(frozen=True)
class DeviceInfo:
    """What the firmware says about itself.

    Attributes:
        name, hash: of the network.
        arena_bytes: of the network.
        timer_hz: ticks a second of the timer that times inferences.
        taps: whether the firmware can stream every step's output, and time every step.
        count: of the inferences so far.
        inputs, outputs: of the network, in order.
        accelerator: that computes beside the CPU, empty where there is none; None where the network
            is for a CPU alone.
        regions: of memory whose CRC the device computes.
    """

    name: str
    hash: str
    arena_bytes: int
    timer_hz: int
    taps: bool
    count: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    accelerator: str | None = None
    regions: tuple[Region, ...] = ()


def ask_info(line: Line, doubt: str = "") -> DeviceInfo:
    """What the firmware says about itself; waits for the device to start.

    Args:
        line: to the device.
        doubt: what else may be the reason when there is no answer.

    Raises:
        DeviceError: no answer, or one in another version of the protocol.
    """
    return _read_info(_ask(line, doubt))


def _ask(line: Line, doubt: str) -> list[str]:
    """What the `m-info-[…]` lines say, whatever state the line is in.

    Raises:
        DeviceError: no answer, or one in another version of the protocol, twice in a row.
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
            line.settle(0)
        if found.get("lines") == f"lines {len(found)}":
            return list(found.values())
        if version != VERSION:
            _refuse_version(version, before)
            line.settle(0)
        before = version
    raise DeviceError(
        f"no answer from the device in {line.timeout_s:g} s: is it the right port, is "
        f"the firmware flashed and undamaged, and does it run?{doubt}"
    )


_VERSION = re.compile(r"m-info-\[version (\d{1,9})\]")


def _refuse_version(version: int, before: int) -> None:
    """Another version is no broken line when it comes twice in a row."""
    if version == before:
        raise DeviceError(
            f"the firmware speaks version {version} of the wire protocol, "
            f"not {VERSION}: build and flash it again"
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
            raise ValueError("its timer does not tick")
        return DeviceInfo(
            name=plain(fields["name"]),
            hash=fields["hash"],
            arena_bytes=int(fields["arena"]),
            timer_hz=int(fields["timer"]),
            taps=fields["taps"] == "1",
            count=int(fields["count"]),
            inputs=tuple(tensors["input"][i] for i in range(len(tensors["input"]))),
            outputs=tuple(tensors["output"][i] for i in range(len(tensors["output"]))),
            accelerator=None if "gpu" not in fields else fields["gpu"].removesuffix("none"),
            regions=tuple(regions[i] for i in range(len(regions))),
        )
    except (KeyError, ValueError) as error:
        raise DeviceError(
            f"the device's description of itself is broken: {error}; its code may be damaged, or "
            "another build: build and flash it again"
        ) from error
