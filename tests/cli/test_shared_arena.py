"""Tests of `--share-arena`: several networks in one project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_cli import DRQ, FLOAT, MODEL, files, refused
from tests.support.cli_runner import Smelt
from tests.support.cli_runner import smelt as smelt


def test_several_networks_are_built_into_one_project(smelt: Smelt) -> None:
    build = ("build", MODEL, FLOAT, "--share-arena", "-o", "out")
    ran = smelt(*build, "--compile", "--name", "small,large")
    report = json.loads(Path("out/report.json").read_text())
    assert ran.code == 0
    assert [line.split()[0] for line in ran.out.splitlines()[-5:]] == [
        *("bytes", "small", "large", "together", "wrote"),
    ]
    total = report["arena"]["bytes"], report["weights"]["bytes"], report["flash"]["network"]
    together = next(line for line in ran.out.splitlines() if line.startswith("together"))
    assert together.split()[1:] == [*(f"{n:,}" for n in (total[0], 0, *total[1:]))]
    assert {"small_net.h", "large_net.h", "shared_arena.h"} <= set(report["files"])
    again = smelt("build", MODEL, "-o", "out", "--force", "--json")
    assert again.code == 0
    assert not Path("out/shared_arena.h").exists()


def test_json_is_the_report(smelt: Smelt) -> None:
    ran = smelt("build", DRQ, MODEL, "--share-arena", "-o", "out", "--json")
    assert ran.json == json.loads(Path("out/report.json").read_text())
    assert [one["network"]["name"] for one in ran.json["networks"]] == ["digits_drq", "digits_int8"]
    assert "note: digits_drq: " in ran.err or ran.err == ""


def test_limits_are_for_all_networks(smelt: Smelt) -> None:
    build = ("build", MODEL, FLOAT, "--share-arena", "-o", "out", "--target", "cortex-m4")
    refused(smelt(*build, "--max-arena", "1000"), "DoesNotFit", "arena: ", "the limit is 1,000")
    refused(smelt(*build, "--max-ram", "100"), "DoesNotFit", "memory 'arena' has 100 bytes")


def test_wrong_calls_write_nothing(smelt: Smelt) -> None:
    two, out = ("build", MODEL, FLOAT), ("-o", "out")
    refused(smelt(*two, *out), "ConfigError", "2 models are given: add --share-arena")
    shared = (*two, "--share-arena", *out)
    refused(smelt(*shared, "--name", "a"), "ConfigError", "give as many names as models (2)")
    refused(smelt(*shared, "--name", "a,a"), "ConfigError", "--name: 'a' is given twice")
    mlperf = smelt(*shared, "--board", "mps2-an386", "--protocol", "mlperf")
    refused(mlperf, "ConfigError", "is for one network: remove --share-arena")
    alone = smelt("build", MODEL, "--share-arena", *out)
    refused(alone, "ConfigError", "sharing an arena needs at least two networks")
    same = smelt("build", MODEL, MODEL, "--share-arena", *out)
    refused(same, "ConfigError", "would have the prefix DIGITS_INT8_NET in C", "--name A,B")


def test_verify_checks_each_network_and_their_turns(smelt: Smelt) -> None:
    two = ("verify", MODEL, FLOAT, "--samples", "2")
    ran = smelt(*two, "--share-arena", "--json", "v.json")
    verification = json.loads(Path("v.json").read_text())["verification"]
    assert ran.code == 0
    assert ran.out.startswith("this computer: digits_int8: bit-exact, 2 samples; ")
    assert ran.out.endswith("; taking turns: the same outputs in 4 inferences\n")
    assert (verification["passed"], verification["interleaved"]) == (True, 4)
    Path("v.json").unlink()
    refused(smelt(*two), "ConfigError", "2 models are given: add --share-arena")
    for option in (("--html", "v.html"), ("--inputs", "x.npz"), ("--meter", "x")):
        ran = smelt(*two, "--share-arena", *option)
        refused(ran, "ConfigError", f"{option[0]} is for one network")
    ran = smelt(*two, "--share-arena", "--jobs", "2")
    refused(ran, "ConfigError", "--share-arena cannot be combined with --boards, --jobs")


@pytest.mark.qemu
def test_a_project_of_several_networks_is_flashed_and_simulated(smelt: Smelt) -> None:
    board = ("--board", "mps2-an386")
    build = smelt("build", MODEL, FLOAT, "--share-arena", "-o", "out", *board, "--compile")
    assert "deepest stack" not in build.out
    assert "firmware: " in build.out
    flashed = smelt("flash", "out", *board, "--gdb", "localhost:1", "--dry-run")
    assert "out/build/digits_int8_digits_float32.elf" in flashed.out
    simulated = smelt("simulate", "out", "--seconds", "0")
    assert simulated.out.startswith("port ")
    assert files() == ["out"]


@pytest.mark.qemu
def test_networks_of_a_project_are_profiled_and_deployed(smelt: Smelt) -> None:
    two, board = (MODEL, FLOAT, "--share-arena"), ("--board", "mps2-an386")
    ran = smelt("profile", *two, *board, "--json")
    alone = smelt("profile", FLOAT, *board, "--json")
    counts = [one["inference"]["instructions"] for one in ran.json["networks"]]
    assert ran.json["inference"]["instructions"] == max(counts)
    together, separately = (
        [one["profile"]["instructions"], *(layer["instructions"] for layer in one["layers"])]
        for one in (ran.json["networks"][1], alone.json)
    )
    assert together == separately
    assert smelt("profile", *two, *board).out.count("instructions") >= 2
    deployed = smelt("deploy", *two, *board, "--simulate", "--samples", "1")
    assert deployed.out.endswith("; taking turns: the same outputs in 2 inferences\n")


def test_commands_for_one_network_say_what_to_do(smelt: Smelt) -> None:
    two = (MODEL, FLOAT)
    refused(smelt("profile", *two), "ConfigError", "2 models are given: add --share-arena")
    refused(smelt("deploy", *two), "ConfigError", "2 models are given: add --share-arena")
    shared = (*two, "--share-arena")
    refused(smelt("profile", *shared), "ConfigError", "--share-arena need instruction counts")
    board = ("--board", "mps2-an386")
    ran = smelt("profile", *shared, *board, "--html", "p.html")
    refused(ran, "ConfigError", "--html is for one network")
    ran = smelt("deploy", *shared, *board, "--simulate", "--layers")
    refused(ran, "ConfigError", "--layers is for one network")
    for models in (two, shared):
        ran = smelt("export", *models, "--format", "cmake", "-o", "out")
        refused(ran, "ConfigError", "export each network to a folder of its own")
