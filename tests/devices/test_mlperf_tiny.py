"""`smelt mlperf-tiny`: firmware for the benchmark's runner, over a pseudo-terminal."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import serial

from smelt import boards
from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.boards import Board
from smelt.boards.simulate import Simulator
from smelt.boards.simulation_timeout import pace_of
from smelt.errors import ConfigError
from smelt.ir import Array, Graph, Quant, TensorType, Value
from smelt.proof.mlperf_tiny import (
    BENCHMARKS,
    benchmark_of,
    describe_input,
    with_benchmark_firmware,
)
from smelt.proof.run import write_project
from tests.support.board_tools import compilable, simulable
from tests.support.cli_runner import Smelt, runner
from tests.support.projects import must
from tests.support.shared import ROOT, Network
from tests.support.tflite_networks import DIGITS

BOARD = "mps2-an386"
IDS = {
    "kws_int8": "kws01",
    "vww_int8": "vww01",
    "ic_int8": "ic01",
    "ad_int8": "ad01",
    "ad_float32": "ad01",
    "sww_int8": "strww01",
}
READY_S = 900


@dataclass(frozen=True)
class Firmware:
    """A compiled network of the benchmark, and the folder of its project."""

    network: Network
    artifact: Artifact
    board: Board
    folder: Path

    @property
    def elf(self) -> Path:
        return self.folder / "build" / f"{self.artifact.network.title}.elf"

    @property
    def id(self) -> str:
        return IDS[self.network.name]

    @property
    def input(self) -> Value:
        return self.artifact.graph.inputs[0]

    def sent(self, index: int) -> bytes:
        """Return the bytes of a golden sample in the format of the benchmark's data set."""
        sample = self.network.golden["input_0"][index]
        if self.id == "ad01":
            return real(self.input.type, sample).astype("<f4").tobytes()
        data = sample.astype(np.int8).tobytes()
        return bytes(b ^ 0x80 for b in data) if self.id in ("vww01", "ic01") else data

    def results(self, index: int) -> list[float]:
        """Return TFLite Micro's results for a sample, as the device reports them to the runner.

        For ad01, that is the mean squared difference between output and input.
        """
        golden = self.network.golden
        output = real(self.artifact.graph.outputs[0].type, golden["tflm_0"][index])
        if self.id != "ad01":
            return [round(float(value), 3) for value in output.ravel()]
        difference = output - real(self.input.type, golden["input_0"][index])
        return [float(np.mean(np.square(difference, dtype=np.float64)))]


Build = Callable[[str], Firmware]


