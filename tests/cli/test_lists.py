"""Tests of options with several values: all commands accept commas and repeated options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperCommand, TyperGroup, TyperOption

from smelt.cli.app import app
from smelt.cli.list_options import dims, numbers, places, plugins, shapes, size, values, words
from smelt.cli.options import BuildGroup
from smelt.errors import ConfigError
from tests.support.cli_runner import Smelt, runner
from tests.support.tflite_networks import DIGITS

MODEL = str(DIGITS / "digits_int8.tflite")

WRONG_TOGETHER = {
    "--backends": ("c", "bogus", "no backend 'bogus'"),
    "--place": ("a=c", "a=c", "--place is given twice for 'a'"),
    "--place-tensor": ("a=m", "a=m", "--place-tensor is given twice for 'a'"),
    "--dim": ("a=1", "a=1..2", "--dim is given twice for 'a'"),
    "--shape": ("a=1,2", "a=3", "--shape is given twice for 'a'"),
    "--value": ("a=1,2", "a=true", "--value is given twice for 'a'"),
    "--allow": ("float", "bogus", "'bogus' is unknown; choose from float, int16"),
    "--mean": ("1", "bogus", "one per channel separated by commas"),
    "--std": ("1", "bogus", "one per channel separated by commas"),
    "--boards": ("host", "host", "a board is given twice with the same port"),
    "--plugin": ("good.py", "bogus.py", "plugin bogus.py"),
}
"""By option: two values, and the error message of both together in either order."""

NEEDED = {
    "--output": ("-o", "out"),
    "--format": ("--format", "cmake"),
    "--inputs": ("--inputs", "in.npz"),
    "--board": ("--board", "mps2-an386"),
}
"""Required options of commands; `--board` also where it is optional."""


@pytest.fixture
def smelt(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Smelt:
    (tmp_path / "good.py").write_text("")
    return runner(tmp_path, monkeypatch, capfd)


def commands(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, TyperCommand]]:
    """Yield each command of the tree with the words that call it."""
    if isinstance(command, TyperCommand):
        yield " ".join(path), command
    elif isinstance(command, TyperGroup):
        for name, child in command.commands.items():
            yield from commands(child, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


def options(command: TyperCommand) -> dict[str, TyperOption]:
    return {p.opts[-1]: p for p in command.params if isinstance(p, TyperOption)}


def list_options(command: TyperCommand) -> list[str]:
    return [name for name, option in options(command).items() if option.multiple]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_accepts_several_values_of_these_options(name: str) -> None:
    """Otherwise the last value would be used, and the others silently ignored."""
    known = options(COMMANDS[name])
    assert all(known[option].multiple for option in WRONG_TOGETHER if option in known)
    assert set(list_options(COMMANDS[name])) <= set(WRONG_TOGETHER), "add it to WRONG_TOGETHER"


@pytest.mark.quick(name=("build", "quantize", "verify"))
@pytest.mark.parametrize(
    "name", [name for name, command in COMMANDS.items() if list_options(command)]
)
def test_commas_and_repeated_options_are_equivalent(smelt: Smelt, name: str) -> None:
    command = COMMANDS[name]
    known = options(command)
    needed = [
        word
        for option, given in NEEDED.items()
        for word in given
        if option in known and (known[option].required or option == "--board")
    ]
    if name == "quantize":
        needed = ["--calibration", "none.npz"]
    elif name == "mlperf-tiny":
        needed = [*needed, "-o", "out"]
    ignored = ["--backends"] if name == "tune" else []  # its help says so
    for option in set(list_options(command)) - set(ignored):
        one, two, said = WRONG_TOGETHER[option]
        more = [] if option == "--boards" else needed  # `--boards` names the boards
        if option in ("--allow", "--mean", "--std") and "--quantize" in known:
            more = [*more, "--calibration", "none.npz", "--quantize", "int8"]
        for given in (
            (option, f"{one},{two}"),
            (option, two, option, one),
        ):
            ran = smelt(*name.split(), MODEL, *more, *given)
            assert ran.code == 1, (given, ran.out)
            assert said in " ".join(ran.err.split()), given


def test_values_of_lists() -> None:
    with pytest.raises(ConfigError, match=r"^--backends: 'a' is given twice"):
        words("--backends", ["a,b", "a"])
    assert words("--x", ["a,b", " c"]) == ("a", "b", "c")
    assert numbers("--x", ["1,2.5", "3"]) == (1.0, 2.5, 3.0)
    assert dims(["a=1,b=2..3", "c=4"]) == {"a": 1, "b": (2, 3), "c": 4}
    assert shapes(["a=1,3,8=2x2", "b=7"]) == {"a": (1, 3), "8": (2, 2), "b": (7,)}
    assert values(["a=0,2,b=true", "c=1e3"]) == {"a": (0.0, 2.0), "b": (1.0,), "c": (1000.0,)}
    both = {"conv,1": "c", "conv*": "dsp:dsp_dot_3x2", "x": "c"}
    assert places(["conv,1=c,conv*=dsp:dsp_dot_3x2", "x=c"]) == both
    assert plugins([Path("a,b.py"), Path("c.py,d.py")]) == tuple(
        map(Path, ("a,b.py", "c.py", "d.py"))
    )
    group = BuildGroup(backends=["cmsis_nn,dsp", "c"])
    assert group.build_options().backends == ("cmsis_nn", "dsp", "c")
    assert BuildGroup().build_options().backends is None


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (dims, "a=1,"), (dims, "a=1,b"), (dims, "=1"), (dims, "a"), (dims, f"a={'9' * 5000}"),
        (places, "a=c,b="), (places, ""), (shapes, "a=1,b=2x"), (values, "a=1,b=no"),
    ],
)  # fmt: skip
def test_texts_of_the_wrong_form_are_refused(read: object, text: str) -> None:
    assert callable(read)
    with pytest.raises(ConfigError, match=r"^--\w+ .*: give (a|an) "):
        read([text])


@pytest.mark.parametrize("option", ["arena", "flash", "stack", "instructions"])
def test_a_limit_below_zero_is_refused(smelt: Smelt, option: str) -> None:
    ran = smelt("build", MODEL, "-o", "out", f"--max-{option}", "-1")
    assert ran.code == 2
    assert f"--max-{option}" in ran.err


@pytest.mark.parametrize("option", ["--backends", "--place", "--boards"])
def test_an_empty_option_is_refused(smelt: Smelt, option: str) -> None:
    ran = smelt("verify", MODEL, option, "")
    assert ran.code == 1
    assert f"{option} is empty" in ran.err


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("20000", 20_000),
        ("12B", 12),
        ("32K", 2**15),
        ("32kb", 2**15),
        ("32KiB", 2**15),
        ("2M", 2**21),
    ],
)
def test_sizes_may_have_units(text: str, count: int) -> None:
    assert size("--max-ram", text) == count
