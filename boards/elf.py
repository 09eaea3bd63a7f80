"""Memory use of an ELF, and the network's share of it.

The network's share is computed from GNU ld's map. It includes the network's own objects and the
library members that they need, which are found through the map's cross reference table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from smelt.boards.firmware_bytes import Contents
from smelt.errors import ToolError


@dataclass(frozen=True)
class FlashUse:
    """Bytes of flash by kind; `data` is the initial image of variables."""

    text: int
    rodata: int
    data: int

    @property
    def total(self) -> int:
        """Return the sum of the three."""
        return self.text + self.rodata + self.data


@dataclass(frozen=True)
class ElfInfo:
    """A linked firmware.

    Attributes:
        path: path of the ELF.
        sections: bytes of each section that occupies memory at run time, by name.
        flash_elf: bytes of all loadable sections.
        flash_network: bytes of the network's objects and of the library members that they need,
            without startup code, wire protocol and main.
        contents: all bytes, as read after linking.
    """

    path: Path
    sections: Mapping[str, int]
    flash_elf: int
    flash_network: FlashUse
    contents: Contents = field(repr=False, compare=False)

    @property
    def ram(self) -> int:
        """Return the bytes of variables, including arena and state but not the stack."""
        kinds = (".data", ".bss", ".smelt_arena")
        return sum(size for name, size in self.sections.items() if name.startswith(kinds))


def measure(elf: Path, link_map: Path, network: Iterable[str]) -> ElfInfo:
    """Measure a linked firmware.

    Args:
        elf: the ELF.
        link_map: GNU ld's map, with its cross reference table (`--cref`).
        network: names of the network's objects in the map.

    Raises:
        ToolError: the ELF or the map cannot be read.
    """
    try:
        with elf.open("rb") as file:
            linked = ELFFile(file)
            allocated = _allocated(linked)
            contents = Contents.of(linked)
        text = link_map.read_text(encoding="utf-8", errors="replace")
    except (ELFError, OSError) as error:
        raise ToolError(f"the linker's output cannot be read: {error}") from error
    own = set(network)
    files = own | _libraries_of(text, own)
    return ElfInfo(
        path=elf,
        sections={name: size for name, size, _ in allocated},
        flash_elf=sum(size for _, size, kind in allocated if kind != "SHT_NOBITS"),
        flash_network=_use(text, files),
        contents=contents,
    )


def stored_bytes(path: Path) -> int:
    """Return the bytes that an ELF or object file stores: code, constants, initial values.

    Raises:
        ToolError: the file is neither.
    """
    try:
        with path.open("rb") as file:
            return sum(size for _, size, kind in _allocated(ELFFile(file)) if kind != "SHT_NOBITS")
    except (ELFError, OSError) as error:
        raise ToolError(f"the compiler's output cannot be read: {error}") from error


def pointed_functions(objects: Iterable[Path]) -> set[str]:
    """Return the names of the functions whose addresses some object files use as values.

    Raises:
        ToolError: one of the files is not an object file.
    """
    found: set[str] = set()
    try:
        for path in objects:
            with path.open("rb") as file:
                found.update(_pointed(ELFFile(file)))
    except (ELFError, OSError) as error:
        raise ToolError(f"the compiler's output cannot be read: {error}") from error
    return found


_BRANCHES = {"EM_ARM": (10, 30, 42, 51, 102, 103), "EM_RISCV": (16, 17, 18, 19, 44, 45)}
"""Relocations of calls and branches, and of tables for exceptions (42)."""


def _pointed(elf: ELFFile) -> Iterator[str]:
    """Yield the functions that relocations refer to, by symbol or by section, except branches."""
    table = elf.get_section_by_name(".symtab")
    if not isinstance(table, SymbolTableSection):
        return
    by_section: dict[object, list[str]] = {}
    for symbol in table.iter_symbols():
        if symbol["st_info"]["type"] == "STT_FUNC":
            by_section.setdefault(symbol["st_shndx"], []).append(str(symbol.name))
    for section in elf.iter_sections():
        if not isinstance(section, RelocationSection):
            continue
        if not elf.get_section(section["sh_info"])["sh_flags"] & SH_FLAGS.SHF_ALLOC:
            continue
        for relocation in section.iter_relocations():
            if relocation["r_info_type"] in _BRANCHES.get(elf["e_machine"], ()):
                continue
            symbol = table.get_symbol(relocation["r_info_sym"])
            if symbol["st_info"]["type"] == "STT_SECTION":
                yield from by_section.get(symbol["st_shndx"], [])
            else:
                yield str(symbol.name)


def _allocated(elf: ELFFile) -> list[tuple[str, int, str]]:
    """Return name, bytes and type of every section that occupies memory at run time."""
    return [
        (section.name, int(section["sh_size"]), section["sh_type"])
        for section in elf.iter_sections()
        if section["sh_flags"] & SH_FLAGS.SHF_ALLOC and section["sh_size"]
    ]


_CONTRIBUTION = re.compile(
    r"^ (\.[^\s]+)\s+0x[0-9a-f]+\s+0x([0-9a-f]+) ([^\n]+)$", flags=re.MULTILINE
)
_TEXT = (".text", ".ARM.exidx", ".ARM.extab")
_RODATA = (".rodata", ".srodata", ".smelt_weights")
_DATA = (".data", ".sdata")


def _use(link_map: str, files: set[str]) -> FlashUse:
    _, found, contributions = link_map.partition("Linker script and memory map")
    if not found:
        raise ToolError("the linker's map has no memory map: is this GNU ld?")
    kinds = {"text": 0, "rodata": 0, "data": 0}
    for section, size, file in _CONTRIBUTION.findall(contributions):
        if file not in files:
            continue
        if section.startswith(_TEXT):
            kinds["text"] += int(size, 16)
        elif section.startswith(_RODATA):
            kinds["rodata"] += int(size, 16)
        elif section.startswith(_DATA):
            kinds["data"] += int(size, 16)
    return FlashUse(**kinds)


def _libraries_of(link_map: str, files: set[str]) -> set[str]:
    """Return the archive members that `files` need, directly or indirectly."""
    _, found, table = link_map.partition("Cross Reference Table")
    if not found:
        raise ToolError("the linker's map has no cross reference table")
    needs: dict[str, set[str]] = {}
    definer = ""
    for line in table.splitlines()[3:]:
        if not line.strip():
            break
        if line.startswith(" "):
            needs.setdefault(line.strip(), set()).add(definer)
        else:
            definer = line.split(maxsplit=1)[1]
    reached: set[str] = set()
    frontier = list(files)
    while frontier:
        for file in needs.get(frontier.pop(), set()):
            if file.endswith(")") and file not in reached:  # "libc.a(memcpy.o)"
                reached.add(file)
                frontier.append(file)
    return reached