def real(type_: TensorType, array: Array) -> Array:
    """Return a tensor's real numbers."""
    if type_.quant is None:
        return array
    return (array.astype(np.int32) - type_.zero_point) * np.float32(type_.scale)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return a function that builds the firmware of a network, once per module."""
    made: dict[str, Firmware] = {}

    def make(name: str) -> Firmware:
        if name not in made:
            network, board = Network("mlperf_tiny", name), boards.load(BOARD)
            simulable(board)
            artifact = compile_model(network.model, Options(board=BOARD))
            artifact = with_benchmark_firmware(artifact, benchmark_of(artifact.graph, name))
            folder = tmp_path_factory.mktemp("mlperf") / name
            write_project(artifact, folder, compile_=True)
            made[name] = Firmware(network, artifact, board, folder)
        return made[name]

    return make


@pytest.fixture
def smelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Smelt:
    return runner(tmp_path, monkeypatch, capfd)


class Host:
    """The host's side of the runner's protocol."""

    def __init__(self, port: str) -> None:
        self._port = serial.Serial(port, 115_200, timeout=0.1)
        while self._port.read(64):  # discard replies to an earlier client
            pass

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        self._port.close()

    def command(self, text: str) -> list[str]:
        """Send a command and return the lines of the reply before `m-ready`."""
        self._port.write(f"{text}%".encode())
        received, deadline = b"", time.monotonic() + READY_S
        while not received.endswith(b"m-ready\r\n"):
            assert time.monotonic() < deadline, f"no answer to {text}: {received!r}"
            received += self._port.read(max(1, self._port.in_waiting))
        *lines, ready = received.decode().split("\r\n")[:-1]
        assert ready == "m-ready"
        return lines

    def load(self, data: bytes) -> None:
        """Send an input in commands of 31 bytes."""
        assert self.command(f"db load {len(data)}") == [f"m-[Expecting {len(data)} bytes]"]
        chunks = [data[i : i + 31].hex() for i in range(0, len(data), 31)]
        answers = [self.command(f"db {chunk}") for chunk in chunks]
        assert answers == [[]] * (len(chunks) - 1) + [["m-load-done"]]

    def infer(self, count: int, warm_ups: int) -> tuple[int, list[float]]:
        """Run inferences; return their duration in microseconds, and the last results."""
        *head, start, stop, done, results = self.command(f"infer {count} {warm_ups}")
        assert head == [f"m-warmup-start-{warm_ups}", "m-warmup-done", f"m-infer-start-{count}"]
        assert done == "m-infer-done"
        first, last = (int(line.removeprefix("m-lap-us-")) for line in (start, stop))
        found = re.fullmatch(r"m-results-\[(-?\d+\.\d{3}(?:,-?\d+\.\d{3})*)\]", results)
        assert found is not None, results
        return last - first, [float(number) for number in found[1].split(",")]


@contextmanager
def simulated(firmware: Firmware) -> Generator[str]:
    """Simulate a board, and yield its pseudo-terminal when the firmware has started."""
    with Simulator(firmware.board, firmware.elf, pty=True, clocked=True) as simulator:
        with boards.open_device(None, simulator.port, firmware.board) as device:
            assert device.info.hash == firmware.artifact.network.hash
        yield simulator.port


def assert_equal(firmware: Firmware, results: list[float], expected: list[float]) -> None:
    """Assert that results equal to three decimals; sums of 640 float32 (ad01) also up to 1e-5."""
    relative = 1e-5 if firmware.id == "ad01" else 0
    assert results == pytest.approx(expected, rel=relative, abs=0.00051)


@pytest.mark.quick(name=("ad_int8", "sww_int8"))
@pytest.mark.qemu
@pytest.mark.parametrize("name", IDS)
def test_the_protocol_gives_the_results_of_tflite_micro(build: Build, name: str) -> None:
    firmware = build(name)
    with simulated(firmware) as port, Host(port) as host:
        assert host.command("name") == ["m-name-dut-[smelt]"]
        assert host.command("profile") == [
            "m-profile-[ULPMark for tinyML Firmware V0.0.1]",
            f"m-model-[{firmware.id}]",
        ]
        (before,) = host.command("timestamp")
        assert re.fullmatch(r"m-lap-us-\d+", before)
        for index in (0, 9) if firmware.id != "vww01" else (9,):
            host.load(firmware.sent(index))
            once, results = host.infer(1, 0)
            assert_equal(firmware, results, firmware.results(index))
            thrice, again = host.infer(3, 2)
            assert again == results
            assert thrice == pytest.approx(3 * once, rel=0.05, abs=5)


@pytest.mark.qemu
def test_simulation_is_faster_than_the_board(build: Build) -> None:
    """The runner measures for 10 s of the board's time, and waits at most 30 s of real time.

    The test measures QEMU's processor time, so QEMU must not sleep to match the board's speed.
    """
    firmware = build("ad_int8")
    with simulated(firmware) as port, Host(port) as host:
        host.load(firmware.sent(0))
        pace = pace_of(port)
        assert pace is not None
        pace.counted_seconds(0)
        assert pace._process is not None
        command = (pace._process / "cmdline").read_bytes().split(b"\0")
        assert b"align" not in command[command.index(b"-icount") + 1]
        before = pace.computed_s
        window_us, _ = host.infer(1000, 0)
        pace.counted_seconds(0)
        computed_s = pace.computed_s - before
    assert window_us > 5e6
    assert computed_s < window_us / 2e6


@pytest.mark.quick(every=6)
@pytest.mark.parametrize("name", IDS)
def test_the_benchmark_is_found_from_the_network(name: str) -> None:
    graph = compile_model(Network("mlperf_tiny", name).model, Options(board=BOARD)).graph
    assert benchmark_of(graph, name).id == IDS[name]
    assert benchmark_of(graph, "network").id == IDS[name]
    other = next(id_ for id_ in BENCHMARKS if id_ != IDS[name])
    with pytest.raises(ConfigError, match=f"suggests {IDS[name]}: choose with --id"):
        benchmark_of(graph, f"my-{other}")
    assert benchmark_of(graph, f"my-{other}", IDS[name]).id == IDS[name]
    with pytest.raises(ConfigError, match=f"^{other} sends .*, but the network's input is"):
        benchmark_of(graph, name, other)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kws_float32", "kws01 sends 490 int8 features, .* float32; quantize it: --quantize"),
        ("vww_float32", "vww01 sends 27,648 bytes of an image, .* --quantize int8"),
        ("ic_float32", "ic01 sends 3,072 bytes of an image, .* --quantize int8"),
    ],
)
def test_float_networks_are_refused_for_quantized_data_sets(
    smelt: Smelt, name: str, message: str
) -> None:
    model = Network("mlperf_tiny", name).model
    done = smelt("mlperf-tiny", model, "--board", BOARD, "-o", "out")
    assert done.code == 1
    assert re.search(message, done.err)
    assert not Path("out").exists()


def test_other_networks_and_wrong_options_are_refused(smelt: Smelt) -> None:
    model = DIGITS / "digits_int8.tflite"
    for arguments, message in (
        ((), "give -o DIR, --flash or --simulate"),
        (("-o", "out"), "no MLPerf Tiny benchmark has an input of 8x8 (kws01 49x10; "),
        (("-o", "out", "--id", "ic01"), "ic01 sends 3,072 bytes of an image (32x32x3), but"),
        (("-o", "out", "--id", "sww01"), "--id 'sww01': MLPerf Tiny has kws01, vww01, ic01"),
        (("-o", "out", "--pty"), "--pty and --seconds need --simulate"),
        (("-o", "out", "--port", "COM5"), "and --timeout need --flash"),
        (("--flash", "--simulate"), "exclude each other"),
    ):
        done = smelt("mlperf-tiny", model, "--board", BOARD, *arguments)
        assert done.code == 1
        assert message in done.err
    assert "choose a device with --board" in smelt("mlperf-tiny", model, "-o", "out").err
    assert not Path("out").exists()


def test_channels_first_images_and_other_outputs_are_refused() -> None:
    model = Network("mlperf_tiny", "ic_int8").model
    graph = compile_model(model, Options(board=BOARD)).graph
    with pytest.raises(ConfigError, match="channels come first: use --input-layout nhwc"):
        benchmark_of(_with(graph, inputs=(1, 3, 32, 32)), "ic")
    with pytest.raises(ConfigError, match="ic01 needs 10 outputs, but the network has 100"):
        benchmark_of(_with(graph, outputs=(1, 100)), "ic")


def test_a_quantization_that_differs_from_the_data_set_is_printed() -> None:
    model = Network("mlperf_tiny", "kws_int8").model
    graph = compile_model(model, Options(board=BOARD)).graph
    own = "490 int8 features: x means 0.584703 * (x - 83)"
    assert describe_input(BENCHMARKS["kws01"], graph) == own
    changed = _with(graph, quant=Quant.per_tensor(0.5, 83))
    assert describe_input(BENCHMARKS["kws01"], changed).endswith(
        "x means 0.5 * (x - 83), but the benchmark's data set was quantized as 0.584703 * (x - 83)"
    )


def _with(
    graph: Graph,
    *,
    inputs: tuple[int, ...] | None = None,
    outputs: tuple[int, ...] | None = None,
    quant: Quant | None = None,
) -> Graph:
    """Return a graph without nodes that has the inputs and outputs of `graph` with other types."""
    x, y = graph.inputs[0].type, graph.outputs[0].type
    first = TensorType(inputs or x.shape, x.dtype, quant or x.quant)
    last = TensorType(outputs or y.shape, y.dtype, y.quant)
    return Graph(graph.name, (Value("x", first),), (Value("y", last),), ())


@pytest.mark.qemu
def test_the_project_rebuilds_the_same_firmware(build: Build) -> None:
    firmware = build("kws_int8")
    linked = firmware.elf.read_bytes()
    must("make", "clean", cwd=firmware.folder)
    must("make", cwd=firmware.folder)
    assert firmware.elf.read_bytes() == linked
    assert b"kws01" in linked
    assert (firmware.folder / "devices.yaml").read_text() == (
        "# kws_int8 on mps2-an386, for the runner of MLPerf Tiny: main.py -d devices.yaml\n"
        "- name: mps2-an386\n"
        "  type: dut\n"
        "  baud: 115200\n"
        "  usb: # vendor: product, or a list of products\n"
        "    0x1209: [0x0001] # an identity for tests, which no product has\n"
    )


def test_build_with_protocol_mlperf_writes_the_same_project(smelt: Smelt) -> None:
    model = Network("mlperf_tiny", "kws_int8").model
    options = ("--board", BOARD, "--protocol", "mlperf")
    assert smelt("build", model, "-o", "out", *options).code == 0
    board = compile_model(model, Options(board=BOARD))
    files = with_benchmark_firmware(board, benchmark_of(board.graph, "kws_int8")).project.files
    assert {name: Path("out", name).read_text() for name in files} == files


def test_devices_yaml_contains_the_usb_identities_of_the_board(smelt: Smelt) -> None:
    compilable(boards.load("pico"))
    model = Network("mlperf_tiny", "kws_int8").model
    done = smelt("mlperf-tiny", model, "--board", "pico", "-o", "out")
    assert (done.code, done.out) == (0, "out/build/kws_int8.elf: kws01 for pico\n")
    devices = Path("out/devices.yaml").read_text()
    assert "\n    0x2e8a: [0x000c, 0x0004]\n    0x1209: [0x0001]" in devices


@pytest.mark.thorough
@pytest.mark.qemu
def test_a_simulated_board_waits_for_the_runner(tmp_path: Path) -> None:
    simulable(boards.load(BOARD))
    model = Network("mlperf_tiny", "kws_int8").model
    command = [sys.executable, "-m", "smelt", "mlperf-tiny", str(model), "--board", BOARD]
    simulation = [*command, "--simulate", "--pty", "--seconds", "60"]
    with subprocess.Popen(simulation, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        try:
            assert process.stdout is not None
            word, port = process.stdout.readline().split()
            assert word == "port"
            with Host(port) as host:
                assert host.command("profile")[1] == "m-model-[kws01]"
        finally:
            process.terminate()


# The benchmark's own runner

NEEDS = ("yaml", "sklearn", "matplotlib", "serial", "usb")


@pytest.fixture(scope="module")
def official() -> Path:
    """Return the folder of the benchmark's runner."""
    checkout = os.environ.get("SMELT_MLPERF_TINY")
    if not checkout:
        pytest.skip("SMELT_MLPERF_TINY names no checkout of github.com/mlcommons/tiny")
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"MLPerf Tiny's runner needs, and this Python lacks, {', '.join(missing)}")
    return Path(checkout).resolve() / "benchmark" / "runner"


