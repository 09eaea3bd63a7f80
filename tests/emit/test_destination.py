"""`--force`: the files of the earlier build are replaced, and no other file is changed."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smelt.codegen.emit import destination
from smelt.errors import ConfigError
from smelt.proof.run import write_project
from tests.support.cli_runner import Smelt, runner
from tests.support.projects import digits
from tests.support.shared import Network
from tests.support.tflite_networks import DIGITS

MODEL = DIGITS / "digits_int8.tflite"
COMMANDS = {
    "build": ("build",),
    "export": ("export", "--format", "make"),
    "mlperf-tiny": ("mlperf-tiny", "--board", "mps2-an386"),
}


@pytest.fixture
def smelt(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Smelt:
    return runner(tmp_path, monkeypatch, capfd)


def report_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())


def files_of(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir())


def test_the_report_lists_what_was_written(tmp_path: Path) -> None:
    report = write_project(digits(), tmp_path / "out", compile_=True)
    assert report["files"] == report_of(tmp_path / "out")["files"] == files_of(tmp_path / "out")
    assert "report.json" in report["files"]


def add_user_files(out: Path) -> Callable[[], None]:
    """Add files of a user to a build's folder; return a function that asserts that they exist."""
    (out / ".git/objects").mkdir(parents=True)
    (out / ".git/objects/ab").write_text("object")
    (out / ".git/objects/ab").chmod(0o444)
    (out / "empty/below").mkdir(parents=True)
    (out / "app").mkdir()
    (out / "app/main.cpp").write_text("int main() {}")
    (out / "app/link").symlink_to("main.cpp")
    (out / "app/away").symlink_to("/nowhere")
    (out / "build").mkdir(exist_ok=True)
    (out / "build/mine.o").write_text("object")
    out.chmod(0o700)

    def check() -> None:
        assert (out / ".git/objects/ab").read_text() == "object"
        assert (out / ".git/objects/ab").stat().st_mode & 0o777 == 0o444
        assert (out / "empty/below").is_dir()
        assert (out / "app/main.cpp").read_text() == "int main() {}"
        assert (out / "app/link").readlink() == Path("main.cpp")
        assert (out / "app/away").readlink() == Path("/nowhere")
        assert (out / "build/mine.o").read_text() == "object"
        assert out.stat().st_mode & 0o777 == 0o700

    check()
    return check


def without_renameat2(_name: None) -> object:
    return object()


def called_data(path: Path) -> bool:
    return path.name == "data"


def refuse(*_args: object, **_options: object) -> None:
    raise PermissionError(1, "not permitted")


@pytest.mark.parametrize("linked", [True, False], ids=["linked", "copied"])
@pytest.mark.parametrize("exchanged", [True, False], ids=["exchanged", "renamed"])
def test_files_of_the_user_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool, exchanged: bool
) -> None:
    out = tmp_path / "out"
    write_project(digits(), out)
    check = add_user_files(out)
    (out / "digits_int8_net.c").write_text("edited")
    report = report_of(out)
    report["files"].append("gone.c")
    (out / "report.json").write_text(json.dumps(report))
    (out / "gone.c").write_text("of the earlier build")
    if not linked:
        monkeypatch.setattr(os, "link", refuse)
    if not exchanged:
        monkeypatch.setattr(ctypes, "CDLL", without_renameat2)
    write_project(digits(), out, force=True)
    check()
    assert not (out / "gone.c").exists()
    assert "edited" not in (out / "digits_int8_net.c").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.quick(command=("build", "export"))
@pytest.mark.parametrize(
    "command", ["build", "export", pytest.param("mlperf-tiny", marks=pytest.mark.qemu)]
)
def test_every_command_keeps_files_of_the_user(smelt: Smelt, tmp_path: Path, command: str) -> None:
    name, *options = COMMANDS[command]
    model = Network("mlperf_tiny", "ad_int8").model if name == "mlperf-tiny" else MODEL
    assert smelt(name, model, *options, "-o", "out").code == 0
    check = add_user_files(tmp_path / "out")
    again = smelt(name, model, *options, "-o", "out")
    assert again.code == 1
    assert "--force replaces the files of the earlier build" in again.err
    done = smelt(name, model, *options, "-o", "out", "--force")
    assert done.code == 0, done.err
    check()


