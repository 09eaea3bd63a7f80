"""Contents of a linked firmware, and the first byte of a device's memory that differs from it.

Addresses are load addresses. For the initial values of variables, they differ from the run-time
addresses that the program uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

from elftools.elf.constants import P_FLAGS, SH_FLAGS
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from smelt.boards.device_info import Region
from smelt.boards.wire import Device

_PIECE = 16384
"""Bytes per CRC request: a slow device needs a fraction of a second for it."""


@dataclass(frozen=True)
class Section:
    """Bytes of a section that is loaded before the program runs.

    Attributes:
        name: name of the ELF's section.
        address: load address.
        run: run-time address.
        data: the bytes.
        fixed: whether the bytes at `address` stay unchanged while the program runs.
    """

    name: str
    address: int
    run: int
    data: bytes
    fixed: bool

    @property
    def end(self) -> int:
        """Return the address after the last byte."""
        return self.address + len(self.data)


@dataclass(frozen=True)
class Symbol:
    """A function or an array, at its run-time address."""

    name: str
    run: int
    bytes: int
    is_function: bool


@dataclass(frozen=True, repr=False)
class Contents:
    """Contents of a firmware.

    Attributes:
        sections: sections sorted by address.
        symbols: symbols with a size.
        segments: loaded segments that the program does not write.
        little_endian: whether numbers are little-endian.
    """

    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    segments: tuple[Region, ...] = ()
    little_endian: bool = True

    @classmethod
    def of(cls, elf: ELFFile) -> Contents:
        """Read the contents of an open, linked ELF."""
        sections = sorted(_sections(elf), key=lambda section: section.address)
        segments = (
            Region(int(s["p_vaddr"]), int(s["p_filesz"]))
            for s in elf.iter_segments("PT_LOAD")
            if not s["p_flags"] & P_FLAGS.PF_W
        )
        symbols, order = tuple(_symbols(elf)), bool(elf.little_endian)
        return cls(tuple(sections), symbols, tuple(segments), order)

    def array(self, name: str) -> bytes | None:
        """Return the bytes of a symbol, or None if there is none of that name."""
        symbol = self._by_name.get(name)
        if symbol is None:
            return None
        for section in self.sections:
            start = symbol.run - section.run
            if start >= 0 and start + symbol.bytes <= len(section.data):
                return section.data[start : start + symbol.bytes]
        return None

    def word(self, address: int) -> int | None:
        """Return the four bytes at a run-time address as a number, or None outside all sections."""
        for section in self.sections:
            start = address - section.run
            if 0 <= start <= len(section.data) - 4:
                order = "little" if self.little_endian else "big"
                return int.from_bytes(section.data[start : start + 4], order)
        return None

    def words_at(self, address: int) -> tuple[int, ...]:
        """Return the words of the array that contains a run-time address; none outside arrays."""
        for symbol in self.symbols:
            if not symbol.is_function and symbol.run <= address < symbol.run + symbol.bytes:
                places = range(symbol.run, symbol.run + symbol.bytes - 3, 4)
                return tuple(word for word in map(self.word, places) if word is not None)
        return ()

    def missing(self, regions: Iterable[Region]) -> Section | None:
        """Return the first fixed section that none of the build's own regions contains, or None."""
        own = [region for region in regions if self._has(region)]
        return next((s for s in self.sections if s.fixed and _region(s, own) is None), None)

    def _has(self, region: Region) -> bool:
        """Return whether a region equals a segment, or begins and ends with sections."""
        end = region.address + region.bytes
        held = [s for s in self.sections if region.address <= s.address and s.end <= end]
        limits = (min(s.address for s in held), max(s.end for s in held)) if held else (0, 0)
        return region in self.segments or limits == (region.address, end)

    def place(self, section: Section, offset: int) -> tuple[Symbol | None, str]:
        """Return the symbol that contains a byte of a section, and a description of the byte."""
        run = section.run + offset
        within = (
            s for s in self.symbols if s.run <= run < s.run + s.bytes and section.run <= s.run
        )
        symbol = min(within, key=lambda s: s.bytes, default=None)
        if symbol is None:
            return None, f"byte {offset:,} of section '{section.name}'"
        kind = "function" if symbol.is_function else "array"
        return symbol, f"byte {run - symbol.run:,} of {kind} '{symbol.name}'"

    @cached_property
    def _by_name(self) -> dict[str, Symbol]:
        return {symbol.name: symbol for symbol in self.symbols}


