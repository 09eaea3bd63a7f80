"""A device in Python that answers as firmware does, without compiling firmware."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from zlib import crc32

from smelt.api.artifact import Artifact
from smelt.boards.device_info import VERSION


@dataclass
class FakeDevice:
    """A device with a network's firmware, as the host sees it; all outputs are zeros.

    Attributes:
        name, hash: of the network.
        inputs, outputs: element type and bytes of each tensor.
        trace: whether the firmware was built with TRACE=1.
        steps: bytes of the result of each step.
        count: number of inferences.
        loading: bytes of input data that the host has still to send.
        text: the part of a command that has been received.
        memory: contents of the inputs.
        load_position: index of the input and offset in it at which the next byte is stored.
    """

    name: str
    hash: str
    inputs: list[tuple[str, int]]
    outputs: list[tuple[str, int]]
    trace: bool
    steps: list[int]
    count: int = 0
    loading: int = 0
    text: bytes = b""
    memory: list[bytearray] = field(default_factory=list[bytearray])
    load_position: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, artifact: Artifact, *, trace: bool) -> FakeDevice:
        """Return a device that runs this network."""
        values = artifact.graph.inputs, artifact.graph.outputs
        inputs, outputs = ([(v.type.dtype.value, v.type.bytes) for v in side] for side in values)
        steps = [step.node.outputs[0].type.bytes for step in artifact.schedule.steps]
        network = artifact.network
        made = cls(network.name, network.hash, inputs, outputs, trace, steps)
        made.memory = [bytearray(size) for _, size in inputs]
        return made

    def receive(self, data: bytes) -> bytes:
        """Receive bytes from the host, and return the answer to the commands that they complete."""
        answer = b""
        while data:
            if self.loading:
                taken, data = data[: self.loading], data[self.loading :]
                index, offset = self.load_position
                self.memory[index][offset : offset + len(taken)] = taken
                self.load_position = index, offset + len(taken)
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
        return b"".join(f"{line}\r\n".encode("ascii", "replace") for line in lines) + raw + ready

    def _command(self, kind: str, numbers: list[int]) -> tuple[list[str], bytes]:
        match kind:
            case "info":
                return self._info(), b""
            case "load":
                self.load_position, self.loading = (numbers[0], numbers[1]), numbers[2]
                return [with_checksum(f"m-load-[{numbers[0]} {numbers[1]} {numbers[2]}")], b""
            case "check":
                crc = crc32(b"".join(self.memory))
                return [with_checksum(f"m-check-[{numbers[0]} {crc:08x}")], b""
            case "length":
                return [with_checksum(f"m-length-[{numbers[0]} {numbers[1]}")], b""
            case "invoke":
                self.count += 1
                return ["m-invoke-begin", self._last()], b""
            case "last":
                return [self._last()], b""
            case "out" | "trace":
                piece = bytes(numbers[2])
                part = f"m-raw-[{numbers[0]} {numbers[1]} {numbers[2]} {crc32(piece):08x}"
                return [with_checksum(f"{part} {self.hash}")], piece
            case "step":
                return self._step(numbers[1])
            case "reset":
                return ["m-reset-done"], b""
            case _:
                raise ValueError(kind)

    def _info(self) -> list[str]:
        facts = [
            *(f"name {self.name}", f"hash {self.hash}", "arena 1000", "timer 1000000"),
            *(f"trace {int(self.trace)}", f"count {self.count}"),
            *(f"input {i} {kind} {size}" for i, (kind, size) in enumerate(self.inputs)),
            *(f"output {i} {kind} {size}" for i, (kind, size) in enumerate(self.outputs)),
        ]
        facts.insert(0, f"lines {len(facts) + 1}")
        return [
            f"m-info-[version {VERSION}]",
            *(with_checksum(f"m-info-[{fact}") for fact in facts),
        ]

    def _step(self, done: int) -> tuple[list[str], bytes]:
        if done >= len(self.steps):
            self.count += 1
            return ["m-invoke-begin", self._last()], b""
        step = with_checksum(f"m-step-[{done + 1} {done} {self.steps[done]} 77")
        return ["m-invoke-begin", step], b""

    def _last(self) -> str:
        return with_checksum(f"m-invoke-[ticks 5000 stack 300 status 0 count {self.count}")


def with_checksum(line: str) -> str:
    """Return the line with its CRC-32 and the closing bracket."""
    return f"{line} {crc32(line.encode('ascii')):08x}]"
