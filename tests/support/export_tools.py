"""Networks with known outputs for tests of exports, and programs around them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from smelt.api.artifact import Artifact
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.codegen.emit.export import Package, export_project, find_format
from smelt.codegen.emit.project import Project
from smelt.ir import Array, evaluate
from tests.support.graphs import compile_graph
from tests.support.projects import counter, digits, must
from tests.support.shared import Network
from tests.support.tflite_networks import DIGITS

HERE = Path(__file__).parent
M4 = ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")
CROSS = "arm-none-eabi-gcc"
COMPILERS = pytest.mark.parametrize("compiler", ["gcc", "clang"])
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion")

PROGRAM = """
#include "{name}.h"
#include <stdio.h>
{memory}

/* Samples from standard input, outputs to standard output. */
int main(void) {{
    {name}_t network;
    {prepare}
    const {name}_memory_t memory = {{{memories}}};
    if ({name}_init(&network, &memory) != {macro}_OK) {{
        return 1;
    }}
    while (fread({name}_input(&network, 0), {macro}_INPUT_0_BYTES, 1, stdin) == 1) {{
        if ({name}_invoke(&network) != {macro}_OK) {{
            return 2;
        }}
        fwrite({name}_output(&network, 0), {macro}_OUTPUT_0_BYTES, 1, stdout);
    }}
    return 0;
}}
"""

# At run time, since not every compiler aligns sections (Tiny C 0.9.27 to 8 bytes at most).
ALIGNED = """static uint8_t *aligned(uint8_t *memory) {{
    return memory + ({align} - (uintptr_t)memory % {align}) % {align};
}}"""


@dataclass(frozen=True)
class Known:
    """A network with one input and one output, and its outputs for consecutive samples.

    `tolerance` is the largest allowed difference of an output; 0 requires equal bits.
    """

    compile: Callable[[Options | None], Artifact]
    inputs: Array
    outputs: Array
    tolerance: float = 0

    def check(self, answer: bytes) -> None:
        """Assert that the concatenated outputs of all samples are right."""
        found = np.frombuffer(answer, self.outputs.dtype).reshape(self.outputs.shape)
        if self.tolerance:
            np.testing.assert_allclose(found, self.outputs, rtol=0, atol=self.tolerance)
        else:
            np.testing.assert_array_equal(found, self.outputs)

    def answers(self, *command: str | Path) -> None:
        """Assert that a program made from `PROGRAM` returns the right outputs."""
        done = subprocess.run(
            command, input=self.inputs.tobytes(), capture_output=True, check=False, timeout=600
        )
        assert done.returncode == 0, done.stderr
        self.check(done.stdout)


def _digits_int8() -> Known:
    with np.load(DIGITS / "digits_test.npz") as data:
        inputs, outputs = data["input_0"][:4], data["tflite_reference_0"][:4]
    return Known(digits, inputs, outputs)


def _digits_float() -> Known:
    with np.load(DIGITS / "digits_test.npz") as data:
        inputs, outputs = data["images"][:4], data["float_0"][:4]
    model = "digits_float32"
    return Known(lambda options: digits(options, model), np.asarray(inputs), outputs, 1e-5)


def _counter() -> Known:
    """Return a network with state: it doubles the running sum, which starts at 1, 2, 3, 4."""
    tens = np.full((3, 4), 10, np.float32)
    outputs = 2 * (np.arange(1, 5, dtype=np.float32) + np.cumsum(tens, axis=0))
    return Known(lambda options: compile_graph(counter(), options), tens, outputs)


def _keywords() -> Known:
    network = Network("mlperf_tiny", "kws_int8")
    golden, model = network.golden, network.model
    return Known(
        lambda options: compile_model(model, options), golden["input_0"][:4], golden["tflm_0"][:4]
    )


KNOWN: dict[str, Callable[[], Known]] = {
    "digits_int8": _digits_int8,
    "digits_float32": _digits_float,
    "counter": _counter,
    "kws_int8": _keywords,
}
EACH = pytest.mark.parametrize("name", list(KNOWN))


@cache
def known(name: str) -> Known:
    """Return a network of `KNOWN`, or skip the running test if its file is absent."""
    return KNOWN[name]()


def project(artifact: Artifact, format_: str, package: Package | None = None) -> Project:
    """Return the network of an artifact in a format."""
    return export_project(
        artifact.project,
        artifact.platform,
        artifact.options.optimize,
        find_format(format_),
        package or Package(),
    )


def export(artifact: Artifact, format_: str, folder: Path, package: Package | None = None) -> None:
    """Write the network of an artifact in a format."""
    project(artifact, format_, package).write(folder)


def program(artifact: Artifact) -> str:
    """Return a C program that computes samples from standard input."""
    net = artifact.network
    if net.device:
        memory, memories = f"static {net.name}_gpu_t gpu;", "&gpu"
    else:
        names = ["arena", "state"] if net.has_state else ["arena"]
        sizes = {name: f"{net.macro}_{name.upper()}_BYTES" for name in names}
        align = f"{net.macro}_ARENA_ALIGN"
        arrays = [f"static uint8_t {n}[{size} + {align}];" for n, size in sizes.items()]
        memory = "\n".join([*arrays, ALIGNED.format(align=align)])
        memories = ", ".join(f"aligned({name})" for name in names)
    opens = f"if ({net.name}_gpu_open(&gpu, 0) != 0) {{ return 3; }}"
    return PROGRAM.format(
        name=net.name,
        macro=net.macro,
        memory=memory,
        prepare=opens if net.device else "",
        memories=memories,
    )


def block(readme: Path, language: str) -> str:
    """Return the first code block of a language in a README."""
    text = readme.read_text(encoding="utf-8")
    return text.split(f"```{language}\n", 1)[1].split("```", 1)[0]


def prints_zeros(artifact: Artifact, text: str, unit: float = 1) -> None:
    """Assert that the first line of a text contains the reference's outputs for all-zero inputs."""
    graph = artifact.imported.graph
    zeros = [np.zeros(v.type.shape, v.type.dtype.numpy) for v in graph.inputs]
    (expected,) = evaluate(graph, zeros).outputs
    found = np.array(text.splitlines()[0].split(), np.float64)
    np.testing.assert_allclose(found, expected.reshape(-1) * unit, rtol=0, atol=2e-6 * unit)


