"""Several networks in one project and one arena: what they share, and what they do not."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import smelt
from smelt.api.compile import Compiled, compile_model
from smelt.api.options import Options
from smelt.api.report import BuildLimits
from smelt.api.shared_arena import SharedArena, share_arena
from smelt.boards import compile_project, open_device
from smelt.errors import ConfigError, DeviceError, DoesNotFit, ToolError, VerifyError
from smelt.frontend import Imported, load
from smelt.ir import Graph
from smelt.proof.run import infer
from smelt.proof.shared_arena import verify_shared, write_shared
from smelt.samples import Sample, random_samples
from tests.frontend.tflite.test_lstm import LAYERS
from tests.schedule.test_lengths import DENSE, parse
from tests.support.projects import SANITIZERS, counter, must, unary_chain
from tests.support.tflite_networks import DIGITS

GCC = ("gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion")
M4 = Options(board="mps2-an386")


def lstm() -> Graph:
    """Return an int8 LSTM, whose states are kept from one inference to the next."""
    return load(LAYERS["plain"].file(np.int8), "lstm").graph


def networks(options: Options | None = None) -> list[Compiled]:
    """Return the example's network without state, and two with state."""
    digits = compile_model(DIGITS / "digits_int8.tflite", options)
    return [digits, *(compile_model(Imported(g), options) for g in (counter(), lstm()))]


def samples_of(shared: SharedArena, count: int = 3) -> list[list[Sample]]:
    return [random_samples(one.graph, count, 0) for one in shared.networks]


# --- what they share, and what they do not -------------------------------------------------------


def test_the_arena_is_as_large_as_the_largest_and_states_are_apart() -> None:
    alone = networks()
    shared = share_arena(alone)
    report, header = shared.report, shared.project.files["shared_arena.h"]
    arenas, states = (
        [n.network.arena_bytes for n in alone],
        [n.network.state_bytes for n in alone],
    )
    assert report["arena"]["bytes"] == max(arenas) < sum(arenas)
    assert report["state"]["bytes"] == sum(states)
    assert states[0] == 0 < min(states[1:])
    assert f"#define SHARED_ARENA_BYTES ({max(arenas)})" in header
    assert "States are not in the arena. No other network changes them." in header
    assert [n["arena"]["bytes"] for n in report["networks"]] == arenas
    assert report["weights"]["bytes"] == sum(n["weights"]["bytes"] for n in report["networks"])
    assert report["network"]["name"] == "digits_int8_counter_lstm"


def test_each_network_keeps_its_own_files() -> None:
    """The C interface of a network, and its hash, are the same as in a project of its own."""
    alone = networks()
    files = share_arena(alone).project.files
    for one in alone:
        own = one.project.files_of(one.network).texts
        assert {name: files[name] for name in own} == own
        assert len(own) == 5


def test_the_project_is_reproducible(tmp_path: Path) -> None:
    for name in "ab":
        share_arena(networks()).write(tmp_path / name)
    paths = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*"))
    assert sorted(p.relative_to(tmp_path / "b") for p in (tmp_path / "b").rglob("*")) == paths
    for path in (p for p in paths if (tmp_path / "a" / p).is_file()):
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes()


@pytest.mark.parametrize("board", ["host", "mps2-an386"])
def test_a_shared_arena_compiles_without_a_warning(board: str, tmp_path: Path) -> None:
    """Also with a network that has a size known at run time, and with the step callback."""
    options = Options(board=board, target="cortex-m4")
    more = compile_model(Imported(parse(DENSE)), options)
    share_arena([*networks(options), more]).write(tmp_path / "project")
    sources = [*(tmp_path / "project").glob("*.c"), tmp_path / "project/firmware/wire.c"]
    for defines in ((), ("-DSMELT_STEP_CALLBACK",)):
        for source in sources:
            includes = (f"-I{tmp_path}/project", f"-I{tmp_path}/project/firmware")
            must(*GCC, *defines, *includes, "-c", str(source), "-o", "/dev/null")


def test_a_header_of_another_build_is_noticed(tmp_path: Path) -> None:
    """A network that was built again, and needs more than the arena has, does not compile."""
    share_arena(networks()).write(tmp_path / "project")
    path = tmp_path / "project/counter_net.h"
    path.write_text(path.read_text().replace("ARENA_BYTES (", "ARENA_BYTES (1000000 + "))
    with pytest.raises(AssertionError, match=r"counter_net\.h is from another build than this"):
        must("gcc", "-fsyntax-only", str(tmp_path / "project/shared_arena.h"))


