"""Tests of `smelt board`: new board files, and the report about a board file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from smelt import boards, targets
from tests.support.cli_runner import Smelt, runner
from tests.support.shared import ROOT


@pytest.fixture
def smelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Smelt:
    return runner(tmp_path, monkeypatch, capfd)


CORES = [target.name for target in targets.available() if target.cross]


@pytest.mark.parametrize("target", CORES)
def test_a_new_file_for_any_core_is_a_valid_board_file(smelt: Smelt, target: str) -> None:
    done = smelt("board", "new", "my-board", "--target", target)
    assert done.code == 0, done.err
    assert done.out.startswith("wrote my-board.toml: ")
    board = boards.load("my-board.toml")
    assert (board.name, board.target, board.verified) == ("my-board", target, "never")
    assert "CHANGE" in Path("my-board.toml").read_text()
    shown = smelt("board", "check", "my-board.toml").out
    assert re.search(rf"^target +{target} at 16 MHz", shown, flags=re.MULTILINE)
    assert "only --gdb HOST:PORT" in shown


@pytest.mark.quick(every=2)
@pytest.mark.qemu
@pytest.mark.parametrize("name", ["mps2-an386", "netduinoplus2"])
def test_a_copy_of_a_board_runs_a_network(smelt: Smelt, name: str) -> None:
    assert smelt("board", "new", "twin", "--like", name, "-o", "other.toml").code == 0
    twin, own = boards.load("other.toml"), boards.load(name)
    assert twin == own.model_copy(update={"name": "twin", "verified": "never"})
    model = ROOT / "examples/digits/digits_int8.tflite"
    done = smelt("verify", model, "--board", "other.toml", "--samples", "1")
    assert done.code == 0, done.err
    assert done.out.startswith(f"twin in QEMU ({name}): bit-exact, 1 sample; ")


@pytest.mark.quick(every=3)
@pytest.mark.parametrize("name", boards.available())
def test_every_board_can_be_copied_and_checked(smelt: Smelt, name: str) -> None:
    assert smelt("board", "new", "twin", "--like", name).code == 0
    assert smelt("board", "check", "twin.toml").out.split()[:2] == ["board", "twin:"]
    assert smelt("board", "check", name).code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["new", "x"], "give either --target TARGET or --like BOARD"),
        (["new", "x", "--target", "cortex-m4", "--like", "pico"], "give either --target"),
        (["new", "x", "--target", "cortex-m5"], "unknown target 'cortex-m5'"),
        (["new", "x", "--target", "nope"], "unknown target 'nope'. Known targets: "),
        (["new", "x", "--target", "host"], "target 'host' is not a microcontroller"),
        (["new", "x", "--like", "pica"], "did you mean 'pico'?"),
        (
            ["new", "My Board", "--target", "cortex-m4"],
            "'My Board' cannot be a board's name",
        ),
        (["new", "Bad/Name", "--like", "pico"], "'Bad/Name' cannot be a board's name"),
        (["check", "mps2"], "did you mean 'mps2-an385' or 'mps2-an386' or 'mps2-an500'"),
        (["check", "pico,microbit"], "`smelt verify --boards pico,microbit` to verify on several"),
        (
            ["new", "x", "--target", "cortex-m4", "-o", "x.txt"],
            "name of a board file must end in .toml",
        ),
        (["check", "none.toml"], "board file none.toml cannot be read"),
    ],
)
def test_mistakes_are_explained(smelt: Smelt, arguments: list[str], words: str) -> None:
    done = smelt("board", *arguments)
    assert done.code == 1
    assert words in done.err
    assert list(Path().iterdir()) == []


def test_a_file_is_replaced_only_with_force(smelt: Smelt) -> None:
    Path("x.toml").write_text("mine")
    done = smelt("board", "new", "x", "--target", "cortex-m4")
    assert (done.code, Path("x.toml").read_text()) == (1, "mine")
    assert "use --force to overwrite it" in done.err
    assert smelt("board", "new", "x", "--target", "cortex-m4", "--force").code == 0
    assert boards.load("x.toml").name == "x"