def write_data(firmware: Firmware, folder: Path, samples: Sequence[int]) -> list[int]:
    """Write golden samples as a data set in the benchmark's format; return their labels."""
    folder.mkdir(parents=True)
    sliding = firmware.id == "ad01"
    classes = 2 if sliding else BENCHMARKS[firmware.id].outputs
    labels = [index % classes for index in range(len(samples))]
    rows: list[str] = []
    for sample, label in zip(samples, labels, strict=True):
        data = firmware.sent(sample)
        # ad01 has two windows per file; the second starts 512 bytes after the first.
        (folder / f"{sample}.bin").write_bytes(data + data[:512] if sliding else data)
        rows.append(f"{sample}.bin,{classes},{label}" + (",2560,512" if sliding else ""))
    (folder / "y_labels.csv").write_text("\n".join(rows) + "\n")
    return labels


def run_official(official: Path, firmware: Firmware, mode: str, script: Path, work: Path) -> str:
    """Run the runner as docs/mlperf-tiny.md describes, and return its output."""
    page = (ROOT / "docs" / "mlperf-tiny.md").read_text()
    launcher = work / "on_port.py"
    launcher.write_text(page.split("```python\n")[1].split("```")[0])
    with simulated(firmware) as port:
        command = [sys.executable, str(launcher), port, str(official / "main.py")]
        command += ["-d", str(firmware.folder / "devices.yaml"), "-t", str(script)]
        done = subprocess.run(
            [*command, "-s", str(work / "datasets"), "-m", mode],
            cwd=work,
            env=os.environ | {"MPLBACKEND": "agg"},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.parametrize("name", [name for name in IDS if name != "sww_int8"])
def test_the_official_runner_measures_accuracy(
    official: Path, build: Build, tmp_path: Path, name: str
) -> None:
    firmware = build(name)
    samples = range(2 if name == "vww_int8" else 12)
    labels = write_data(firmware, tmp_path / "datasets" / firmware.id, samples)
    script = official / "tests_accuracy.yaml"
    said = run_official(official, firmware, "a", script, tmp_path)
    (results,) = (tmp_path / "sessions").glob("*/results.json")
    rows = json.loads(results.read_text())
    windows = 2 if firmware.id == "ad01" else 1
    assert [int(row["class"]) for row in rows] == [
        label for label in labels for _ in range(windows)
    ]
    for sample, row in zip(samples, rows[::windows], strict=True):
        assert_equal(firmware, row["infer"]["results"], firmware.results(sample))
    accuracy = re.search(r"Top 1% = (\d+\.\d)", said)
    assert accuracy is not None
    assert re.search(r"AUC = \d\.\d{3}", said)
    if firmware.id != "ad01":
        right = [np.argmax(firmware.results(s)) == c for s, c in zip(samples, labels, strict=True)]
        assert float(accuracy[1]) == pytest.approx(100 * np.mean(right), abs=0.06)


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.parametrize("name", ["kws_int8", "ad_int8", "ic_int8", "vww_int8"])
def test_the_official_runner_measures_performance(
    official: Path, build: Build, tmp_path: Path, name: str
) -> None:
    firmware = build(name)
    write_data(firmware, tmp_path / "datasets" / firmware.id, range(5))
    script = official / "tests_performance.yaml"
    said = run_official(official, firmware, "p", script, tmp_path)
    assert re.search(r"Median throughput is +\d+\.\d+ inf\./sec", said), said
    assert "ERROR" not in said
    (results,) = (tmp_path / "sessions").glob("*/results.json")
    windows = [row["infer"] for row in json.loads(results.read_text()) if "infer" in row]
    assert len(windows) == 5
    rates = [window["throughput"] for window in windows]
    assert max(rates) == pytest.approx(min(rates), rel=0.01)
    for sample, window in enumerate(windows):
        assert_equal(firmware, window["results"], firmware.results(sample))