def need(*tools: str) -> None:
    """Skip the test if a program is not installed."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not on PATH: {', '.join(missing)}")


def exported(name: str, format_: str, folder: Path, options: Options | None = None) -> Artifact:
    """Write a known network in a format, and beside it `main.c`, which computes samples."""
    artifact = known(name).compile(options)
    export(artifact, format_, folder)
    (folder.parent / "main.c").write_text(program(artifact))
    return artifact


def cmake(source: Path, build: Path, *options: str) -> None:
    """Configure and build with CMake."""
    must("cmake", "-S", str(source), "-B", str(build), *options)
    must("cmake", "--build", str(build))


def compiles(command: Sequence[str], sources: Sequence[Path], folder: Path) -> list[Path]:
    """Return the object files of some sources."""
    objects = [folder / f"{index}_{path.stem}.o" for index, path in enumerate(sources)]
    for path, out in zip(sources, objects, strict=True):
        must(*command, "-c", str(path), "-o", str(out))
    return objects


def runs(objects: Sequence[Path], expected: Known, folder: Path, linker: str = "gcc") -> None:
    """Link the objects and assert that the program returns the right outputs."""
    elf = folder / "program"
    must(linker, *map(str, objects), "-lm", "-o", str(elf))
    expected.answers(elf)


def compiles_main(folder: Path, include: str) -> Path:
    """Compile `main.c`, which includes the header of a network."""
    (main,) = compiles(["gcc", "-std=c99", f"-I{folder / include}"], [folder / "main.c"], folder)
    return main


def pack_command(folder: Path, compiler: str, *flags: str) -> tuple[list[str], list[Path]]:
    """Return how a pack's component is compiled: include paths and sources from its description."""
    (description,) = folder.glob("*.pdsc")
    listed = ElementTree.parse(description).getroot().iter("file")
    files = [
        (f.get("category", ""), f.get("scope"), f.get("attr"), f.get("name", "")) for f in listed
    ]
    headers = [folder / name for kind, _, _, name in files if kind == "header"]
    sources = [folder / name for kind, _, use, name in files if kind == "source" and use is None]
    include = [f"-I{path.parent}" for path in headers]
    return [compiler, *flags, *include], sources
