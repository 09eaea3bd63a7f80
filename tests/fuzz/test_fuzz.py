"""Tests that damaged files of every format are refused in time and by the right errors.

The fuzzer itself, `tests/fuzz`, is tested on planted faults.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from smelt.api.compile import compile_model
from smelt.cli.show import verify as show_verify
from smelt.errors import DeviceError, ModelError
from tests.fuzz import fake_device, report
from tests.fuzz.campaign import Campaign, run
from tests.fuzz.case import Case, Format, cases
from tests.fuzz.fake_device import FakeDevice
from tests.fuzz.forked import FAILURES, Limits, Result, tried, warm
from tests.fuzz.formats import ALL, BY_NAME
from tests.fuzz.output_format import Unfit, fit_for_browser, fit_for_terminal
from tests.fuzz.shrink import shrunk
from tests.fuzz.wire_format import artifact, converse
from tests.support.shared import ROOT
from tests.support.tflite_networks import DIGITS

FILES = {
    "tflite": 700,
    "onnx": 700,
    "smelt": 130,
    "npz": 100,
    "toml": 80,
    "json": 60,
    "image": 80,
    "wav": 60,
    "wire": 50,
    "terminal": 40,
}
"""Number of files of each format, 2,000 in total."""


def test_every_format_has_a_number_of_files() -> None:
    assert FILES.keys() == BY_NAME.keys()
    assert sum(FILES.values()) == 2000


@pytest.mark.parametrize("format_", ALL, ids=[format_.name for format_ in ALL])
def test_valid_files_are_read(format_: Format) -> None:
    """Try seeds in all variants: none may fail, and some must be read."""
    names = list(format_.seeds())[:: max(1, len(format_.seeds()) // 40)]
    sound = [Case(format_.name, name, (), i % format_.variants) for i, name in enumerate(names)]
    assert run_all(sound).tallies[format_.name].kinds["fine"]


@pytest.mark.quick(every=2)
@pytest.mark.parametrize("name", FILES)
def test_damaged_files_are_refused(name: str) -> None:
    run_all(islice(cases([BY_NAME[name]], 1, wide=False), FILES[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_many_damaged_files_are_refused(name: str) -> None:
    """Damage all valid files, including the ONNX backend suite and shared networks."""
    run_all(islice(cases([BY_NAME[name]], 2, wide=True), 5 * FILES[name]))


def run_all(chosen: Sequence[Case] | Iterator[Case]) -> Campaign:
    """Try files, none of which may fail."""
    found = run(chosen, BY_NAME, Limits())
    lines = [report.line(failure.case, failure.result) for failure in found.failures.values()]
    assert not lines, "\n".join(lines)
    return found


# Missing and changed bytes


def refused(name: str, files: Sequence[bytes]) -> None:
    """Try files, all of which must be refused."""
    found = run_all([Case(name, "made here", (), 0, data) for data in files])
    assert found.tallies[name].kinds == {"refused": len(files)}


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        *(("tflite", f"digits_{kind}.tflite") for kind in ("drq", "f16", "float32", "int8")),
        ("onnx", "digits"),
    ],
)
def test_every_truncation_is_refused(name: str, seed: str) -> None:
    """Cut the file at 200 places. A TFLite file begins with the root table; data is behind it."""
    data = BY_NAME[name].seeds()[seed]
    refused(name, [data[:end] for end in np.linspace(0, len(data) - 1, 200).astype(int)])


@pytest.mark.parametrize("seed", [f"digits_{kind}.tflite" for kind in ("drq", "int8")])
def test_files_with_one_changed_byte_do_not_fail(seed: str) -> None:
    """Change one byte in 509: a prime, so that all parts of fields are hit."""
    data = BY_NAME["tflite"].seeds()[seed]
    damaged = [
        data[:at] + bytes([byte]) + data[at + 1 :]
        for byte in (0x00, 0x7F, 0xFF)
        for at in range(8, len(data), 509)
    ]
    run_all([Case("tflite", seed, (), 0, changed) for changed in damaged])


def test_random_bytes_are_refused() -> None:
    rng = Random(3)
    tails = [rng.randbytes(rng.randrange(400)) for _ in range(100)]
    refused("tflite", [b"\x08\0\0\0TFL3" + tail for tail in tails])
    refused("onnx", tails)


# Planted faults


def _damage(data: bytes, steps: Sequence[int]) -> bytes:
    """Append a letter for each step."""
    return data + bytes(b"abcdefgh"[step % 8] for step in steps)


def _read(path: Path, variant: int) -> None:
    data = path.read_bytes()
    if b"a" in data:
        _first(data)
    if b"b" in data:
        _second(data)
    if b"c" in data:
        while True:
            variant += 1
    if b"d" in data:
        _ = bytearray(1 << 30)
    if b"e" in data:
        time.sleep(1e6)
    if b"f" in data:
        import ctypes

        ctypes.string_at(0)
    raise ModelError("this is what is right")


def _first(data: bytes) -> None:
    raise ValueError(f"{len(data)} bytes")


def _second(data: bytes) -> None:
    raise KeyError(len(data))


PLANTED = Format("planted", ".txt", lambda: {"long": bytes(range(30, 90))}, _damage, _read)
LIMITS = Limits(seconds=0.2, bytes=200 << 20, silence=2.0)


def planted_results(steps: Sequence[str]) -> list[Result]:
    """Return the outcomes of files that consist of these letters."""
    made = [
        Case("planted", "long", tuple(b"abcdefgh".index(c) for c in s.encode()), 0) for s in steps
    ]
    return [result for _, result in tried(made, {"planted": PLANTED}, LIMITS)]


def test_every_kind_of_failure_is_distinguished() -> None:
    """Files after a failure that ends the child are still tried."""
    letters = ("a", "g", "b", "c", "d", "h", "e", "f", "", "ga")
    kinds = ["traceback", "refused", "traceback", "hang", "memory", "refused", "hang", "crash"]
    results = planted_results(letters)
    assert [result.kind for result in results] == [*kinds, "refused", "traceback"]
    assert results[0].place.startswith("ValueError")
    assert results[2].place.startswith("KeyError")
    assert results[0].key == results[9].key != results[2].key
    assert "SIGSEGV" in results[7].place


def test_failures_are_grouped_by_place() -> None:
    files = [Case("planted", "long", (step,) * count, 0) for step in (0, 1) for count in (1, 2, 3)]
    found = run(files, {"planted": PLANTED}, LIMITS, jobs=2)
    assert sorted(failure.count for failure in found.failures.values()) == [3, 3]
    assert found.files == found.tallies["planted"].kinds["traceback"] == 6


@pytest.mark.parametrize("letter", "abcd")
def test_failing_files_are_shrunk(letter: str) -> None:
    number = b"abcdefgh".index(letter.encode())
    case = Case("planted", "long", (6, 7, number, 6, 7, 6), 0)
    ((_, wanted),) = tried([case], {"planted": PLANTED}, LIMITS)
    assert wanted.kind in FAILURES
    least = shrunk(case, PLANTED, wanted, LIMITS)
    assert least.steps == (number,)
    assert least.data is not None
    assert len(least.data) <= (1 if letter in "abd" else 30)
    assert letter.encode() in least.data


def test_a_failure_is_written_and_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BY_NAME, "planted", PLANTED)
    case = Case("planted", "long", (0,), 0)
    found = run([case], BY_NAME, LIMITS)
    (failure,) = found.failures.values()
    path = report.write(tmp_path / "new", 0, failure, case)
    ((again, result),) = tried(report.read(path), BY_NAME, LIMITS)
    assert (again.format, result.key) == ("planted", failure.result.key)
    assert f"--replay {path}" in path.with_name(f"{path.name}.json").read_text()
    assert "| planted | 1 | 0 | 0 | 1 | 0 | 0 | 0 |" in "\n".join(report.table(found))


@pytest.mark.parametrize("text", ["\x1b[31m", "a\x07", "\x9b2J", "\r", "\u202ex"])
def test_terminal_controls_are_found(text: str) -> None:
    with pytest.raises(Unfit):
        fit_for_terminal(f"layer {text}")
    fit_for_terminal("✓ a layer\n")


@pytest.mark.parametrize("text", ["<script>x</script>", '<p onload="x">', "\x1b[31m"])
def test_tags_in_pages_are_found(text: str) -> None:
    with pytest.raises(Unfit):
        fit_for_browser(f"<html><p>{text}</p></html>")
    fit_for_browser("<html><p>&lt;script&gt;</p></html>")


def test_the_same_seed_gives_the_same_files() -> None:
    for format_ in ALL:
        first, second = (list(islice(cases([format_], 5, wide=False), 3)) for _ in range(2))
        assert first == second
        files = [
            [format_.damage(format_.sound(c.seed), c.steps) for c in made]
            for made in (first, second)
        ]
        assert files[0] == files[1]


# Faults that the fuzzer found in devices' answers and on pages


@pytest.mark.parametrize(
    ("field", "lie", "message"),
    [
        ("outputs", [("float32", 7)], r"reports outputs of \[7\] bytes"),
        ("outputs", [("float32", 2**32)], r"of \[4294967296\] bytes, but the network has \[800\]"),
        ("inputs", [("float32", 4)], r"reports inputs of \[4\] bytes"),
        ("steps", [2**31, 4], "a step 0 with an output of 2147483648 bytes, which the network"),
        ("steps", [4, 4], r"reports 4 bytes for step 0, not 800"),
    ],
)
def test_a_device_with_false_sizes_is_refused(field: str, lie: Any, message: str) -> None:
    network = artifact(lengths=False)
    device = FakeDevice.of(network, trace=field == "steps")
    setattr(device, field, lie)
    with pytest.raises(DeviceError, match=message):
        converse(network, device)


def test_a_version_with_too_many_digits_is_a_damaged_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python does not convert numbers of more than 4,300 digits: the line counts as damaged."""
    monkeypatch.setattr(fake_device, "VERSION", "9" * 5000)
    network = artifact(lengths=False)
    converse(network, FakeDevice.of(network, trace=False))
    monkeypatch.setattr(fake_device, "VERSION", "99")
    with pytest.raises(DeviceError, match="version 99 of the wire protocol"):
        converse(network, FakeDevice.of(network, trace=False))


def test_pages_escape_messages() -> None:
    report = {**compile_model(DIGITS / "digits_int8.tflite").report, "measured_on": "\x1b[2J<b>\r"}
    said = {"passed": False, "message": "<script>", "samples": 1, "seconds": 1.0}
    report["verification"] = {**said, "tolerance": None, "memory": None}
    fit_for_browser(show_verify.html(report))


@pytest.fixture(scope="module", autouse=True)
def _all_imported() -> None:
    """Import everything before children are forked."""
    warm(ALL)


def test_the_guided_fuzzer_runs(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="Atheris is not installed: it is the extra `fuzz`")
    command = (sys.executable, "-m", "tests.fuzz.guided", "toml", str(tmp_path), "-runs=20")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert any(tmp_path.iterdir())
