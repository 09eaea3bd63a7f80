"""UF2, Intel HEX and flat binaries of ELFs, compared with independent parsers and objcopy."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.api.options import Options
from smelt.boards.flash import Image
from smelt.boards.flash.image import Segment
from smelt.boards.flash.uf2 import uf2
from smelt.errors import ToolError
from smelt.proof.rig import built
from tests.support.flash_tools import Memory, memory_of, read_hex, read_uf2, write_elf
from tests.support.projects import digits

FAMILY = 0xE48B_FF56


@st.composite
def layouts(draw: st.DrawFn) -> dict[int, bytes]:
    """Draw a few segments, with and without gaps, near addresses where the upper 16 bits change."""
    address = draw(st.sampled_from([0, 0x1000_0000, 0x0800_FF00, 0x1FFF_FFE0]))
    segments: dict[int, bytes] = {}
    for size in draw(st.lists(st.integers(1, 700), min_size=1, max_size=4)):
        address += draw(st.sampled_from([0, 1, 15, 16, 100, 256, 5000, 70_000]))
        segments[address] = bytes((address + i * 7) % 251 for i in range(size))
        address += size
    return segments


def image_of(segments: dict[int, bytes]) -> Image:
    return Image(tuple(Segment(address, data) for address, data in segments.items()))


@given(layouts())
def test_uf2_stores_the_segments(segments: dict[int, bytes]) -> None:
    blocks = read_uf2(uf2(image_of(segments), FAMILY))
    addresses = [block.address for block in blocks]
    assert addresses == sorted(set(addresses))
    assert all(address % 256 == 0 for address in addresses)
    assert {block.family for block in blocks} == {FAMILY}
    assert max(addresses) == max(memory_of(segments)) // 256 * 256
    stored = memory_of({block.address: block.data for block in blocks})
    expected = memory_of(segments)
    assert stored == dict.fromkeys(stored, 0xFF) | expected
    sectors = {address // 4096 for address in expected}
    assert set(addresses) == {
        page
        for sector in sectors
        for page in range(sector * 4096, sector * 4096 + 4096, 256)
        if page <= max(expected)
    }


@given(layouts())
def test_hex_stores_the_segments_and_nothing_else(segments: dict[int, bytes]) -> None:
    assert read_hex(image_of(segments).intel_hex()) == memory_of(segments)


@given(layouts())
def test_a_binary_contains_all_bytes_from_first_to_last_address(segments: dict[int, bytes]) -> None:
    image = image_of(segments)
    expected = memory_of(segments)
    assert image.address == min(expected)
    assert image.binary() == bytes(
        expected.get(address, 0xFF) for address in range(min(expected), max(expected) + 1)
    )


def test_segments_are_read_at_their_load_addresses(tmp_path: Path) -> None:
    segments = {0x0800_0100: b"later", 0x0800_0000: b"vectors"}
    image = Image.of(write_elf(tmp_path / "a.elf", segments))
    assert memory_of({s.address: s.data for s in image.segments}) == memory_of(segments)
    assert image.address == 0x0800_0000


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ({}, "no segment to load"),
        ({0x100: b"first", 0x103: b"second"}, "two segments overlap at 0x00000103"),
    ],
)
def test_elfs_without_or_with_overlapping_segments_are_refused(
    tmp_path: Path, segments: dict[int, bytes], message: str
) -> None:
    with pytest.raises(ToolError, match=message):
        Image.of(write_elf(tmp_path / "a.elf", segments))


def test_a_file_that_is_no_elf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.elf").write_text("not an ELF")
    with pytest.raises(ToolError, match=r"a\.elf cannot be read as an ELF"):
        Image.of(tmp_path / "a.elf")


def test_a_binary_that_would_span_two_memories_is_refused() -> None:
    image = image_of({0x0800_0000: b"flash", 0x2000_0000: b"ram"})
    with pytest.raises(ToolError, match="the second is at 0x20000000"):
        image.binary()


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["pico", "mps2-an386"])
def test_binary_and_hex_of_firmware_agree_with_objcopy(board: str, tmp_path: Path) -> None:
    with built(digits(Options(board=board))) as elf:
        image = Image.of(elf.path)
        for form, name in (("binary", "bin"), ("ihex", "hex")):
            command = ["arm-none-eabi-objcopy", "-O", form, str(elf.path)]
            subprocess.run([*command, str(tmp_path / name)], check=True)
    assert image.binary() == (tmp_path / "bin").read_bytes()
    # Gaps between sections of a segment are zeros from the linker, which objcopy omits.
    stored: Memory = read_hex((tmp_path / "hex").read_bytes())
    assert read_hex(image.intel_hex()).items() >= stored.items()
