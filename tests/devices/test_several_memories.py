"""Networks with tensors and weights in several memories of simulated boards."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.boards import Board
from smelt.proof.rig import built
from smelt.proof.verify import verify_model
from smelt.samples import random_samples
from tests.support.board_tools import simulable
from tests.support.graphs import compile_graph
from tests.support.memory_tools import with_room
from tests.support.projects import counter, digits, images, must
from tests.support.shared import Network

M55, M7 = "mps3-an547", "mps2-an500"
FAST = {M55: "dtcm", M7: "ssram23"}
SLOW = {M55: "isram", M7: "psram"}


def assert_stored(artifact: Artifact) -> None:
    """Check that the symbols of all arrays lie in the memories that the compiler chose."""
    stored, platform = artifact.stored, artifact.platform
    expected = {**stored.arenas, **stored.constants}
    if stored.state is not None:
        expected["state"] = stored.state
    ranges = {m.name: range(m.origin, m.origin + m.size) for m in platform.memories}
    with built(artifact) as elf, elf.path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection)
        objects = [s for s in table.iter_symbols() if s["st_info"]["type"] == "STT_OBJECT"]
        found = {s.name: range(s["st_value"], s["st_value"] + s["st_size"]) for s in objects}
    assert expected.keys() <= found.keys()
    for name, memory in expected.items():
        assert found[name].start in ranges[memory], name
        assert found[name].stop <= ranges[memory].stop, name


def assert_exact(artifact: Artifact, model: Network | None = None) -> None:
    """Check code, constants and outputs of the simulated board."""
    assert isinstance(artifact.machine, Board)
    simulable(artifact.machine)
    if model is None:
        samples = random_samples(artifact.imported.graph, 3, 1)
        verify_model(artifact, samples)
        return
    golden = model.golden
    samples = [(sample,) for sample in golden["input_0"][:2]]
    verify_model(artifact, samples, expected=[(out,) for out in golden["tflm_0"][:2]])


@pytest.mark.qemu
@pytest.mark.parametrize("board", [M55, M7])
def test_the_example_in_two_memories_computes_the_same(tmp_path: Path, board: str) -> None:
    artifact = digits(Options(board=with_room(tmp_path, board, **{FAST[board]: 768})))
    assert artifact.stored.arenas == {"arena": SLOW[board], f"arena_{FAST[board]}": FAST[board]}
    inputs, outputs = images(2)
    assert_stored(artifact)
    verify_model(artifact, [(one,) for one in inputs], expected=[(one,) for one in outputs])


@pytest.mark.qemu
@pytest.mark.parametrize("name", ["kws_int8", pytest.param("vww_int8", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("board", [M55, M7])
def test_a_network_in_two_memories_computes_the_same(tmp_path: Path, board: str, name: str) -> None:
    """On M55, weights are in two memories too."""
    network = Network("mlperf_tiny", name)
    rooms = {FAST[board]: 9_000, **({"itcm": 16_384} if board == M55 else {})}
    options = Options(board=with_room(tmp_path, board, **rooms))
    artifact = compile_model(network.model, options)
    assert len(artifact.stored.arenas) == 2
    assert len(set(artifact.stored.constants.values())) == (2 if board == M55 else 1)
    assert_stored(artifact)
    assert_exact(artifact, network)


@pytest.mark.qemu
@pytest.mark.parametrize("board", [M55, M7])
def test_states_may_be_in_a_memory_of_their_own(board: str) -> None:
    options = Options(board=board, place_tensor={"total": SLOW[board]})
    artifact = compile_graph(counter(), options)
    assert (artifact.stored.state, artifact.stored.arenas) == (SLOW[board], {"arena": FAST[board]})
    assert_stored(artifact)
    assert_exact(artifact)


@pytest.mark.qemu
def test_weights_of_a_binary_file_are_in_two_memories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smelt.codegen.emit.weights.BINARY_FROM", 1)
    artifact = digits(Options(board=with_room(tmp_path, M55, itcm=2048)))
    assert artifact.network.weights_binary
    assert set(artifact.stored.constants.values()) == {"itcm", "sram"}
    assert_stored(artifact)
    assert_exact(artifact)


@pytest.mark.qemu
def test_cmake_places_weights_like_make(tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("not on PATH: cmake")
    artifact = digits(Options(board=with_room(tmp_path, M55, itcm=2048, dtcm=768)))
    project = tmp_path / "project"
    artifact.write(project)
    must("cmake", "-B", "build-cmake", cwd=project)
    must("cmake", "--build", "build-cmake", cwd=project)
    must("make", cwd=project)
    by_cmake, by_make = (
        subprocess.run(
            ["arm-none-eabi-nm", str(project / folder / "digits_int8.elf")],
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()
        for folder in ("build-cmake", "build")
    )  # fmt: skip
    arrays = [line for line in by_make if "_weights" in line or " arena" in line]
    assert len(arrays) > 4
    assert {line[:4] + line[8:] for line in arrays} <= {line[:4] + line[8:] for line in by_cmake}
