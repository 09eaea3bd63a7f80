"""Flashed images of the example network for all boards, read as the chip's ROM and core do."""

from __future__ import annotations

import binascii
import re
import shutil
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path

import pytest
from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from smelt import boards
from smelt.api.options import Options
from smelt.boards import Board
from smelt.boards.device_info import Region
from smelt.codegen.emit.firmware import Firmware
from smelt.proof.rig import built
from smelt.targets import Part
from tests.support.board_tools import compilable
from tests.support.fake_project import write_project
from tests.support.kernels_host import WARNINGS
from tests.support.projects import digits

PARTS: dict[str, Part] = {
    ".text": "code",
    ".smelt_weights": "weights",
    ".smelt_stack": "stack",
    ".data": "data",
    ".bss": "data",
    ".smelt_arena": "arena",
}
BOOT_BYTES = 256
"""Size of the RP2040's second boot stage, which precedes everything else in the image."""


@dataclass(frozen=True)
class Image:
    """An ELF.

    Attributes:
        entry: address of the entry point.
        sections: address and size by name of the section.
        loads: address and content of each flashed segment.
        symbols: address by name.
    """

    entry: int
    sections: Mapping[str, tuple[int, int]]
    loads: tuple[tuple[int, bytes], ...]
    symbols: Mapping[str, int]

    @classmethod
    def of(cls, path: Path) -> Image:
        with path.open("rb") as file:
            elf = ELFFile(file)
            allocated = (s for s in elf.iter_sections() if s["sh_flags"] & SH_FLAGS.SHF_ALLOC)
            table = elf.get_section_by_name(".symtab")
            assert isinstance(table, SymbolTableSection)
            return cls(
                elf["e_entry"],
                {s.name: (s["sh_addr"], s["sh_size"]) for s in allocated if s["sh_size"]},
                tuple(
                    (segment["p_paddr"], segment.data())
                    for segment in elf.iter_segments()
                    if segment["p_type"] == "PT_LOAD" and segment["p_filesz"]
                ),
                {symbol.name: symbol["st_value"] for symbol in table.iter_symbols()},
            )

    @cached_property
    def first(self) -> bytes:
        """Return the content of the flashed segment at the lowest address."""
        return min(self.loads)[1]

    @property
    def regions(self) -> list[Region]:
        """Return the regions that `firmware/regions.c` reports: code, weights, initial data."""
        code, weights = (
            Region(self.symbols[f"smelt_{name}_start"], self._size(name))
            for name in ("code", "weights")
        )
        return [code, weights, Region(self.symbols["smelt_data_load"], self._size("data"))]

    def _size(self, part: str) -> int:
        return self.symbols[f"smelt_{part}_end"] - self.symbols[f"smelt_{part}_start"]

    def words(self, address: int, count: int) -> tuple[int, ...]:
        for start, data in self.loads:
            if start <= address and address + 4 * count <= start + len(data):
                return struct.unpack_from(f"<{count}I", data, address - start)
        raise AssertionError(f"nothing is flashed at {address:#x}")


@pytest.mark.quick(name=("hifive1-revb", "microbit-v2", "nucleo-f446re", "pico"))
@pytest.mark.parametrize("name", boards.available())
def test_the_image_has_the_layout_that_the_chip_expects(name: str) -> None:
    board = boards.load(name)
    compilable(board)
    with built(digits(Options(board=name))) as elf:
        image = Image.of(elf.path)
        gaps = sum(len(data) for _, data in image.loads) - elf.flash_elf
        assert 0 <= gaps < 16  # alignment of the weights
        assert elf.contents.missing(image.regions) is None
    check_places(board, image)
    if board.startup == "riscv":
        check_riscv_start(board, image)
    else:
        check_vectors(board, image)
    if board.boot == "rp2040":
        check_second_stage(image.first[:BOOT_BYTES])
    if board.boot == "rp2350":
        check_image_block(image.first[:4096])


def check_places(board: Board, image: Image) -> None:
    """Assert that sections are in memories for their parts, and segments in code or weights."""
    platform = board.platform()
    for name, (address, size) in image.sections.items():
        part = PARTS.get(name, "code")
        memories = platform.memories_of(part) or (platform.memory_of(part),)
        assert any(
            memory.origin <= address and address + size <= memory.origin + memory.size
            for memory in memories
            if memory is not None
        ), name
    assert set(PARTS) - set(image.sections) <= {".data"}
    for address, data in image.loads:
        assert any(
            memory.origin <= address and address + len(data) <= memory.origin + memory.size
            for memory in (
                platform.memory_of("code"),
                platform.memory_of("weights"),
                *platform.memories_of("weights"),
            )
            if memory is not None
        )
    assert image.sections[".smelt_stack"][1] == board.stack_bytes


