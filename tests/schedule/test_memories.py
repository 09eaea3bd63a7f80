"""Tests of which memory of a board stores which tensors, states and weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from smelt.api.artifact import Artifact
from smelt.api.compile import Compiled
from smelt.api.options import Options
from smelt.api.shared_arena import share_arena
from smelt.cli.show.verify import html
from smelt.codegen.arena.assign import wait_cycles
from smelt.codegen.schedule.replay import _Replay, replay  # pyright: ignore[reportPrivateUsage]
from smelt.codegen.schedule.schedule import Schedule
from smelt.codegen.schedule.steps import BandedSegment, InBuffer, Move, RowsMove
from smelt.codegen.schedule.traffic import Traffic
from smelt.errors import ConfigError, DoesNotFit
from smelt.ir import Array
from tests.segments.test_replay import in_random_segments, network
from tests.support.banded_networks import RandomNetwork
from tests.support.graphs import compile_graph
from tests.support.memory_tools import with_room
from tests.support.projects import counter, digits

M55, M7 = "mps3-an547", "mps2-an500"
FAST = {M55: "dtcm", M7: "ssram23"}
SLOW = {M55: "isram", M7: "psram"}


def homes(artifact: Artifact) -> dict[str, str]:
    """Return the memory of each buffer and constant."""
    memories = {m.name: artifact.stored.contents(m.name) for m in artifact.platform.memories}
    return {array.name: home for home, arrays in memories.items() for array in arrays}


def waits(artifact: Artifact) -> int:
    report: dict[str, Any] = {**artifact.report}
    return sum(memory["wait_cycles"] for memory in report["memories"])


# --- bytes moved ---------------------------------------------------------------------------------


def replayed(schedule: Schedule, artifact: Artifact) -> Counter[str]:
    """Return the bytes that the replay reads and writes in each buffer, twice for scratch."""
    moved: Counter[str] = Counter()
    original = _Replay._bytes  # pyright: ignore[reportPrivateUsage]

    def counted(self: _Replay, buffer: str, start: int, count: int) -> Array:
        moved[buffer] += 2 * count if buffer.startswith("step") else count
        return original(self, buffer, start, count)

    with patch.object(_Replay, "_bytes", counted):
        replay(schedule, artifact.plan)
    for value in (*schedule.graph.inputs, *schedule.graph.outputs):  # what the caller moves
        moved[schedule.storage[value]] -= value.type.bytes
    return +moved


@pytest.mark.parametrize("seed", range(6))
def test_the_replay_moves_as_many_bytes(seed: int) -> None:
    """The replay also executes moves from an address to itself, which the C code leaves out."""
    artifact = in_random_segments(network(seed), Options("cortex-m4"), seed)
    plan, schedule = artifact.plan, artifact.schedule
    expected = replayed(schedule, artifact)
    for source, start, target, to, count in moves(schedule):
        if plan[source].offset + start == plan[target].offset + to:
            expected[source] -= count
            expected[target] -= count
    assert +Traffic(schedule, plan).buffers == +expected


def moves(schedule: Schedule) -> Iterator[tuple[str, int, str, int, int]]:
    """Yield the source, target, and bytes in all, of each move of tensors and rows."""
    for action in schedule.actions:
        if isinstance(action, Move) and isinstance(action.source, InBuffer):
            yield action.source.buffer, 0, action.target.buffer, 0, action.bytes
        if isinstance(action, BandedSegment):
            for a in action.actions:
                if isinstance(a, RowsMove):
                    yield a.source, a.start, a.target, a.to, len(a.turns) * a.bytes


def test_constants_of_a_segment_are_read_in_every_turn() -> None:
    graph = RandomNetwork(0).chain(4)
    whole = compile_graph(graph, Options("cortex-m4"))
    banded = compile_graph(graph, Options("cortex-m4", optimize="ram"))
    assert banded.schedule.segments
    for artifact, least in ((whole, 1), (banded, 2)):
        moved = Traffic(artifact.schedule, artifact.plan).constants
        for name, array in artifact.schedule.constants.items():
            assert moved[name] % array.nbytes == 0
            assert moved[name] >= least * array.nbytes


def test_states_are_written_back() -> None:
    artifact = compile_graph(counter(), Options("cortex-m4"))
    moved = Traffic(artifact.schedule, artifact.plan).buffers
    assert moved == {"x": 16, "total": 32, "after": 64, "y": 16}


# --- where arrays are stored ---------------------------------------------------------------------


@pytest.mark.parametrize("board", [M55, M7])
def test_what_fits_is_in_the_fastest_memory(board: str) -> None:
    artifact = digits(Options(board=board))
    assert artifact.stored.arenas == {"arena": FAST[board]}
    assert waits(artifact) == 0
    alone = digits(Options(target=artifact.platform.target.name))
    own = (*artifact.network.headers, *artifact.network.sources)
    for name in own:
        assert artifact.project.files[name] == alone.project.files[name]


def test_a_board_with_one_memory_for_each_part_has_one_arena() -> None:
    artifact = digits(Options(board="mps2-an386"))
    assert artifact.stored.arenas == {"arena": "ssram23"}
    assert set(artifact.stored.constants.values()) == {"ssram1"}
    assert artifact.network.memories == "arena"


@pytest.mark.parametrize("board", [M55, M7])
def test_a_smaller_fast_memory_costs_wait_cycles(tmp_path: Path, board: str) -> None:
    found: list[int] = []
    for room in (0, 256, 512, 768, 1024, 1 << 17):
        file = with_room(tmp_path, board, **{FAST[board]: room})
        artifact = digits(Options(board=file))
        found.append(waits(artifact))
        for name, home in artifact.stored.arenas.items():
            if home == FAST[board]:
                assert artifact.plan.use(name).bytes <= room
    assert found == sorted(found, reverse=True)
    assert found[0] > found[2] > found[-1] == 0


def test_busy_arrays_are_in_the_fast_memory(tmp_path: Path) -> None:
    """Weights that are read as often as they are large compete with each other only by size."""
    artifact = digits(Options(board=with_room(tmp_path, M55, dtcm=512, itcm=2048)))
    where = homes(artifact)
    assert {*where.values()} == {"itcm", "sram", "dtcm", "isram"}
    report: dict[str, Any] = {**artifact.report}
    for memory in report["memories"]:
        assert memory["moved"] == sum(array["moved"] for array in memory["contents"])
        assert memory["wait_cycles"] == sum(
            wait_cycles(array["moved"], memory["wait_states"]) for array in memory["contents"]
        )
    itcm = next(memory for memory in report["memories"] if memory["name"] == "itcm")
    assert 1024 < itcm["weights"] <= 2048


@pytest.mark.parametrize("seed", range(4))
def test_bands_in_several_memories_pass_the_replay(tmp_path: Path, seed: int) -> None:
    """`compile` replays the schedule with the final plan."""
    options = Options(board=with_room(tmp_path, M55, dtcm=256))
    artifact = in_random_segments(network(seed), options, seed)
    assert artifact.schedule.segments
    assert set(artifact.stored.arenas.values()) == {"dtcm", "isram"}


@pytest.mark.parametrize("options", [{"optimize": "ram"}, {"max_ram": 4096}])
def test_the_smallest_arena_is_one_arena(tmp_path: Path, options: dict[str, Any]) -> None:
    file = with_room(tmp_path, M55, dtcm=512)
    artifact = digits(Options(board=file, **options))
    assert artifact.stored.arenas == {"arena": "isram"}
    fits = digits(Options(board=M55, **options))
    assert fits.stored.arenas == {"arena": "dtcm"}


def test_networks_that_share_an_arena_are_in_one_memory() -> None:
    """Each is compiled for itself first, and would use the fast memory."""
    two = [digits(Options(board=M55, name=name)) for name in ("one", "two")]
    shared = share_arena([Compiled(**vars(one)) for one in two])
    for one in shared.networks:
        assert one.stored.arenas == {"arena": "isram"}
        assert set(one.stored.constants.values()) == {"sram"}
    script = shared.project.files["firmware/mps3-an547.ld"]
    assert 'REGION_ALIAS("ARENA", "isram")' in script


def test_pages_show_each_memory_and_arena(tmp_path: Path) -> None:
    artifact = digits(Options(board=with_room(tmp_path, M55, dtcm=768)))
    judged = {"verification": {"passed": True, "message": "equal"}}
    page = html({**artifact.report, **judged})
    assert page.count("<svg") == page.count("</svg>") == 2
    for memory in ("dtcm", "isram"):
        assert f"The arena in memory {memory} during an inference" in page
        assert f"<td>{memory}</td>" in page
    assert "wait cycles" not in html({**digits(Options(board="mps2-an386")).report, **judged})


# --- pins ----------------------------------------------------------------------------------------

RELU = "digits_1/stem_relu_1/Relu"


def test_a_tensor_and_weights_are_pinned() -> None:
    pins = {RELU: "isram", f"{RELU}:weights": "sram"}
    artifact = digits(Options(board=M55, place_tensor=pins))
    where = homes(artifact)
    assert where[RELU] == "isram"
    step = next(call for call in artifact.schedule.calls if call.node.name == RELU)
    read = [argument.constant for argument in step.arguments if hasattr(argument, "constant")]
    names = {name for name, home in where.items() if home in ("isram", "sram")}
    assert names == {RELU, *(name for name in read if name in where)}
    assert artifact.network.memories == "arena, arena_dtcm"
    assert artifact.network.weights_homes == ("sram",) or artifact.network.weights_homes == (
        "itcm",
    )


def test_patterns_pin_several_tensors() -> None:
    artifact = digits(Options(board=M7, place_tensor={"*": "psram"}))
    assert artifact.stored.arenas == {"arena": "psram"}


def test_bands_are_pinned_by_the_names_of_their_tensors() -> None:
    """The arena stays in one piece with `ram`, so that only the message shows what was found."""
    with pytest.raises(ConfigError, match="remove --max-ram or --optimize ram"):
        digits(Options(board=M55, optimize="ram", place_tensor={RELU: "dtcm"}))


def test_states_are_pinned() -> None:
    artifact = compile_graph(counter(), Options(board=M7, place_tensor={"total": "psram"}))
    assert artifact.stored.state == "psram"
    assert artifact.stored.arenas == {"arena": "ssram23"}
    assert artifact.network.state_home == "psram"


@pytest.mark.parametrize(
    ("options", "pins", "message"),
    [
        ({"board": M55}, {"stem": "dtcm"}, "no tensor has this name; there are '"),
        ({"board": M55}, {"stem:weights": "itcm"}, "no layer with weights has this name"),
        ({"board": M55}, {RELU: "psram"}, "no memory 'psram' that may hold tensors; give dtcm or"),
        ({"board": M55}, {RELU: "itcm"}, "no memory 'itcm' that may hold tensors"),
        ({"board": M55}, {f"{RELU}:weights": "dtcm"}, "may hold weights; give itcm or sram"),
        ({"board": "mps2-an386"}, {RELU: "psram"}, "may hold tensors; give ssram23"),
        ({"target": "cortex-m4"}, {RELU: "dtcm"}, "needs a --board"),
        ({"board": M55}, {RELU: "dtcm", "*Relu": "isram"}, "is also placed in 'dtcm'"),
        ({"board": M55, "max_ram": 4096}, {RELU: "dtcm"}, "remove --max-ram or --optimize ram"),
        ({"board": M55, "spread": False}, {RELU: "dtcm"}, "remove --share-arena"),
    ],
)
def test_wrong_pins_are_explained(
    options: dict[str, Any], pins: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        digits(Options(**options, place_tensor=pins))


def test_pins_that_do_not_fit_are_explained(tmp_path: Path) -> None:
    file = with_room(tmp_path, M55, dtcm=512)
    with pytest.raises(DoesNotFit, match=r"pinned to memory 'dtcm' .* the 512 bytes") as caught:
        digits(Options(board=file, place_tensor={RELU: "dtcm"}))
    assert (caught.value.needed, caught.value.available) == (1024, 512)