@pytest.mark.parametrize("options", [Options(board="host"), Options()], ids=["host", "library"])
def test_cmake_builds_it(options: Options, tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    share_arena(networks(options)).write(tmp_path / "project")
    for command in (["-B", "build"], ["--build", "build", "-j2"]):
        must("cmake", *command, cwd=tmp_path / "project")
    built = tmp_path / "project/build"
    assert (built / "libdigits_int8_counter_lstm_net.a").is_file()
    assert (built / "digits_int8_counter_lstm.elf").is_file() == (options.board is not None)


# --- inferences ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [Options(), pytest.param(M4, marks=pytest.mark.qemu)], ids=["host", "m4"]
)
def test_states_and_results_hold_while_networks_take_turns(options: Options) -> None:
    shared = share_arena(networks(options))
    verdict = verify_shared(shared, samples_of(shared))
    assert [v.samples for v in verdict.verdicts] == [3, 3, 3]
    assert str(verdict).endswith("taking turns: the same outputs in 9 inferences")
    assert verdict.report["verification"]["passed"]
    assert all(n["verification"]["passed"] for n in verdict.report["networks"])
    assert verdict.report["flash"]["network"] > 0
    assert (verdict.report["ram"]["variables"] is None) == (options.board is None)


def test_it_is_clean_under_sanitizers(tmp_path: Path) -> None:
    shared = share_arena(networks(Options(board="host")))
    shared.write(tmp_path / "project")
    platform = shared.networks[0].platform
    folder = tmp_path / "project"
    elf = compile_project(folder, platform, extra_cflags=SANITIZERS, extra_ldflags=SANITIZERS)
    alone = [one.run({"input_0": np.stack([s[0] for s in own])}) for one, own in pairs(shared)]
    with open_device(elf.path, "host") as device:
        for index in range(3):
            for (one, own), expected in zip(pairs(shared), alone, strict=True):
                device.check_hash(one.network.hash)
                (found, *_), _ = infer(device, one.graph, own[index])
                assert np.array_equal(found, expected["output_0"][index])
        with pytest.raises(DeviceError, match="cannot select network 0123: No network has"):
            device.check_hash("0123")
        assert device.command("help")[0] == "smelt network HASH"


def pairs(shared: SharedArena) -> list[tuple[Compiled, list[Sample]]]:
    return list(zip(shared.networks, samples_of(shared), strict=True))


def with_main(shared: SharedArena, old: str, new: str) -> SharedArena:
    """Return networks with another `main.c`."""
    main = shared.project.files["main.c"]
    assert old in main
    files = {**shared.project.files, "main.c": main.replace(old, new)}
    project = replace(shared.project, files=files)
    return SharedArena(tuple(replace(one, project=project) for one in shared.networks))


def test_a_state_that_another_network_overwrites_is_found() -> None:
    shared = share_arena(networks(Options(board="host")))
    place = "arena + COUNTER_NET_ARENA_BYTES + GUARD_BYTES"
    wrong = with_main(shared, "{ arena, counter_net_model_state }", f"{{ arena, {place} }}")
    wrong = with_main(wrong, "static uint8_t counter_net_model_state", "uint8_t unused")
    with pytest.raises(VerifyError, match=r"network 'counter', sample 0: output 'y' changes if"):
        verify_shared(wrong, samples_of(wrong))


def test_an_arena_that_is_too_small_is_found() -> None:
    """The guard of each network is behind its own part of the arena."""
    shared = share_arena(networks(Options(board="host")))
    guard = "fill_guard(arena + COUNTER_NET_ARENA_BYTES"
    wrong = with_main(shared, guard, f"{guard} - 16")
    wrong = with_main(wrong, "whole(arena + COUNTER_NET_ARENA_BYTES", "whole(arena")
    with pytest.raises(DeviceError, match="the inference wrote beyond the end of its arena"):
        verify_shared(wrong, samples_of(wrong))


# --- planning ------------------------------------------------------------------------------------


def cycles(one: Compiled) -> int:
    return sum(step.cycles or 0 for step in one.schedule.calls)


def test_a_small_network_is_not_slowed_down_for_memory_that_is_there() -> None:
    options = Options("cortex-m4", optimize="ram")
    alone = [compile_model(DIGITS / f"digits_{n}.tflite", options) for n in ("int8", "float32")]
    together = share_arena(alone)
    small, large = together.networks
    assert alone[0].network.arena_bytes < small.network.arena_bytes <= large.network.arena_bytes
    assert large.network == alone[1].network
    assert cycles(small) < cycles(alone[0])
    assert together.report["arena"]["bytes"] == alone[1].network.arena_bytes


