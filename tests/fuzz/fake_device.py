"""A device in Python that answers as firmware does, without compiling firmware."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from zlib import crc32

from smelt.api.artifact import Artifact
from smelt.boards.device_info import VERSION


@dataclass
class FakeDevice:
    """A device with a network's firmware, as the host sees it; all outputs are zeros."""

    name: str
    hash: str
    inputs: list[tuple[str, int]]
    outputs: list[tuple[str, int]]
    taps: bool
    steps: list[int]
    count: int = 0
    done: int = 0
    loading: int = 0
    text: bytes = b""
    memory: list[bytearray] = field(default_factory=list[bytearray])
    place: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, artifact: Artifact, *, taps: bool) -> FakeDevice:
        """Return a device that runs this network."""
        values = artifact.graph.inputs, artifact.graph.outputs
        inputs, outputs = ([(v.type.dtype.value, v.type.bytes) for v in side] for side in values)
        steps = [step.node.outputs[0].type.bytes for step in artifact.schedule.steps]
        network = artifact.network
        made = cls(network.name, network.hash, inputs, outputs, taps, steps)
        made.memory = [bytearray(size) for _, size in inputs]
        return made

    def obey(self, data: bytes) -> bytes:
        """Return the answer to these bytes."""
        answer = b""
        while data:
            if self.loading:
                taken, data = data[: self.loading], data[self.loading :]
                index, offset = self.place
                self.memory[index][offset : offset + len(taken)] = taken
                self.place = index, offset + len(taken)
                self.loading -= len(taken)
                answer += b"" if self.loading else b"m-load-done\r\nm-ready\r\n"
                continue
            head, percent, data = data.partition(b"%")
            self.text += head
            if percent:
                command = re.sub(rb"[\r\n]", b"", self.text).decode("ascii", "replace")
                self.text = b""
                answer += self._answer(command)
        return answer

    def _answer(self, command: str) -> bytes:
        words = command.split()
        try:
            kind, numbers = words[1], [int(word) for word in words[2:5]]
            lines, raw = self._command(kind, numbers)
        except (IndexError, ValueError, AttributeError):
            lines, raw = [f"e-[Unknown command: {command}]"], b""
        ready = b"" if self.loading else b"m-ready\r\n"
        return b"".join(f"{said}\r\n".encode("ascii", "replace") for said in lines) + raw + ready

    def _command(self, kind: str, numbers: list[int]) -> tuple[list[str], bytes]:
        match kind:
            case "info":
                return self._info(), b""
            case "load":
                self.place, self.loading = (numbers[0], numbers[1]), numbers[2]
                return [sealed(f"m-load-[{numbers[0]} {numbers[1]} {numbers[2]}")], b""
            case "check":
                crc = crc32(b"".join(self.memory))
                return [sealed(f"m-check-[{numbers[0]} {crc:08x}")], b""
            case "length":
                return [sealed(f"m-length-[{numbers[0]} {numbers[1]}")], b""
            case "invoke":
                self.count += 1
                return ["m-invoke-begin", self._last()], b""
            case "last":
                return [self._last()], b""
            case "out" | "tap":
                piece = bytes(numbers[2])
                part = f"m-raw-[{numbers[0]} {numbers[1]} {numbers[2]} {crc32(piece):08x}"
                return [sealed(f"{part} {self.hash}")], piece
            case "step":
                return self._step(numbers[1])
            case "reset":
                return ["m-reset-done"], b""
            case _:
                raise ValueError(kind)

    def _info(self) -> list[str]:
        facts = [
            *(f"name {self.name}", f"hash {self.hash}", "arena 1000", "timer 1000000"),
            *(f"taps {int(self.taps)}", f"count {self.count}"),
            *(f"input {i} {kind} {size}" for i, (kind, size) in enumerate(self.inputs)),
            *(f"output {i} {kind} {size}" for i, (kind, size) in enumerate(self.outputs)),
        ]
        facts.insert(0, f"lines {len(facts) + 1}")
        return [f"m-info-[version {VERSION}]", *(sealed(f"m-info-[{fact}") for fact in facts)]

    def _step(self, done: int) -> tuple[list[str], bytes]:
        if done >= len(self.steps):
            self.count += 1
            return ["m-invoke-begin", self._last()], b""
        step = sealed(f"m-step-[{done + 1} {done} {self.steps[done]} 77")
        return ["m-invoke-begin", step], b""

    def _last(self) -> str:
        return sealed(f"m-invoke-[ticks 5000 stack 300 status 0 count {self.count}")


def sealed(line: str) -> str:
    """Return the line with its checksum and bracket."""
    return f"{line} {crc32(line.encode('ascii')):08x}]"
