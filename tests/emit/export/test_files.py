"""Files of exports, and refused options; other tests build the exported folders."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smelt.api.options import Options
from smelt.codegen.emit import weights
from smelt.codegen.emit.export import Package, formats
from smelt.errors import ConfigError
from tests.support.cli_runner import Smelt, runner
from tests.support.export_tools import export, project
from tests.support.projects import digits
from tests.support.tflite_networks import DIGITS

MODEL = DIGITS / "digits_int8.tflite"
FORMATS = ("arduino", "cmake", "cmsis-pack", "make", "platformio", "single-file", "zephyr")
EACH = pytest.mark.parametrize("format_", FORMATS)


@pytest.fixture
def smelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Smelt:
    return runner(tmp_path, monkeypatch, capfd)


def contents(folder: Path) -> dict[str, str]:
    """Return digests of all files by path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def test_all_formats_are_tested() -> None:
    assert tuple(formats()) == FORMATS


@EACH
def test_exports_are_reproducible_and_have_no_firmware(format_: str, tmp_path: Path) -> None:
    """The network's files equal those of `build`."""
    for folder in ("a", "b"):
        export(digits(Options(board="mps2-an386")), format_, tmp_path / folder)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    artifact = digits(Options(board="mps2-an386"))
    written = [path for path in (tmp_path / "a").rglob("*") if path.is_file()]
    names = {path.name for path in written}
    assert {"README.md", "digits_int8_net.h", "report.json"} <= names
    assert not names & {"wire.c", "port.h", "board.c", "startup_cortexm.c"}
    for path in written:
        own = artifact.project.files.get(path.name)
        if format_ != "single-file" and path.name.startswith("digits_int8") and own is not None:
            assert path.read_text() == own


@pytest.mark.quick(every=3)
@EACH
def test_readmes_are_complete(format_: str, tmp_path: Path) -> None:
    """They contain license, memory and what was checked, and no remains of a template."""
    for options in (Options(), Options(target="cortex-m4"), Options(target="cortex-m55")):
        exported = project(digits(options), format_)
        text = exported.files["README.md"]
        assert "MIT-0" in text
        assert (
            f"| {digits(options).network.arena_bytes:,} (proved smallest for this schedule) |"
            in text
        )
        assert re.search("## What was checked\n\n.*Smelt's tests .*not\\s+built", text, re.DOTALL)
        assert not re.search(r"[{}]{2}|\{%|%\}|@[A-Z]+@|\n\n\n", text)


@pytest.mark.parametrize("version", ["1", "1.2", "1.2.3.4", "v1.2.3", "1.02.3", "1.2.3-rc", ""])
def test_invalid_versions_are_refused(version: str) -> None:
    with pytest.raises(ConfigError, match=r"--version .*: give three numbers, for example 1\.2\.0"):
        Package(version)


@pytest.mark.parametrize("vendor", ["", "two words", "-a", "a.b", "é"])
def test_invalid_vendors_are_refused(vendor: str) -> None:
    with pytest.raises(ConfigError, match=r"--vendor .*: give one word"):
        Package(vendor=vendor)


def test_export_replaces_files_only_with_force(smelt: Smelt, tmp_path: Path) -> None:
    done = smelt("export", MODEL, "--format", "make", "-o", "lib", "--target", "cortex-m4")
    assert done.code == 0
    assert done.out.startswith("wrote lib: ")
    report = json.loads((tmp_path / "lib/report.json").read_text())
    assert report["export"] == {"format": "make", "version": "1.0.0", "vendor": "Smelt"}
    again = smelt("export", MODEL, "--format", "cmake", "-o", "lib")
    assert again.code == 1
    assert "--force replaces the files" in again.err
    assert (tmp_path / "lib/digits_int8_net.mk").is_file()
    assert smelt("export", MODEL, "--format", "cmake", "-o", "lib", "--force", "-q").out == ""
    assert not (tmp_path / "lib/digits_int8_net.mk").exists()
    named = smelt("export", MODEL, "--format", "single-file", "-o", "one", "--name", "net")
    assert named.code == 0
    assert (tmp_path / "one/net_net.h").is_file()


def test_export_quantizes_a_float_network(smelt: Smelt, tmp_path: Path) -> None:
    with np.load(DIGITS / "digits_test.npz") as data:
        np.savez(tmp_path / "some.npz", input_0=data["images"][:20, :, :, None])
    options = ("--quantize", "int8", "--calibration", "some.npz", "--recipe", "fast")
    model = DIGITS / "digits_float32.tflite"
    done = smelt("export", model, "--format", "single-file", "-o", "lib", *options)
    assert done.code == 0, done.err
    header = (tmp_path / "lib/digits_float32_net.h").read_text()
    assert "#define DIGITS_FLOAT32_NET_INPUT_0_TYPE int8_t" in header


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "cmke"], "unknown format 'cmke'; did you mean 'cmake'? Known formats: ardu"),
        (["--format", "conan"], "unknown format 'conan'. Known formats: arduino, cmake"),
        (["--format", "make", "--name", "a-b"], "'a-b' is not a C identifier"),
        (["--format", "cmsis-pack", "--name", "n" * 33], "more than 32 characters"),
        (["--format", "cmsis-pack", "--target", "rv32imac"], "packs support only Arm's processors"),
        (["--format", "make", "--version", "1.2"], "give three numbers"),
        (["--format", "make", "--vendor", "a b"], "give one word"),
        (["--format", "make", "--dump-after", "dce"], "--dump-after works with `smelt build` only"),
        (["--format", "make", "--target", "avr"], "unknown target 'avr'"),
    ],
)
def test_wrong_options_are_refused(
    arguments: list[str], message: str, smelt: Smelt, tmp_path: Path
) -> None:
    done = smelt("export", MODEL, "-o", "lib", *arguments)
    assert done.code == 1
    assert message in done.err
    assert not (tmp_path / "lib").exists()


def test_a_folder_of_the_user_is_not_changed(smelt: Smelt, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/main.c").write_text("int main(void) { return 0; }\n")
    done = smelt("export", MODEL, "--format", "make", "-o", "lib", "--force")
    assert done.code == 1
    assert "was not written by Smelt" in done.err
    assert [path.name for path in (tmp_path / "lib").iterdir()] == ["main.c"]


@pytest.mark.parametrize("format_", ["single-file", "cmsis-pack"])
def test_formats_without_binary_files_refuse_large_weights(
    format_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "BINARY_FROM", 0)
    message = "so large that they are in a binary file.*--format arduino, cmake, make, plat"
    with pytest.raises(ConfigError, match=message):
        project(digits(), format_)


@pytest.mark.parametrize("format_", ["arduino", "platformio", "zephyr"])
def test_formats_without_libraries_refuse_calls_of_cmsis_nn(format_: str) -> None:
    artifact = digits(Options(target="cortex-m4", backends=("cmsis_nn",)))
    message = "calls CMSIS-NN.*--format cmake, cmsis-pack, make, single-file supports it"
    with pytest.raises(ConfigError, match=message):
        project(artifact, format_)


def test_a_vendor_may_be_called_name() -> None:
    """Placeholders in paths are replaced at once, so that NAME in a value is not replaced again."""
    files = project(digits(), "cmsis-pack", replace(Package(), vendor="NAME")).files
    assert "NAME.digits_int8.pdsc" in files