def test_a_limit_includes_the_states_of_the_others() -> None:
    fastest = compile_model(DIGITS / "digits_int8.tflite", Options("cortex-m4")).network
    limit = Options("cortex-m4", max_ram=fastest.arena_bytes)
    alone = networks(limit)
    states = sum(one.network.state_bytes for one in alone)
    report = share_arena(alone).report
    assert alone[0].network.arena_bytes == fastest.arena_bytes
    assert report["arena"]["bytes"] + states <= fastest.arena_bytes
    assert report["notes"][0].startswith("digits_int8: the preferred kernels need an arena of")


def test_a_limit_that_is_too_small_beside_the_states_is_named() -> None:
    smallest = compile_model(DIGITS / "digits_int8.tflite", Options("cortex-m4", optimize="ram"))
    limit = smallest.network.arena_bytes
    with pytest.raises(DoesNotFit, match=rf"'digits_int8', for which --max-ram {limit} leaves"):
        share_arena(networks(Options("cortex-m4", max_ram=limit)))


# --- reports and limits --------------------------------------------------------------------------


@pytest.mark.qemu
def test_limits_hold_for_totals_and_for_each_inference(tmp_path: Path) -> None:
    shared = share_arena(networks(M4))
    run = BuildLimits(instructions=10**9)
    report = write_shared(shared, tmp_path / "out", compile_=True, limits=run)
    each = [one["flash"]["network"] for one in report["networks"]]
    counts = [one["inference"]["instructions"] for one in report["networks"]]
    assert max(each) < report["flash"]["network"] <= sum(each)
    assert report["inference"]["instructions"] == max(counts) > min(counts)
    assert report["inference"]["stack"] == max(n["inference"]["stack"] for n in report["networks"])
    assert report["ram"]["variables"] >= report["arena"]["bytes"] + report["state"]["bytes"]
    for limits, message in (
        (BuildLimits(arena=100), "arena: .* bytes, the limit is 100"),
        (BuildLimits(flash=1000), "flash: .* bytes, the limit is 1,000"),
        # Interrupts of the timer make counts of different runs differ a little.
        (BuildLimits(instructions=1000), f"inference: {max(counts) // 1000:,},... instructions"),
    ):
        with pytest.raises(DoesNotFit, match=message):
            write_shared(shared, tmp_path / "other", limits=limits)
    assert not (tmp_path / "other").exists()


@pytest.mark.qemu
def test_a_library_is_measured_for_each_network(tmp_path: Path) -> None:
    shared = share_arena(networks(Options("cortex-m4")))
    report = write_shared(shared, tmp_path / "out", compile_=True)
    each = [one["flash"]["network"] for one in report["networks"]]
    assert report["flash"]["network"] == sum(each)
    assert min(each) > 0


# --- errors --------------------------------------------------------------------------------------


def wrong_groups() -> Sequence[tuple[list[Compiled], str]]:
    plain, named = compile_model(Imported(unary_chain())), Imported(counter())
    upper = compile_model(named, Options(name="CHAIN"))
    other = compile_model(named, Options("cortex-m0"))
    size = compile_model(named, Options(optimize="size"))
    board = compile_model(named, Options(board="host"))
    return (
        ([], "at least two networks"),
        ([plain], "at least two networks"),
        ([plain, plain], "'chain' and 'chain', would have the prefix CHAIN_NET in C"),
        ([plain, upper], "'chain' and 'CHAIN', would have the prefix CHAIN_NET in C"),
        ([plain, other], "the same target, but 'chain' has host and 'counter' has cortex-m0"),
        ([plain, size], "the same --optimize, but 'chain' has speed and 'counter' has size"),
        ([plain, board], "the same board, but 'chain' has none and 'counter' has host"),
    )


def test_networks_that_do_not_fit_together_are_refused() -> None:
    for group, message in wrong_groups():
        with pytest.raises(ConfigError, match=message):
            share_arena(group)


def test_a_network_on_a_gpu_is_refused() -> None:
    options = Options("vulkan", backends=("vulkan", "c"))
    try:
        group = [compile_model(Imported(g()), options) for g in (unary_chain, counter)]
    except ToolError:
        pytest.skip("no shader compiler")
    with pytest.raises(ConfigError, match="'chain' runs on an accelerator"):
        share_arena(group)


def test_wrong_arguments_are_refused() -> None:
    for given in (3, "ab", [3, 4]):
        with pytest.raises(ConfigError, match="networks must be a sequence of results of smelt"):
            smelt.share_arena(given)  # pyright: ignore[reportArgumentType]