@dataclass(frozen=True)
class Altered:
    """A byte of a device's memory that differs from the build.

    Attributes:
        address: address of the byte.
        place: description of the byte's location.
        symbol: name of the symbol that contains it, or empty.
        built: expected value.
        found: value on the device; equal to `built` if the device gives varying replies.
    """

    address: int
    place: str
    symbol: str
    built: int
    found: int

    def __str__(self) -> str:
        where = f"{self.place} ({self.address:#010x} as linked)"
        if self.found == self.built:
            return f"{where} changes from one read to the next"
        return f"{where} is {self.found:#04x}, not {self.built:#04x}"


def first_altered(
    device: Device, contents: Contents, progress: Callable[[int, int], None]
) -> Altered | None:
    """Return the first byte of a device's fixed memory that differs from the build, or None.

    Args:
        device: device whose regions contain all fixed sections.
        contents: contents of the firmware.
        progress: called with the number of bytes compared so far, and the total.

    Raises:
        DeviceError: the serial line fails too often.
    """
    fixed = [section for section in contents.sections if section.fixed]
    total, done = sum(len(section.data) for section in fixed), 0
    for section in fixed:
        index = _region(section, device.info.regions)
        assert index is not None
        base = section.address - device.info.regions[index].address
        for start in range(0, len(section.data), _PIECE):
            piece = section.data[start : start + _PIECE]
            if device.crc(index, base + start, len(piece)) != crc32(piece):
                offset = start + _first_difference(device, index, base + start, piece)
                return _altered(device, contents, section, offset, (index, base + offset))
            done += len(piece)
            progress(done, total)
    return None


def _first_difference(device: Device, region: int, base: int, data: bytes) -> int:
    """Return the offset of the first byte that differs, by bisection."""
    start, end = 0, len(data)
    while end - start > 1:
        middle = (start + end) // 2
        same = device.crc(region, base + start, middle - start) == crc32(data[start:middle])
        start, end = (middle, end) if same else (start, middle)
    return start


def _altered(
    device: Device, contents: Contents, section: Section, offset: int, at: tuple[int, int]
) -> Altered:
    crc = device.crc(*at, 1)
    found = next((byte for byte in range(256) if crc32(bytes([byte])) == crc), section.data[offset])
    symbol, place = contents.place(section, offset)
    name = "" if symbol is None else symbol.name
    return Altered(section.address + offset, place, name, section.data[offset], found)


def _region(section: Section, regions: Iterable[Region]) -> int | None:
    """Return the index of the region that contains a section, or None."""
    for index, region in enumerate(regions):
        if region.address <= section.address and section.end <= region.address + region.bytes:
            return index
    return None


def _sections(elf: ELFFile) -> Iterator[Section]:
    segments = [s for s in elf.iter_segments("PT_LOAD") if s["p_filesz"]]
    for section in elf.iter_sections():
        if not section["sh_flags"] & SH_FLAGS.SHF_ALLOC or section["sh_type"] == "SHT_NOBITS":
            continue
        run, size = int(section["sh_addr"]), int(section["sh_size"])
        for segment in segments:
            start = int(segment["p_vaddr"])
            if size and start <= run and run + size <= start + int(segment["p_filesz"]):
                load = run - start + int(segment["p_paddr"])
                fixed = load != run or not segment["p_flags"] & P_FLAGS.PF_W
                yield Section(section.name, load, run, bytes(section.data()), fixed)
                break


def _symbols(elf: ELFFile) -> Iterator[Symbol]:
    table = elf.get_section_by_name(".symtab")
    if not isinstance(table, SymbolTableSection):
        return
    thumb = elf["e_machine"] == "EM_ARM"
    for symbol in table.iter_symbols():
        kind = symbol["st_info"]["type"]
        if kind in ("STT_FUNC", "STT_OBJECT") and symbol["st_size"]:
            is_function = kind == "STT_FUNC"
            run = int(symbol["st_value"]) & (~1 if thumb and is_function else ~0)
            yield Symbol(str(symbol.name), run, int(symbol["st_size"]), is_function)