def check_vectors(board: Board, image: Image) -> None:
    platform = board.platform()
    code, stack = platform.memory_of("code"), platform.memory_of("stack")
    assert code is not None
    assert stack is not None
    address = code.origin + (BOOT_BYTES if board.boot == "rp2040" else 0)
    count = 16 + platform.last_irq + 1
    pointer, reset, *others = image.words(address, count)
    assert stack.origin < pointer <= stack.origin + stack.size
    assert pointer % 8 == 0
    assert pointer == image.symbols["smelt_stack_top"]
    first, size = image.sections[".text"]
    for vector in (reset, *(vector for vector in others if vector)):
        assert vector % 2 == 1
        assert first <= vector < first + size
    assert reset == image.symbols["Reset_Handler"] | 1 == image.entry
    uart = others[16 - 2 + board.uart.irq]
    assert uart == image.symbols["smelt_uart_interrupt"] | 1
    # The table's alignment is its size, rounded up to a power of two.
    assert address % (4 << (count - 1).bit_length()) == 0


def check_riscv_start(board: Board, image: Image) -> None:
    code = board.platform().memory_of("code")
    assert code is not None
    assert code.origin == image.entry == image.symbols["Reset_Handler"]
    assert image.symbols["smelt_trap"] % 4 == 0
    assert image.symbols["smelt_stack_top"] % 16 == 0


def check_second_stage(stage: bytes) -> None:
    """Check the ROM's checksum by zlib's CRC-32, which has the opposite bit order."""
    mirrored = bytes(reverse(byte, 8) for byte in stage[:-4])
    assert struct.unpack("<I", stage[-4:])[0] == reverse(~binascii.crc32(mirrored), 32)


def reverse(number: int, bits: int) -> int:
    return sum(1 << (bits - 1 - bit) for bit in range(bits) if number >> bit & 1)


def check_image_block(start: bytes) -> None:
    """Check the block that the RP2350's ROM reads: marker, image type, end, link, marker."""
    words = struct.unpack(f"<{len(start) // 4}I", start)
    first = words.index(0xFFFFDED3)
    kind, size, flags = (
        words[first + 1] & 0xFF,
        words[first + 1] >> 8 & 0xFF,
        words[first + 1] >> 16,
    )
    assert (kind, size) == (0x42, 1)
    executable, secure, arm, chip = flags & 15, flags >> 4 & 3, flags >> 8 & 7, flags >> 12 & 7
    assert (executable, secure, arm, chip) == (1, 2, 0, 1)
    assert words[first + 2] == 0xFF | size << 8
    assert words[first + 3] == 0
    assert words[first + 4] == 0xAB123579


_CODE = re.compile(
    r"^ +((?:0x[0-9a-f]{4}, )*0x[0-9a-f]{4}),\s+/\* (.*?)(?: {4,}.*)? \*/$", re.MULTILINE
)
_CONSTANT = re.compile(r"^ +(0x[0-9a-f]{8}), /\* (\w+).* \*/$", re.MULTILINE)


@pytest.mark.qemu
def test_the_second_stage_equals_its_assembled_comments(tmp_path: Path) -> None:
    template = files("smelt.templates").joinpath("emit/project/boot_rp2040.c").read_text("utf-8")
    code, constants = _CODE.findall(template), _CONSTANT.findall(template)
    assert (len(code), len(constants)) == (21, 5)
    lines = [".syntax unified", ".thumb", *(text for _, text in code), ".balign 4"]
    lines += [f"{name}: .word {value}" for value, name in constants]
    source, made, binary = (tmp_path / name for name in ("boot.s", "boot.o", "boot.bin"))
    source.write_text("\n".join([*lines, ""]))
    for command in (
        ["arm-none-eabi-as", "-mcpu=cortex-m0plus", str(source), "-o", str(made)],
        ["arm-none-eabi-objcopy", "-O", "binary", str(made), str(binary)],
    ):
        subprocess.run(command, check=True)
    halves = [int(half, 16) for values, _ in code for half in values.split(", ")]
    words = [int(value, 16) for value, _ in constants]
    assert binary.read_bytes() == struct.pack(f"<{len(halves)}H{len(words)}I", *halves, *words)


HEADERS = {
    "cortexm": "/usr/lib/arm-none-eabi/include",
    "riscv": "/usr/lib/picolibc/riscv64-unknown-elf/include",
}
"""Headers of the C libraries that clang uses, as it has none for these cores."""


@pytest.mark.quick(name=("nucleo-f446re",))
@pytest.mark.parametrize("name", boards.available())
def test_clang_compiles_the_firmware(name: str, tmp_path: Path) -> None:
    board = boards.load(name)
    headers = Path(HEADERS[board.startup])
    if shutil.which("clang") is None or not headers.exists():
        pytest.skip(f"clang or {headers} is not installed")
    platform = board.platform()
    write_project(tmp_path, platform)
    triple = "riscv32-unknown-elf" if board.startup == "riscv" else "arm-none-eabi"
    flags = [flag for flag in platform.target.arch_flags if not flag.startswith(_GCC_ONLY)]
    command = ["clang", f"--target={triple}", *flags, "-std=c99", "-Os", *WARNINGS]
    command += ["-isystem", str(headers), "-I.", "-Ifirmware", "-c"]
    sources = ["main.c", *Firmware(platform).sources]
    done = subprocess.run(
        [*command, *sources], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


_GCC_ONLY = ("-fno-if-conversion2", "-fno-tree-loop-vectorize", "-mfpu=auto")
