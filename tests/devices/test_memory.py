"""Comparison of a device's memory with the build: every flipped bit is found and located."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile

from smelt.api.artifact import Artifact
from smelt.api.options import Options
from smelt.boards import Device, ElfInfo, open_device
from smelt.boards.device_info import Region
from smelt.boards.firmware_bytes import Contents, Section, Symbol
from smelt.codegen.emit import weights
from smelt.codegen.emit.network import stored_arrays
from smelt.errors import DeviceError, SmeltError, VerifyError
from smelt.proof.memory import ComparedMemory, compare_memory
from smelt.proof.rig import Rig, built
from smelt.proof.verify import verify_model
from smelt.samples import random_samples
from tests.devices.test_wire_line import FaultyStream, double_a_byte, drop_a_byte, flip_a_bit
from tests.support.graphs import compile_graph
from tests.support.projects import digits, unary_chain
from tests.support.vulkan_tools import ON_GPU, dense, requires_vulkan

MODELS = ("digits_int8", "digits_float32")
OTHER_REGIONS = (
    "other memory regions than this build has: .* or it is damaged.*"
    "`smelt deploy` or `smelt flash`.*--any-build"
)
BOARDS = [pytest.param(name, marks=pytest.mark.qemu) for name in ("mps2-an385", "virt-riscv32")]


def file_offset(elf: Path, run: int) -> int:
    """Return the position in the file of the byte that the program uses at address `run`."""
    with elf.open("rb") as file:
        for section in ELFFile(file).iter_sections():
            start, allocated = section["sh_addr"], section["sh_flags"] & SH_FLAGS.SHF_ALLOC
            if allocated and start <= run < start + section["sh_size"]:
                return section["sh_offset"] + run - start
    raise AssertionError(f"no section contains {run:#x}")


def flipped(elf: ElfInfo, run: int, bit: int, to: Path) -> Path:
    """Write a copy of the program to `to`, with one bit of the byte at address `run` flipped."""
    data = bytearray(elf.path.read_bytes())
    data[file_offset(elf.path, run)] ^= 1 << bit
    shutil.copy(elf.path, to)
    to.write_bytes(data)
    return to


@contextmanager
def running(artifact: Artifact, program: Path) -> Generator[Device]:
    hash_ = artifact.network.hash
    with open_device(program, artifact.on, artifact.board, expected_hash=hash_) as device:
        yield device


def compared(artifact: Artifact, elf: ElfInfo, program: Path) -> ComparedMemory:
    with running(artifact, program) as device:
        return compare_memory(artifact, elf, device, loaded=True)


def symbol_of(elf: ElfInfo, name: str) -> Symbol:
    (found,) = (s for s in elf.contents.symbols if s.name == name)
    return found


def read(program: Path) -> Contents:
    with program.open("rb") as file:
        return Contents.of(ELFFile(file))


@pytest.mark.quick(model=("digits_int8",))
@pytest.mark.parametrize("model", MODELS)
def test_a_flipped_bit_of_any_array_is_found_and_named(model: str, tmp_path: Path) -> None:
    """Flip a random bit of the first, the last and a random byte of every array."""
    artifact, chance = digits(model=model), random.Random(model)
    names = list(stored_arrays(artifact.network, artifact.schedule))
    assert len(names) > 6
    with built(artifact) as elf:
        assert compared(artifact, elf, elf.path).arrays == len(names)
        for name in names:
            array = symbol_of(elf, name)
            for place in {0, array.bytes - 1, chance.randrange(array.bytes)}:
                bit = chance.randrange(8)
                wrong = flipped(elf, array.run + place, bit, tmp_path / "wrong")
                with pytest.raises(VerifyError) as found:
                    compared(artifact, elf, wrong)
                assert f": byte {place:,} of array '{name}' (0x" in str(found.value)
                assert f"'{name}' is: {artifact.schedule.constant_comments[name]}" in str(
                    found.value
                )
                # If the file itself has the flipped bit, the comparison with the network finds it.
                changed = replace(elf, contents=read(wrong))
                with pytest.raises(VerifyError, match=f"^array '{name}' in the firmware"):
                    compared(artifact, changed, wrong)


@pytest.mark.quick(board=("mps2-an385",))
@pytest.mark.parametrize("board", BOARDS)
def test_flipped_bits_on_a_simulated_board_are_found(board: str, tmp_path: Path) -> None:
    """Flip bits of the first and last array, and of code."""
    artifact = digits(Options(board=board))
    names = list(stored_arrays(artifact.network, artifact.schedule))
    with built(artifact) as elf:
        assert compared(artifact, elf, elf.path).bytes > 20_000
        for name in (names[0], names[-1], f"{artifact.network.name}_invoke"):
            symbol = symbol_of(elf, name)
            wrong = flipped(elf, symbol.run + symbol.bytes - 1, 5, tmp_path / "wrong")
            kind = "function" if name.endswith("_invoke") else "array"
            place = rf"byte {symbol.bytes - 1:,} of {kind} '{name}'"
            with pytest.raises(VerifyError, match=place):
                compared(artifact, elf, wrong)


def test_a_flipped_bit_of_code_is_found(tmp_path: Path) -> None:
    """Flip random bits of the network's functions, which the device does not need to reply."""
    artifact, chance = digits(), random.Random(4)
    with built(artifact) as elf:
        functions = [
            s
            for s in elf.contents.symbols
            if s.is_function and s.name.startswith(artifact.network.name) and "init" not in s.name
        ]
        assert len(functions) > 5
        for symbol in functions:
            place = chance.randrange(symbol.bytes)
            wrong = flipped(elf, symbol.run + place, chance.randrange(8), tmp_path / "wrong")
            with pytest.raises((VerifyError, DeviceError)) as found:
                compared(artifact, elf, wrong)
            if isinstance(found.value, VerifyError):
                # The compiler stores equal functions once: they are one place with several names.
                names = [s.name for s in functions if s.run == symbol.run]
                assert any(f"function '{name}'" in str(found.value) for name in names)


