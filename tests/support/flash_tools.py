"""Small ELF files for tests of flashing, and programs that only record their calls."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

Memory = dict[int, int]
"""Bytes by address."""

_HEADER = struct.Struct("<16sHHIIIIIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<8I")
_LOAD = 1
_ARM = 40


def write_elf(path: Path, segments: dict[int, bytes]) -> Path:
    """Return an ELF with these bytes at these physical addresses; virtual addresses differ."""
    start = _HEADER.size + _PROGRAM_HEADER.size * len(segments)
    ident = b"\x7fELF" + bytes([1, 1, 1]) + bytes(9)
    sizes = (_HEADER.size, _PROGRAM_HEADER.size, len(segments), 0, 0, 0)
    content = _HEADER.pack(ident, 2, _ARM, 1, 0, _HEADER.size, 0, 0, *sizes)
    for address, data in segments.items():
        content += _PROGRAM_HEADER.pack(
            _LOAD, start, address ^ 0x2000_0000, address, len(data), len(data) + 8, 5, 4
        )
        start += len(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content + b"".join(segments.values()))
    return path


def memory_of(segments: dict[int, bytes]) -> Memory:
    return {
        address + offset: byte
        for address, data in segments.items()
        for offset, byte in enumerate(data)
    }


@dataclass(frozen=True)
class Fakes:
    """A folder of programs that record how they were called."""

    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "called"

    def calls(self) -> list[list[str]]:
        """Return the name and arguments of each call so far."""
        text = self.log.read_text() if self.log.exists() else ""
        return [call.split("\n")[:-1] for call in text.split("\0")[:-1]]

    def add(self, name: str, then: str = "exit 0") -> None:
        """Write a program that records its call, then runs `then` in the shell."""
        program = self.folder / name
        program.write_text(
            "#!/bin/sh\n"
            f"printf '%s\\n' {name} \"$@\" >> '{self.log}'\n"
            f"printf '\\0' >> '{self.log}'\n"
            f"{then}\n"
        )
        program.chmod(0o755)


@dataclass(frozen=True)
class Block:
    """A block of a UF2 file."""

    address: int
    data: bytes
    family: int


def read_uf2(content: bytes) -> list[Block]:
    """Parse and check UF2 blocks as https://github.com/microsoft/uf2 describes them."""
    assert len(content) % 512 == 0
    blocks: list[Block] = []
    for position in range(0, len(content), 512):
        block = content[position : position + 512]
        assert block[:8] == b"UF2\n" + bytes.fromhex("57515d9e")
        assert block[-4:] == bytes.fromhex("306fb10a")
        numbers = [int.from_bytes(block[at : at + 4], "little") for at in range(8, 32, 4)]
        flags, address, size, number, total, family = numbers
        assert flags == 0x2000  # a family, into main flash
        assert size == 256
        assert number == position // 512
        assert total == len(content) // 512
        blocks.append(Block(address, block[32 : 32 + size], family))
    return blocks


def read_hex(content: bytes) -> Memory:
    """Return the bytes by address in an Intel HEX file; assert that it is valid."""
    memory: Memory = {}
    base = 0
    *lines, last = content.decode("ascii").splitlines()
    assert last == ":00000001FF"
    for line in lines:
        assert line[0] == ":"
        record = bytes.fromhex(line[1:])
        assert sum(record) % 256 == 0
        assert len(record) == record[0] + 5
        address, kind, data = int.from_bytes(record[1:3], "big"), record[3], record[4:-1]
        if kind == 4:
            base = int.from_bytes(data, "big") << 16
            continue
        assert kind in (0, 3, 5)
        if kind == 0:
            assert address + len(data) <= 0x10000
            for offset, byte in enumerate(data):
                assert base + address + offset not in memory
                memory[base + address + offset] = byte
    return memory
