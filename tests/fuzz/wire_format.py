"""A faulty device: its answers are lost, doubled, damaged, or wrong.

A file is a list of faults, one a line: `ANSWER KIND NUMBER`. The device behind it obeys the
protocol as the firmware does. The clock is simulated, so that no test waits.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from zlib import crc32

from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.boards import Device, transport
from smelt.boards.device_info import VERSION
from smelt.errors import ConfigError, DeviceError, VerifyError
from smelt.frontend import InputOptions, load
from smelt.ir import evaluate
from smelt.proof.deploy import time_layers
from smelt.proof.rig import Rig, require_tensors
from smelt.proof.run import run
from smelt.proof.verify import find_first_difference
from smelt.samples import random_samples
from tests.fuzz.case import Format, Step
from tests.fuzz.fake_device import FakeDevice
from tests.fuzz.raw import hostile_name
from tests.support.onnx_networks import graph, model, node

LIES = (
    *("m-ready", "m-init-done", "e-[fault hard at 0x08000000]", "e-[Unknown command: ]", "e-[", ""),
    *("m-info-[version 99]", f"m-info-[version {VERSION}]", "m-info-[version " + "9" * 5000 + "]"),
    *("m-load-done", "m-invoke-begin", "\x1b[2J", "m-raw-[0 0 4", "m-step-[", "m-invoke-[]"),
)
NUMBERS = (0, 1, 2, 3, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**64, 10**30, -1, -(2**63))
Answer = Callable[[bytes, int], bytes | None]
"""Bytes that replace an answer, or None if the device never answers again."""


def _replaced_number(answer: bytes, number: int) -> bytes:
    """Replace a number of a line, and correct the line's checksum."""
    lines = answer.split(b"\r\n")
    found = [
        (i, m) for i, text in enumerate(lines) for m in re.finditer(rb"(?<=[ \[])\d+(?= )", text)
    ]
    if not found:
        return answer
    place, match = found[number % len(found)]
    other = str(NUMBERS[number // 64 % len(NUMBERS)]).encode()
    lines[place] = _sealed(lines[place][: match.start()] + other + lines[place][match.end() :])
    return b"\r\n".join(lines)


def _sealed(text: bytes) -> bytes:
    head, _, end = text.rpartition(b" ")
    return head + b" %08x]" % crc32(head) if end.endswith(b"]") else text


def _replaced_word(answer: bytes, number: int) -> bytes:
    """Replace a word of a line, and correct the line's checksum."""
    lines = answer.split(b"\r\n")
    place = number % len(lines)
    words = lines[place].split(b" ")
    words[number // 8 % len(words)] = hostile_name(Random(number)).encode("ascii", "replace")
    lines[place] = _sealed(b" ".join(words))
    return b"\r\n".join(lines)


def _cut(answer: bytes, number: int) -> bytes:
    return answer[: number % (len(answer) + 1)]


def _dropped(answer: bytes, number: int) -> bytes:
    at = number % (len(answer) + 1)
    return answer[:at] + answer[at + 1 + number // 7 % 5 :]


def _flipped(answer: bytes, number: int) -> bytes:
    at = number % (len(answer) or 1)
    return (
        answer[:at]
        + bytes(b ^ 1 << number // 5 % 8 for b in answer[at : at + 1])
        + answer[at + 1 :]
    )


def _lie(answer: bytes, number: int) -> bytes:
    text = LIES[number % len(LIES)].encode() + b"\r\n"
    return text + answer if number // 64 % 2 else text


KINDS: Mapping[str, Answer] = {
    "number": _replaced_number,
    "word": _replaced_word,
    "cut": _cut,
    "drop": _dropped,
    "double": lambda answer, _: answer + answer,
    "flip": _flipped,
    "lie": _lie,
    "before": lambda answer, number: _sealed(answer[number % (len(answer) + 1) :]) + answer,
    "noise": lambda answer, number: Random(number).randbytes(number % 3000) + answer,
    "silence": lambda _answer, _number: None,
}
FLOODS: Mapping[str, bytes] = {
    "endless line": b"x" * 65536,
    "endless lines": b"m-info-[name x 00000000]\r\n" * 2500,
    "endless blanks": b"\r\n" * 32768,
    "endless ready": b"m-ready\r\n" * 7000,
}


@dataclass
class _Clock:
    """A clock that runs during computation, and skips time spent in sleep."""

    now: float = 0.0

    def monotonic(self) -> float:
        """Return the simulated time in seconds."""
        return self.now + time.process_time()

    def sleep(self, seconds: float) -> None:
        """Advance the clock without waiting."""
        self.now += seconds


@dataclass
class _Damaged:
    """The stream of a device, with a list of faults for its answers."""

    faults: Mapping[int, list[tuple[str, int]]]
    clock: _Clock
    device: FakeDevice
    bytes_per_s: float
    answers: int = 0
    flood: bytes = b""
    silent: bool = False
    waiting: bytearray = field(default_factory=bytearray)

    def send(self, data: bytes) -> None:
        """Let the device answer."""
        answer: bytes | None = self.device.receive(data)
        for kind, number in self.faults.get(self.answers, []):
            if kind in FLOODS:
                self.flood = FLOODS[kind]
            elif answer is not None:
                answer = KINDS[kind](answer, number)
        self.answers += 1
        self.silent |= answer is None
        if not self.silent:
            self.waiting += answer or b""

    def receive(self, timeout_s: float) -> bytes:
        """Return the received bytes; a fault of `FLOODS` sends without end."""
        data = bytes(self.waiting) or self.flood
        self.waiting.clear()
        self.clock.now += len(data) / self.bytes_per_s if data else max(timeout_s, 0.0)
        return data

    def close(self) -> None:
        """Do nothing."""


@cache
def artifact(*, lengths: bool) -> Artifact:
    """Return the device's network, with or without inputs of a run-time length."""
    nodes = [node("MatMul", "x w", "a"), node("Relu", "a", "y")]
    weights = random_samples(_of({"x": [3, 40]}), 1, 0)[0][0]
    proto = model(graph(nodes, {"x": ["T", 3]}, "y", {"w": weights}))
    size = (1, 5) if lengths else 5
    return compile_model(proto.SerializeToString(), Options(inputs=InputOptions({"T": size})))


def _of(inputs: Mapping[str, list[int]]) -> Any:
    proto = model(graph([node("Relu", "x", "y")], inputs, "y"))
    return load(proto.SerializeToString()).graph


class _FakeRig(Rig):
    """Stands in for a board: a device with the file's faults."""

    stream: _Damaged

    @contextmanager
    def open(self, artifact: Artifact, *, trace: bool = False) -> Generator[tuple[Any, Device]]:
        """Connect."""
        elf = SimpleNamespace(
            path=Path("fake.elf"), flash_network=SimpleNamespace(total=0), flash_elf=0, ram=0
        )
        device = Device(self.stream, timeout_s=2)
        device.check_hash(artifact.network.hash)
        require_tensors(device, artifact.graph)
        yield elf, device


NONE: Mapping[int, list[tuple[str, int]]] = {}
"""No faults."""


@cache
def seeds() -> Mapping[str, bytes]:
    """Return a list without faults."""
    return {"sound": b""}


def damage(data: bytes, steps: Sequence[Step]) -> bytes:
    """Return the list of faults, extended by one per step."""
    lines = data.splitlines()
    for step in steps:
        rng = Random(step)
        kind = rng.choice((*KINDS, *KINDS, *FLOODS))
        answer = rng.choice((0, 0, 1, 2, 3, rng.randrange(30)))
        lines += [
            f"{answer + i} {kind} {rng.getrandbits(16)}".encode() for i in range(_lasting(rng))
        ]
    return b"\n".join(lines)


def _lasting(rng: Random) -> int:
    """Draw how many answers in a row have a fault: the host retries after a single one."""
    return rng.choice((1, 1, 1, 3, 40))


def _faults(text: str) -> Mapping[int, list[tuple[str, int]]]:
    found: dict[int, list[tuple[str, int]]] = {}
    for fault in text.splitlines():
        with suppress(ValueError):
            answer, rest = fault.split(" ", 1)
            kind, number = rest.rsplit(" ", 1)
            if kind in KINDS or kind in FLOODS:
                found.setdefault(int(answer), []).append((kind, int(number)))
    return found


def check(path: Path, variant: int) -> None:
    """Run a network, or time its layers, on the device, over a slow line or a fast one."""
    network = artifact(lengths=variant % 2 == 1)
    device = FakeDevice.of(network, trace=variant // 2 % 2 == 1)
    faults = _faults(path.read_text(errors="replace"))
    converse(network, device, faults, 11_520.0 if variant < 4 else 1e6)


def converse(
    network: Artifact,
    device: FakeDevice,
    faults: Mapping[int, list[tuple[str, int]]] = NONE,
    bytes_per_s: float = 11_520.0,
) -> None:
    """Use the device as Smelt does: time and compare layers if it traces, or run."""
    clock = _Clock()
    rig = _FakeRig()
    object.__setattr__(rig, "stream", _Damaged(faults, clock, device, bytes_per_s))
    (sample,) = random_samples(network.graph, 1, 0)
    with patch.object(transport, "time", clock):
        if device.trace:
            time_layers(network, sample, rig)
            reference = dict(evaluate(network.graph, sample).values)
            find_first_difference(network, [sample], reference, rig)
        else:
            run(network, [sample, sample], rig)


FORMAT = Format(
    *("wire", ".txt", seeds, damage, check),
    variants=8,
    refusals=(DeviceError, VerifyError, ConfigError),
    weight=4,
)