def test_compiled_files_replace_those_of_make(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_project(digits(), out)
    (out / "build").mkdir()
    library = out / "build/libdigits_int8_net.a"
    library.write_text("older")
    (out / "build/notes").write_text("mine")
    write_project(digits(), out, force=True, compile_=True)
    assert library.read_bytes()[:7] == b"!<arch>"
    assert (out / "build/notes").read_text() == "mine"


@pytest.mark.parametrize("below", ["", "/x.c"], ids=["file", "folder"])
def test_a_user_file_named_like_a_new_file_is_not_replaced(tmp_path: Path, below: str) -> None:
    out = tmp_path / "out"
    write_project(digits(), out)
    report = report_of(out)
    report["files"].remove("digits_int8_net.c")
    (out / "report.json").write_text(json.dumps(report))
    mine = out / f"digits_int8_net.c{below}"
    if below:
        mine.parent.unlink()
        mine.parent.mkdir()
    mine.write_text("mine")
    before = files_of(out)
    with pytest.raises(ConfigError, match=r"digits_int8_net\.c' was not written by the earlier bu"):
        write_project(digits(), out, force=True)
    assert mine.read_text() == "mine"
    assert files_of(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "",
        "\0",
        "[" * 100_000,
        '{"smelt": "1", "coverage": 80}',
        '"smelt network arena"',
    ],
    ids=["empty", "list", "nothing", "NUL", "deep", "other", "text"],
)
def test_a_folder_with_a_foreign_report_is_refused(tmp_path: Path, text: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.json").write_text(text)
    (out / "thesis.tex").write_text("years of work")
    for force in (False, True):
        with pytest.raises(ConfigError, match="was not written by Smelt"):
            write_project(digits(), out, force=force)
    assert files_of(tmp_path) == ["out/report.json", "out/thesis.tex"]


def test_a_build_without_list_of_files_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_project(digits(), out)
    report = report_of(out)
    del report["files"]
    (out / "report.json").write_text(json.dumps(report))
    with pytest.raises(ConfigError, match=r"does not list the files.*remove the folder"):
        write_project(digits(), out, force=True)
    assert report_of(out) == report


@pytest.mark.parametrize("where", [".", "..", "../.."])
def test_the_current_folder_and_its_parents_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    out = tmp_path / "out"
    write_project(digits(), out)
    (out / "a/b").mkdir(parents=True)
    monkeypatch.chdir(out / "a/b" if where == "../.." else out / "a" if where == ".." else out)
    with pytest.raises(ConfigError, match="is the current folder or contains it"):
        write_project(digits(), Path(where), force=True)
    assert (out / "report.json").is_file()


def test_the_error_of_the_python_api_names_force(tmp_path: Path) -> None:
    artifact = digits()
    artifact.write(tmp_path / "out")
    with pytest.raises(ConfigError, match="not empty; force=True replaces the files"):
        artifact.write(tmp_path / "out")
    artifact.write(tmp_path / "out", force=True)


def test_the_command_refuses_before_it_compiles(smelt: Smelt, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("")
    done = smelt("build", "missing.tflite", "-o", "out")
    assert "was not written by Smelt" in done.err


@pytest.mark.parametrize("exchanged", [True, False], ids=["exchanged", "renamed"])
def test_an_interrupted_exchange_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanged: bool
) -> None:
    out = tmp_path / "out"
    write_project(digits(), out)
    check, before = add_user_files(out), files_of(out)
    rename = Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        if target == out:
            monkeypatch.setattr(Path, "rename", rename)
            raise KeyboardInterrupt
        return rename(path, target)

    if exchanged:
        monkeypatch.setattr(destination, "_exchange", interrupt)
    else:
        monkeypatch.setattr(ctypes, "CDLL", without_renameat2)
        monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_project(digits(), out, force=True)
    check()
    assert files_of(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def interrupt(*_folders: Path) -> bool:
    raise KeyboardInterrupt


def test_a_mount_point_in_the_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removing the earlier project would delete the files of the mounted file system."""
    out = tmp_path / "out"
    write_project(digits(), out)
    (out / "data").mkdir()
    (out / "data/set.npz").write_text("mine")
    monkeypatch.setattr(Path, "is_mount", called_data)
    with pytest.raises(ConfigError, match="data' is a mount point"):
        write_project(digits(), out, force=True)
    assert (out / "data/set.npz").read_text() == "mine"


def test_a_bind_mount_in_the_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write_project(digits(), out)
    (out / "data").mkdir()
    (out / "data/set.npz").write_text("mine")
    monkeypatch.setattr(destination, "_mount_points", lambda: frozenset({str(out / "data")}))
    with pytest.raises(ConfigError, match="data' is a mount point"):
        write_project(digits(), out, force=True)
    assert (out / "data/set.npz").read_text() == "mine"


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_created_during_compilation_is_not_replaced(tmp_path: Path, force: bool) -> None:
    out = tmp_path / "out"

    def meanwhile(_staging: Path) -> dict[str, object]:
        out.mkdir()
        (out / "notes.txt").write_text("mine")
        return {}

    with pytest.raises(ConfigError, match="is not empty and was not written by Smelt"):
        digits().project.write(out, force=force, finish=meanwhile)
    assert (out / "notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_files_created_at_the_last_moment_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write_project(digits(), out)
    exchange = destination._exchange  # pyright: ignore[reportPrivateUsage]

    def late(one: Path, other: Path) -> bool:
        (out / "late").mkdir()
        (out / "late/notes.txt").write_text("mine")
        return exchange(one, other)

    monkeypatch.setattr(destination, "_exchange", late)
    write_project(digits(), out, force=True)
    assert (out / "late/notes.txt").read_text() == "mine"