@pytest.mark.slow
def test_random_flips_of_all_loaded_bytes_are_found(tmp_path: Path) -> None:
    """If the program does not start or reply because of a flipped bit, that is an error too."""
    artifact, chance = digits(), random.Random(5)
    with built(artifact) as elf:
        fixed = [section for section in elf.contents.sections if section.fixed]
        for _ in range(200):
            section = chance.choices(fixed, [len(s.data) for s in fixed])[0]
            run = section.run + chance.randrange(len(section.data))
            wrong = flipped(elf, run, chance.randrange(8), tmp_path / "wrong")
            with pytest.raises(SmeltError):
                compared(artifact, elf, wrong)


@pytest.mark.parametrize("model", MODELS)
def test_an_edit_before_compilation_is_found_and_named(model: str) -> None:
    artifact = digits(model=model)
    file = f"{artifact.network.name}_weights.c"
    text = artifact.project.files[file]
    assert isinstance(text, str)
    name = [*artifact.schedule.constants][-1]
    start = text.index("{", text.index(f" {name}["))
    number = re.compile(r"-?\d[\w.+-]*").search(text, start)
    assert number is not None
    edited = f"{text[: number.start()]}{1}{text[number.end() :]}"
    files = {**artifact.project.files, file: edited}
    wrong = replace(artifact, project=replace(artifact.project, files=files))
    with pytest.raises(VerifyError, match=rf"^array '{name}' .*; the first is element 0, bytes"):
        verify_model(wrong, random_samples(artifact.graph, 1, 0))


def test_changed_weights_in_a_binary_file_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "BINARY_FROM", 0)
    artifact = digits()
    assert verify_model(artifact, random_samples(artifact.graph, 1, 0)).memory.arrays > 10
    ((name, arrays),) = artifact.project.binaries.items()
    wrong = arrays[-1].copy()
    wrong.view(np.uint8)[-1] ^= 1
    project = replace(artifact.project, binaries={name: (*arrays[:-1], wrong)})
    last = [*artifact.schedule.constants][-1]
    with pytest.raises(VerifyError, match=f"^array '{last}' in the firmware differs"):
        verify_model(replace(artifact, project=project), random_samples(artifact.graph, 1, 0))


def test_a_network_without_constants_is_compared_too() -> None:
    artifact = compile_graph(unary_chain())
    memory = verify_model(artifact, random_samples(artifact.graph, 1, 0)).memory
    assert memory.arrays == 0
    assert memory.bytes > 5000


@requires_vulkan
def test_flipped_bits_of_shaders_are_found(tmp_path: Path) -> None:
    artifact = compile_graph(dense(), ON_GPU)
    names = list(stored_arrays(artifact.network, artifact.schedule))
    shaders = [name for name in names if "_spirv_" in name]
    assert shaders
    with built(artifact) as elf:
        assert compared(artifact, elf, elf.path).arrays == len(names)
        wrong = flipped(elf, symbol_of(elf, shaders[-1]).run + 40, 0, tmp_path / "wrong")
        changed = replace(elf, contents=read(wrong))
        with pytest.raises(VerifyError, match=f"^array '{shaders[-1]}' .*the first is element 10,"):
            compared(artifact, changed, elf.path)


@pytest.mark.parametrize("spoil", [flip_a_bit, drop_a_byte, double_a_byte])
def test_damaged_messages_are_repeated(
    spoil: Callable[[bytes, int], bytes], tmp_path: Path
) -> None:
    """A command to compute a CRC is damaged, and then a reply."""
    artifact = digits()
    name = next(iter(artifact.schedule.constants))
    with built(artifact) as elf:
        wrong = flipped(elf, symbol_of(elf, name).run, 3, tmp_path / "wrong")
        for program in (elf.path, wrong):
            with running(artifact, program) as device:
                FaultyStream(
                    device,
                    lambda number, data: spoil(data, len(data) - 2) if number == 1 else data,
                    lambda number, data: spoil(data, 0) if number == 500 else data,
                )
                if program == elf.path:
                    compare_memory(artifact, elf, device, loaded=True)
                else:
                    with pytest.raises(VerifyError, match=f"byte 0 of array '{name}'"):
                        compare_memory(artifact, elf, device, loaded=True)
                assert device.retries == 2


def test_progress_reaches_the_end() -> None:
    artifact = digits()
    seen: list[tuple[int, int]] = []

    def note(done: int, total: int) -> None:
        seen.append((done, total))

    with built(artifact) as elf, running(artifact, elf.path) as device:
        memory = compare_memory(artifact, elf, device, loaded=True, progress=note)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert {total for _, total in seen} == {memory.bytes}
    assert seen[-1][0] == memory.bytes


def test_another_build_is_refused_without_any_build() -> None:
    artifact = digits()
    with (
        built(artifact, trace=True) as other,
        built(artifact) as elf,
        running(artifact, other.path) as device,
    ):
        with pytest.raises(VerifyError, match=OTHER_REGIONS):
            compare_memory(artifact, elf, device, loaded=False)
        memory = compare_memory(artifact, elf, device, loaded=False, any_build=True)
        assert memory.bytes == 0
        assert str(memory).startswith("the device's memory was not compared (--any-build)")
        for any_build in (False, True):
            with pytest.raises(VerifyError, match="is outside the regions that the device"):
                compare_memory(artifact, elf, device, loaded=True, any_build=any_build)


def test_wrongly_reported_regions_are_refused() -> None:
    """The device reports no regions, or a flipped bit in an address or size of one."""
    artifact = digits()
    with built(artifact) as elf, running(artifact, elf.path) as device:
        right = device.info
        regions: list[tuple[Region, ...]] = [()]
        for index, region in enumerate(right.regions):
            needed = [s for s in elf.contents.sections if s.fixed and s.address >= region.address]
            if not any(s.end <= region.address + region.bytes for s in needed):
                continue  # no compared section is in this region
            for bit in (0, 3, 12, 31):
                for wrong in (
                    Region(region.address ^ 1 << bit, region.bytes),
                    Region(region.address, region.bytes ^ 1 << bit),
                ):
                    regions.append((*right.regions[:index], wrong, *right.regions[index + 1 :]))
        assert len(regions) > 8
        for reported in regions:
            device.__dict__["info"] = replace(right, regions=reported)
            with pytest.raises(VerifyError, match=OTHER_REGIONS):
                compare_memory(artifact, elf, device, loaded=False)
        device.__dict__["info"] = right
        assert compare_memory(artifact, elf, device, loaded=False).bytes > 20_000


@pytest.mark.parametrize(
    ("on", "flash", "loads"),
    [(None, False, True), ("/dev/x", False, False), ("/dev/x", True, True)],
)
def test_a_rig_loads_firmware_on_the_host_or_by_flashing(
    on: str | None, flash: bool, loads: bool
) -> None:
    assert Rig(on, (lambda _: None) if flash else None).loads(digits()) == loads


def contents() -> Contents:
    """Return a function at 0x100, an array in it, and a variable with initial value at 0x200."""
    sections = (
        Section(".text", 0x100, 0x100, bytes(range(16)), fixed=True),
        Section(".data", 0x200, 0x8000, bytes(4), fixed=True),
        Section(".got", 0x900, 0x900, bytes(4), fixed=False),
    )
    symbols = (
        Symbol("outer", 0x100, 12, is_function=True),
        Symbol("inner", 0x104, 4, is_function=False),
        Symbol("variable", 0x8000, 4, is_function=False),
    )
    return Contents(sections, symbols)


def test_bytes_are_located_by_symbol_or_section() -> None:
    it = contents()
    assert it.place(it.sections[0], 3)[1] == "byte 3 of function 'outer'"
    assert it.place(it.sections[0], 7)[1] == "byte 3 of array 'inner'"
    assert it.place(it.sections[0], 8)[1] == "byte 8 of function 'outer'"
    assert it.place(it.sections[0], 12) == (None, "byte 12 of section '.text'")
    assert it.place(it.sections[1], 1)[1] == "byte 1 of array 'variable'"
    assert it.array("inner") == bytes([4, 5, 6, 7])
    assert it.array("nothing") is None


def test_missing_returns_the_first_section_outside_all_regions() -> None:
    it = contents()
    text, data = it.sections[:2]
    assert it.missing([Region(0x100, 16), Region(0x200, 4)]) is None
    assert it.missing([Region(0, 0x1000)]) is text
    assert replace(it, segments=(Region(0, 0x1000),)).missing([Region(0, 0x1000)]) is None
    assert it.missing([Region(0x100, 17), Region(0x200, 4)]) is text
    assert it.missing([Region(0x100, 15), Region(0x200, 4)]) is text
    assert it.missing([Region(0x101, 15), Region(0x200, 4)]) is text
    assert it.missing([Region(0x100, 16), Region(0x200, 3)]) is data
